"""The recorder: one row per event appended to a file, on the broker's request path.

How the server uses it; one recorder per node, called from one thread:

    recorder = Recorder(spool_directory(usage_dir, node_id), node_id=node_id, clock=clock)
    connection.id = recorder.next_connection_id()
    client = recorder.client(listener=..., user=..., client_id=..., client_host=..., client_software=...,
                             client_software_version=...)     # of one connection, while the six stay the same
    recorder.start(now_ms)                                    # then quota(...) for all that is in force
    recorder.quota(now_ms, user=..., client_id=..., ip=..., key=..., value=...)     # value None: removed
    recorder.mutation(client, now_ms, connection_id, api_key, api_version, mutations, flags)
    recorder.requests(requests, new_client)                   # all that are answered together
    recorder.commit()                                         # before the answer leaves
    recorder.network(client, now_ms, connection_id, api_key, api_version, network_ns, flags)
    recorder.forwarded(client, now_ms, connection_id, api_key, api_version, mutation_throttle_ms, flags)
    recorder.expire(now_ms)                                   # when idle sensors were swept
    recorder.clock(now_ms, wall_offset_ms)                    # when the wall clock was stepped
    recorder.callback(now_ms, name)                           # when a quota callback is exchanged; None: there is none
    recorder.tags(now_ms, user, client_id, quota_key, name, tags, limit)    # before each charge that follows it
    recorder.snapshot(now_ms, user, client_id, text)          # see `tidegate.usage.snapshots`
    recorder.quotas_in_slices(now_ms)                         # write all that is in force again, for a snapshot
    recorder.maybe_roll(now_ms)                               # from a timer, every second or so
    recorder.lost_events                                      # to be reported when it grows
    recorder.statistics()                                     # frozen
    recorder.close()

`network_ns`, `early_ms`, `lag` and `lag_bytes` are `NONE` (-1) where the column is to be null. `fetch_bytes`, `lag` and
`lag_bytes` are looked at where `row_flags` has `FETCHED`; `produce_bytes` are `frame_bytes` where it has `PRODUCED`.
`flags` is a sum of `STRICT`, `REJECTED` (mutation), `EXEMPT` (request, network, forwarded), `OBSERVED_ONLY` (request,
forwarded) and `FORWARDED` (request).
None of these calls raises for want of room: events that find none are counted, and a `gap` row says so once there is
room again. After a gap the definitions in force are written again, as the lost events may have changed them.

A row survives `kill -9` once `commit` has returned: it is the kernel's then. One call writes all rows since the last
one, so requests that are answered together share it; `maybe_roll` and `close` commit too.
"""

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from tidegate.clock import Clock
from tidegate.usage.appender import Appender, RecorderStatistics
from tidegate.usage.columns import EXEMPT, FORWARDED, KINDS, OBSERVED_ONLY, REJECTED, STRICT
from tidegate.usage.open_segment import OpenSegment
from tidegate.usage.segment import (
    END_FIELDS,
    NAME_BYTES_MAX,
    PRODUCED,
    QUOTA_VALUE,
    ROW_BYTES,
    Names,
    row_end_struct,
    row_struct,
    row_tail,
)

__all__ = [
    "EXEMPT",
    "FETCHED",
    "FORWARDED",
    "NONE",
    "OBSERVED_ONLY",
    "PRODUCED",
    "REJECTED",
    "STRICT",
    "THROTTLED",
    "Client",
    "DecidedRequest",
    "Recorder",
    "RecorderStatistics",
    "tags_text",
]

_R = TypeVar("_R", bound="DecidedRequest")

THROTTLED = 512
"""For `row_flags`: one of the four throttle times is not 0. The flag itself is in no row."""
FETCHED = 256
"""For `row_flags`: it is charged for `fetch_bytes`, and has `lag` and `lag_bytes`. The flag itself is in no row."""
NONE = -1
"""For `network_ns`, `early_ms`, `lag` and `lag_bytes`: the column is null."""

(
    _START,
    _QUOTA,
    _MUTATION,
    _REQUEST,
    _NETWORK,
    _EXPIRE,
    _,
    _CLOCK,
    _CALLBACK,
    _TAGS,
    _FORWARDED,
    _SNAPSHOT,
) = map(row_tail, KINDS)
_pack_time = row_struct("start").pack_into
_pack_quota = row_struct("quota").pack_into
_pack_mutation = row_struct("mutation").pack_into
_pack_request = row_struct("request").pack_into
_END, _FETCH_END = END_FIELDS
_pack_plain_request = row_struct("request", zero=("lag", "lag_bytes"), end=_END).pack_into
_pack_plain_fetch = row_struct("request", end=_FETCH_END).pack_into
_pack_end = row_end_struct("request", _END).pack
_pack_fetch_end = row_end_struct("request", _FETCH_END).pack
_pack_network = row_struct("network").pack_into
_pack_clock = row_struct("clock").pack_into
_pack_callback = row_struct("callback").pack_into
_pack_tags = row_struct("tags").pack_into
_pack_forwarded = row_struct("forwarded").pack_into
_pack_snapshot = row_struct("snapshot").pack_into
_IN_ROWS = PRODUCED | EXEMPT | OBSERVED_ONLY | FORWARDED
_PLAIN = (0, PRODUCED, FETCHED)  # flags of rows whose end is the same for the requests of a connection
_NONE_YET = -1  # a plain row's flags
_NOT_SAID = -1.0  # no limit is below 0


class Client:
    """Names that the requests of a connection are recorded with: six, and their number in the segment being written.

    row_end: the end of the row of its last plain request, shared by all requests with the same API, version and flags.
    A plain request was not throttled, exempted or sent too early.
    """

    __slots__ = ("api", "client_id", "names", "number", "row_end", "row_flags", "segment")

    def __init__(self, names: Names) -> None:
        self.names = names
        self.client_id = names[2]
        self.number = 0
        self.segment: OpenSegment | None = None
        self.api: tuple[int, int] | None = None
        self.row_flags = _NONE_YET
        self.row_end = b""

    def end_row(self, connection_id: int, api: tuple[int, int], row_flags: int) -> None:
        """Make the end of plain rows with this API, its version, and these flags."""
        self.api, self.row_flags = api, row_flags
        end = (
            connection_id, 0, 0, 0, 0, NONE, self.number, *api,
            _REQUEST | (row_flags & _IN_ROWS),
        )  # fmt: skip
        self.row_end = _pack_fetch_end(*end) if row_flags == FETCHED else _pack_end(NONE, *end)


class _Sized(Protocol):
    @property
    def size(self) -> int: ...


class _Connection(Protocol):
    @property
    def id(self) -> int: ...
    @property
    def recorded(self) -> Client | None: ...


class _Channel(Protocol):
    early_ms: int | None

    @property
    def connection(self) -> _Connection: ...


class _Header(Protocol):
    api_key: int
    api_version: int
    client_id: str
    api: tuple[int, int]


class DecidedRequest(Protocol):
    """A decided request as the front has it: what its row says is where the front keeps it.

    `connection.recorded` is the client of the connection's last request, as far as it is known; `early_ms` is taken
    from the channel.
    """

    @property
    def channel(self) -> _Channel: ...
    @property
    def header(self) -> _Header: ...
    @property
    def response(self) -> _Sized | None: ...

    now_ms: int
    frame_bytes: int
    fetch_bytes: int
    lag: int
    lag_bytes: int
    handler_ns: int
    network_ns: int
    produce_ms: int
    fetch_ms: int
    request_ms: int
    mutation_ms: int
    throttle_ms: int
    row_flags: int


class Recorder(Appender):
    """Append events of one node to its spool directory; see the module for the calls, `Appender` for settings."""

    def __init__(
        self,
        directory: Path,
        *,
        node_id: int,
        clock: Clock,
        segment_bytes: int = 16 << 20,
        max_spool_bytes: int = 1 << 30,
        segment_age_ms: int = 10_000,
    ) -> None:
        super().__init__(
            directory,
            node_id=node_id,
            clock=clock,
            segment_bytes=segment_bytes,
            max_spool_bytes=max_spool_bytes,
            segment_age_ms=segment_age_ms,
        )
        self._connection_id = self._directory.next_number
        self._quotas: dict[Names, float] = {}
        self._swept: tuple[OpenSegment | None, int] = (
            None,
            0,
        )  # where the row of the last sweep ends, see `_here`
        self._swept_ms = 0
        self._wall_offset_ms = 0
        self._callbacks: list[str | None] = []  # the one in force, none where there never was one
        self._said_in: OpenSegment | None = (
            None  # and what it says, no more than there are names in a segment
        )
        self._said_tags: dict[tuple[str, str, str], Mapping[str, str]] = {}
        self._said_limits: dict[tuple[str, str], float | None] = {}

    def next_connection_id(self) -> int:
        """Return an id that no connection of this node has had."""
        number = self._connection_id
        if number >= self._directory.reserved:
            self._directory.reserve(number)
        self._connection_id = number + 1
        return number

    def client(
        self,
        *,
        listener: str,
        user: str,
        client_id: str,
        client_host: str,
        client_software: str,
        client_software_version: str,
    ) -> Client:
        """Return a client to hand to the calls below. Cheap: nothing is written before its first event."""
        return Client((listener, user, client_id, client_host, client_software, client_software_version))

    def requests(self, requests: Iterable[_R], new_client: Callable[[_R], Client]) -> None:
        """Record requests in the order in which they were decided, in one loop: it is on the way of every answer.

        new_client: returns the client of a request whose connection does not know it, or not that it is the same.
        """
        rows, at, end, segment = self._rows, self._at, self._end, self._segment
        for request in requests:
            channel = request.channel
            connection = channel.connection
            header = request.header
            client = connection.recorded
            if client is None or client.client_id is not header.client_id:
                client = new_client(request)
            now_ms = request.now_ms
            if at == end or client.segment is not segment:
                self._at = at
                placed = self._place(client, now_ms)
                at, end, segment = self._at, self._end, self._segment
                if not placed:
                    channel.early_ms = None
                    continue
            response = request.response
            response_bytes = 0 if response is None else response.size
            row_flags = request.row_flags
            if row_flags != client.row_flags or header.api is not client.api or channel.early_ms is not None:
                if row_flags not in _PLAIN or channel.early_ms is not None:
                    self._write_request(at, request, client, response_bytes)
                    at += ROW_BYTES
                    continue
                client.end_row(connection.id, header.api, row_flags)
            if row_flags == FETCHED:
                _pack_plain_fetch(
                    rows, at, now_ms, request.frame_bytes, response_bytes, request.handler_ns,
                    request.network_ns, request.lag + 1, request.lag_bytes + 1, request.fetch_bytes,
                    client.row_end,
                )  # fmt: skip
            else:
                _pack_plain_request(
                    rows, at, now_ms, request.frame_bytes, response_bytes, request.handler_ns,
                    request.network_ns, client.row_end,
                )  # fmt: skip
            at += ROW_BYTES
        self._at = at

    def _write_request(self, at: int, request: DecidedRequest, client: Client, response_bytes: int) -> None:
        """Write the row of a request that is not plain."""
        channel, header, row_flags = request.channel, request.header, request.row_flags
        early_ms, channel.early_ms = channel.early_ms, None
        lag, lag_bytes, fetch_bytes = 0, 0, NONE
        if row_flags & FETCHED:
            lag, lag_bytes, fetch_bytes = request.lag + 1, request.lag_bytes + 1, request.fetch_bytes
        _pack_request(
            self._rows, at, request.now_ms, request.frame_bytes, response_bytes, request.handler_ns,
            request.network_ns, lag, lag_bytes, fetch_bytes, channel.connection.id,
            request.produce_ms, request.fetch_ms, request.request_ms, request.mutation_ms,
            NONE if early_ms is None else early_ms, client.number, header.api_key, header.api_version,
            _REQUEST | (row_flags & _IN_ROWS),
        )  # fmt: skip

    def network(
        self,
        client: Client,
        now_ms: int,
        connection_id: int,
        api_key: int,
        api_version: int,
        network_ns: int,
        flags: int,
    ) -> None:
        """Record network time of sending an earlier request's answer, charged unchecked at `now_ms`."""
        if not self._place(client, now_ms):
            return
        _pack_network(
            self._rows, self._at, now_ms, network_ns, connection_id,
            client.number, api_key, api_version, _NETWORK | flags,
        )  # fmt: skip
        self._at += ROW_BYTES

    def forwarded(
        self,
        client: Client,
        now_ms: int,
        connection_id: int,
        api_key: int,
        api_version: int,
        mutation_throttle_ms: int,
        flags: int,
    ) -> None:
        """Record what came of the permits that were asked for in a request that another node answers."""
        if not self._place(client, now_ms):
            return
        _pack_forwarded(
            self._rows, self._at, now_ms, connection_id, mutation_throttle_ms,
            client.number, api_key, api_version, _FORWARDED | flags,
        )  # fmt: skip
        self._at += ROW_BYTES

    def mutation(
        self,
        client: Client,
        now_ms: int,
        connection_id: int,
        api_key: int,
        api_version: int,
        mutations: int,
        flags: int,
    ) -> None:
        """Record that a handler asked for `mutations` permits; `flags` says how it was answered."""
        if not self._place(client, now_ms):
            return
        _pack_mutation(
            self._rows, self._at, now_ms, mutations, connection_id,
            client.number, api_key, api_version, _MUTATION | flags,
        )  # fmt: skip
        self._at += ROW_BYTES

    def quota(
        self,
        now_ms: int,
        *,
        user: str | None,
        client_id: str | None,
        ip: str | None,
        key: str,
        value: float | None,
    ) -> None:
        """Record a definition or a window setting that is in force from now on, or removed (`value=None`)."""
        names = (user, client_id, ip, key)
        if value is None:
            self._quotas.pop(names, None)
        else:
            self._quotas[names] = value
        self._write_quota(now_ms, names, value)

    def start(self, now_ms: int) -> None:
        """Record that the node starts: sensors are empty; `quota` rows for all that is in force follow."""
        self._quotas.clear()
        self._callbacks.clear()
        self._forget_said()
        self._write_plain(now_ms, _START)

    def callback(self, now_ms: int, name: str | None) -> None:
        """Record that another quota callback is asked from now on, with empty sensors. name: its class; None: none."""
        self._callbacks = [name]
        self._forget_said()
        self._write_callback(now_ms, name)

    def tags(
        self,
        now_ms: int,
        user: str,
        client_id: str,
        quota_key: str,
        name: str,
        tags: Mapping[str, str],
        limit: float | None,
    ) -> None:
        """Record the tags that a client is counted under, and their limit, unless the segment says so already.

        name: what the tags are counted under; it has one limit. tags: may not be changed afterwards.
        """
        if self.says_tags(user, client_id, quota_key, name, tags, limit):
            return
        callback = self._callbacks[0] if self._callbacks else None
        number = self._number((user, client_id, quota_key, callback, tags_text(tags)), now_ms)
        if number is None:
            return
        tail = _TAGS if limit is None else _TAGS | QUOTA_VALUE
        _pack_tags(self._rows, self._at, now_ms, 0.0 if limit is None else limit, number, tail)
        self._at += ROW_BYTES
        if self._segment is not self._said_in:
            self._forget_said()
        self._said_in = self._segment
        self._said_tags[quota_key, user, client_id] = tags
        self._said_limits[quota_key, name] = limit

    def says_tags(
        self,
        user: str,
        client_id: str,
        quota_key: str,
        name: str,
        tags: Mapping[str, str],
        limit: float | None,
    ) -> bool:
        """Return whether the segment that is being written says this already."""
        return (
            self._segment is self._said_in
            and self._said_tags.get((quota_key, user, client_id)) == tags
            and self._said_limits.get((quota_key, name), _NOT_SAID) == limit
        )

    def expire(self, now_ms: int) -> None:
        """Record that idle sensors were swept.

        Sweeps with nothing between them are one row, that of the last: it forgets all that those before it did. If
        the clock has gone back it does not, and has a row of its own.
        """
        repeated = self._segment is not None and self._at > 0 and self._swept == self._here()
        if repeated and now_ms >= self._swept_ms:
            self._at -= ROW_BYTES
            self._written = min(self._written, self._at)
        self._write_plain(now_ms, _EXPIRE)
        self._swept = self._here()
        self._swept_ms = now_ms

    def clock(self, now_ms: int, wall_offset_ms: int) -> None:
        """Record how far the wall clock is from engine time from now on."""
        self._wall_offset_ms = wall_offset_ms
        if self._at != self._end or self._find_room_or_drop(now_ms):
            _pack_clock(self._rows, self._at, now_ms, wall_offset_ms, 0, _CLOCK)
            self._at += ROW_BYTES

    def snapshot(self, now_ms: int, user: str | None, client_id: str | None, text: str) -> None:
        """Record a part of a snapshot; of a sensor: its tags and its state, as `tidegate.usage.snapshots` has it."""
        number = self._number((user, client_id, text), now_ms)
        if number is not None:
            _pack_snapshot(self._rows, self._at, now_ms, number, _SNAPSHOT)
            self._at += ROW_BYTES

    def quotas_in_slices(self, now_ms: Callable[[], int]) -> Generator[None, None, None]:
        """Record every definition and window setting in force again, yielding before each: it may change meanwhile."""
        for names in list(self._quotas):
            yield
            if names in self._quotas:
                self._write_quota(now_ms(), names, self._quotas[names])

    def _is_due(self, now_ms: int) -> bool:
        """Nothing but sweeps of idle sensors is not worth a file."""
        is_one_row = self._rows_at + self._at == (self._segment_seq + 1) * ROW_BYTES
        return super()._is_due(now_ms) and not (is_one_row and self._swept == self._here())

    def _here(self) -> tuple[OpenSegment | None, int]:
        """Return where the last row ends."""
        return self._segment, self._rows_at + self._at

    def _write_plain(self, now_ms: int, kind: int) -> None:
        if self._at == self._end and not self._find_room_or_drop(now_ms):
            return
        _pack_time(self._rows, self._at, now_ms, 0, kind)
        self._at += ROW_BYTES

    def _write_quota(self, now_ms: int, names: Names, value: float | None) -> None:
        number = self._number(names, now_ms)
        if number is None:
            return
        tail = _QUOTA if value is None else _QUOTA | QUOTA_VALUE
        _pack_quota(self._rows, self._at, now_ms, 0.0 if value is None else value, number, tail)
        self._at += ROW_BYTES

    def _write_callback(self, now_ms: int, name: str | None) -> None:
        number = self._number((name,), now_ms)
        if number is not None:
            _pack_callback(self._rows, self._at, now_ms, number, _CALLBACK)
            self._at += ROW_BYTES

    def _forget_said(self) -> None:
        self._said_in = None
        self._said_tags.clear()
        self._said_limits.clear()

    def _place(self, client: Client, now_ms: int) -> bool:
        """Make room for a row and number its client in the segment; False: no room, counted as lost."""
        if self._at != self._end and client.segment is self._segment:
            return True
        number = self._number(client.names, now_ms)
        if number is None:
            return False
        client.number = number
        client.segment = self._segment
        client.row_flags = _NONE_YET
        return True

    def _after_gap(self, now_ms: int) -> None:
        for name in self._callbacks:
            self._write_callback(now_ms, name)
        for names, value in list(self._quotas.items()):
            self._write_quota(now_ms, names, value)
        if self._wall_offset_ms:
            self.clock(now_ms, self._wall_offset_ms)


def tags_text(tags: Mapping[str, str]) -> str:
    """Return tags as JSON in ASCII, in their order; what is longer than a name may be is told apart by a digest.

    >>> tags_text({"group": "etl"})
    '{"group":"etl"}'
    """
    text = json.dumps(dict(tags), separators=(",", ":"))
    if len(text) > NAME_BYTES_MAX:
        return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()}, separators=(",", ":"))
    return text
