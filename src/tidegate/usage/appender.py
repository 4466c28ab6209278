"""Room for rows: the current segment, its replacement, and the loss of events when there is no room.

A row is packed into the buffer `_rows` of `Appender`, between `_at` and `_end`. `_write_rows` writes all rows that were
packed since the last call to the segment, in one call. If there is no room (the spool is at its bound, or its disk
refuses writes), `_at` and `_end` are 0, and events are counted as lost. The appender checks for room every `RETRY_MS`.
The next segment then begins with a `gap` row.

Segments are handed over in order, and each before the next one begins: the writer relies on it.
"""

import logging
import os
from pathlib import Path

from tidegate.clock import Clock
from tidegate.errors import ConfigError
from tidegate.usage.columns import KINDS
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
    row_packer,
)

__all__ = ["RETRY_MS", "Appender"]

RETRY_MS = 250
"""Interval of checks for room when the spool is full."""
BUFFER_ROWS = 512
"""Rows in memory: more than the requests of a turn need, and few enough for the processor's cache."""

_pwrite = os.pwrite
_packers = {kind: row_packer(kind) for kind in KINDS}

_log = logging.getLogger(__name__)


class Appender:
    """Make room for rows in the segments of a spool directory.

    lost_events: how many events found no room so far.
    segment_bytes: size of a segment's rows; max_spool_bytes: most that all segments together take on disk;
    segment_age_ms: `maybe_roll` hands a segment with rows over after this long.
    Raises `ConfigError` for sizes that do not fit together, and for a directory of another node or process.
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
        self._segment: OpenSegment | None = None
        self._closing: OpenSegment | None = None
        self._rows = bytearray(BUFFER_ROWS * ROW_BYTES)
        self._view = memoryview(self._rows)
        self._rows_at = self._directory.next_number * ROW_BYTES  # of `_rows` in the endless file of all rows
        self._fd = -1
        self._offset = HEADER_BYTES  # of `_rows` in the segment's file
        self._at = self._end = 0
        self._written = 0  # the end of the rows in `_rows` that are already in the segment
        self._lost = self.lost_events = self._gaps = 0
        self._retry_ns = 0

    def maybe_roll(self, now_ms: int) -> None:
        """Hand an old or damaged segment to the writer; end a gap if there is room."""
        self._write_rows()
        if self._segment is not None and (self._is_damaged(self._segment) or self._is_due(now_ms)):
            self._close_segment()
        if self._lost:
            self._find_room(now_ms)

    def close(self) -> None:
        """Hand the last segment to the writer, and release the directory. No calls may follow."""
        if self._lost:
            # Do not wait for `RETRY_MS`: this is the last chance to record the lost events as a `gap`.
            self._retry_ns = 0
            self._find_room(self._clock.now_ms())
        self._close_segment()
        self._directory.close()

    def _write(
        self, kind: str, now_ms: int, names: Names = (), *, quota_value: float | None = None, **values: float
    ) -> bool:
        """Write a row of `kind`; False: no room, counted as lost. values: of its other fields, by name."""
        if names:
            number = self._number(names, now_ms)
            if number is None:
                return False
            values["names"] = number
        elif not self._find_room_or_drop(now_ms):
            return False
        flags = 0 if quota_value is None else QUOTA_VALUE
        values["quota_value"] = (
            0.0 if quota_value is None else quota_value
        )  # without effect in other kinds of rows
        self._pack(kind, now_ms, flags, values)
        return True

    def _pack(self, kind: str, now_ms: int, flags: int, values: dict[str, float]) -> None:
        """Pack a row of `kind` where there is room for it."""
        values["ts_ms"] = now_ms
        _packers[kind](self._rows, self._at, flags, values)
        self._at += ROW_BYTES

    def _write_rows(self) -> None:
        """Write every row so far to the segment's file: the rows survive `kill -9` from here on."""
        at, first = self._at, self._written
        if first == at:
            return
        try:
            written = _pwrite(self._fd, self._view[first:at], self._offset + first)
        except OSError as error:
            self._lose_unwritten(error)
            return
        if written == at - first:
            self._written = at
        else:
            self._lose_unwritten(OSError(f"wrote only {written} of {at - first} bytes"))

    def _lose_unwritten(self, error: OSError) -> None:
        """Count the rows that could not be written to the file as lost. Their `seq` is not used again."""
        # `_at` is set back first: `_close_segment` would otherwise try to write these rows again.
        lost = (self._at - self._written) // ROW_BYTES
        self._at = self._written
        self._fail(error)
        self._close_segment()
        self._rows_at += lost * ROW_BYTES
        self._segment_seq = self._next_seq()
        self._lose(lost)

    def _is_damaged(self, segment: OpenSegment) -> bool:
        damage = segment.damage()
        if damage is not None:
            _log.error("usage record: %s; its rows are lost", damage)
        return damage is not None

    def _is_due(self, now_ms: int) -> bool:
        """Return whether the segment is old enough to be handed over."""
        # `abs`: a segment is also due after the clock was set back.
        return (
            self._segment is not None and abs(now_ms - self._segment.header.opened_ms) >= self._segment_age_ms
        )

    def _after_gap(self, now_ms: int) -> None:
        """Write the rows that have to follow a `gap` row."""

    def _number(self, names: Names, now_ms: int) -> int | None:
        """Return the number of `names` in the segment of the next row; None: no room, counted as lost."""
        while self._at != self._end or self._find_room_or_drop(now_ms):
            assert self._segment is not None
            try:
                number = self._segment.name_index(names)
            except OSError as error:
                self._fail(error)
                self._close_segment()
                self._lose(1)
                return None
            if number != NAMES_FULL:
                return number
            # The next segment begins with an empty table of names.
            self._close_segment()
        return None

    def _find_room_or_drop(self, now_ms: int) -> bool:
        while self._at == self._end:  # the rows after a gap may fill a segment
            if not self._find_room(now_ms):
                self._lose(1)
                return False
        return True

    def _find_room(self, now_ms: int) -> bool:
        """Make room in the segment, or begin the next, with a gap row if events were lost; False: not now."""
        if self._segment is not None and self._empty_buffer():
            return True
        self._close_segment()
        now_ns = self._clock.monotonic_ns()
        if self._lost and now_ns < self._retry_ns:
            return False
        self._retry_ns = now_ns + RETRY_MS * 1_000_000
        try:
            # In this order: the writer relies on segments that arrive in the order of their rows.
            self._hand_over()
            self._directory.restore()
            self._open_segment(now_ms)
        except OSError as error:
            self._fail(error)
            return False
        if self._lost:
            self._end_gap(now_ms)
        return True

    def _empty_buffer(self) -> bool:
        """Commit, and restart at the beginning of the buffer; return False if the segment is full or fails."""
        self._write_rows()
        segment = self._segment
        if segment is None:
            return False
        room = segment.size_bytes - self._offset - self._at
        if room <= 0:
            return False
        self._rows_at += self._at
        self._offset += self._at
        self._at = self._written = 0
        self._end = min(len(self._rows), room)
        return True

    def _open_segment(self, now_ms: int) -> None:
        size = self._directory.size_bytes()
        if size + self._segment_bytes + NAMES_BYTES_MAX > self._max_spool_bytes:
            raise OSError(
                f"the spool has {size} bytes: another segment would exceed the limit of {self._max_spool_bytes} bytes"
            )
        # Reserved on disk before use, so that a broker that is killed never gives the same `seq` to two rows.
        self._directory.reserve(self._segment_seq + self._segment_bytes // ROW_BYTES)
        header = Header(node_id=self._node_id, first_seq=self._segment_seq, opened_ms=now_ms)
        self._segment = OpenSegment(self._directory.path, header, self._segment_bytes)
        self._fd = self._segment.fd
        self._rows_at = self._segment_seq * ROW_BYTES
        self._offset = HEADER_BYTES
        self._at = self._written = 0
        self._end = min(len(self._rows), self._segment_bytes - HEADER_BYTES)

    def _end_gap(self, now_ms: int) -> None:
        _log.warning("usage record resumed after %d lost events", self._lost)
        self._pack("gap", now_ms, 0, {"lost_events": self._lost})
        self._gaps += 1
        self._lost = 0
        self._after_gap(now_ms)

    def _next_seq(self) -> int:
        return (self._rows_at + self._at) // ROW_BYTES

    def _close_segment(self) -> None:
        self._write_rows()  # if this fails, it closes the segment itself
        segment = self._segment
        if segment is None:
            return
        segment.close_files(self._offset + self._at)
        self._fd = -1
        self._segment_seq = self._next_seq()
        self._segment, self._closing = None, segment
        self._rows_at += self._at
        self._at = self._end = self._written = 0
        try:
            self._hand_over()
        except OSError as error:  # tried again before the next segment is begun
            self._fail(error)

    def _hand_over(self) -> None:
        if self._closing is not None:
            self._lose(self._closing.hand_over())
            self._closing = None

    def _lose(self, events: int) -> None:
        self._lost += events
        self.lost_events += events

    def _fail(self, error: OSError) -> None:
        if not self._lost:
            _log.warning("cannot write the usage record, dropping and counting events: %s", error)


def _check(name: str, value: int, *, least: int, most: int = 2**63 - 1) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{name} must be from {least} to {most}, got {value!r}")
