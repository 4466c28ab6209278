"""Produce (key 0), versions 3-13. KIP-98 (idempotence), KIP-467 (record errors), KIP-516 (topic ids from 13).

Every partition holds one record batch of format 2, in any compression: it is stored as it came. The answer is sent
when the batch has been written to its file; there are no replicas. Where an append makes a sync due (`flush.messages`),
acks=all is answered after the sync, shared by all waiting requests; acks=1 and acks=0 never wait for the disk (in Kafka
every append that makes a sync due does). acks=0 has no answer; a refused batch then closes the connection (B§6.2). A
first batch that cannot be taken apart fails the whole request, and its bytes are not charged (B§6.2); so does one that
belongs to a transaction, with error 53, as in Kafka for a request without a transactional id. Of several batches for
one partition the last is stored and answered, as by Kafka.
Internal topics take records from the client `__admin_client` alone; others get error 17.
A partition that another broker leads is error 6 with that leader (KIP-951, from 10). Needs WRITE on each topic: those
that the client may not write to get error 29, whether or not they are there.
Not implemented: transactions, looking into the records.
Memory: at most 260 bytes for each byte of the request (a partition of 6 bytes becomes two dicts, a tuple, and an error
with its text).
"""

from collections.abc import Generator
from typing import Any

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import PRODUCE
from tidegate.broker.answering import answer_partitions, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.kept_answers import ProduceAnswers
from tidegate.broker.known_requests import KnownRequests
from tidegate.broker.late_answers import LateAnswers
from tidegate.broker.topic_names import INTERNAL_TOPICS, may_append_to_internal
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Answer, Charge, Deferred, Handler, Message, Request, Work
from tidegate.storage.errors import AppendError
from tidegate.storage.log.group_commit import GroupCommit
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.records import is_one_batch, is_transactional, only_batch, raise_unparsable
from tidegate.storage.log.turn_writes import TurnWrites
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.storage.topics.topics import Topics
from tidegate.topic_sizes import TopicSizes
from tidegate.wire import field_since
from tidegate.wire.batch import CorruptRecordsError

__all__ = ["produce_handler"]

ACKS = (-1, 1, 0)
ACKS_ALL = -1
NO_OFFSET = -1
_TOPIC_IDS_SINCE = field_since(PRODUCE, "request", "topic_id")

_NOT_WRITTEN = AppendError(error_codes.KAFKA_STORAGE_ERROR, "cannot write the log")

_Unsynced = tuple[PartitionLog, int, dict[str, Any]]
"""A log, the offset that must be synced, and the part of the answer that depends on it."""
_Batch = tuple[memoryview | None, AppendError | None]
_ByPartition = dict[str, dict[int, _Batch]]
"""Batches to store, and errors found before a log was examined, by topic and partition."""
_NOTHING: _Batch = (None, None)
_CHARGE = Charge.PRODUCE  # looked up in its class it takes 100 ns in Python 3.11


class _Target:
    """The entry of a known request: the partition that a client produces to, and its acks and encoding."""

    __slots__ = ("acks", "answers", "index", "key", "log", "settings", "topic")

    def __init__(
        self, version: int, acks: int, key: dict[str, str], index: int, log: PartitionLog, topic: str
    ) -> None:
        self.topic = topic  # its name
        self.acks = acks
        self.key = key
        self.index = index
        self.log = log
        self.settings = log.settings
        self.answers = ProduceAnswers(version, key, index)


def produce_handler(storage: Storage, cluster: ClusterView, scheduler: Scheduler) -> Handler:
    """Return the handler that appends to the logs of `storage`."""
    topics, commits, turn = storage.topics, storage.commits, storage.turn
    late = LateAnswers(scheduler, storage.clock.monotonic_ns)
    known: KnownRequests[_Target] = KnownRequests(PRODUCE, "index", ("records",))

    def handle(request: Request) -> Answer | Deferred | Work:
        header = request.header
        find, kept = known[header.api_version]
        found = find(request.frame, header.body_at, kept)
        if found is not None:
            target, records = found
            log = target.log
            if (
                not log.deleted
                # Changed settings are another object, and may make a sync due that the answer has to wait for.
                and log.settings is target.settings
                and is_one_batch(records)
                and (
                    request.connection.authorizer is None
                    or request.authorized(acl.WRITE, acl.TOPIC, target.topic)
                )
            ):
                return _store(target, records, request, turn if request.turn is not None else None)
        return handle_any(request)

    def handle_any(request: Request) -> Work:
        body = yield from request.body_in_slices()
        version = request.header.api_version
        acks, topic_data = body["acks"], body["topic_data"]
        if (
            len(topic_data) == 1
            and len(topic_data[0]["partition_data"]) == 1
            and body["transactional_id"] is None
        ):
            _remember(request, acks, topic_data[0], topics, cluster, known)
        try:
            wanted = yield from _by_partition(topic_data, version)
        except CorruptRecordsError as error:
            # Kafka has no text for what it did not foresee.
            text = None if error.error_code == error_codes.UNKNOWN_SERVER_ERROR else str(error)
            return (yield from _fail_all(request, body, error.error_code, text))
        except _TransactionalError:
            code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            return (yield from _fail_all(request, body, code))
        yield from request.release_body(body)
        stored = _Stored(request, acks, topics, cluster)
        for name, parts in wanted.items():
            yield from stored.store(name, parts)
            yield from release(parts)
            parts.clear()
        yield from release(wanted)
        if acks == 0:
            # There is no answer that could carry an error: the connection closes instead (B§6.2.5).
            return stored.noted(Answer(None, Charge.PRODUCE, close=stored.failed))
        message = stored.message()
        if stored.unsynced:
            return _answer_synced(request, message, stored, commits, late)
        answer = yield from answer_partitions(
            request, message, stored.responses, "partition_responses", Charge.PRODUCE
        )
        return stored.noted(answer)

    return handle


class _Stored:
    """The results of storing the batches of a completely parsed request.

    failed: a batch was refused. leaders: the brokers that lead the partitions which this broker does not.
    unsynced: the appends that the answer waits for. topic_sizes: bytes stored by topic.
    """

    __slots__ = (
        "_acks",
        "_cluster",
        "_request",
        "_topics",
        "failed",
        "leaders",
        "responses",
        "topic_sizes",
        "unsynced",
    )

    def __init__(self, request: Request, acks: int, topics: Topics, cluster: ClusterView) -> None:
        self._request = request
        self._acks = acks
        self._topics = topics
        self._cluster = cluster
        self.responses: list[Message] = []
        self.failed = False
        self.leaders: set[int] = set()
        self.unsynced: list[_Unsynced] = []
        self.topic_sizes = TopicSizes()

    def store(self, name: str, parts: dict[int, _Batch]) -> Generator[None, None, None]:
        """Store the batches for a topic, one partition at a time."""
        version = self._request.header.api_version
        may_write = _may_write(self._request, self._topics, name)
        partitions: list[Message] = []
        for index, batch in parts.items():
            # For each partition anew: the topic may be deleted between two slices.
            topic, missing = _find(self._topics, name, version)
            if not may_write:
                result = _refused(index, error_codes.TOPIC_AUTHORIZATION_FAILED)
            elif topic is None:
                result = _refused(index, missing)
            else:
                result = self._store_partition(topic, index, batch)
            self.failed = self.failed or bool(result["error_code"])
            partitions.append(result)
            yield
        if partitions:
            self.responses.append({_field(version): name, "partition_responses": partitions})

    def _store_partition(self, topic: Topic, index: int, batch: _Batch) -> Message:
        log = topic.log(index)
        if log is None:
            return _refused(index, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        request, led = self._request, self._cluster.leads(topic, index)
        if (
            topic.name in INTERNAL_TOPICS
            and batch[0] is not None
            and self._acks in ACKS
            and not may_append_to_internal(request.header.client_id)
        ):
            return _refused(index, error_codes.INVALID_TOPIC_EXCEPTION)
        result = _append(log, index, batch, self._acks, request, led=led)
        if result["error_code"] == error_codes.NOT_LEADER_OR_FOLLOWER:
            result["current_leader"] = self._cluster.current_leader(topic, index)
            self.leaders.add(self._cluster.leader(topic, index))
        if batch[0] is not None and not result["error_code"]:
            self.topic_sizes.add(topic.name, len(batch[0]))
        # The answer waits only where a sync was asked for that covers this append: the settings may require none yet.
        is_synced = not log.recovery_point < log.end_offset <= log.sync_asked_offset
        if self._acks == ACKS_ALL and not result["error_code"] and not is_synced:
            self.unsynced.append((log, log.end_offset, result))
        return result

    def noted(self, answer: Answer) -> Answer:
        """Return the answer, with the topics of what was stored noted for the usage record."""
        answer.topic, answer.other_topics = self.topic_sizes.largest()
        return answer

    def message(self) -> Message:
        """Return the answer."""
        message: Message = {"responses": self.responses, "throttle_time_ms": 0}
        if self.leaders:
            message["node_endpoints"] = self._cluster.node_endpoints(self.leaders, self._request.connection)
        return message


class _TransactionalError(Exception):
    """Raise when a batch belongs to a transaction: the whole request fails."""


def _field(version: int) -> str:
    """Return by which field a topic is named."""
    return "name" if version < _TOPIC_IDS_SINCE else "topic_id"


def _find(topics: Topics, name: str, version: int) -> tuple[Topic | None, int]:
    """Return the topic of a name or id, and the error where there is none."""
    if version < _TOPIC_IDS_SINCE:
        return topics.by_name.get(name), error_codes.UNKNOWN_TOPIC_OR_PARTITION
    return topics.by_id.get(name), error_codes.UNKNOWN_TOPIC_ID


def _may_write(request: Request, topics: Topics, name: str) -> bool:
    """Return whether the client may write to the topic of a name or id; False for an id without a topic."""
    if request.header.api_version >= _TOPIC_IDS_SINCE:
        topic = topics.by_id.get(name)
        return topic is None or request.authorized(acl.WRITE, acl.TOPIC, topic.name)
    return request.authorized(acl.WRITE, acl.TOPIC, name)


def _remember(
    request: Request,
    acks: int,
    part: Message,
    topics: Topics,
    cluster: ClusterView,
    known: KnownRequests[_Target],
) -> None:
    """Keep a request with one partition, for later requests that begin like it.

    Do not keep a request that can fail, or whose answer may have to wait for a sync.
    """
    index, version = part["partition_data"][0]["index"], request.header.api_version
    name = part[_field(version)]
    topic, _ = _find(topics, name, version)
    log = None if topic is None else topic.log(index)
    if topic is None or log is None or not cluster.leads(topic, index):
        return
    if topic.name in INTERNAL_TOPICS:  # which of them is answered depends on the client id
        return
    if not log.settings.flushes and acks in ACKS:
        known.store_value(request, _Target(version, acks, {_field(version): name}, index, log, topic.name))


def _by_partition(topic_data: list[Message], version: int) -> Generator[None, None, _ByPartition]:
    """Return the batches to store, by topic (name or id) and partition.

    If a partition has several batches, the last counts, as in Kafka. One that was refused is answered even so.
    Null is not refused: it counts like any other batch.
    Raises `CorruptRecordsError` where a first batch cannot be taken apart, `_TransactionalError` for a transaction's.
    """
    wanted: _ByPartition = {}
    for part in topic_data:
        parts = wanted.setdefault(part[_field(version)], {})
        for data in part["partition_data"]:
            index, records = data["index"], data["records"]
            one = is_one_batch(records)
            if not one:
                raise_unparsable(records)
            if is_transactional(records):
                raise _TransactionalError
            earlier, rejected = parts.get(index, _NOTHING)
            try:
                parts[index] = records if one or records is None else only_batch(records, version), rejected
            except AppendError as error:
                parts[index] = earlier, error.without_frames()
            yield
        yield
    return wanted


def _store(target: _Target, records: memoryview, request: Request, turn: TurnWrites | None) -> Answer:
    """Store the one batch of a request whose target is known, and answer. turn: writes it, at its end."""
    log = target.log
    header = request.header
    try:
        base_offset, append_time_ms = log.append(
            records, request.now_ms, header.api_version, turn, request.connection.owner
        )
    except AppendError as error:
        return _refuse(target, request, error)
    encoded = None
    if target.acks != 0:
        encoded = target.answers.encode(header.correlation_id, base_offset, append_time_ms, log.start_offset)
    answer = Answer(encoded, _CHARGE)
    answer.topic = target.topic
    if turn is not None:
        answer.if_turn_fails = lambda: _refuse(target, request, _NOT_WRITTEN) if log in turn.failed else None
    return answer


def _refuse(target: _Target, request: Request, error: AppendError) -> Answer:
    """Answer that the one batch of a request was not stored."""
    transactional = error.error_code == error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    charge = Charge.REQUEST if transactional else Charge.PRODUCE  # as where all partitions fail
    if target.acks == 0:
        return Answer(None, charge, close=True)
    log = target.log if error.log_start_known else None
    refused = _refused(target.index, error.error_code, log, error.error_message)
    responses = [{**target.key, "partition_responses": [refused]}]
    return request.answer({"responses": responses, "throttle_time_ms": 0}, charge)


def _answer_synced(
    request: Request,
    message: Message,
    stored: _Stored,
    commits: GroupCommit,
    late: LateAnswers,
) -> Deferred:
    """Answer when the disk has what was appended, or has failed."""
    deferred = Deferred()

    def answer() -> Work:
        for log, end_offset, result in stored.unsynced:
            if log.recovery_point < end_offset:
                gone = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                result.update(
                    _refused(result["index"], gone if log.deleted else error_codes.KAFKA_STORAGE_ERROR)
                )
            yield
        responses = message["responses"]
        answered = yield from answer_partitions(
            request, message, responses, "partition_responses", Charge.PRODUCE
        )
        return stored.noted(answered)

    commits.wait([log for log, _, _ in stored.unsynced], lambda: late.complete(deferred, answer()))
    return deferred


def _append(
    log: PartitionLog, index: int, batch: _Batch, acks: int, request: Request, *, led: bool
) -> dict[str, Any]:
    """Store one partition's batch, if this node leads it, and return its part of the answer."""
    records, rejected = batch
    version, owner = request.header.api_version, request.connection.owner
    result = None
    try:
        if records is None and rejected is None:
            only_batch(None, version)  # raises what is wrong
        if records is not None:
            if acks not in ACKS:
                result = _refused(index, error_codes.INVALID_REQUIRED_ACKS)
            elif not led:
                result = _refused(index, error_codes.NOT_LEADER_OR_FOLLOWER)
            else:
                base_offset, append_time_ms = log.append(records, request.now_ms, version, owner=owner)
                result = {
                    "index": index,
                    "error_code": error_codes.NONE,
                    "base_offset": base_offset,
                    "log_append_time": append_time_ms,
                    "log_start_offset": log.start_offset,
                    "record_errors": (),
                    "error_message": None,
                }
    except AppendError as error:
        if rejected is None:
            rejected = error.without_frames()
    if rejected is not None:
        return _refused(
            index, rejected.error_code, log if rejected.log_start_known else None, rejected.error_message
        )
    assert result is not None
    return result


def _refused(
    index: int, error_code: int, log: PartitionLog | None = None, text: str | None = None
) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": error_code,
        "base_offset": NO_OFFSET,
        "log_append_time": NO_OFFSET,
        "log_start_offset": NO_OFFSET if log is None else log.start_offset,
        "record_errors": (),
        "error_message": text,
    }


def _fail_all(
    request: Request, body: Message, error_code: int, text: str | None = None
) -> Generator[None, None, Answer]:
    """Fail every partition, charging the request alone; without an answer to send, close."""
    if body["acks"] == 0:
        yield from request.release_body(body)
        return Answer(None, Charge.REQUEST, close=True)
    field = _field(request.header.api_version)
    failed: dict[str, dict[int, Message]] = {}
    for part in body["topic_data"]:
        parts = failed.setdefault(part[field], {})
        for data in part["partition_data"]:
            if data["index"] not in parts:
                parts[data["index"]] = _refused(data["index"], error_code, text=text)
            yield
        yield
    yield from request.release_body(body)
    responses: list[Message] = []
    for name, parts in failed.items():
        if parts:
            responses.append({field: name, "partition_responses": list(parts.values())})
            parts.clear()
        yield
    message = {"responses": responses, "throttle_time_ms": 0}
    # Unlike a request of which all partitions failed, this one is not charged its bytes (B§6.2.1).
    return (yield from answer_partitions(request, message, responses, "partition_responses", Charge.REQUEST))
