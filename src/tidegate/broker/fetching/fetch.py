"""A Fetch from its request to its answer: find its logs, read them, and make the partitions of the answer.

`broker.handlers.fetch` and `known` decide how a request is handled; this module is the part that they share.
"""

from collections.abc import Callable, Generator, Iterable
from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import FETCH
from tidegate.broker.answering import answer_partitions, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.fetching.session import NO_SESSION, FetchedPartition, FetchSession, PartitionKey
from tidegate.server.requests.handler import NO_LAG, Answer, Charge, FetchAnswer, Message, Request, Work
from tidegate.storage.errors import LogDamagedError, OffsetOutOfRangeError
from tidegate.storage.log.file_slice import FileSlice
from tidegate.storage.log.partition_log import LEADER_EPOCH, PartitionLog
from tidegate.storage.storage import Storage
from tidegate.topic_sizes import TopicSizes
from tidegate.wire import UNKNOWN, Encoded, field_since

__all__ = [
    "NOT_READ",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "TOPIC_IDS_SINCE",
    "Fetch",
    "empty_answer",
    "failed_partition",
    "fetch_message",
    "resolve",
    "topic_field",
]

TOPIC_IDS_SINCE = field_since(FETCH, "request", "topic_id")
_LEADERS_SINCE = field_since(FETCH, "response", "node_endpoints")
NOT_READ = (
    error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.UNKNOWN_TOPIC_ID,
    error_codes.TOPIC_AUTHORIZATION_FAILED,
)
"""Errors of partitions whose logs are not read. These partitions come last in the answer."""
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_NO_TRANSACTIONS: list[Message] = []


class Fetch:
    """A fetch from its request to its answer. The request's frame may be gone when the answer is made.

    wanted: the partitions in the order of the answer: each existing one once, then those that cannot be read.
    session: the session of the fetch, if any; epoch: its epoch, which changes when a later request of it comes.
    node_endpoints: the brokers that lead partitions which this broker does not lead.
    lag, lag_bytes: the sums over the partitions that were read; topic_sizes: bytes of their records by topic.
    """

    __slots__ = (
        "committed",
        "epoch",
        "field",
        "lag",
        "lag_bytes",
        "max_bytes",
        "node_endpoints",
        "read_bytes",
        "request",
        "session",
        "settle",
        "topic_sizes",
        "wanted",
    )

    def __init__(
        self, request: Request, max_bytes: int, *, committed: bool, session: FetchSession | None = None
    ) -> None:
        self.request = request
        self.field = topic_field(request.header.api_version)
        self.max_bytes = max_bytes
        self.committed = committed
        self.read_bytes = 0
        self.lag = self.lag_bytes = NO_LAG
        self.topic_sizes = TopicSizes()
        self.node_endpoints: list[Message] = []
        self.wanted: list[FetchedPartition] = []
        self.session = session
        self.epoch = UNKNOWN if session is None else session.epoch
        self.settle: Callable[[Encoded], None] | None = None if session is None else session.deliver

    def logs(self) -> list[PartitionLog]:
        """Return the logs that are read."""
        return [wanted.log for wanted in self.wanted if wanted.log is not None]

    def read(self) -> Generator[None, None, tuple[list[Message], bool]]:
        """Read every partition; return the answer's topics and whether any partition has to be answered at once.

        In a session the answer contains only partitions with news for the client, and all errors.
        """
        left_bytes, at_least_one, failed = self.max_bytes, True, False
        # A fetch that waits reads its partitions twice; only the second time counts.
        self.read_bytes = 0
        self.lag = self.lag_bytes = NO_LAG
        self.topic_sizes = TopicSizes()
        topics: list[Message] = []
        name, partitions = None, list[Message]()
        for wanted in self.wanted:
            answer, size = _read(wanted, left_bytes, at_least_one=at_least_one, committed=self.committed)
            end_offset = wanted.answered_high_watermark = answer["high_watermark"]
            wanted.answered_start_offset = answer["log_start_offset"]
            wanted.answered_bytes = size
            if 0 <= wanted.offset <= end_offset:
                self._add_lag(wanted, end_offset - wanted.offset)
            must_say = answer["error_code"] != error_codes.NONE or "diverging_epoch" in answer
            failed = failed or must_say
            if size:
                at_least_one = False
                self.read_bytes += size
                assert wanted.name is not None, "a partition that was read has a topic"
                self.topic_sizes.add(wanted.name, size)
            if size or left_bytes < 0:  # a negative limit is one for the first partition alone, as in Kafka
                left_bytes = max(left_bytes - size, 0)
            if self.session is None or must_say or wanted.is_news():
                if wanted.topic != name:
                    name, partitions = wanted.topic, []
                    topics.append({self.field: name, "partitions": partitions})
                partitions.append(answer)
            yield
        return topics, failed

    def _add_lag(self, wanted: FetchedPartition, lag: int) -> None:
        """Count how far behind the end a partition is read."""
        log = wanted.log
        assert log is not None, "what is not read has no high watermark"
        lag_bytes = log.lag_bytes(lag)
        self.lag = max(self.lag, 0) + lag
        if lag_bytes >= 0:
            self.lag_bytes = max(self.lag_bytes, 0) + lag_bytes

    def answer(self, topics: list[Message], charge: Charge = Charge.FETCH) -> Generator[None, None, Answer]:
        """Return the answer with these topics, whose lists are then emptied.

        If another request of the session has come in the meantime, return error 71 without topics.
        """
        settle = self.settle
        topic, other_topics = self.topic_sizes.largest()
        if self._is_overtaken():
            # A later request owns the session's state: this answer is not recorded as delivered (B§6.3.4, error 71).
            settle = None
            yield from release(topics)
            topics, topic, other_topics = [], None, 0
        message = self._message(topics)
        if self.node_endpoints:
            message["node_endpoints"] = self.node_endpoints
        answer = yield from answer_partitions(self.request, message, topics, "partitions", charge)
        yield from release(self.wanted)
        if charge is not Charge.FETCH:
            return answer
        assert answer.response is not None
        return FetchAnswer(answer.response, self.empty, self.lag, self.lag_bytes, settle, topic, other_topics)

    def read_and_answer(self) -> Work:
        """Return the answer with the records that there are now."""
        topics, _ = yield from self.read()
        return (yield from self.answer(topics))

    def empty(self) -> Encoded:
        """Return the answer for a throttled client, which keeps its session unchanged (B§6.3)."""
        return self.request.encode(self._message([]))

    def _is_overtaken(self) -> bool:
        return self.session is not None and self.session.epoch != self.epoch

    def _message(self, topics: list[Message]) -> Message:
        error_code = error_codes.INVALID_FETCH_SESSION_EPOCH if self._is_overtaken() else error_codes.NONE
        return fetch_message(topics, error_code, NO_SESSION if self.session is None else self.session.id)


def topic_field(version: int) -> str:
    """Return by which field a topic is named."""
    return "topic" if version < TOPIC_IDS_SINCE else "topic_id"


def fetch_message(topics: list[Message], error_code: int, session_id: int = NO_SESSION) -> Message:
    """Return an answer."""
    return {"throttle_time_ms": 0, "error_code": error_code, "session_id": session_id, "responses": topics}


def empty_answer(request: Request) -> Encoded:
    """Return the answer without topics, outside of any session."""
    return request.encode(fetch_message([], error_codes.NONE))


def resolve(
    storage: Storage,
    cluster: ClusterView,
    fetch: Fetch,
    partitions: Iterable[tuple[PartitionKey, FetchedPartition]],
    *,
    follower: bool,
) -> Generator[None, None, None]:
    """Find the logs of partitions, and add the partitions to `fetch.wanted`; missing ones come last, as in Kafka.

    For consumers, missing partitions with unknown ids come before those with unknown names. In a session only logs that
    are missing or deleted are looked up again; the client's rights are checked each time.
    """
    request = fetch.request
    anybody = request.connection.authorizer is None
    # Checked once: a follower needs a right to the cluster, which does not depend on the topic.
    may_replicate = follower and (anybody or request.authorized(acl.CLUSTER_ACTION, acl.CLUSTER))
    unknown_ids: list[FetchedPartition] = []
    unknown: list[FetchedPartition] = []
    leaders = set()
    for _, wanted in partitions:
        found = fetch.wanted
        if wanted.log is None or wanted.log.deleted or follower or not anybody:
            _find_log(storage, cluster, fetch, wanted, follower=follower, may_replicate=may_replicate)
            if wanted.error_code == error_codes.UNKNOWN_TOPIC_ID and not follower:
                found = unknown_ids
            elif wanted.error_code in NOT_READ:
                found = unknown
        if wanted.current_leader is not None:
            leaders.add(wanted.current_leader["leader_id"])
        found.append(wanted)
        yield
    fetch.wanted += unknown_ids
    yield
    fetch.wanted += unknown
    yield from release(unknown_ids, unknown)
    fetch.node_endpoints = cluster.node_endpoints(leaders, fetch.request.connection) if leaders else []


def _find_log(
    storage: Storage,
    cluster: ClusterView,
    fetch: Fetch,
    wanted: FetchedPartition,
    *,
    follower: bool,
    may_replicate: bool,
) -> None:
    """Set the log of a partition, or the error to answer for it.

    In a session the topic's name is known, too: if a topic of that name has another id, it is another topic. An unknown
    id has no name that rights could be checked for.
    """
    topics, index = storage.topics, wanted.index
    wanted.log = wanted.current_leader = None
    wanted.error_code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if fetch.field == "topic":
        wanted.name = wanted.topic
        topic = topics.by_name.get(wanted.topic)
    else:
        topic = topics.by_id.get(wanted.topic)
        if topic is not None:
            wanted.name = topic.name
        elif wanted.name is None:
            wanted.error_code = error_codes.UNKNOWN_TOPIC_ID
        else:
            other = topics.by_name.get(wanted.name)
            if other is not None and other.log(index) is not None:
                wanted.error_code = error_codes.INCONSISTENT_TOPIC_ID
    if follower:
        is_allowed = may_replicate
    else:
        is_allowed = wanted.name is None or fetch.request.authorized(acl.READ, acl.TOPIC, wanted.name)
    if not is_allowed:
        wanted.error_code = error_codes.TOPIC_AUTHORIZATION_FAILED
        return
    log = None if topic is None else topic.log(index)
    if topic is None or log is None:
        return
    leads = cluster.leads(topic, index)
    if leads and not follower:
        wanted.log, wanted.error_code = log, error_codes.NONE
        return
    wanted.error_code = error_codes.NOT_LEADER_OR_FOLLOWER
    if not leads and fetch.request.header.api_version >= _LEADERS_SINCE:
        wanted.current_leader = cluster.current_leader(topic, index)


def _read(
    wanted: FetchedPartition, left_bytes: int, *, at_least_one: bool, committed: bool
) -> tuple[dict[str, Any], int]:
    """Read one partition; return its part of the answer and the bytes of its records."""
    log = wanted.log
    if log is None or log.deleted:
        error_code = wanted.error_code or error_codes.UNKNOWN_TOPIC_OR_PARTITION  # it was deleted meanwhile
        aborted = _NO_TRANSACTIONS if error_code in NOT_READ else None
        failed = failed_partition(wanted.index, error_code, aborted=aborted)
        if wanted.current_leader is not None:
            failed["current_leader"] = wanted.current_leader
        return failed, 0
    if wanted.leader_epoch > LEADER_EPOCH:
        return failed_partition(wanted.index, error_codes.UNKNOWN_LEADER_EPOCH, aborted=None), 0
    if wanted.last_epoch > LEADER_EPOCH:
        return failed_partition(wanted.index, error_codes.OFFSET_OUT_OF_RANGE, aborted=None), 0
    if wanted.last_epoch == LEADER_EPOCH and wanted.offset > log.end_offset:
        diverging = {"epoch": LEADER_EPOCH, "end_offset": log.end_offset}
        return {**_records(wanted, log, None, committed=False), "diverging_epoch": diverging}, 0
    at_most = min(wanted.max_bytes, left_bytes)
    if at_most < 0 and log.start_offset <= wanted.offset < log.end_offset:  # Kafka's log raises an error here
        return failed_partition(wanted.index, error_codes.UNKNOWN_SERVER_ERROR, aborted=None), 0
    try:
        found = log.read(wanted.offset, max(at_most, 0), at_least_one=at_least_one)
    except OffsetOutOfRangeError:
        return failed_partition(wanted.index, error_codes.OFFSET_OUT_OF_RANGE, aborted=None), 0
    except LogDamagedError:
        return failed_partition(wanted.index, error_codes.KAFKA_STORAGE_ERROR, aborted=None), 0
    is_too_large = found is None and at_most > 0 and wanted.offset < log.end_offset
    part = _records(
        wanted, log, found, committed=committed and not is_too_large
    )  # Kafka puts an empty one in its place
    return part, 0 if found is None else found.size


def _records(
    wanted: FetchedPartition, log: PartitionLog, found: FileSlice | None, *, committed: bool
) -> dict[str, Any]:
    """Return a partition's part of the answer."""
    return {
        "partition_index": wanted.index,
        "error_code": error_codes.NONE,
        "high_watermark": log.end_offset,
        "last_stable_offset": log.last_stable_offset,
        "log_start_offset": log.start_offset,
        "aborted_transactions": _NO_TRANSACTIONS if committed else None,
        "preferred_read_replica": UNKNOWN,
        "records": b"" if found is None else found,
    }


def failed_partition(index: int, error_code: int, *, aborted: list[Message] | None) -> dict[str, Any]:
    """Return a partition's error; `aborted_transactions` is null or empty, as in Kafka."""
    return {
        "partition_index": index,
        "error_code": error_code,
        "high_watermark": UNKNOWN,
        "last_stable_offset": UNKNOWN,
        "log_start_offset": UNKNOWN,
        "aborted_transactions": aborted,
        "preferred_read_replica": UNKNOWN,
        "records": b"",
    }
