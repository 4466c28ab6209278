"""Fetch (key 1), versions 4-18. KIP-74 (max bytes), KIP-98, KIP-227, KIP-516 (topic ids from 13).

Answers at once when `min_bytes` are there, something is wrong or the client does not want to wait; otherwise when
enough has been appended or `max_wait_ms` are over. Records are slices of the log files, sent without being read. The
client's quota caps the record bytes before reading (B§6.3.1); of the first partition with records at least one whole
batch is given, later batches may be cut off at the limit, as on Apache Kafka (B§6.3).
Nothing is transactional, so read_committed reads what read_uncommitted does.
Not implemented: fetch sessions (a session is never given out; asking for one by number is error 70), followers
(error 6), rack awareness.
"""

from typing import Any

from tidegate.server.handler import Answer, Charge, Deferred, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.errors import LogDamagedError, OffsetOutOfRangeError
from tidegate.storage.fetch_waits import FetchWaits, Wait
from tidegate.storage.handlers.kept_answers import FetchAnswers
from tidegate.storage.handlers.known_requests import KnownRequests
from tidegate.storage.log import LEADER_EPOCH, PartitionLog
from tidegate.storage.scheduling import Scheduler
from tidegate.storage.storage import Storage
from tidegate.wire import Encoded

__all__ = ["FETCH", "fetch_handler"]

FETCH = 1
READ_COMMITTED = 1
NO_SESSION = 0
_NO_SESSION_EPOCHS = (
    0,
    -1,
)  # of who wants a session made, or ends it or wants none; any other names a session
_TOPIC_IDS_SINCE = 13
_REPLICA_STATE_SINCE = 15
_SESSIONS_SINCE = 7
_UNKNOWN = -1
_NO_TRANSACTIONS: list[Message] = []


class _Wanted:
    """One partition of a fetch: its log, or the error that stands for it."""

    __slots__ = ("error_code", "index", "leader_epoch", "log", "max_bytes", "offset")

    def __init__(
        self,
        log: PartitionLog | None,
        index: int,
        *,
        offset: int,
        max_bytes: int,
        leader_epoch: int,
        error_code: int,
    ) -> None:
        self.log = log
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.error_code = error_code


class _Fetch:
    """A fetch from its request to its answer, which may come when the request's frame is long gone."""

    __slots__ = ("body", "max_bytes", "read_bytes", "request", "topics")

    def __init__(self, request: Request, body: Message, max_bytes: int) -> None:
        self.request = request
        self.body = body
        self.max_bytes = max_bytes
        self.read_bytes = 0
        self.topics: list[tuple[Message, list[_Wanted]]] = []

    def logs(self) -> list[PartitionLog]:
        """Return the logs that are read."""
        return [wanted.log for _, parts in self.topics for wanted in parts if wanted.log is not None]

    def read(self) -> tuple[list[Message], bool]:
        """Read every partition; return the answer's topics and whether any partition has an error."""
        left_bytes, at_least_one, failed = self.max_bytes, True, False
        committed = self.body["isolation_level"] == READ_COMMITTED
        answers = []
        for key, parts in self.topics:
            partitions = []
            for wanted in parts:
                answer, size = _read(wanted, left_bytes, at_least_one=at_least_one, committed=committed)
                failed = failed or answer["error_code"] != 0
                if size:
                    at_least_one = False
                    left_bytes = max(left_bytes - size, 0)
                    self.read_bytes += size
                partitions.append(answer)
            answers.append({**key, "partitions": partitions})
        return answers, failed

    def answer(self, topics: list[Message]) -> Answer:
        """Return the answer with these topics."""
        return Answer(_encode(self.request, topics), Charge.FETCH, empty=self.empty)

    def empty(self) -> Encoded:
        """Return what a throttled client gets."""
        return _encode(self.request, [])


class _Source:
    """A partition that a client fetches from, and how: what is known of a request by the bytes it begins with."""

    __slots__ = ("answers", "body", "index", "key", "log", "max_bytes", "max_wait_ms", "min_bytes")

    def __init__(
        self, version: int, body: Message, key: Message, index: int, log: PartitionLog, max_bytes: int
    ) -> None:
        self.body = {"isolation_level": body["isolation_level"], "max_wait_ms": body["max_wait_ms"]}
        self.key = key
        self.index = index
        self.log = log
        self.max_bytes = max_bytes
        self.min_bytes: int = body["min_bytes"]
        self.max_wait_ms: int = body["max_wait_ms"]
        committed = body["isolation_level"] == READ_COMMITTED
        self.answers = FetchAnswers(version, key, index, committed=committed)

    def fetch(self, request: Request, limit: int, offset: int, max_bytes: int, leader_epoch: int) -> _Fetch:
        """Return the fetch that a request is, for the case that it has to wait."""
        fetch = _Fetch(request, self.body, limit)
        wanted = _Wanted(
            self.log,
            self.index,
            offset=offset,
            max_bytes=max_bytes,
            leader_epoch=leader_epoch,
            error_code=error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        )
        fetch.topics.append((self.key, [wanted]))
        return fetch


def fetch_handler(storage: Storage, scheduler: Scheduler) -> Handler:
    """Return the handler that reads the logs of `storage`."""
    waits = FetchWaits(scheduler)
    most_bytes = storage.config.fetch_max_bytes
    known: KnownRequests[_Source] = KnownRequests(
        FETCH, "partition", ("current_leader_epoch", "fetch_offset", "partition_max_bytes")
    )

    def handle(request: Request) -> Answer | Deferred:
        header = request.header
        find, kept = known[header.api_version]
        found = find(request.frame, header.body_at, kept)
        if found is not None:
            answer = handle_known(request, *found)
            if answer is not None:
                return answer
        return handle_any(request)

    def handle_known(
        request: Request, source: _Source, leader_epoch: int, offset: int, max_bytes: int
    ) -> Answer | Deferred | None:
        """Answer, or wait; None where there is an error to tell."""
        log = source.log
        if log.deleted or leader_epoch > LEADER_EPOCH:
            return None
        limit = max(min(source.max_bytes, request.quotas.fetch_limit_bytes()), 0)
        try:
            found = log.read(offset, max(min(max_bytes, limit), 0))
        except (OffsetOutOfRangeError, LogDamagedError):
            return None
        missing_bytes = min(source.min_bytes, limit) - (0 if found is None else found.size)
        if missing_bytes > 0 and source.max_wait_ms > 0:
            return _wait(source.fetch(request, limit, offset, max_bytes, leader_epoch), waits, missing_bytes)
        correlation_id = request.header.correlation_id
        encoded = source.answers.encode(correlation_id, log.end_offset, log.start_offset, found)
        return Answer(encoded, Charge.FETCH, empty=lambda: _encode(request, []))

    def handle_any(request: Request) -> Answer | Deferred:
        body = request.body()
        version = request.header.api_version
        if version >= _SESSIONS_SINCE and body["session_epoch"] not in _NO_SESSION_EPOCHS:
            return _no_session(request)
        max_bytes = min(body["max_bytes"], most_bytes, request.quotas.fetch_limit_bytes())
        fetch = _Fetch(request, body, max(max_bytes, 0))
        follower = _replica_id(body, version) >= 0  # -1 is a consumer, -2 one that debugs
        for part in body["topics"]:
            fetch.topics.append(_resolve(storage, part, version, follower=follower))
        topics, failed = fetch.read()
        if follower:
            return Answer(_encode(request, topics), Charge.EXEMPT)
        if not failed and len(fetch.topics) == 1 and len(fetch.topics[0][1]) == 1:
            learn(request, body, *fetch.topics[0])
        missing_bytes = min(body["min_bytes"], fetch.max_bytes) - fetch.read_bytes
        if missing_bytes <= 0 or failed or not topics or body["max_wait_ms"] <= 0:
            return fetch.answer(topics)
        return _wait(fetch, waits, missing_bytes)

    def learn(request: Request, body: Message, key: Message, parts: list[_Wanted]) -> None:
        """Keep what a consumer's request with one partition says for those that begin as it does."""
        (wanted,) = parts
        if wanted.log is not None:
            version, max_bytes = request.header.api_version, min(body["max_bytes"], most_bytes)
            known.keep(request, _Source(version, body, key, wanted.index, wanted.log, max_bytes))

    return handle


def _wait(fetch: _Fetch, waits: FetchWaits, missing_bytes: int) -> Deferred:
    deferred = Deferred()

    def answer() -> Answer:
        fetch.read_bytes = 0
        topics, _ = fetch.read()
        return fetch.answer(topics)

    wait = Wait(fetch.logs(), missing_bytes, lambda: deferred.complete_by(answer))
    deferred.on_cancel = lambda: waits.remove(wait)
    waits.add(wait, fetch.body["max_wait_ms"])
    return deferred


def _replica_id(body: Message, version: int) -> int:
    replica_id: int = (
        body["replica_state"]["replica_id"] if version >= _REPLICA_STATE_SINCE else body["replica_id"]
    )
    return replica_id


def _resolve(
    storage: Storage, part: Message, version: int, *, follower: bool
) -> tuple[Message, list[_Wanted]]:
    """Return how the answer names a topic, and its partitions with their logs."""
    if version < _TOPIC_IDS_SINCE:
        key = {"topic": part["topic"]}
        topic, missing = storage.topics.by_name.get(part["topic"]), error_codes.UNKNOWN_TOPIC_OR_PARTITION
    else:
        key = {"topic_id": part["topic_id"]}
        topic, missing = storage.topics.by_id.get(part["topic_id"]), error_codes.UNKNOWN_TOPIC_ID
    wanted = []
    for partition in part["partitions"]:
        log = None if topic is None else topic.log(partition["partition"])
        error = missing if topic is None else error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if follower and log is not None:
            log, error = None, error_codes.NOT_LEADER_OR_FOLLOWER
        wanted.append(
            _Wanted(
                log,
                partition["partition"],
                offset=partition["fetch_offset"],
                max_bytes=partition["partition_max_bytes"],
                leader_epoch=partition.get("current_leader_epoch", _UNKNOWN),
                error_code=error,
            )
        )
    return key, wanted


def _read(
    wanted: _Wanted, left_bytes: int, *, at_least_one: bool, committed: bool
) -> tuple[dict[str, Any], int]:
    """Read one partition; return its part of the answer and the bytes of its records."""
    log = wanted.log
    if log is None or log.deleted:
        aborted = None if wanted.error_code == error_codes.NOT_LEADER_OR_FOLLOWER else _NO_TRANSACTIONS
        return _failed(wanted.index, wanted.error_code, aborted=aborted), 0
    if wanted.leader_epoch > LEADER_EPOCH:
        return _failed(wanted.index, error_codes.UNKNOWN_LEADER_EPOCH, aborted=None), 0
    try:
        found = log.read(wanted.offset, max(min(wanted.max_bytes, left_bytes), 0), at_least_one=at_least_one)
    except OffsetOutOfRangeError:
        return _failed(wanted.index, error_codes.OFFSET_OUT_OF_RANGE, aborted=None), 0
    except LogDamagedError:
        return _failed(wanted.index, error_codes.KAFKA_STORAGE_ERROR, aborted=None), 0
    end_offset = log.end_offset
    return {
        "partition_index": wanted.index,
        "error_code": 0,
        "high_watermark": end_offset,
        "last_stable_offset": end_offset,
        "log_start_offset": log.start_offset,
        "aborted_transactions": _NO_TRANSACTIONS if committed else None,
        "preferred_read_replica": _UNKNOWN,
        "records": b"" if found is None else found,
    }, 0 if found is None else found.size


def _failed(index: int, error_code: int, *, aborted: list[Message] | None) -> dict[str, Any]:
    """Return a partition's error; Kafka tells null from empty in `aborted_transactions` even here."""
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
    return Answer(request.encode(message), Charge.FETCH, empty=lambda: _encode(request, []))


def _encode(request: Request, topics: list[Message]) -> Encoded:
    return request.encode(_message(topics, error_codes.NONE))


def _message(topics: list[Message], error_code: int) -> Message:
    return {"throttle_time_ms": 0, "error_code": error_code, "session_id": NO_SESSION, "responses": topics}
