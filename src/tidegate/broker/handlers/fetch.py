"""Fetch (key 1), versions 4-18. KIP-74 (max bytes), KIP-98, KIP-227 (sessions), KIP-516 (topic ids from 13).

Answers at once when `min_bytes` are there, something is wrong or the client does not want to wait; otherwise when
enough has been appended or `max_wait_ms` are over. Records are slices of the log files, sent without being read. The
client's quota caps the record bytes before reading (B§6.3.1); of the first partition with records at least one whole
batch is given, later batches may be cut off at the limit, as on Apache Kafka (B§6.3).
Of a partition that is named more than once the last counts, as in Kafka. A consumer that has last seen a later epoch
than there is, is out of range; one that is past the end of the epoch is answered where that is.
Nothing is transactional, so read_committed reads what read_uncommitted does. With an isolation level that there is not
the request fails as a whole, if any of its partitions is there.
Sessions are in `broker.fetch_sessions`; what is common to all ways of fetching in `broker.fetching`.
Memory: at most 100 bytes for each byte of the request (a partition of 16 bytes becomes three dicts and an object); a
long poll keeps an object for each partition, of which there are at most as many as the node has.
A partition that another broker leads is error 6, with that leader from version 16 on (KIP-951).
Consumers need READ on each topic; those that they may not read get error 29, whether or not they are there. Who says
that it is a follower needs CLUSTER_ACTION on the cluster: it is exempt then, else all its partitions get error 29 and
it is charged.
Not implemented: followers (error 6), rack awareness.
"""

import struct
from collections.abc import Generator, Iterable
from functools import cache
from typing import NamedTuple

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.api_keys import FETCH
from tidegate.broker.cluster import ClusterView
from tidegate.broker.fetch_sessions import (
    NEW_EPOCH,
    NO_EPOCH,
    NO_SESSION,
    FetchedPartition,
    FetchSession,
    FetchSessions,
    Partitions,
    next_epoch,
)
from tidegate.broker.fetch_waits import FetchWaits, Wait
from tidegate.broker.fetching import (
    NOT_READ,
    TOPIC_IDS_SINCE,
    Fetch,
    failed_partition,
    fetch_message,
    resolve,
    topic_field,
)
from tidegate.broker.kept_answers import EmptyFetchAnswers, FetchAnswers, set_session_id
from tidegate.broker.known_requests import KnownRequests
from tidegate.broker.late_answers import LateAnswers
from tidegate.broker.releasing import answer_partitions, release
from tidegate.scheduling import Scheduler
from tidegate.server.handler import Answer, Charge, Deferred, FetchAnswer, Handler, Message, Request, Work
from tidegate.storage.config import MAX_PARTITIONS
from tidegate.storage.errors import LogDamagedError, OffsetOutOfRangeError
from tidegate.storage.housekeeping import start_chore
from tidegate.storage.log.file_slice import FileSlice
from tidegate.storage.log.partition_log import LEADER_EPOCH, PartitionLog
from tidegate.storage.storage import Storage
from tidegate.wire import Encoded, field_since, write_request
from tidegate.wire.split_reader import SplitReader, split_reader

__all__ = ["FORGET_DELETED_EVERY_S", "fetch_handler"]

FORGET_DELETED_EVERY_S = 60.0
"""So often sessions let go of the logs of topics that were deleted."""

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
_SESSIONS_SINCE = field_since(FETCH, "request", "session_id")
_UNKNOWN = -1
_LAST_OF_PREFIX = "partition"
_VALUES = ("current_leader_epoch", "last_fetched_epoch", "fetch_offset", "partition_max_bytes")
_SESSION = struct.Struct(">ii")  # id and epoch
_SESSION_MARKS = 0x5A01_7B3C, 0x5A02_7B3C  # stand-ins for them, while their place is looked for


class _Source:
    """How a client fetches from one partition: what is known of a request by the bytes it begins with."""

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
        self.answers = FetchAnswers(version, {topic_field(version): name}, index, committed=self.committed)

    def fetch(self, request: Request, limit: int, offset: int, max_bytes: int, leader_epoch: int) -> Fetch:
        """Return the fetch that a request is, for the case that it has to wait."""
        fetch = Fetch(request, limit, committed=self.committed)
        wanted = FetchedPartition(self.name, self.index, offset, max_bytes, leader_epoch, _UNKNOWN)
        wanted.log = self.log
        fetch.wanted.append(wanted)
        return fetch


class _InSession(NamedTuple):
    """What is known of the requests of a session with one partition, which begin with the same limits.

    head: their bytes up to the session; prefixes: those between it and what is asked of the partition.
    """

    version: int
    head: bytes
    prefixes: dict[bytes, FetchedPartition]
    partition: FetchedPartition
    source: _Source


class _Layout(NamedTuple):
    """Where a version's requests have their session, and how they go on behind it.

    session_at: bytes from the body's beginning. nothing: what follows where no partition is named or forgotten.
    """

    session_at: int
    nothing: bytes
    reader: SplitReader
    empty: EmptyFetchAnswers


@cache
def _layout(version: int) -> _Layout | None:
    """Return what a version's requests look like, None where it has no sessions."""
    if version < _SESSIONS_SINCE:
        return None
    session_id, epoch = _SESSION_MARKS
    message = {
        "replica_id": _UNKNOWN,
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 0,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": [],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    body = write_request(FETCH, version, message)
    at = body.index(_SESSION.pack(session_id, epoch))
    reader = split_reader(FETCH, version, _LAST_OF_PREFIX, _VALUES, after="session_epoch")
    return _Layout(at, bytes(body[at + _SESSION.size :]), reader, EmptyFetchAnswers(version))


def fetch_handler(storage: Storage, cluster: ClusterView, scheduler: Scheduler) -> Handler:
    """Return the handler that reads the logs of `storage`."""
    waits, late = FetchWaits(scheduler), LateAnswers(scheduler, storage.clock.monotonic_ns)
    most_bytes = storage.config.fetch_max_bytes
    known: KnownRequests[_Source] = KnownRequests(FETCH, _LAST_OF_PREFIX, _VALUES)
    sessions = FetchSessions(storage.config.max_incremental_fetch_session_cache_slots)
    start_chore(storage, scheduler, FORGET_DELETED_EVERY_S, sessions.forget_deleted)
    now_ms = storage.clock.now_ms

    def handle(request: Request) -> Answer | Deferred | Work:
        header = request.header
        find, kept = known[header.api_version]
        found = find(request.frame, header.body_at, kept)
        answer = None
        if found is None:
            answer = handle_in_session(request)
        elif request.connection.authorizer is None or request.authorized(acl.READ, acl.TOPIC, found[0].topic):
            answer = handle_known(request, *found)
        return answer if answer is not None else handle_any(request)

    def read_now(
        request: Request, source: _Source, log: PartitionLog, offset: int, max_bytes: int
    ) -> tuple[int, FileSlice | None] | None:
        """Return the most bytes of the answer and what there is to read; None where the answer is an error."""
        limit = max(min(source.max_bytes, request.quotas.fetch_limit_bytes()), 0)
        at_most = min(max_bytes, limit)
        if at_most < 0:
            return None
        try:
            return limit, log.read(offset, at_most)
        except (OffsetOutOfRangeError, LogDamagedError):
            return None

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
            return _wait(fetch, waits, late, missing_bytes, source.max_wait_ms)
        correlation_id = request.header.correlation_id
        encoded = source.answers.encode(
            correlation_id, log.end_offset, log.last_stable_offset, log.start_offset, found
        )
        lag = log.end_offset - offset
        return FetchAnswer(encoded, lambda: _encode(request, []), lag, log.lag_bytes(lag))

    def handle_in_session(request: Request) -> Answer | Deferred | None:
        """Answer a request of a session with one partition that is like an earlier one, or wait.

        None where it is not, or where the answer is an error: then nothing has changed but what is asked.
        """
        header, frame = request.header, request.frame
        layout = _layout(header.api_version)
        if layout is None:
            return None
        session_at = header.body_at + layout.session_at
        at = session_at + _SESSION.size
        if len(frame) <= at:
            return None
        session_id, epoch = _SESSION.unpack_from(frame, session_at)
        session = sessions.find(session_id)
        if session is None or session.epoch != epoch or session.known is None:
            return None
        version, head, prefixes, partition, source = session.known
        if not (
            request.connection.authorizer is None or request.authorized(acl.READ, acl.TOPIC, source.topic)
        ):
            return None
        if version != header.api_version or frame[header.body_at : session_at] != head:
            return None
        if frame[at:] != layout.nothing:
            found = layout.reader.find(frame, at, prefixes)
            if found is None:
                return None
            _, leader_epoch, last_epoch, offset, max_bytes = found
            partition.ask(offset, max_bytes, leader_epoch, last_epoch)
        log = source.log
        if log.deleted or max(partition.leader_epoch, partition.last_epoch) > LEADER_EPOCH:
            return None
        read = read_now(request, source, log, partition.offset, partition.max_bytes)
        if read is None:
            return None
        limit, records = read
        sessions.touch(session, now_ms())
        session.epoch = next_epoch(epoch)
        if session.delivered:
            session.delivered = False
            partition.note_told()
        missing_bytes = min(source.min_bytes, limit) - (0 if records is None else records.size)
        if missing_bytes > 0 and source.max_wait_ms > 0:
            fetch = Fetch(request, limit, committed=source.committed, session=session)
            fetch.wanted.append(partition)
            return _wait(fetch, waits, late, missing_bytes, source.max_wait_ms)
        partition.answered_bytes = 0 if records is None else records.size
        end_offset = partition.answered_high_watermark = log.end_offset
        partition.answered_start_offset = log.start_offset
        if partition.is_news():
            encoded = source.answers.encode(
                header.correlation_id,
                end_offset,
                log.last_stable_offset,
                log.start_offset,
                records,
                session_id,
            )
        else:
            encoded = layout.empty.encode(header.correlation_id, session_id)
        lag = end_offset - partition.offset
        return FetchAnswer(
            encoded,
            lambda: layout.empty.encode(header.correlation_id, session_id),
            lag,
            log.lag_bytes(lag),
            session.deliver,
        )

    def handle_any(request: Request) -> Work:
        body = yield from request.body_in_slices()
        follower = _replica_id(body) >= 0  # -1 is a consumer, -2 one that debugs
        session_id, epoch = body.get("session_id", NO_SESSION), body.get("session_epoch", NO_EPOCH)
        if epoch in (NEW_EPOCH, NO_EPOCH):
            sessions.close(session_id)
            return (yield from fetch_all(request, body, follower=follower))
        session = sessions.find(session_id)
        error_code = error_codes.FETCH_SESSION_ID_NOT_FOUND
        if session is not None:
            error_code = error_codes.NONE
            if session.epoch != epoch:
                error_code = error_codes.INVALID_FETCH_SESSION_EPOCH
            elif session.by_ids is not _by_ids(request):
                error_code = error_codes.FETCH_SESSION_TOPIC_ID_ERROR
        if session is None or error_code != error_codes.NONE:
            yield from request.release_body(body)
            message = fetch_message([], error_code)
            return FetchAnswer(request.encode(message), lambda: _encode(request, []))
        return (yield from fetch_in_session(request, body, session, follower=follower))

    def fetch_all(request: Request, body: Message, *, follower: bool) -> Work:
        """Answer a request that names all it wants, and begin a session if it is asked to."""
        fetch = begun_fetch(request, body, None)
        if not _is_level(body) and (yield from _any_is_there(storage, fetch, body["topics"])):
            return (yield from _all_failed(request, fetch, body))
        partitions: Partitions = {}
        yield from _take_over(body["topics"], fetch, partitions)
        yield from resolve(storage, cluster, fetch, partitions.items(), follower=follower)
        wants_session = body.get("session_epoch", NO_EPOCH) == NEW_EPOCH
        if wants_session and len(partitions) <= MAX_PARTITIONS and (not follower or is_exempt(request)):
            by_ids, in_order = _by_ids(request), _in_order(fetch.wanted)

            def settle(response: Encoded) -> None:
                made = sessions.create(in_order, by_ids=by_ids, privileged=follower, now_ms=now_ms())
                set_session_id(response, made)

            fetch.settle = settle
        yield from release(partitions)
        return (yield from answer_or_wait(request, body, fetch, follower=follower))

    def fetch_in_session(request: Request, body: Message, session: FetchSession, *, follower: bool) -> Work:
        """Answer a request that names what has changed. Follows: Kafka `FetchManager.newContext`."""
        session.epoch = next_epoch(session.epoch)
        sessions.touch(session, now_ms())
        fetch = begun_fetch(request, body, session)
        yield from session.begin()
        before = len(session.partitions)
        named: Partitions = {}
        yield from _take_over(body["topics"], fetch, session.partitions, named)
        yield from _forget(body["forgotten_topics_data"], fetch, session.partitions)
        if not session.partitions:
            sessions.close(session.id)
            fetch.session = fetch.settle = None
            yield from resolve(storage, cluster, fetch, named.items(), follower=follower)
        elif (named or before != len(session.partitions)) and not sessions.has_room(session):
            yield from release(session.partitions, named)
            yield from request.release_body(body)
            message = fetch_message([], error_codes.FETCH_SESSION_ID_NOT_FOUND)
            return FetchAnswer(request.encode(message), lambda: _encode(request, []))
        else:
            if before != len(session.partitions):
                sessions.touch(session, now_ms())
            yield from resolve(storage, cluster, fetch, list(session.partitions.items()), follower=follower)
        yield from release(named)
        if not _is_level(body) and any(wanted.error_code not in NOT_READ for wanted in fetch.wanted):
            return (yield from _all_failed(request, fetch, body))
        remember_in_session(request, body, session)
        return (yield from answer_or_wait(request, body, fetch, follower=follower))

    def is_exempt(request: Request) -> bool:
        """Return whether a follower has ClusterAction; without an authorizer nobody has, in Kafka everybody."""
        granted = request.connection.authorizer is not None and request.authorized(
            acl.CLUSTER_ACTION, acl.CLUSTER
        )
        return granted or storage.config.kafka_exact

    def begun_fetch(request: Request, body: Message, session: FetchSession | None) -> Fetch:
        max_bytes = min(body["max_bytes"], most_bytes, request.quotas.fetch_limit_bytes())
        return Fetch(request, max_bytes, committed=body["isolation_level"] == READ_COMMITTED, session=session)

    def answer_or_wait(request: Request, body: Message, fetch: Fetch, *, follower: bool) -> Work:
        """Read what is wanted, and answer, or wait for more."""
        yield from request.release_body(body)
        topics, failed = yield from fetch.read()
        if follower:
            charge = Charge.EXEMPT if is_exempt(request) else Charge.REQUEST
            answer = yield from fetch.answer(topics, charge)
            answer.settle = fetch.settle
            return answer
        if not failed and len(fetch.wanted) == 1 and fetch.settle is None:
            remember(request, body, fetch.wanted[0])
        missing_bytes = min(body["min_bytes"], fetch.max_bytes) - fetch.read_bytes
        if missing_bytes <= 0 or failed or not fetch.wanted or body["max_wait_ms"] <= 0:
            return (yield from fetch.answer(topics))
        yield from request.release(topics)
        return _wait(fetch, waits, late, missing_bytes, body["max_wait_ms"])

    def source_of(request: Request, body: Message, wanted: FetchedPartition) -> _Source | None:
        """Return what is known of a consumer's request with one partition, None where it cannot be met like others."""
        if wanted.log is None or wanted.name is None or body["max_bytes"] < 0:
            return None
        max_bytes = min(body["max_bytes"], most_bytes)
        return _Source(
            request.header.api_version,
            body,
            wanted.topic,
            wanted.index,
            wanted.log,
            max_bytes,
            wanted.name,
        )

    def remember(request: Request, body: Message, wanted: FetchedPartition) -> None:
        """Keep what a consumer's request with one partition says for those that begin as it does."""
        source = source_of(request, body, wanted)
        if source is not None and body.get("session_id", NO_SESSION) == NO_SESSION:
            known.keep(request, source)

    def remember_in_session(request: Request, body: Message, session: FetchSession) -> None:
        """Keep what a consumer's request says for the next ones of its session, where that has one partition."""
        before, session.known = session.known, None
        layout = _layout(request.header.api_version)
        if layout is None or len(session.partitions) != 1:
            return
        (partition,) = session.partitions.values()
        source = source_of(request, body, partition)
        if source is None:
            return
        header, frame = request.header, request.frame
        session_at = header.body_at + layout.session_at
        prefixes: dict[bytes, FetchedPartition] = {}
        if len(body["topics"]) == 1 and len(body["topics"][0]["partitions"]) == 1:
            prefixes[layout.reader.prefix(frame, session_at + _SESSION.size)] = partition
        elif before is not None and before.partition is partition:
            prefixes = before.prefixes
        head = bytes(frame[header.body_at : session_at])
        session.known = _InSession(header.api_version, head, prefixes, partition, source)

    return handle


def _is_level(body: Message) -> bool:
    return body["isolation_level"] in (READ_UNCOMMITTED, READ_COMMITTED)


def _by_ids(request: Request) -> bool:
    return request.header.api_version >= TOPIC_IDS_SINCE


def _in_order(wanted: Iterable[FetchedPartition]) -> Partitions:
    """Return the partitions of a session, as its first answer has them."""
    return {(each.topic, each.index): each for each in wanted}


def _take_over(
    topics: list[Message], fetch: Fetch, partitions: Partitions, named: Partitions | None = None
) -> Generator[None, None, None]:
    """Add what a request asks for to `partitions`; of one that is named more than once the last counts, at its place.

    named: what this request names.
    """
    for part in topics:
        topic = part[fetch.field]
        for wanted in part["partitions"]:
            key = topic, wanted["partition"]
            asked = (
                wanted["fetch_offset"],
                wanted["partition_max_bytes"],
                wanted.get("current_leader_epoch", _UNKNOWN),
                wanted.get("last_fetched_epoch", _UNKNOWN),
            )
            found = partitions.get(key)
            if found is None:
                found = partitions[key] = FetchedPartition(*key, *asked)
            else:
                found.ask(*asked)
            if named is not None:
                named[key] = found
            yield
        yield from release(part["partitions"])
        yield


def _forget(topics: list[Message], fetch: Fetch, partitions: Partitions) -> Generator[None, None, None]:
    """Take out of a session what its client has done with."""
    for part in topics:
        for index in part["partitions"]:
            partitions.pop((part[fetch.field], index), None)
            yield
        yield from release(part["partitions"])
        yield


def _wait(
    fetch: Fetch, waits: FetchWaits, late: LateAnswers, missing_bytes: int, max_wait_ms: int
) -> Deferred:
    deferred = Deferred()
    wait = Wait(
        fetch.logs(),
        missing_bytes,
        lambda: late.complete(deferred, fetch.read_and_answer()),
    )
    deferred.on_cancel = lambda: waits.remove(wait)
    waits.add(wait, max_wait_ms)
    return deferred


def _replica_id(body: Message) -> int:
    replica_id: int = body.get("replica_state", body)["replica_id"]
    return replica_id


def _any_is_there(storage: Storage, fetch: Fetch, topics: list[Message]) -> Generator[None, None, bool]:
    """Return whether any partition that is wanted is there."""
    by = storage.topics.by_name if fetch.field == "topic" else storage.topics.by_id
    for part in topics:
        topic = by.get(part[fetch.field])
        if topic is not None and not fetch.request.authorized(acl.READ, acl.TOPIC, topic.name):
            topic = None
        for partition in part["partitions"]:
            if topic is not None and topic.log(partition["partition"]) is not None:
                return True
            yield
        yield
    return False


def _all_failed(request: Request, fetch: Fetch, body: Message) -> Work:
    """Answer that the request failed as a whole: by name each partition too, as often as it was named."""
    answers = []
    for part in body["topics"] if fetch.field == "topic" else ():
        partitions = []
        for partition in part["partitions"]:
            partitions.append(
                failed_partition(partition["partition"], error_codes.UNKNOWN_SERVER_ERROR, aborted=[])
            )
            yield
        answers.append({fetch.field: part[fetch.field], "partitions": partitions})
        yield
    yield from request.release_body(body)
    session_id = body.get("session_id", NO_SESSION)
    message = fetch_message(answers, error_codes.UNKNOWN_SERVER_ERROR, session_id)
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))


def _encode(request: Request, topics: list[Message]) -> Encoded:
    return request.encode(fetch_message(topics, error_codes.NONE))
