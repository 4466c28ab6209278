"""DeleteRecords (key 21), versions 0-2. KIP-107.

Moves the start of a log to the given offset, or to its end for -1; an offset before its start changes nothing. Earlier
records cannot be read any more, also after a restart. A file is deleted within a minute after its last record.
An offset past the end is error 1. If a partition is named more than once, the last offset counts; a topic without
partitions is left out of the answer, as in Kafka.
Needs DELETE on each topic; others get error 29.
A partition that another broker leads is error 6; one of a topic that is compacted only, error 44; one of
an internal topic, error 17.
Memory: at most 75 bytes for each byte of the request (a partition of 12 bytes becomes two dicts and two entries).
"""

from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.topic_names import INTERNAL_TOPICS
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.storage.errors import StorageError
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import UNKNOWN

__all__ = ["handle_delete_records"]

END = -1
KEPT_AT_ONCE = 100
"""Partitions whose start is kept in one transaction: in about a millisecond."""

_Deletion = tuple[Topic, PartitionLog, int, Message]
"""A topic, the log of a partition, the offset that is named, and the answer."""


def handle_delete_records(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Delete the first records of partitions."""
    body = yield from request.body_in_slices()
    wanted = yield from _last_offsets(body["topics"])
    yield from request.release_body(body)
    answers: list[Message] = []
    due: list[_Deletion] = []
    for name, offsets in wanted.items():
        topic = storage.topics.by_name.get(name)
        error_code = error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if not request.authorized(acl.DELETE, acl.TOPIC, name):
            topic, error_code = None, error_codes.TOPIC_AUTHORIZATION_FAILED
        partitions: list[Message] = []
        for index, offset in offsets.items():
            answer = {
                "partition_index": index,
                "low_watermark": UNKNOWN,
                "error_code": error_code,
            }
            partitions.append(answer)
            log = None if topic is None else topic.log(index)
            if topic is not None and log is not None:
                due.append((topic, log, offset, answer))
            if len(due) == KEPT_AT_ONCE:
                _delete(storage, cluster, due)
                due.clear()
            yield
        if partitions:
            answers.append({"name": name, "partitions": partitions})
        yield from release(offsets)
        yield
    _delete(storage, cluster, due)
    yield from release(wanted)
    message = {"throttle_time_ms": 0, "topics": answers}
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))


def _last_offsets(topics: list[Message]) -> Generator[None, None, dict[str, dict[int, int]]]:
    """Return the offset of each partition, by topic; of one that is named more than once the last."""
    found: dict[str, dict[int, int]] = {}
    for part in topics:
        offsets = found.setdefault(part["name"], {})
        for partition in part["partitions"]:
            offsets[partition["partition_index"]] = partition["offset"]
            yield
        yield from release(part["partitions"])
        yield
    return found


def _delete(storage: Storage, cluster: ClusterView, due: list[_Deletion]) -> None:
    """Store the new starts of logs, then apply them. A start that cannot be stored is not applied."""
    good: list[tuple[PartitionLog, int, Message]] = []
    starts: dict[tuple[str, int], int] = {}
    for topic, log, offset, answer in due:
        start = log.end_offset if offset == END else offset
        error_code = answer["error_code"] = _problem(cluster, topic, log, start, answer["partition_index"])
        if error_code == error_codes.NONE:
            good.append((log, start, answer))
            if start > log.start_offset:
                starts[topic.topic_id, answer["partition_index"]] = start
    try:
        if starts:
            storage.store.put_start_offsets(starts)
    except StorageError:
        for _, _, answer in good:
            answer["error_code"] = error_codes.KAFKA_STORAGE_ERROR
        return
    for log, start, answer in good:
        log.raise_start(start)
        answer["low_watermark"] = log.start_offset


def _problem(cluster: ClusterView, topic: Topic, log: PartitionLog, start: int, index: int) -> int:
    """Return the error of a deletion, 0 if it is possible: a stored start must not be ahead of the records."""
    if log.deleted:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION
    if topic.name in INTERNAL_TOPICS:
        return error_codes.INVALID_TOPIC_EXCEPTION
    if not cluster.leads(topic, index):
        return error_codes.NOT_LEADER_OR_FOLLOWER
    if topic.settings.only_compacted:
        return error_codes.POLICY_VIOLATION
    try:
        log.write_gathered()
    except OSError:
        return error_codes.KAFKA_STORAGE_ERROR
    if log.damaged:
        return error_codes.KAFKA_STORAGE_ERROR
    return error_codes.NONE if 0 <= start <= log.end_offset else error_codes.OFFSET_OUT_OF_RANGE
