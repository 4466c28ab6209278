"""ListOffsets (key 2), versions 1-11. KIP-79, KIP-734 (-3 from 7), KIP-405 (-4 from 8), KIP-1005 (-5 from 9).
KIP-1023 (-6 from 11).

Times below 0 name places: -1 the end, -2 the start, -3 the record with the largest time, -4 the start of what is kept
locally (all of it), -5 the end of what is kept elsewhere and -6 the start of what will be (nothing: -1). Others are
times: the first record not older.
Compressed batches are decompressed on a thread, up to a bound (`tidegate.storage.log.unpacking`); one that cannot be is
error -1, one without records in it error 87. A partition that is named more
than once is not looked at: error 42, after the others of its topic, as in Kafka. So is an unknown isolation level -1.
Needs DESCRIBE on each topic; others get error 29, at the end.
Memory: at most 100 bytes for each byte of the request (a partition of 12 bytes becomes two dicts and an entry of a
third), one piece of a log (`time_lookup.PIECE_BYTES`), and one decompressed batch.
A partition that another broker leads is error 6. Not implemented: tiered storage, followers.
"""

import contextlib
import logging
from collections.abc import Generator
from concurrent.futures import Future
from functools import partial

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic, release
from tidegate.broker.cluster import ClusterView
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Charge, Message, Request, Wait, Work
from tidegate.storage.errors import LogDamagedError, UnreadableBatchError
from tidegate.storage.log.partition_log import LEADER_EPOCH, PartitionLog
from tidegate.storage.log.time_lookup import Lookup, TimeAndOffset, offset_by_time, offset_of_latest_time
from tidegate.storage.log.unpacking import Outcome, Unpack
from tidegate.storage.storage import Storage
from tidegate.wire import UNKNOWN

__all__ = ["handle_list_offsets"]

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST, EARLIEST, LARGEST_TIME, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = (
    -1,
    -2,
    -3,
    -4,
    -5,
    -6,
)
SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    LARGEST_TIME: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_logger = logging.getLogger(__name__)


def handle_list_offsets(
    storage: Storage, cluster: ClusterView, scheduler: Scheduler, request: Request
) -> Work:
    """Look up offsets in the logs of `storage`."""
    body = yield from request.body_in_slices()
    topics = body["topics"]
    allowed, others = yield from _by_right(request, topics)
    is_known = body.get("isolation_level", READ_UNCOMMITTED) in (READ_UNCOMMITTED, READ_COMMITTED)
    if not is_known and allowed:
        answered = yield from _failed(topics, error_codes.UNKNOWN_SERVER_ERROR)
        return (yield from _answer_all(request, answered))
    if not allowed:
        answered = yield from _failed(others, error_codes.TOPIC_AUTHORIZATION_FAILED)
        return (yield from _answer_all(request, answered))
    version = request.header.api_version
    unpack = partial(storage.unpacker.unpack, owner=request.connection.owner)
    answers = _Answers()
    repeated: dict[str, dict[int, Message]] = {}
    found = yield from _by_partition(allowed)
    for name, wanted, times in found.values():
        if times > 1:
            answer = _answer(wanted["partition_index"], None, error_codes.INVALID_REQUEST)
            repeated.setdefault(name, {})[wanted["partition_index"]] = answer
        else:
            answer = yield from _list_offset(storage, cluster, scheduler, unpack, name, wanted, version)
            answers.of(name).append(answer)
        yield
    yield from release(found)
    for name, refused in repeated.items():
        answers.of(name).extend(refused.values())
        refused.clear()
        yield
    yield from release(repeated, answers.by_name)
    answers.topics += yield from _failed(others, error_codes.TOPIC_AUTHORIZATION_FAILED)
    return (yield from _answer_all(request, answers.topics))


class _Answers:
    """The topics of an answer, in their order, each once."""

    def __init__(self) -> None:
        self.topics: list[Message] = []
        self.by_name: dict[str, list[Message]] = {}

    def of(self, name: str) -> list[Message]:
        """Return the partitions of a topic."""
        partitions = self.by_name.get(name)
        if partitions is None:
            partitions = self.by_name[name] = []
            self.topics.append({"name": name, "partitions": partitions})
        return partitions


def _answer_all(request: Request, topics: list[Message]) -> Work:
    message = {"throttle_time_ms": 0, "topics": topics}
    return (yield from answer_partitions(request, message, topics, "partitions", Charge.REQUEST))


def _by_right(
    request: Request, topics: list[Message]
) -> Generator[None, None, tuple[list[Message], list[Message]]]:
    """Return the topics that the client may ask about, and the others."""
    if request.connection.authorizer is None:
        return topics, []
    allowed, refused = list[Message](), list[Message]()
    for part in topics:
        may_describe = request.authorized(acl.DESCRIBE, acl.TOPIC, part["name"])
        (allowed if may_describe else refused).append(part)
        yield
    yield from release(topics)  # else all of them would go at once, with the request
    return allowed, refused


def _failed(topics: list[Message], error_code: int) -> Generator[None, None, list[Message]]:
    """Return answers for each partition with one error, as often as it was named."""

    def answer(wanted: Message) -> Message:
        return _answer(wanted["partition_index"], None, error_code)

    answers = yield from answers_by_topic(topics, lambda _: answer)
    yield from release(topics)
    return answers


_ByPartition = dict[tuple[str, int], tuple[str, Message, int]]


def _by_partition(topics: list[Message]) -> Generator[None, None, _ByPartition]:
    """Return each partition once: its topic, what was asked for, and how often it was named."""
    found: _ByPartition = {}
    for part in topics:
        name = part["name"]
        for wanted in part["partitions"]:
            key = name, wanted["partition_index"]
            times = found[key][2] if key in found else 0
            found[key] = name, wanted, times + 1
            yield
        yield from release(part["partitions"])
        yield
    yield from release(topics)
    return found


def _list_offset(
    storage: Storage,
    cluster: ClusterView,
    scheduler: Scheduler,
    unpack: Unpack,
    name: str,
    wanted: Message,
    version: int,
) -> Generator[Wait | None, None, Message]:
    index, time_ms = wanted["partition_index"], wanted["timestamp"]
    if time_ms < 0 and version < SINCE_VERSION.get(time_ms, version + 1):
        return _answer(index, None, error_codes.UNSUPPORTED_VERSION)
    topic = storage.topics.by_name.get(name)
    log = None if topic is None else topic.log(index)
    if topic is None or log is None:
        return _answer(index, None, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    if not cluster.leads(topic, index):
        return _answer(index, None, error_codes.NOT_LEADER_OR_FOLLOWER)
    leader_epoch = wanted.get("current_leader_epoch", UNKNOWN)
    if leader_epoch > LEADER_EPOCH:
        return _answer(index, None, error_codes.UNKNOWN_LEADER_EPOCH)
    if leader_epoch < LEADER_EPOCH and leader_epoch != UNKNOWN:
        return _answer(index, None, error_codes.FENCED_LEADER_EPOCH)
    if not log.damaged:
        try:
            lookup = _find(log, time_ms, unpack)
            return _answer(index, (yield from _awaited(lookup, scheduler)), error_codes.NONE)
        except UnreadableBatchError as error:
            _logger.info("cannot search %s-%d by timestamp (ListOffsets): %s", name, index, error)
            return _answer(index, None, error.error_code)
        except (LogDamagedError, OSError) as error:
            log.mark_damaged(str(error))
    return _answer(index, None, error_codes.KAFKA_STORAGE_ERROR)


def _awaited(lookup: Lookup, scheduler: Scheduler) -> Generator[Wait | None, None, TimeAndOffset | None]:
    """Run a lookup and return its result; the request waits while the lookup waits for another thread."""
    while True:
        try:
            pending = next(lookup)
        except StopIteration as stop:
            found: TimeAndOffset | None = stop.value
            return found
        if pending is None:
            yield None
        else:
            yield from _wait_for(pending, scheduler)


def _wait_for(future: Future[Outcome], scheduler: Scheduler) -> Generator[Wait, None, None]:
    """Wait for a thread, whose time the request pays for."""
    wait = Wait()
    is_charged = False

    def end(done: Future[Outcome]) -> None:
        nonlocal is_charged
        if not done.cancelled() and done.exception() is None:
            wait.charged_ns = done.result().took_ns
        is_charged = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            scheduler.call_soon_threadsafe(wait.resume)

    future.add_done_callback(end)
    yield wait
    while not is_charged:  # a future is done a moment before its callbacks are called
        yield wait


def _find(log: PartitionLog, time_ms: int, unpack: Unpack) -> Lookup:
    yield None
    if time_ms == LATEST:
        return UNKNOWN, log.end_offset
    if time_ms in (EARLIEST, EARLIEST_LOCAL):
        return UNKNOWN, log.start_offset
    if time_ms == LARGEST_TIME:
        return (yield from offset_of_latest_time(log, unpack))
    if time_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return None
    return (yield from offset_by_time(log, time_ms, unpack))


def _answer(index: int, found: TimeAndOffset | None, error_code: int) -> Message:
    return {
        "partition_index": index,
        "error_code": error_code,
        "timestamp": UNKNOWN if found is None else found[0],
        "offset": UNKNOWN if found is None else found[1],
        "leader_epoch": UNKNOWN if found is None else LEADER_EPOCH,
    }
