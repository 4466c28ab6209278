"""One fetch session: its partitions, and the state of each that its client was told."""

from collections.abc import Iterator
from typing import Any

from tidegate.quota.measure.throttle import MAX_INT32
from tidegate.server.requests.handler import Message
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.wire import UNKNOWN, Encoded

__all__ = [
    "NEW_EPOCH",
    "NO_EPOCH",
    "NO_SESSION",
    "FetchSession",
    "FetchedPartition",
    "PartitionKey",
    "Partitions",
    "Rank",
    "next_epoch",
]

NO_SESSION = 0
NEW_EPOCH, NO_EPOCH = 0, -1
"""Epochs of a fetch that begins a session, and of one outside of any. Source: Kafka `FetchMetadata`."""
PartitionKey = tuple[str, int]
"""A partition by the name or the id of its topic."""


class FetchedPartition:
    """One partition of a fetch or a session: the requested offset, the log, and the state that the client was told.

    topic: the name or id of the topic in the request; name: the name of the topic, once it is known.
    log: None if `error_code` is the answer; current_leader: set if another node leads the partition.
    high_watermark, start_offset: the last values that were sent to the client; -1 before that, and after an error.
    answered_*: the values in the last answer, also if that was not delivered; answered_bytes: bytes of its records.
    """

    __slots__ = (
        "answered_bytes",
        "answered_high_watermark",
        "answered_start_offset",
        "current_leader",
        "error_code",
        "high_watermark",
        "index",
        "last_epoch",
        "leader_epoch",
        "log",
        "max_bytes",
        "name",
        "offset",
        "start_offset",
        "topic",
    )

    def __init__(
        self, topic: str, index: int, offset: int, max_bytes: int, leader_epoch: int, last_epoch: int
    ) -> None:
        self.topic = topic
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch
        self.name: str | None = None
        self.log: PartitionLog | None = None
        self.error_code = 0
        self.current_leader: Message | None = None
        self.high_watermark = self.start_offset = UNKNOWN
        self.answered_high_watermark = self.answered_start_offset = UNKNOWN
        self.answered_bytes = 0

    def ask(self, offset: int, max_bytes: int, leader_epoch: int, last_epoch: int) -> None:
        """Store the offset, the limit and the epochs of a later request."""
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch

    def is_news(self) -> bool:
        """Return whether the last answer has news for the client. The caller always reports errors."""
        return (
            self.answered_bytes > 0
            or self.answered_high_watermark != self.high_watermark
            or self.answered_start_offset != self.start_offset
        )

    def record_sent_values(self) -> None:
        """Record the values of the last answer as known to the client."""
        self.high_watermark = self.answered_high_watermark
        self.start_offset = self.answered_start_offset


Partitions = dict[PartitionKey, FetchedPartition]
Rank = tuple[bool, int, int]
"""Rank of a session: privileged, partitions, id. The lowest is evicted first."""


class FetchSession:
    """A fetch session: the partitions that a client fetches, in reading order, by topic and index.

    epoch: the epoch of the next request. known: data that the handler keeps for requests like an earlier one.
    is_old: any new session of its owner may replace it. moves: partitions with records in an answer are read last
    afterwards; False for the answer that begins the session, as in Kafka.
    """

    __slots__ = (
        "by_ids",
        "created_ms",
        "delivered",
        "epoch",
        "id",
        "is_old",
        "known",
        "moves",
        "owner",
        "partitions",
        "privileged",
        "rank",
        "used_ms",
    )

    def __init__(
        self,
        session_id: int,
        partitions: Partitions,
        *,
        by_ids: bool,
        privileged: bool,
        now_ms: int,
        owner: str,
    ) -> None:
        self.id = session_id
        self.owner = owner
        self.partitions = partitions
        self.by_ids = by_ids
        self.privileged = privileged
        self.created_ms = self.used_ms = now_ms
        self.epoch = next_epoch(NEW_EPOCH)
        # A session is made in `Answer.settle`, when its first answer is certain to be delivered (decision 0089).
        self.delivered = True
        self.moves = False
        self.known: Any = None
        self.is_old = False
        self.rank: Rank | None = None

    def deliver(self, _: Encoded) -> None:
        """Record that the last answer is delivered to the client."""
        self.delivered = True

    def confirm_answer(self) -> Iterator[None]:
        """Record a delivered last answer as known to the client, and move partitions with records in it to the end.

        Yields after each partition. The move gives every partition its turn, however small an answer is.
        Follows: Kafka `FetchSession.IncrementalFetchContext.PartitionIterator`.
        """
        if not self.delivered:
            return
        self.delivered = False
        moves, self.moves = self.moves, True
        for key, partition in list(self.partitions.items()):
            partition.record_sent_values()
            # While this yields, a later request may have removed the partition, or put another in its place.
            if moves and partition.answered_bytes and self.partitions.get(key) is partition:
                del self.partitions[key]
                self.partitions[key] = partition
            yield


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after one with `epoch`.

    >>> next_epoch(0), next_epoch(2**31 - 1)
    (1, 1)

    Follows: Kafka `FetchMetadata.nextEpoch`.
    """
    return 1 if epoch == MAX_INT32 else epoch + 1
