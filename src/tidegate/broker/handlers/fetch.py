"""Fetch (key 1), versions 4-18. KIP-74 (max bytes), KIP-98, KIP-227 (sessions), KIP-516 (topic ids from 13).

Answers at once when `min_bytes` are there, something is wrong or the client does not want to wait; otherwise when
enough has been appended or `max_wait_ms` are over. Records are slices of the log files, sent without being read. The
client's quota caps the record bytes before reading (B§6.3.1); of the first partition with records at least one whole
batch is given, later batches may be cut off at the limit, as on Apache Kafka (B§6.3).
Of a partition that is named more than once the last counts, as in Kafka. A consumer that has last seen a later epoch
than there is, is out of range; one that is past the end of the epoch is answered where that is.
Nothing is transactional, so read_committed reads what read_uncommitted does. With an isolation level that there is not
the request fails as a whole, if any of its partitions is there.
Sessions, those that wait, and those that are met by the bytes they begin with are in `broker.fetching`.
Memory: at most 100 bytes for each byte of the request (a partition of 16 bytes becomes three dicts and an object); a
long poll keeps an object for each partition, of which there are at most as many as the node has.
A partition that another broker leads is error 6, with that leader from version 16 on (KIP-951).
Consumers need READ on each topic; those that they may not read get error 29, whether or not they are there. A
client that says it is a follower needs CLUSTER_ACTION on the cluster: it is exempt then, else all its partitions get
error 29 and it is charged.
Not implemented: followers (error 6), rack awareness.
"""

import math
from collections.abc import Callable, Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_partitions, answers_by_topic, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.fetching.fetch import (
    NOT_READ,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TOPIC_IDS_SINCE,
    Fetch,
    empty_answer,
    failed_partition,
    fetch_message,
    resolve,
)
from tidegate.broker.fetching.known import KnownFetches
from tidegate.broker.fetching.session import (
    NEW_EPOCH,
    NO_EPOCH,
    NO_SESSION,
    FetchedPartition,
    FetchSession,
    Partitions,
    next_epoch,
)
from tidegate.broker.fetching.sessions import FetchSessions
from tidegate.broker.fetching.waits import FetchWaits, Wait
from tidegate.broker.kept_answers import set_session_id
from tidegate.broker.late_answers import LateAnswers
from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import (
    Answer,
    Charge,
    Deferred,
    FetchAnswer,
    Handler,
    Message,
    Request,
    Work,
)
from tidegate.storage.housekeeping import start_chore
from tidegate.storage.storage import Storage
from tidegate.wire import UNKNOWN, Encoded

__all__ = ["FORGET_DELETED_EVERY_S", "fetch_handler"]

FORGET_DELETED_EVERY_S = 60.0
"""Interval at which sessions release the logs of deleted topics."""


def fetch_handler(storage: Storage, cluster: ClusterView, scheduler: Scheduler) -> Handler:
    """Return the handler that reads the logs of `storage`."""
    config = storage.config
    sessions = FetchSessions(
        config.max_incremental_fetch_session_cache_slots, max_partitions=config.max_partitions
    )
    start_chore(storage, scheduler, FORGET_DELETED_EVERY_S, sessions.forget_deleted)
    waits, late = FetchWaits(scheduler), LateAnswers(scheduler, storage.clock.monotonic_ns)

    def wait(fetch: Fetch, missing_bytes: int, max_wait_ms: int) -> Deferred:
        deferred = Deferred()
        waiting = Wait(
            fetch.logs(),
            missing_bytes,
            lambda: late.complete(deferred, fetch.read_and_answer()),
        )
        deferred.on_cancel = lambda: waits.remove(waiting)
        waits.add_wait(waiting, max_wait_ms)
        return deferred

    most_bytes, now_ms = config.fetch_max_bytes, storage.clock.now_ms
    answer_known = (known := KnownFetches(sessions, wait, most_bytes=most_bytes, now_ms=now_ms)).answer
    answer_any = _WholeFetches(storage, cluster, sessions, known, wait).answer

    def handle(request: Request) -> Answer | Deferred | Work:
        answer = answer_known(request)
        return answer if answer is not None else answer_any(request)

    return handle


class _WholeFetches:
    """Answers requests that are read whole."""

    __slots__ = ("_cluster", "_known", "_most_bytes", "_now_ms", "_sessions", "_storage", "_wait")

    def __init__(
        self,
        storage: Storage,
        cluster: ClusterView,
        sessions: FetchSessions,
        known: KnownFetches,
        wait: Callable[[Fetch, int, int], Deferred],
    ) -> None:
        self._storage = storage
        self._cluster = cluster
        self._sessions = sessions
        self._known = known
        self._wait = wait
        self._most_bytes = storage.config.fetch_max_bytes
        self._now_ms = storage.clock.now_ms

    def answer(self, request: Request) -> Work:
        """Read a request whole, and answer it, or wait."""
        body = yield from request.body_in_slices()
        follower = body.get("replica_state", body)["replica_id"] >= 0  # -1 is a consumer, -2 one that debugs
        session_id, epoch = body.get("session_id", NO_SESSION), body.get("session_epoch", NO_EPOCH)
        if epoch in (NEW_EPOCH, NO_EPOCH):
            # A full fetch ends the session that it names: the client begins another one, or wants none (KIP-227).
            self._sessions.close(session_id)
            return (yield from self._fetch_all(request, body, follower=follower))
        session = self._sessions.session_of(session_id)
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
            return FetchAnswer(request.encode(message), lambda: empty_answer(request))
        return (yield from self._fetch_in_session(request, body, session, follower=follower))

    def _fetch_all(self, request: Request, body: Message, *, follower: bool) -> Work:
        """Answer a request that names all it wants, and begin a session if it is asked to."""
        fetch = self._begun(request, body, None)
        if not _is_level(body) and (yield from _any_is_there(self._storage, fetch, body["topics"])):
            return (yield from _all_failed(request, fetch, body))
        partitions: Partitions = {}
        yield from _take_over(body["topics"], fetch, partitions)
        yield from resolve(self._storage, self._cluster, fetch, partitions.items(), follower=follower)
        config = self._storage.config
        wants_session = body.get("session_epoch", NO_EPOCH) == NEW_EPOCH
        if (
            wants_session
            and len(partitions) <= config.max_partitions
            and (not follower or self._is_exempt(request))
        ):
            by_ids, in_order = _by_ids(request), {(each.topic, each.index): each for each in fetch.wanted}
            # With one owner for all sessions, evictions follow Kafka's rule alone (`sessions`).
            owner = UNKNOWN_OWNER if config.kafka_exact else request.connection.owner

            # Only where the client gets its data: an empty answer to a throttled client has session id 0 (B§6.3.4).
            def settle(response: Encoded) -> None:
                made = self._sessions.create(
                    in_order, by_ids=by_ids, privileged=follower, now_ms=self._now_ms(), owner=owner
                )
                set_session_id(response, made)

            fetch.settle = settle
        yield from release(partitions)
        return (yield from self._answer_or_wait(request, body, fetch, follower=follower))

    def _fetch_in_session(
        self, request: Request, body: Message, session: FetchSession, *, follower: bool
    ) -> Work:
        """Answer a request that names what has changed. Follows: Kafka `FetchManager.newContext`."""
        session.epoch = next_epoch(session.epoch)
        self._sessions.touch(session, self._now_ms())
        fetch = self._begun(request, body, session)
        yield from session.confirm_answer()
        before = len(session.partitions)
        named: Partitions = {}
        forgotten = body["forgotten_topics_data"]
        # Partitions that the same request forgets make room for as many new ones, but only afterwards.
        most = self._storage.config.max_partitions + (yield from _count(forgotten))
        yield from _take_over(body["topics"], fetch, session.partitions, named, most=most)
        yield from _forget(forgotten, fetch, session.partitions)
        if not session.partitions:
            self._sessions.close(session.id)
            fetch.session = fetch.settle = None
            yield from resolve(self._storage, self._cluster, fetch, named.items(), follower=follower)
        elif (named or before != len(session.partitions)) and not self._sessions.has_room(session):
            yield from release(session.partitions, named)
            yield from request.release_body(body)
            message = fetch_message([], error_codes.FETCH_SESSION_ID_NOT_FOUND)
            return FetchAnswer(request.encode(message), lambda: empty_answer(request))
        else:
            if before != len(session.partitions):
                self._sessions.touch(session, self._now_ms())
            yield from resolve(
                self._storage, self._cluster, fetch, list(session.partitions.items()), follower=follower
            )
        yield from release(named)
        if not _is_level(body) and any(wanted.error_code not in NOT_READ for wanted in fetch.wanted):
            return (yield from _all_failed(request, fetch, body))
        self._known.remember_in_session(request, body, session)
        return (yield from self._answer_or_wait(request, body, fetch, follower=follower))

    def _is_exempt(self, request: Request) -> bool:
        """Return whether a follower has ClusterAction. Without an authorizer none has it; in Kafka all have."""
        granted = request.connection.authorizer is not None and request.authorized(
            acl.CLUSTER_ACTION, acl.CLUSTER
        )
        return granted or self._storage.config.kafka_exact

    def _begun(self, request: Request, body: Message, session: FetchSession | None) -> Fetch:
        max_bytes = min(body["max_bytes"], self._most_bytes, request.quotas.fetch_limit_bytes())
        return Fetch(request, max_bytes, committed=body["isolation_level"] == READ_COMMITTED, session=session)

    def _answer_or_wait(self, request: Request, body: Message, fetch: Fetch, *, follower: bool) -> Work:
        """Read what is wanted, and answer, or wait for more."""
        yield from request.release_body(body)
        topics, failed = yield from fetch.read()
        if follower:
            charge = Charge.EXEMPT if self._is_exempt(request) else Charge.REQUEST
            answer = yield from fetch.answer(topics, charge)
            answer.settle = fetch.settle
            return answer
        if not failed and len(fetch.wanted) == 1 and fetch.settle is None:
            self._known.remember(request, body, fetch.wanted[0])
        missing_bytes = min(body["min_bytes"], fetch.max_bytes) - fetch.read_bytes
        if missing_bytes <= 0 or failed or not fetch.wanted or body["max_wait_ms"] <= 0:
            return (yield from fetch.answer(topics))
        # All is read again when the wait ends, so that nothing found now stays in memory meanwhile.
        yield from request.release(topics)
        return self._wait(fetch, missing_bytes, body["max_wait_ms"])


def _is_level(body: Message) -> bool:
    return body["isolation_level"] in (READ_UNCOMMITTED, READ_COMMITTED)


def _by_ids(request: Request) -> bool:
    return request.header.api_version >= TOPIC_IDS_SINCE


def _take_over(
    topics: list[Message],
    fetch: Fetch,
    partitions: Partitions,
    named: Partitions | None = None,
    *,
    most: float = math.inf,
) -> Generator[None, None, None]:
    """Add what a request asks for to `partitions`; of one that is named more than once the last counts, at its place.

    named: the partitions that this request names. most: stop above this number, at which the session is closed anyway.
    """
    for part in topics:
        topic = part[fetch.field]
        for wanted in part["partitions"]:
            key = topic, wanted["partition"]
            asked = (
                wanted["fetch_offset"],
                wanted["partition_max_bytes"],
                wanted.get("current_leader_epoch", UNKNOWN),
                wanted.get("last_fetched_epoch", UNKNOWN),
            )
            found = partitions.get(key)
            if found is None:
                found = partitions[key] = FetchedPartition(*key, *asked)
            else:
                found.ask(*asked)
            if named is not None:
                named[key] = found
            if len(partitions) > most:
                return
            yield
        yield from release(part["partitions"])
        yield


def _count(topics: list[Message]) -> Generator[None, None, int]:
    count = 0
    for part in topics:
        count += len(part["partitions"])
        yield
    return count


def _forget(topics: list[Message], fetch: Fetch, partitions: Partitions) -> Generator[None, None, None]:
    """Remove the partitions that the client forgets from its session."""
    for part in topics:
        for index in part["partitions"]:
            partitions.pop((part[fetch.field], index), None)
            yield
        yield from release(part["partitions"])
        yield


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

    def answer(wanted: Message) -> Message:
        return failed_partition(wanted["partition"], error_codes.UNKNOWN_SERVER_ERROR, aborted=[])

    topics = body["topics"] if fetch.field == "topic" else ()
    answers = yield from answers_by_topic(topics, lambda _: answer, name=fetch.field)
    yield from request.release_body(body)
    session_id = body.get("session_id", NO_SESSION)
    message = fetch_message(answers, error_codes.UNKNOWN_SERVER_ERROR, session_id)
    return (yield from answer_partitions(request, message, answers, "partitions", Charge.REQUEST))
