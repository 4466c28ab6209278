"""The fast path of Fetch: answers requests that begin like an earlier one, alone or in a session with one partition.

The first fields of a request, its limits and its partition, are recognized by their bytes (`broker.known_requests`).
The last ones, offset and epochs, are read each time. The requests of a session differ in the epoch, so the session
keeps the bytes before and after its id and epoch. `broker.handlers.fetch` parses all other requests, and those with
errors.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from tidegate.acl import codes as acl
from tidegate.api_keys import FETCH
from tidegate.broker.fetching.fetch import READ_COMMITTED, Fetch, empty_answer, topic_field
from tidegate.broker.fetching.session import NO_SESSION, FetchedPartition, FetchSession, next_epoch
from tidegate.broker.fetching.sessions import FetchSessions
from tidegate.broker.kept_answers import EmptyFetchAnswers, FetchAnswers
from tidegate.broker.known_requests import KnownRequests
from tidegate.server.requests.handler import Answer, Deferred, FetchAnswer, Message, Request
from tidegate.storage.errors import LogDamagedError, OffsetOutOfRangeError
from tidegate.storage.log.file_slice import FileSlice
from tidegate.storage.log.partition_log import LEADER_EPOCH, PartitionLog
from tidegate.wire import UNKNOWN, field_since, write_request
from tidegate.wire.split_reader import SplitReader, split_reader

__all__ = ["KnownFetches"]

_SESSIONS_SINCE = field_since(FETCH, "request", "session_id")
_LAST_OF_PREFIX = "partition"
_VALUES = ("current_leader_epoch", "last_fetched_epoch", "fetch_offset", "partition_max_bytes")
_SESSION = struct.Struct(">ii")  # id and epoch
_SESSION_MARKS = 0x5A01_7B3C, 0x5A02_7B3C  # values by which these fields are found in an encoded request


class _Source:
    """A client's fetch from one partition, as identified by the first bytes of a request."""

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
        """Return a `Fetch` for a request that has to wait."""
        fetch = Fetch(request, limit, committed=self.committed)
        wanted = FetchedPartition(self.name, self.index, offset, max_bytes, leader_epoch, UNKNOWN)
        wanted.log, wanted.name = self.log, self.topic
        fetch.wanted.append(wanted)
        return fetch


class _InSession(NamedTuple):
    """The requests of a session with one partition; all begin with the same limits.

    head: bytes up to the session fields; prefixes: bytes between these fields and the values of the partition.
    """

    version: int
    head: bytes
    prefixes: dict[bytes, FetchedPartition]
    partition: FetchedPartition
    source: _Source


class _Layout(NamedTuple):
    """The layout of a version's requests: the position of the session fields, and the bytes after them.

    session_at: bytes from the start of the body. nothing: the bytes that follow if the request names no partitions.
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
        "replica_id": UNKNOWN,
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
    # Looked for in an encoded request: the layout is defined once, in the message definitions (decision 0002).
    body = write_request(FETCH, version, message)
    at = body.index(_SESSION.pack(session_id, epoch))
    reader = split_reader(FETCH, version, _LAST_OF_PREFIX, _VALUES, after="session_epoch")
    return _Layout(at, bytes(body[at + _SESSION.size :]), reader, EmptyFetchAnswers(version))


class KnownFetches:
    """The fetches of a node's clients that are identified by their first bytes, without parsing the whole request."""

    __slots__ = ("_known", "_most_bytes", "_now_ms", "_sessions", "_wait")

    def __init__(
        self,
        sessions: FetchSessions,
        wait: Callable[[Fetch, int, int], Deferred],
        *,
        most_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        """wait: makes a fetch wait for a number of bytes and a time. most_bytes: bound on each answer."""
        self._known: KnownRequests[_Source] = KnownRequests(FETCH, _LAST_OF_PREFIX, _VALUES)
        self._sessions = sessions
        self._wait = wait
        self._most_bytes = most_bytes
        self._now_ms = now_ms

    def answer(self, request: Request) -> Answer | Deferred | None:
        """Answer a request that begins like an earlier one. Return None if it has to be parsed completely."""
        header = request.header
        find, kept = self._known[header.api_version]
        found = find(request.frame, header.body_at, kept)
        if found is None:
            return self._answer_in_session(request)
        if request.connection.authorizer is None or request.authorized(acl.READ, acl.TOPIC, found[0].topic):
            return self._answer_alone(request, *found)
        return None

    def _read_now(
        self, request: Request, source: _Source, log: PartitionLog, offset: int, max_bytes: int
    ) -> tuple[int, FileSlice | None] | None:
        """Return the most bytes of the answer, and the records to read; None if the answer is an error."""
        limit = max(min(source.max_bytes, request.quotas.fetch_limit_bytes()), 0)
        at_most = min(max_bytes, limit)
        if at_most < 0:
            return None
        try:
            return limit, log.read(offset, at_most)
        except (OffsetOutOfRangeError, LogDamagedError):
            return None

    def _answer_alone(
        self,
        request: Request,
        source: _Source,
        leader_epoch: int,
        last_epoch: int,
        offset: int,
        max_bytes: int,
    ) -> Answer | Deferred | None:
        """Answer, or wait. Return None if the answer is an error."""
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
            return self._wait(fetch, missing_bytes, source.max_wait_ms)
        correlation_id = request.header.correlation_id
        encoded = source.answers.encode(
            correlation_id, log.end_offset, log.last_stable_offset, log.start_offset, found
        )
        lag = log.end_offset - offset
        topic = None if found is None else source.topic
        return FetchAnswer(encoded, lambda: empty_answer(request), lag, log.lag_bytes(lag), None, topic)

    def _answer_in_session(self, request: Request) -> Answer | Deferred | None:
        """Answer a request that is like an earlier one of its session, with one partition, or wait.

        Return None if it is not like one, or if the answer is an error. Then only the partition's offset, limit and
        epochs have changed.
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
        session = self._sessions.session_of(session_id)
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
        read = self._read_now(request, source, log, partition.offset, partition.max_bytes)
        if read is None:
            return None
        limit, records = read
        # Only now: if None is returned above, the request is parsed completely, which needs the old epoch.
        self._sessions.touch(session, self._now_ms())
        session.epoch = next_epoch(epoch)
        if session.delivered:
            session.delivered = False
            partition.record_sent_values()
        missing_bytes = min(source.min_bytes, limit) - (0 if records is None else records.size)
        if missing_bytes > 0 and source.max_wait_ms > 0:
            fetch = Fetch(request, limit, committed=source.committed, session=session)
            fetch.wanted.append(partition)
            return self._wait(fetch, missing_bytes, source.max_wait_ms)
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
            None if records is None else source.topic,
        )

    def _source_of(self, request: Request, body: Message, wanted: FetchedPartition) -> _Source | None:
        """Return the `_Source` of a consumer's request with one partition; None if the fast path cannot serve it."""
        if wanted.log is None or wanted.name is None or body["max_bytes"] < 0:
            return None
        max_bytes = min(body["max_bytes"], self._most_bytes)
        return _Source(
            request.header.api_version,
            body,
            wanted.topic,
            wanted.index,
            wanted.log,
            max_bytes,
            wanted.name,
        )

    def remember(self, request: Request, body: Message, wanted: FetchedPartition) -> None:
        """Keep a consumer's request with one partition, for later requests that begin like it."""
        source = self._source_of(request, body, wanted)
        if source is not None and body.get("session_id", NO_SESSION) == NO_SESSION:
            self._known.store_value(request, source)

    def remember_in_session(self, request: Request, body: Message, session: FetchSession) -> None:
        """Keep a consumer's request for the next ones of its session, if that has one partition."""
        # Remove the kept one first: its partition may no longer be in the session.
        before, session.known = session.known, None
        layout = _layout(request.header.api_version)
        if layout is None or len(session.partitions) != 1:
            return
        (partition,) = session.partitions.values()
        source = self._source_of(request, body, partition)
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
