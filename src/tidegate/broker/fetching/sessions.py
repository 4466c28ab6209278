"""Fetch sessions (KIP-227): what a client fetches is remembered, so that it names, and is told, only what has changed.

A full fetch with epoch 0 makes a session when its answer leaves, if there is room; from then on each request has the
session's next epoch. A throttled answer changes nothing that the client knows: `FetchSession.delivered` says whether
the last answer was given, and only then is what it said of each partition (`FetchedPartition.answered_*`) taken for
known (B§6.3).

What makes room follows Kafka: a session that nobody has used for two minutes goes; else one that is as old and smaller
than the new one, those of consumers before those of brokers. There is one cache; Kafka's is cut into eight shards by
chance. Beyond Kafka, a session has at most `MAX_PARTITIONS` partitions, and all together take at most
`MAX_SESSION_BYTES`.
Follows: Kafka `FetchSessionCacheShard`, `FetchSession`, `FetchManager`.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from random import randrange
from typing import Any

from tidegate import error_codes
from tidegate.server.handler import Message
from tidegate.storage.config import MAX_PARTITIONS
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.wire import Encoded

__all__ = [
    "EVICTED_AFTER_MS",
    "MAX_SESSION_BYTES",
    "NEW_EPOCH",
    "NO_EPOCH",
    "NO_SESSION",
    "PARTITION_BYTES",
    "SESSION_BYTES",
    "FetchSession",
    "FetchSessions",
    "FetchedPartition",
    "PartitionKey",
    "Partitions",
    "next_epoch",
    "session_bytes",
]

NO_SESSION = 0
NEW_EPOCH, NO_EPOCH = 0, -1
"""Epochs of a fetch that begins a session, and of one outside of any. Source: Kafka `FetchMetadata`."""
EVICTED_AFTER_MS = 120_000
"""Kafka's `MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS`."""
MAX_SESSION_BYTES = 64 * 1024 * 1024
"""What all sessions of a node take at most: 100,000 partitions with short names."""
PARTITION_BYTES = 600
"""What a partition of a session takes, but for its topic's name (measured by a test)."""
SESSION_BYTES = 2500
"""What a session takes besides, with what is kept to answer it (measured by a test)."""
_LETTER_BYTES = 4
_EVICTED_AT_ONCE = 16_000  # partitions: letting go of so many takes 2 ms
_LARGEST = 2**31 - 1
_UNKNOWN = -1

PartitionKey = tuple[str, int]
"""A partition by the name or the id of its topic."""


class FetchedPartition:
    """One partition of a fetch, or of a session: what is asked of it, its log, and what its client knows.

    topic: the name or id that it is asked for by; name: of the topic, once that is known.
    log: None where `error_code` stands for it; current_leader: where that is another node.
    high_watermark, start_offset: as the client was told last; -1 before that, and after an error.
    answered_*: as the last answer has them, whether or not it was given; answered_bytes: of records.
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
        self.high_watermark = self.start_offset = _UNKNOWN
        self.answered_high_watermark = self.answered_start_offset = _UNKNOWN
        self.answered_bytes = 0

    def ask(self, offset: int, max_bytes: int, leader_epoch: int, last_epoch: int) -> None:
        """Take over what a later request asks for."""
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch

    def is_news(self) -> bool:
        """Return whether the last answer says what the client does not know; errors are always said, by the caller."""
        return (
            self.answered_bytes > 0
            or self.answered_high_watermark != self.high_watermark
            or self.answered_start_offset != self.start_offset
        )

    def note_told(self) -> None:
        """Note that the client was given the last answer."""
        self.high_watermark = self.answered_high_watermark
        self.start_offset = self.answered_start_offset


Partitions = dict[PartitionKey, FetchedPartition]


class FetchSession:
    """What a client fetches: its partitions in the order in which they are read, by topic and index.

    epoch: that of the request that comes next. known: what its handler keeps for requests that are like an earlier one.
    is_old: anybody's session may take its place. moves: what an answer has records of is read last afterwards; not so
    with the answer that begins the session, as in Kafka.
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
        "partitions",
        "privileged",
        "rank",
        "used_bytes",
        "used_ms",
    )

    def __init__(
        self, session_id: int, partitions: Partitions, *, by_ids: bool, privileged: bool, now_ms: int
    ) -> None:
        self.id = session_id
        self.partitions = partitions
        self.by_ids = by_ids
        self.privileged = privileged
        self.created_ms = self.used_ms = now_ms
        self.epoch = next_epoch(NEW_EPOCH)
        self.delivered = True
        self.moves = False
        self.known: Any = None
        self.is_old = False
        self.rank: tuple[bool, int, int] | None = None
        self.used_bytes = 0

    def deliver(self, _: Encoded) -> None:
        """Note that the last answer is given to the client."""
        self.delivered = True

    def begin(self) -> Iterator[None]:
        """Take over what the last answer said, if it was given; what it had records of is read last from now on.

        Yields after each partition. Then every partition has its turn, however small an answer is.
        Follows: Kafka `FetchSession.IncrementalFetchContext.PartitionIterator`.
        """
        if not self.delivered:
            return
        self.delivered = False
        moves, self.moves = self.moves, True
        for key, partition in list(self.partitions.items()):
            partition.note_told()
            if moves and partition.answered_bytes and self.partitions.get(key) is partition:
                del self.partitions[key]
                self.partitions[key] = partition
            yield


class FetchSessions:
    """The sessions of a node, in the order of their last use."""

    __slots__ = ("_by_all", "_by_brokers", "_by_id", "_max_bytes", "_max_sessions", "used_bytes")

    def __init__(self, max_sessions: int, max_bytes: int = MAX_SESSION_BYTES) -> None:
        """Make an empty cache. max_sessions: `max.incremental.fetch.session.cache.slots`."""
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._by_id: dict[int, FetchSession] = {}
        self._by_all: list[tuple[bool, int, int]] = []  # who may be evicted, the least valuable first
        self._by_brokers: list[tuple[bool, int, int]] = []
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, session_id: int) -> FetchSession | None:
        """Return the session of an id."""
        return self._by_id.get(session_id)

    def create(self, partitions: Partitions, *, by_ids: bool, privileged: bool, now_ms: int) -> int:
        """Make a session and return its id, `NO_SESSION` where there is no room for it.

        privileged: the client is a broker. Where very much would have to go, a part goes, and the client may ask again.
        Follows: Kafka `FetchSessionCacheShard.maybeCreateSession`.
        """
        count = len(partitions)
        size = session_bytes(partitions)
        if count > MAX_PARTITIONS or size > self._max_bytes:
            return NO_SESSION
        left = _EVICTED_AT_ONCE
        while len(self._by_id) >= self._max_sessions or self.used_bytes + size > self._max_bytes:
            evicted = self._evict(privileged, count, now_ms) if left > 0 else None
            if evicted is None:
                return NO_SESSION
            left -= len(evicted.partitions)
        session_id = randrange(1, _LARGEST)
        while session_id in self._by_id:
            session_id = randrange(1, _LARGEST)
        session = FetchSession(session_id, partitions, by_ids=by_ids, privileged=privileged, now_ms=now_ms)
        self._by_id[session_id] = session
        session.used_bytes = size
        self.used_bytes += size
        self._rank(session, now_ms)
        return session_id

    def touch(self, session: FetchSession, now_ms: int) -> None:
        """Note that a session is used."""
        by_id = self._by_id
        by_id[session.id] = by_id.pop(session.id)
        session.used_ms = now_ms
        rank = session.rank
        if (
            rank is None
            or rank[1] != len(session.partitions)
            or (not session.is_old and now_ms - session.created_ms > EVICTED_AFTER_MS)
        ):
            self._rank(session, now_ms)

    def has_room(self, session: FetchSession) -> bool:
        """Count a session that has grown or shrunk; return whether there is room for it, else close it.

        One that was closed while a request of it was read has none.
        """
        if self._by_id.get(session.id) is session and len(session.partitions) <= MAX_PARTITIONS:
            size = session_bytes(session.partitions)
            self.used_bytes += size - session.used_bytes
            session.used_bytes = size
            if self.used_bytes <= self._max_bytes:
                return True
        self.close(session.id)
        return False

    def close(self, session_id: int) -> None:
        """Forget a session, if there is one of this id."""
        session = self._by_id.pop(session_id, None)
        if session is not None:
            self.used_bytes -= session.used_bytes
            self._unrank(session)

    def forget_deleted(self) -> Iterator[None]:
        """Let go of logs that are deleted, which sessions that nobody uses would keep in memory; yields often."""
        for session in list(self._by_id.values()):
            for partition in list(session.partitions.values()):
                if partition.log is not None and partition.log.deleted:
                    partition.log, partition.error_code = None, error_codes.UNKNOWN_TOPIC_OR_PARTITION
                    session.known = None
                yield

    def _evict(self, privileged: bool, count: int, now_ms: int) -> FetchSession | None:
        """Forget a session for the sake of a new one of `count` partitions, and return it; None where none may go."""
        evicted = next(iter(self._by_id.values()), None)
        if evicted is not None and now_ms - evicted.used_ms <= EVICTED_AFTER_MS:
            ranks = self._by_brokers if privileged else self._by_all
            if not ranks or (privileged, count, NO_SESSION) < ranks[0]:
                return None
            evicted = self._by_id[ranks[0][2]]
        if evicted is not None:
            self.close(evicted.id)
        return evicted

    def _rank(self, session: FetchSession, now_ms: int) -> None:
        """Put a session where it is worth: anybody may evict it once it is old, brokers those of consumers at once."""
        self._unrank(session)
        session.rank = rank = session.privileged, len(session.partitions), session.id
        session.is_old = now_ms - session.created_ms > EVICTED_AFTER_MS
        if session.is_old:
            insort(self._by_all, rank)
        if session.is_old or not session.privileged:
            insort(self._by_brokers, rank)

    def _unrank(self, session: FetchSession) -> None:
        rank, session.rank = session.rank, None
        if rank is not None:
            for ranks in (self._by_all, self._by_brokers):
                at = bisect_left(ranks, rank)
                if at < len(ranks) and ranks[at] == rank:
                    del ranks[at]


def session_bytes(partitions: Iterable[PartitionKey]) -> int:
    """Return what a session with these partitions takes at most."""
    return SESSION_BYTES + sum([PARTITION_BYTES + _LETTER_BYTES * len(topic) for topic, _ in partitions])


def next_epoch(epoch: int) -> int:
    """Return the epoch of the request after one with `epoch`.

    >>> next_epoch(0), next_epoch(2**31 - 1)
    (1, 1)

    Follows: Kafka `FetchMetadata.nextEpoch`.
    """
    return 1 if epoch == _LARGEST else epoch + 1
