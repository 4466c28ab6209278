"""The recorder: one row per event appended to a memory-mapped file, on the broker's request path.

How the server uses it; one recorder per node, called from one thread:

    recorder = Recorder(spool_directory(usage_dir, node_id), node_id=node_id, clock=clock)
    connection.id = recorder.next_connection_id()
    client = recorder.client(listener=..., user=..., client_id=..., client_host=..., client_software=...,
                             client_software_version=...)     # keep it while the six stay the same
    recorder.start(now_ms)                                    # then quota(...) for all that is in force
    recorder.quota(now_ms, user=..., client_id=..., ip=..., key=..., value=...)     # value None: removed
    recorder.mutation(client, now_ms, connection_id, api_key, api_version, mutations, flags)
    recorder.request(client, now_ms, connection_id, api_key, api_version, request_bytes, response_bytes,
                     produce_bytes, fetch_bytes, handler_ns, network_ns, produce_throttle_ms,
                     fetch_throttle_ms, request_throttle_ms, mutation_throttle_ms, early_ms, flags)
    recorder.network(client, now_ms, connection_id, api_key, api_version, network_ns, flags)
    recorder.expire(now_ms)                                   # when idle sensors were swept
    recorder.maybe_roll(now_ms)                               # from a timer, every second or so
    recorder.lost_events                                      # to be reported when it grows
    recorder.statistics()                                     # frozen
    recorder.close()

`produce_bytes`, `fetch_bytes` and `early_ms` are `NONE` (-1) where the column is to be null. `flags` is a sum
of `STRICT`, `REJECTED` (mutation), `EXEMPT` (request, network) and `OBSERVED_ONLY` (request). None of these
calls raises for want of room: events that find none are counted, and a `gap` row says so once there is room
again. After a gap the definitions in force are written again, as the lost events may have changed them.

A row survives `kill -9` from the moment the call returns: the page it is in belongs to the kernel.
"""

import logging
import mmap
from dataclasses import dataclass
from pathlib import Path

from tidegate.clock import Clock
from tidegate.errors import ConfigError
from tidegate.usage.columns import EXEMPT, KINDS, OBSERVED_ONLY, REJECTED, STRICT
from tidegate.usage.directory import SpoolDirectory
from tidegate.usage.open_segment import NAMES_FULL, OpenSegment
from tidegate.usage.segment import (
    HEADER_BYTES,
    NAMES_BYTES_MAX,
    QUOTA_VALUE,
    ROW_BYTES,
    SEGMENT_BYTES_MAX,
    Header,
    Names,
    row_struct,
    row_tail,
)

__all__ = [
    "EXEMPT",
    "NONE",
    "OBSERVED_ONLY",
    "REJECTED",
    "STRICT",
    "Client",
    "Recorder",
    "RecorderStatistics",
]

NONE = -1
"""For `produce_bytes`, `fetch_bytes` and `early_ms`: the column is null."""
RETRY_MS = 250
"""How often a recorder without room looks for some."""

_START, _QUOTA, _MUTATION, _REQUEST, _NETWORK, _EXPIRE, _GAP = map(row_tail, KINDS)
_pack_plain = row_struct("start").pack_into
_pack_quota = row_struct("quota").pack_into
_pack_mutation = row_struct("mutation").pack_into
_pack_request = row_struct("request").pack_into
_pack_network = row_struct("network").pack_into
_pack_gap = row_struct("gap").pack_into

_log = logging.getLogger(__name__)


class Client:
    """Who requests came from: six names, and their number in the segment that is being written."""

    __slots__ = ("names", "number", "segment")

    def __init__(self, names: Names) -> None:
        self.names = names
        self.number = 0
        self.segment: OpenSegment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderStatistics:
    """What a recorder did since it was made, and whether it can write now."""

    rows: int
    lost_events: int
    gaps: int
    segments: int
    recovered_segments: int
    spool_bytes: int
    dropping: bool
    last_error: str | None


class Recorder:
    """Append events of one node to its spool directory; see the module for the calls.

    segment_bytes: size of a segment's rows; max_spool_bytes: most that all segments together take on disk;
    segment_age_ms: `maybe_roll` hands a segment with rows over after this long.
    Raises `ConfigError` for settings that do not fit and a directory that is not this node's alone.
    """

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
        _check("node_id", node_id, least=0, most=2**31 - 1)
        _check("segment_bytes", segment_bytes, least=HEADER_BYTES + 8 * ROW_BYTES, most=SEGMENT_BYTES_MAX)
        _check("max_spool_bytes", max_spool_bytes, least=2 * (segment_bytes + NAMES_BYTES_MAX))
        _check("segment_age_ms", segment_age_ms, least=1)
        self._clock = clock
        self._node_id = node_id
        self._segment_bytes = segment_bytes - segment_bytes % ROW_BYTES
        self._max_spool_bytes = max_spool_bytes
        self._segment_age_ms = segment_age_ms
        self._directory = SpoolDirectory(directory, node_id=node_id, now_ms=clock.now_ms())
        self._segment_seq = self._directory.next_number
        self._connection_id = self._directory.next_number
        self._segment: OpenSegment | None = None
        self._rows: mmap.mmap | bytearray = bytearray()
        self._at = self._end = 0
        self._quotas: dict[Names, float] = {}
        self._lost = self._lost_total = self._gaps = self._segments = 0
        self._retry_ns = 0
        self._last_error: str | None = None

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

    def request(
        self,
        client: Client,
        now_ms: int,
        connection_id: int,
        api_key: int,
        api_version: int,
        request_bytes: int,
        response_bytes: int,
        produce_bytes: int,
        fetch_bytes: int,
        handler_ns: int,
        network_ns: int,
        produce_throttle_ms: int,
        fetch_throttle_ms: int,
        request_throttle_ms: int,
        mutation_throttle_ms: int,
        early_ms: int,
        flags: int,
    ) -> None:
        """Record a request that was decided at `now_ms`."""
        at = self._at
        if at == self._end or client.segment is not self._segment:
            if not self._place(client, now_ms):
                return
            at = self._at
        _pack_request(
            self._rows, at, now_ms, connection_id, request_bytes, response_bytes,
            produce_bytes, fetch_bytes, handler_ns, network_ns,
            produce_throttle_ms, fetch_throttle_ms, request_throttle_ms, mutation_throttle_ms, early_ms,
            client.number, api_key, api_version, _REQUEST | flags,
        )  # fmt: skip
        self._at = at + ROW_BYTES

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
        """Record network time of an earlier request, charged unchecked at `now_ms`."""
        at = self._at
        if at == self._end or client.segment is not self._segment:
            if not self._place(client, now_ms):
                return
            at = self._at
        _pack_network(
            self._rows, at, now_ms, connection_id, network_ns,
            client.number, api_key, api_version, _NETWORK | flags,
        )  # fmt: skip
        self._at = at + ROW_BYTES

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
        at = self._at
        if at == self._end or client.segment is not self._segment:
            if not self._place(client, now_ms):
                return
            at = self._at
        _pack_mutation(
            self._rows, at, now_ms, connection_id, mutations,
            client.number, api_key, api_version, _MUTATION | flags,
        )  # fmt: skip
        self._at = at + ROW_BYTES

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
        self._write_plain(now_ms, _START)

    def expire(self, now_ms: int) -> None:
        """Record that idle sensors were swept."""
        self._write_plain(now_ms, _EXPIRE)

    def maybe_roll(self, now_ms: int) -> None:
        """Hand a segment that has grown old to the writer, and end a gap when there is room again."""
        segment = self._segment
        if segment is not None and abs(now_ms - segment.header.opened_ms) >= self._segment_age_ms:
            self._close_segment()
        if self._lost:
            self._find_room(now_ms)

    @property
    def lost_events(self) -> int:
        """Return how many events found no room so far. Cheap, for a timer."""
        return self._lost_total

    def statistics(self) -> RecorderStatistics:
        """Return what was done so far."""
        return RecorderStatistics(
            rows=self._next_seq() - self._directory.next_number,
            lost_events=self._lost_total,
            gaps=self._gaps,
            segments=self._segments,
            recovered_segments=self._directory.recovered_segments,
            spool_bytes=self._directory.size_bytes(),
            dropping=self._lost > 0,
            last_error=self._last_error,
        )

    def close(self) -> None:
        """Hand the last segment to the writer and let go of the directory. No calls may follow."""
        if self._lost:
            self._retry_ns = 0
            self._find_room(self._clock.now_ms())
        self._close_segment()
        self._directory.close()

    def _write_plain(self, now_ms: int, kind: int) -> None:
        if self._at == self._end and not self._find_room_or_drop(now_ms):
            return
        _pack_plain(self._rows, self._at, now_ms, 0, kind)
        self._at += ROW_BYTES

    def _write_quota(self, now_ms: int, names: Names, value: float | None) -> None:
        number = self._number(names, now_ms)
        if number is None:
            return
        tail = _QUOTA if value is None else _QUOTA | QUOTA_VALUE
        _pack_quota(self._rows, self._at, now_ms, 0.0 if value is None else value, number, tail)
        self._at += ROW_BYTES

    def _place(self, client: Client, now_ms: int) -> bool:
        """Make room for a row and number its client in the segment; False: no room, counted as lost."""
        number = self._number(client.names, now_ms)
        if number is None:
            return False
        client.number = number
        client.segment = self._segment
        return True

    def _number(self, names: Names, now_ms: int) -> int | None:
        """Return the number of `names` in the segment of the next row; None: no room, counted as lost."""
        while self._at != self._end or self._find_room_or_drop(now_ms):
            assert self._segment is not None
            try:
                number = self._segment.number(names)
            except OSError as error:
                self._fail(error)
                self._close_segment()
                self._lost += 1
                self._lost_total += 1
                return None
            if number != NAMES_FULL:
                return number
            self._close_segment()
        return None

    def _find_room_or_drop(self, now_ms: int) -> bool:
        while self._at == self._end:  # writing definitions again after a gap can fill a segment
            if not self._find_room(now_ms):
                self._lost += 1
                self._lost_total += 1
                return False
        return True

    def _find_room(self, now_ms: int) -> bool:
        """Open the next segment; write what a gap needs first."""
        self._close_segment()
        now_ns = self._clock.monotonic_ns()
        if self._lost and now_ns < self._retry_ns:
            return False
        self._retry_ns = now_ns + RETRY_MS * 1_000_000
        try:
            self._open_segment(now_ms)
        except OSError as error:
            self._fail(error)
            return False
        if self._lost:
            self._end_gap(now_ms)
        return True

    def _open_segment(self, now_ms: int) -> None:
        size = self._directory.size_bytes()
        if size + self._segment_bytes + NAMES_BYTES_MAX > self._max_spool_bytes:
            raise OSError(
                f"{size} bytes wait in the spool, another segment would pass {self._max_spool_bytes}"
            )
        self._directory.reserve(self._segment_seq + self._segment_bytes // ROW_BYTES)
        header = Header(node_id=self._node_id, first_seq=self._segment_seq, opened_ms=now_ms)
        self._segment = OpenSegment(self._directory.path, header, self._segment_bytes)
        self._rows = self._segment.rows
        self._at, self._end = HEADER_BYTES, self._segment_bytes
        self._segments += 1

    def _end_gap(self, now_ms: int) -> None:
        _log.warning("usage record goes on, %d events were lost", self._lost)
        _pack_gap(self._rows, self._at, now_ms, self._lost, 0, _GAP)
        self._at += ROW_BYTES
        self._gaps += 1
        self._lost = 0
        for names, value in list(self._quotas.items()):
            self._write_quota(now_ms, names, value)

    def _next_seq(self) -> int:
        return self._segment_seq + max(0, self._at - HEADER_BYTES) // ROW_BYTES

    def _close_segment(self) -> None:
        segment, used = self._segment, self._at
        self._segment_seq = self._next_seq()
        self._segment = None
        self._rows = bytearray()
        self._at = self._end = 0
        if segment is not None:
            try:
                segment.close(used)
            except OSError as error:  # stays open on disk; the next start recovers it
                self._fail(error)

    def _fail(self, error: OSError) -> None:
        if not self._lost:
            _log.warning("usage record has no room, events are dropped and counted: %s", error)
        self._last_error = str(error)


def _check(name: str, value: int, *, least: int, most: int = 2**63 - 1) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} must be {least} to {most}, got {value!r}")
