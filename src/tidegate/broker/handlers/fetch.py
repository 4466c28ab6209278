"""Fetch (key 1), versions 4-18. KIP-74 (max bytes), KIP-98, KIP-227, KIP-516 (topic ids from 13).

Answers at once when `min_bytes` are there, something is wrong or the client does not want to wait; otherwise when
enough has been appended or `max_wait_ms` are over. Records are slices of the log files, sent without being read. The
client's quota caps the record bytes before reading (B§6.3.1); of the first partition with records at least one whole
batch is given, later batches may be cut off at the limit, as on Apache Kafka (B§6.3).
Of a partition that is named more than once the last counts, as in Kafka. A consumer that has last seen a later epoch
than there is, is out of range; one that is past the end of the epoch is answered where that is.
Nothing is transactional, so read_committed reads what read_uncommitted does. With an isolation level that there is not
the request fails as a whole, if any of its partitions is there.
Memory: at most 100 bytes for each byte of the request (a partition of 16 bytes becomes three dicts and an object); a
long poll keeps an object for each partition, of which there are at most as many as the node has.
A partition that another broker leads is error 6, with that leader from version 16 on (KIP-951).
Consumers need READ on each topic; those that they may not read get error 29, whether or not they are there. Who says
that it is a follower needs CLUSTER_ACTION on the cluster: it is exempt then, else all its partitions get error 29 and
it is charged.
Not implemented: fetch sessions (a session is never given out; asking for one by number is error 70), followers
(error 6), rack awareness.
"""

from collections.abc import Generator
from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import FETCH
from tidegate.broker.cluster import ClusterView
from tidegate.broker.fetch_waits import FetchWaits, Wait
from tidegate.broker.kept_answers import FetchAnswers
from tidegate.broker.known_requests import KnownRequests
from tidegate.broker.late_answers import complete_in_slices
from tidegate.broker.releasing import answer_partitions, release
from tidegate.scheduling import Scheduler
from tidegate.server.handler import (
    NO_LAG,
    Answer,
    Charge,
    Deferred,
    FetchAnswer,
    Handler,
    Message,
    Request,
    Work,
)
from tidegate.storage.errors import LogDamagedError, OffsetOutOfRangeError
from tidegate.storage.log.file_slice import FileSlice
from tidegate.storage.log.partition_log import LEADER_EPOCH, PartitionLog
from tidegate.storage.storage import Storage
from tidegate.storage.topics import Topic
from tidegate.wire import Encoded, field_since

__all__ = ["fetch_handler"]

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NO_SESSION = 0
_NEW_SESSION_EPOCH, _NO_SESSION_EPOCH = 0, -1  # any other is of a session that there is
_TOPIC_IDS_SINCE = field_since(FETCH, "request", "topic_id")
_LEADERS_SINCE = field_since(FETCH, "response", "node_endpoints")
_UNKNOWN = -1
_NO_TRANSACTIONS: list[Message] = []


class _Wanted:
    """One partition of a fetch: its log, or the error that stands for it; and its leader, where it is another node."""

    __slots__ = (
        "current_leader",
        "error_code",
        "index",
        "last_epoch",
        "leader_epoch",
        "log",
        "max_bytes",
        "offset",
    )

    def __init__(
        self,
        log: PartitionLog | None,
        index: int,
        *,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        last_epoch: int,
        error_code: int,
        current_leader: Message | None = None,
    ) -> None:
        self.log = log
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch
        self.error_code = error_code
        self.current_leader = current_leader


class _Fetch:
    """A fetch from its request to its answer, which may come when the request's frame is long gone.

    wanted: the partitions in the order of the answer, each with the name or id of its topic; one that is known stands
    once, and before those that are not. node_endpoints: the brokers that lead those that this one does not.
    lag, lag_bytes: the sums over the partitions that were read.
    """

    __slots__ = (
        "committed",
        "field",
        "lag",
        "lag_bytes",
        "max_bytes",
        "node_endpoints",
        "read_bytes",
        "request",
        "wanted",
    )

    def __init__(self, request: Request, max_bytes: int, *, committed: bool) -> None:
        self.request = request
        self.field = _topic_field(request.header.api_version)
        self.max_bytes = max_bytes
        self.committed = committed
        self.read_bytes = 0
        self.lag = self.lag_bytes = NO_LAG
        self.node_endpoints: list[Message] = []
        self.wanted: list[tuple[str, _Wanted]] = []

    def logs(self) -> list[PartitionLog]:
        """Return the logs that are read."""
        return [wanted.log for _, wanted in self.wanted if wanted.log is not None]

    def read(self) -> Generator[None, None, tuple[list[Message], bool]]:
        """Read every partition; return the answer's topics and whether any partition has to be answered at once."""
        left_bytes, at_least_one, failed = self.max_bytes, True, False
        self.read_bytes = 0
        self.lag = self.lag_bytes = NO_LAG
        topics: list[Message] = []
        name, partitions = None, list[Message]()
        for topic, wanted in self.wanted:
            if topic != name:
                name, partitions = topic, []
                topics.append({self.field: topic, "partitions": partitions})
            answer, size = _read(wanted, left_bytes, at_least_one=at_least_one, committed=self.committed)
            if 0 <= wanted.offset <= answer["high_watermark"]:
                self._add_lag(wanted, answer["high_watermark"] - wanted.offset)
            failed = failed or answer["error_code"] != error_codes.NONE or "diverging_epoch" in answer
            if size:
                at_least_one = False
                self.read_bytes += size
            if size or left_bytes < 0:  # a negative limit is one for the first partition alone, as in Kafka
                left_bytes = max(left_bytes - size, 0)
            partitions.append(answer)
            yield
        return topics, failed

    def _add_lag(self, wanted: _Wanted, lag: int) -> None:
        """Count how far behind the end a partition is read."""
        log = wanted.log
        assert log is not None, "what is not read has no high watermark"
        lag_bytes = log.lag_bytes(lag)
        self.lag = max(self.lag, 0) + lag
        if lag_bytes >= 0:
            self.lag_bytes = max(self.lag_bytes, 0) + lag_bytes

    def answer(self, topics: list[Message], charge: Charge = Charge.FETCH) -> Generator[None, None, Answer]:
        """Return the answer with these topics, which are emptied."""
        message = _message(topics, error_codes.NONE)
        if self.node_endpoints:
            message["node_endpoints"] = self.node_endpoints
        answer = yield from answer_partitions(self.request, message, topics, "partitions", charge)
        yield from release(self.wanted)
        if charge is not Charge.FETCH:
            return answer
        assert answer.response is not None
        return FetchAnswer(answer.response, self.empty, self.lag, self.lag_bytes)

    def read_and_answer(self) -> Work:
        """Return the answer with what there is now."""
        topics, _ = yield from self.read()
        return (yield from self.answer(topics))

    def empty(self) -> Encoded:
        """Return what a throttled client gets."""
        return _encode(self.request, [])


class _Source:
    """A partition that a client fetches from, and how: what is known of a request by the bytes it begins with."""

    __slots__ = (
        "answers",
        "committed",
        "index",
        "log",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "name",
        "topic",
    )

    def __init__(
        self,
        version: int,
        body: Message,
        name: str,
        index: int,
        log: PartitionLog,
        max_bytes: int,
        topic: str,
    ) -> None:
        self.name = name  # or id
        self.topic = topic  # its name
        self.index = index
        self.log = log
        self.max_bytes = max_bytes
        self.min_bytes: int = body["min_bytes"]
        self.max_wait_ms: int = body["max_wait_ms"]
        self.committed = body["isolation_level"] == READ_COMMITTED
        self.answers = FetchAnswers(version, {_topic_field(version): name}, index, committed=self.committed)

    def fetch(self, request: Request, limit: int, offset: int, max_bytes: int, leader_epoch: int) -> _Fetch:
        """Return the fetch that a request is, for the case that it has to wait."""
        fetch = _Fetch(request, limit, committed=self.committed)
        wanted = _Wanted(
            self.log,
            self.index,
            offset=offset,
            max_bytes=max_bytes,
            leader_epoch=leader_epoch,
            last_epoch=_UNKNOWN,
            error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        )
        fetch.wanted.append((self.name, wanted))
        return fetch


def fetch_handler(storage: Storage, cluster: ClusterView, scheduler: Scheduler) -> Handler:
    """Return the handler that reads the logs of `storage`."""
    waits = FetchWaits(scheduler)
    most_bytes = storage.config.fetch_max_bytes
    known: KnownRequests[_Source] = KnownRequests(
        FETCH,
        "partition",
        ("current_leader_epoch", "last_fetched_epoch", "fetch_offset", "partition_max_bytes"),
    )

    def handle(request: Request) -> Answer | Deferred | Work:
        header = request.header
        find, kept = known[header.api_version]
        found = find(request.frame, header.body_at, kept)
        if found is not None and (
            request.connection.authorizer is None or request.authorized(acl.READ, acl.TOPIC, found[0].topic)
        ):
            answer = handle_known(request, *found)
            if answer is not None:
                return answer
        return handle_any(request)

    def handle_known(
        request: Request, source: _Source, leader_epoch: int, last_epoch: int, offset: int, max_bytes: int
    ) -> Answer | Deferred | None:
        """Answer, or wait; None where the answer is an error."""
        log = source.log
        if log.deleted or leader_epoch > LEADER_EPOCH or last_epoch > LEADER_EPOCH:
            return None
        limit = max(min(source.max_bytes, request.quotas.fetch_limit_bytes()), 0)
        at_most = min(max_bytes, limit)
        if at_most < 0:
            return None
        try:
            found = log.read(offset, at_most)
        except (OffsetOutOfRangeError, LogDamagedError):
            return None
        missing_bytes = min(source.min_bytes, limit) - (0 if found is None else found.size)
        if missing_bytes > 0 and source.max_wait_ms > 0:
            fetch = source.fetch(request, limit, offset, max_bytes, leader_epoch)
            return _wait(fetch, waits, scheduler, missing_bytes, source.max_wait_ms)
        correlation_id = request.header.correlation_id
        encoded = source.answers.encode(
            correlation_id, log.end_offset, log.last_stable_offset, log.start_offset, found
        )
        lag = log.end_offset - offset
        return FetchAnswer(encoded, lambda: _encode(request, []), lag, log.lag_bytes(lag))

    def handle_any(request: Request) -> Work:
        body = yield from request.body_in_slices()
        if body.get("session_epoch", _NO_SESSION_EPOCH) not in (_NEW_SESSION_EPOCH, _NO_SESSION_EPOCH):
            yield from request.release_body(body)
            return _no_session(request)
        max_bytes = min(body["max_bytes"], most_bytes, request.quotas.fetch_limit_bytes())
        fetch = _Fetch(request, max_bytes, committed=body["isolation_level"] == READ_COMMITTED)
        follower = _replica_id(body) >= 0  # -1 is a consumer, -2 one that debugs
        is_known = body["isolation_level"] in (READ_UNCOMMITTED, READ_COMMITTED)
        if not is_known and (yield from _any_is_there(storage, fetch, body["topics"])):
            return (yield from _all_failed(request, fetch, body))
        may_replicate = follower and request.authorized(acl.CLUSTER_ACTION, acl.CLUSTER)
        yield from _resolve(
            storage, cluster, fetch, body["topics"], follower=follower, may_replicate=may_replicate
        )
        yield from request.release_body(body)
        topics, failed = yield from fetch.read()
        if (
            follower
        ):  # exempt with ClusterAction, which without an authorizer here nobody has, in Kafka everybody
            granted = may_replicate and request.connection.authorizer is not None
            charge = Charge.EXEMPT if granted or storage.config.kafka_exact else Charge.REQUEST
            return (yield from fetch.answer(topics, charge))
        if not failed and len(fetch.wanted) == 1:
            remember(request, body, *fetch.wanted[0])
        missing_bytes = min(body["min_bytes"], fetch.max_bytes) - fetch.read_bytes
        if missing_bytes <= 0 or failed or not topics or body["max_wait_ms"] <= 0:
            return (yield from fetch.answer(topics))
        yield from request.release(topics)
        return _wait(fetch, waits, scheduler, missing_bytes, body["max_wait_ms"])

    def remember(request: Request, body: Message, name: str, wanted: _Wanted) -> None:
        """Keep what a consumer's request with one partition says for those that begin as it does."""
        topic, _ = _find(storage, request.header.api_version, name)
        if topic is not None and wanted.log is not None and body["max_bytes"] >= 0:
            version, max_bytes = request.header.api_version, min(body["max_bytes"], most_bytes)
            known.keep(request, _Source(version, body, name, wanted.index, wanted.log, max_bytes, topic.name))

    return handle


def _wait(
    fetch: _Fetch, waits: FetchWaits, scheduler: Scheduler, missing_bytes: int, max_wait_ms: int
) -> Deferred:
    deferred = Deferred()
    wait = Wait(
        fetch.logs(),
        missing_bytes,
        lambda: complete_in_slices(deferred, fetch.read_and_answer(), scheduler),
    )
    deferred.on_cancel = lambda: waits.remove(wait)
    waits.add(wait, max_wait_ms)
    return deferred


def _topic_field(version: int) -> str:
    """Return by which field a topic is named."""
    return "topic" if version < _TOPIC_IDS_SINCE else "topic_id"


def _replica_id(body: Message) -> int:
    replica_id: int = body.get("replica_state", body)["replica_id"]
    return replica_id


def _find(storage: Storage, version: int, name: str) -> tuple[Topic | None, int]:
    """Return the topic of a name or id, and the error that says that there is none."""
    if version < _TOPIC_IDS_SINCE:
        return storage.topics.by_name.get(name), error_codes.UNKNOWN_TOPIC_OR_PARTITION
    return storage.topics.by_id.get(name), error_codes.UNKNOWN_TOPIC_ID


def _find_readable(storage: Storage, request: Request, name: str) -> tuple[Topic | None, int]:
    """Return the topic of a name or id where the client may read it, and the error where there is none."""
    version = request.header.api_version
    topic, missing = _find(storage, version, name)
    if topic is None and version >= _TOPIC_IDS_SINCE:
        return topic, missing  # of an id nobody knows whose it is
    if request.authorized(acl.READ, acl.TOPIC, name if topic is None else topic.name):
        return topic, missing
    return None, error_codes.TOPIC_AUTHORIZATION_FAILED


def _any_is_there(storage: Storage, fetch: _Fetch, topics: list[Message]) -> Generator[None, None, bool]:
    """Return whether any partition that is wanted is there."""
    for part in topics:
        topic, _ = _find_readable(storage, fetch.request, part[fetch.field])
        for partition in part["partitions"]:
            if topic is not None and topic.log(partition["partition"]) is not None:
                return True
            yield
        yield
    return False


def _all_failed(request: Request, fetch: _Fetch, body: Message) -> Work:
    """Answer that the request failed as a whole: by name each partition too, as often as it was named."""
    answers = []
    for part in body["topics"] if fetch.field == "topic" else ():
        partitions = []
        for partition in part["partitions"]:
            partitions.append(
                _failed(partition["partition"], error_codes.UNKNOWN_SERVER_ERROR, aborted=_NO_TRANSACTIONS)
            )
            yield
        answers.append({fetch.field: part[fetch.field], "partitions": partitions})
        yield
    yield from request.release_body(body)
    message = _message(answers, error_codes.UNKNOWN_SERVER_ERROR)
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))


def _resolve(
    storage: Storage,
    cluster: ClusterView,
    fetch: _Fetch,
    topics: list[Message],
    *,
    follower: bool,
    may_replicate: bool,
) -> Generator[None, None, None]:
    """Find the logs of the partitions that are wanted.

    Of a partition that is named more than once the last counts, at the place of the first; those that are not there
    come last, for consumers those of unknown ids first. As in Kafka.
    """
    known: dict[tuple[str, int], _Wanted] = {}
    unknown_ids: dict[tuple[str, int], _Wanted] = {}
    unknown: dict[tuple[str, int], _Wanted] = {}
    for part in topics:
        name = part[fetch.field]
        if not follower:
            topic, missing = _find_readable(storage, fetch.request, name)
        elif may_replicate:
            topic, missing = _find(storage, fetch.request.header.api_version, name)
        else:
            topic, missing = None, error_codes.TOPIC_AUTHORIZATION_FAILED
        for partition in part["partitions"]:
            index = partition["partition"]
            log = None if topic is None else topic.log(index)
            error_code = missing if topic is None else error_codes.UNKNOWN_TOPIC_OR_PARTITION
            found = known if log is not None else unknown
            if missing == error_codes.UNKNOWN_TOPIC_ID and topic is None and not follower:
                found = unknown_ids
            current_leader = None
            if topic is not None and log is not None and (follower or not cluster.leads(topic, index)):
                log, error_code = None, error_codes.NOT_LEADER_OR_FOLLOWER
                if not cluster.leads(topic, index) and fetch.request.header.api_version >= _LEADERS_SINCE:
                    current_leader = cluster.current_leader(topic, index)
            found[name, index] = _Wanted(
                log,
                index,
                offset=partition["fetch_offset"],
                max_bytes=partition["partition_max_bytes"],
                leader_epoch=partition.get("current_leader_epoch", _UNKNOWN),
                last_epoch=partition.get("last_fetched_epoch", _UNKNOWN),
                error_code=error_code,
                current_leader=current_leader,
            )
            yield
        yield from release(part["partitions"])
        yield
    yield from release(topics)
    leaders = set()
    for found in (known, unknown_ids, unknown):
        for (name, _), wanted in found.items():
            fetch.wanted.append((name, wanted))
            if wanted.current_leader is not None:
                leaders.add(wanted.current_leader["leader_id"])
            yield
    yield from release(known, unknown_ids, unknown)
    fetch.node_endpoints = cluster.node_endpoints(leaders, fetch.request.connection) if leaders else []


def _read(
    wanted: _Wanted, left_bytes: int, *, at_least_one: bool, committed: bool
) -> tuple[dict[str, Any], int]:
    """Read one partition; return its part of the answer and the bytes of its records."""
    log = wanted.log
    if log is None or log.deleted:
        aborted = None if wanted.error_code == error_codes.NOT_LEADER_OR_FOLLOWER else _NO_TRANSACTIONS
        failed = _failed(wanted.index, wanted.error_code, aborted=aborted)
        if wanted.current_leader is not None:
            failed["current_leader"] = wanted.current_leader
        return failed, 0
    if wanted.leader_epoch > LEADER_EPOCH:
        return _failed(wanted.index, error_codes.UNKNOWN_LEADER_EPOCH, aborted=None), 0
    if wanted.last_epoch > LEADER_EPOCH:
        return _failed(wanted.index, error_codes.OFFSET_OUT_OF_RANGE, aborted=None), 0
    if wanted.last_epoch == LEADER_EPOCH and wanted.offset > log.end_offset:
        diverging = {"epoch": LEADER_EPOCH, "end_offset": log.end_offset}
        return {**_records(wanted, log, None, committed=False), "diverging_epoch": diverging}, 0
    at_most = min(wanted.max_bytes, left_bytes)
    if at_most < 0 and log.start_offset <= wanted.offset < log.end_offset:  # what Kafka's log throws over
        return _failed(wanted.index, error_codes.UNKNOWN_SERVER_ERROR, aborted=None), 0
    try:
        found = log.read(wanted.offset, max(at_most, 0), at_least_one=at_least_one)
    except OffsetOutOfRangeError:
        return _failed(wanted.index, error_codes.OFFSET_OUT_OF_RANGE, aborted=None), 0
    except LogDamagedError:
        return _failed(wanted.index, error_codes.KAFKA_STORAGE_ERROR, aborted=None), 0
    return _records(wanted, log, found, committed=committed), 0 if found is None else found.size


def _records(
    wanted: _Wanted, log: PartitionLog, found: FileSlice | None, *, committed: bool
) -> dict[str, Any]:
    """Return a partition's part of the answer."""
    return {
        "partition_index": wanted.index,
        "error_code": error_codes.NONE,
        "high_watermark": log.end_offset,
        "last_stable_offset": log.last_stable_offset,
        "log_start_offset": log.start_offset,
        "aborted_transactions": _NO_TRANSACTIONS if committed else None,
        "preferred_read_replica": _UNKNOWN,
        "records": b"" if found is None else found,
    }


def _failed(index: int, error_code: int, *, aborted: list[Message] | None) -> dict[str, Any]:
    """Return a partition's error; `aborted_transactions` is null or empty, as in Kafka."""
    return {
        "partition_index": index,
        "error_code": error_code,
        "high_watermark": _UNKNOWN,
        "last_stable_offset": _UNKNOWN,
        "log_start_offset": _UNKNOWN,
        "aborted_transactions": aborted,
        "preferred_read_replica": _UNKNOWN,
        "records": b"",
    }


def _no_session(request: Request) -> Answer:
    message = _message([], error_codes.FETCH_SESSION_ID_NOT_FOUND)
    return FetchAnswer(request.encode(message), lambda: _encode(request, []))


def _encode(request: Request, topics: list[Message]) -> Encoded:
    return request.encode(_message(topics, error_codes.NONE))


def _message(topics: list[Message], error_code: int) -> Message:
    return {"throttle_time_ms": 0, "error_code": error_code, "session_id": NO_SESSION, "responses": topics}
