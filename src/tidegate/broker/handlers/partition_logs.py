"""The APIs that describe the logs of partitions: their sizes, their producers, and where epochs end."""

import os
from collections.abc import Callable, Generator, Sequence

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.topic_names import name_problem
from tidegate.in_slices import release_messages
from tidegate.server.requests.handler import Charge, Message, Request, Work
from tidegate.server.requests.late_messages import LateMessages
from tidegate.storage.log.partition_log import LEADER_EPOCH
from tidegate.storage.log.producers import NO_TRANSACTION, ProducerState
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import UNKNOWN

__all__ = [
    "MAX_PRODUCERS_ANSWERED",
    "handle_describe_log_dirs",
    "handle_describe_producers",
    "handle_offset_for_leader_epoch",
]

_Wanted = dict[str, set[int]]

MAX_PRODUCERS_ANSWERED = 100_000
"""In one answer, past which partitions get error 42: twice what a node remembers, 4 MB."""

_TOO_MANY = f"the response would exceed {MAX_PRODUCERS_ANSWERED} producers, expected fewer partitions"
_NOBODY: Sequence[ProducerState] = ()

_Found = tuple[int, str | None, Sequence[ProducerState]]


def handle_describe_log_dirs(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Describe the directory of `storage`.

    DescribeLogDirs (key 35), versions 1-5. KIP-113, KIP-827 (total and usable bytes, from 4), KIP-1066 (cordoned,
    5).

    A node has one directory. Described are the partitions that it leads, of those that are asked for: null asks for
    all. A partition that is not there is left out, one that is named more than once is described once. Needs
    DESCRIBE on the cluster, else error 31 (before version 3 an empty answer). Memory: at most 60 bytes for each
    byte of the request (a partition of 4 bytes becomes a number in a set).
    """
    directory = os.path.abspath(storage.directory)
    body = yield from request.body_in_slices()
    if not request.authorized(acl.DESCRIBE, acl.CLUSTER):
        yield from request.release_body(body)
        error_code = error_codes.CLUSTER_AUTHORIZATION_FAILED
        return request.answer({"throttle_time_ms": 0, "error_code": error_code, "results": []})
    wanted: _Wanted | None = None
    if body["topics"] is not None:
        wanted = yield from _wanted(body["topics"])
    yield from request.release_body(body)
    result: Message = {
        "error_code": error_codes.NONE,
        "log_dir": directory,
        "topics": [],
        "total_bytes": UNKNOWN,
        "usable_bytes": UNKNOWN,
        "is_cordoned": False,
    }
    try:
        found = os.statvfs(directory)
    except OSError:
        result["error_code"] = error_codes.KAFKA_STORAGE_ERROR
    else:
        result["total_bytes"] = found.f_blocks * found.f_frsize
        result["usable_bytes"] = found.f_bavail * found.f_frsize
        result["topics"] = yield from _topics(storage, cluster, wanted)
    yield from release(wanted or {})
    message = {"throttle_time_ms": 0, "error_code": error_codes.NONE, "results": [result]}
    answer = yield from request.answer_in_slices(message)
    yield from release_messages(result["topics"])
    return answer


def _wanted(topics: list[Message]) -> Generator[None, None, _Wanted]:
    """Return the partitions that are asked for, by topic."""
    wanted: _Wanted = {}
    for part in topics:
        indexes = wanted.setdefault(part["topic"], set())
        for index in part["partitions"]:
            indexes.add(index)
            yield
        yield from release(part["partitions"])
        yield
    return wanted


def _topics(
    storage: Storage, cluster: ClusterView, wanted: _Wanted | None
) -> Generator[None, None, list[Message]]:
    """Return what there is of each topic that has a partition here."""
    described = []
    for topic in list(storage.topics):
        indexes = None if wanted is None else wanted.get(topic.name, set())
        if indexes is None or indexes:
            partitions = yield from _partitions(cluster, topic, indexes)
            if partitions:
                described.append({"name": topic.name, "partitions": partitions})
        yield
    return described


def _partitions(
    cluster: ClusterView, topic: Topic, indexes: set[int] | None
) -> Generator[None, None, list[Message]]:
    partitions = []
    for index, log in enumerate(topic.logs):
        if (indexes is None or index in indexes) and cluster.leads(topic, index):
            partitions.append(
                {
                    "partition_index": index,
                    "partition_size": log.size_bytes,
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
        yield
    return partitions


def handle_describe_producers(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Describe the producers of partitions.

    DescribeProducers (key 61), version 0. KIP-664.

    Of each partition the idempotent producers that it remembers. A partition that is named more than once is
    answered as often. A partition that another broker leads is error 6. Nothing is transactional. Needs READ on
    each topic; others get error 29. Memory: at most 120 bytes for each byte of the request (a partition of 4 bytes
    becomes a dict and an error with its text), and the answer, whose producers are made while it is written: at
    most `MAX_PRODUCERS_ANSWERED`.
    """
    body = yield from request.body_in_slices()
    left = MAX_PRODUCERS_ANSWERED

    def answers_of(name: str) -> Callable[[int], Message]:
        topic = storage.topics.by_name.get(name)
        problem = _problem_of(request, storage, name)

        def answer(index: int) -> Message:
            nonlocal left
            error_code, text, states = problem or _states(cluster, topic, index, left)
            left -= len(states)
            return {
                "partition_index": index,
                "error_code": error_code,
                "error_message": text,
                "active_producers": LateMessages(states, _producer),
            }

        return answer

    answers = yield from answers_by_topic(body["topics"], answers_of, partitions="partition_indexes")
    yield from request.release_body(body)
    answer = yield from request.answer_in_slices({"throttle_time_ms": 0, "topics": answers})
    yield from release_messages(answers)
    return answer


def _problem_of(request: Request, storage: Storage, name: str) -> _Found | None:
    """Return why a topic is not described, None where it is."""
    problem = name_problem(name)
    if problem is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}", _NOBODY
    if not request.authorized(acl.READ, acl.TOPIC, name):
        return _refused(error_codes.TOPIC_AUTHORIZATION_FAILED)
    if name not in storage.topics.by_name:
        return _refused(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    return None


def _refused(error_code: int) -> _Found:
    return error_code, error_codes.TEXTS[error_code], _NOBODY


def _states(cluster: ClusterView, topic: Topic | None, index: int, left: int) -> _Found:
    """Return the producers of a partition, at most `left`, or the error and text that stand for them."""
    log = None if topic is None else topic.log(index)
    if topic is None or log is None:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, None, _NOBODY
    if not cluster.leads(topic, index):
        return error_codes.NOT_LEADER_OR_FOLLOWER, None, _NOBODY
    if len(log.producers) > left:
        return error_codes.INVALID_REQUEST, _TOO_MANY, _NOBODY
    return error_codes.NONE, None, log.producers.states()


def _producer(state: ProducerState) -> Message:
    _, epoch, last_sequence, _, _, time_ms = state.batches[-1]
    return {
        "producer_id": state.producer_id,
        "producer_epoch": epoch,
        "last_sequence": last_sequence,
        "last_timestamp": time_ms,
        "coordinator_epoch": NO_TRANSACTION,
        "current_txn_start_offset": NO_TRANSACTION,
    }


def handle_offset_for_leader_epoch(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Answer where epochs of leaders end in the logs of `storage`.

    OffsetForLeaderEpoch (key 23), versions 2-4. KIP-101, KIP-320 (consumers ask, too).

    A partition has one leader for ever, so there is one epoch: its end is the end of the log. Any later one, and
    -1, has none (-1); any earlier one ended where the log begins. A partition that is named more than once is
    answered as often. A partition that another broker leads is error 6. Needs CLUSTER_ACTION on the cluster or
    DESCRIBE on each topic; others get error 29. Memory: at most 60 bytes for each byte of the request (a partition
    of 12 bytes becomes two dicts).
    """
    body = yield from request.body_in_slices()
    may_ask_all = request.authorized(acl.CLUSTER_ACTION, acl.CLUSTER)

    def answers_of(name: str) -> Callable[[Message], Message]:
        topic, missing = storage.topics.by_name.get(name), error_codes.UNKNOWN_TOPIC_OR_PARTITION
        if not (may_ask_all or request.authorized(acl.DESCRIBE, acl.TOPIC, name)):
            topic, missing = None, error_codes.TOPIC_AUTHORIZATION_FAILED
        return lambda wanted: _end(cluster, topic, wanted, missing)

    answers = yield from answers_by_topic(body["topics"], answers_of, name="topic")
    yield from request.release_body(body)
    message = {"throttle_time_ms": 0, "topics": answers}
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))


def _end(cluster: ClusterView, topic: Topic | None, wanted: Message, missing: int) -> Message:
    """Return the answer of a partition: the epoch and where it ended, or the error, `missing` without a topic.

    Follows: Kafka `LeaderEpochFileCache.endOffsetFor`.
    """
    index, current, epoch = wanted["partition"], wanted["current_leader_epoch"], wanted["leader_epoch"]
    log = None if topic is None else topic.log(index)
    error_code, end_offset = error_codes.NONE, UNKNOWN
    if topic is None or log is None:
        error_code = missing
    elif not cluster.leads(topic, index):
        error_code = error_codes.NOT_LEADER_OR_FOLLOWER
    elif log.damaged:
        error_code = error_codes.KAFKA_STORAGE_ERROR
    elif current > LEADER_EPOCH:
        error_code = error_codes.UNKNOWN_LEADER_EPOCH
    elif current < LEADER_EPOCH and current != UNKNOWN:
        error_code = error_codes.FENCED_LEADER_EPOCH
    elif epoch == LEADER_EPOCH:
        end_offset = log.end_offset
    elif epoch < UNKNOWN:
        end_offset = log.start_offset
    return {
        "error_code": error_code,
        "partition": index,
        "leader_epoch": UNKNOWN if end_offset == UNKNOWN else epoch,
        "end_offset": end_offset,
    }
