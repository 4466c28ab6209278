"""Produce (key 0), versions 3-13. KIP-98 (idempotence), KIP-467 (record errors), KIP-516 (topic ids from 13).

Every partition holds one record batch of format 2, in any compression: it is stored as it came. The answer is sent
when the batch has been written to its file; there are no replicas. Where an append makes a sync due (`flush.messages`),
acks=all is answered after the sync, which all who wait then share; acks=1 and acks=0 never wait for the disk (in Kafka
every append that makes a sync due does). acks=0 has no answer; a refused batch then closes the connection (B§6.2). A
first batch that cannot be taken apart fails the whole request, and its bytes are not charged (B§6.2).
Not implemented: transactions (error 48 for a transactional batch), looking into the records.
"""

from typing import Any

from tidegate.server.handler import Answer, Charge, Deferred, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.errors import AppendError
from tidegate.storage.group_commit import GroupCommit
from tidegate.storage.handlers.kept_answers import ProduceAnswers
from tidegate.storage.handlers.known_requests import KnownRequests
from tidegate.storage.log import PartitionLog
from tidegate.storage.records import is_one_batch, only_batch, raise_unparsable
from tidegate.storage.storage import Storage
from tidegate.storage.topics import Topic, Topics
from tidegate.storage.turn_writes import TurnWrites
from tidegate.wire.batch import CorruptRecordsError

__all__ = ["PRODUCE", "produce_handler"]

PRODUCE = 0
ACKS = (-1, 1, 0)
ACKS_ALL = -1
NO_OFFSET = -1
_TOPIC_IDS_SINCE = 13

_NOT_WRITTEN = AppendError(error_codes.KAFKA_STORAGE_ERROR, "the log could not be written")

_Unsynced = tuple[PartitionLog, int, dict[str, Any]]
"""A log, the offset that must be synced, and the part of the answer that depends on it."""


class _Target:
    """A partition that a client produces to, and how: what is known of a request by the bytes it begins with."""

    __slots__ = ("acks", "answers", "index", "key", "log", "settings")

    def __init__(self, version: int, acks: int, key: dict[str, str], index: int, log: PartitionLog) -> None:
        self.acks = acks
        self.key = key
        self.index = index
        self.log = log
        self.settings = log.settings
        self.answers = ProduceAnswers(version, key, index)


def produce_handler(storage: Storage) -> Handler:
    """Return the handler that appends to the logs of `storage`."""
    topics, commits, turn = storage.topics, storage.commits, storage.turn
    known: KnownRequests[_Target] = KnownRequests(PRODUCE, "index", ("records",))

    def handle(request: Request) -> Answer | Deferred:
        header = request.header
        find, kept = known[header.api_version]
        found = find(request.frame, header.body_at, kept)
        if found is not None:
            target, records = found
            log = target.log
            if not log.deleted and log.settings is target.settings and is_one_batch(records):
                return _store(target, records, request, turn)
        return handle_any(request)

    def handle_any(request: Request) -> Answer | Deferred:
        body = request.body()
        version = request.header.api_version
        acks, topic_data = body["acks"], body["topic_data"]
        if len(topic_data) == 1 and len(topic_data[0]["partition_data"]) == 1:
            _learn(request, acks, topic_data[0], topics, known)
        odd = False
        for part in topic_data:
            for data in part["partition_data"]:
                odd = odd or not is_one_batch(data["records"])
        if odd:
            try:
                _frame_all(topic_data, version)
            except CorruptRecordsError as error:
                return _unparsable(request, topic_data, acks, str(error))
        responses: list[Message] = []
        failed = False
        unsynced: list[_Unsynced] = []
        for part in topic_data:
            key, topic, missing = _find(topics, part, version)
            partitions: list[Message] = []
            for data in part["partition_data"]:
                result = _append(topic, missing, data, acks, request.now_ms, version)
                if result["error_code"]:
                    failed = True
                elif acks == ACKS_ALL:
                    assert topic is not None
                    log = topic.logs[data["index"]]
                    if log.recovery_point < log.end_offset <= log.sync_asked_offset:
                        unsynced.append((log, log.end_offset, result))
                partitions.append(result)
            responses.append({**key, "partition_responses": partitions})
        if acks == 0:
            return Answer(None, Charge.PRODUCE, close=failed)
        message = {"responses": responses, "throttle_time_ms": 0}
        if unsynced:
            return _answer_synced(request, message, unsynced, commits)
        return request.answer(message, Charge.PRODUCE)

    return handle


def _find(topics: Topics, part: Message, version: int) -> tuple[dict[str, str], Topic | None, int]:
    """Return how the answer names a topic, the topic, and the error that tells that there is none."""
    if version < _TOPIC_IDS_SINCE:
        name = part["name"]
        return {"name": name}, topics.by_name.get(name), error_codes.UNKNOWN_TOPIC_OR_PARTITION
    topic_id = part["topic_id"]
    return {"topic_id": topic_id}, topics.by_id.get(topic_id), error_codes.UNKNOWN_TOPIC_ID


def _learn(request: Request, acks: int, part: Message, topics: Topics, known: KnownRequests[_Target]) -> None:
    """Keep what a request with one partition says for those that begin as it does.

    Not where it must fail, nor where an append may make a sync due, which its answer has to wait for.
    """
    index, version = part["partition_data"][0]["index"], request.header.api_version
    key, topic, _ = _find(topics, part, version)
    log = None if topic is None else topic.log(index)
    if topic is None or log is None or log.settings.flushes:
        return
    if not _acks_problem(topic, acks):
        known.keep(request, _Target(version, acks, key, index, log))


def _store(target: _Target, records: memoryview, request: Request, turn: TurnWrites) -> Answer:
    """Store the one batch of a request whose target is known, and answer."""
    log = target.log
    header = request.header
    try:
        base_offset, append_time_ms = log.append(records, request.now_ms, header.api_version, turn)
    except AppendError as error:
        return _refuse(target, request, error)
    encoded = None
    if target.acks != 0:
        encoded = target.answers.encode(header.correlation_id, base_offset, append_time_ms, log.start_offset)
    answer = Answer(encoded, Charge.PRODUCE)
    if turn.putting_off:
        answer.instead = lambda: _refuse(target, request, _NOT_WRITTEN) if log in turn.failed else None
    return answer


def _refuse(target: _Target, request: Request, error: AppendError) -> Answer:
    """Answer that the one batch of a request was not stored."""
    if target.acks == 0:
        return Answer(None, Charge.PRODUCE, close=True)
    log = target.log if error.log_start_known else None
    responses = [{**target.key, "partition_responses": [_refused(target.index, error.error_code, log)]}]
    return request.answer({"responses": responses, "throttle_time_ms": 0}, Charge.PRODUCE)


def _answer_synced(
    request: Request, message: Message, unsynced: list[_Unsynced], commits: GroupCommit
) -> Deferred:
    """Answer when the disk has what was appended, or has failed."""
    deferred = Deferred()

    def answer_now() -> None:
        for log, end_offset, result in unsynced:
            if log.recovery_point < end_offset:
                gone = error_codes.UNKNOWN_TOPIC_OR_PARTITION
                result.update(
                    _refused(result["index"], gone if log.deleted else error_codes.KAFKA_STORAGE_ERROR)
                )
        deferred.complete(request.answer(message, Charge.PRODUCE))

    commits.wait([log for log, _, _ in unsynced], answer_now)
    return deferred


def _frame_all(topic_data: list[Message], version: int) -> None:
    """Put in place of each partition's records its one batch, or the error that stands for it.

    Raises `CorruptRecordsError` where a first batch cannot be taken apart.
    """
    for part in topic_data:
        for data in part["partition_data"]:
            raise_unparsable(data["records"])
            try:
                data["records"] = only_batch(data["records"], version)
            except AppendError as error:
                data["records"] = error


def _append(
    topic: Topic | None, missing: int, data: dict[str, Any], acks: int, now_ms: int, version: int
) -> dict[str, Any]:
    """Store one partition's batch and return its part of the answer."""
    index = data["index"]
    if topic is None:
        return _refused(index, missing)
    log = topic.log(index)
    if log is None:
        return _refused(index, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if acks != 1:
        problem = _acks_problem(topic, acks)
        if problem:
            return _refused(index, problem)
    records = data["records"]
    try:
        if type(records) is AppendError:
            raise records
        base_offset, append_time_ms = log.append(records, now_ms, version)
    except AppendError as error:
        return _refused(index, error.error_code, log if error.log_start_known else None)
    return {
        "index": index,
        "error_code": 0,
        "base_offset": base_offset,
        "log_append_time": append_time_ms,
        "log_start_offset": log.start_offset,
        "record_errors": (),
        "error_message": None,
    }


def _acks_problem(topic: Topic, acks: int) -> int:
    if acks not in ACKS:
        return error_codes.INVALID_REQUIRED_ACKS
    if acks == ACKS_ALL and topic.settings.min_insync_replicas > 1:
        return error_codes.NOT_ENOUGH_REPLICAS
    return error_codes.NONE


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


def _unparsable(request: Request, topic_data: list[Message], acks: int, text: str) -> Answer:
    """Fail every partition, charging the request alone; without an answer to send, close."""
    if acks == 0:
        return Answer(None, Charge.REQUEST, close=True)
    responses = [
        {
            **part,
            "partition_responses": [
                _refused(data["index"], error_codes.CORRUPT_MESSAGE, text=text)
                for data in part["partition_data"]
            ],
        }
        for part in topic_data
    ]
    return request.answer({"responses": responses, "throttle_time_ms": 0}, Charge.REQUEST)
