"""Lookup of offsets by time, for ListOffsets, in slices: a segment is walked if its indexes cannot give the answer.

The times in the headers lead to a batch; then the record is found inside it, compressed or not. A record behind the
first `unpacking.MAX_UNPACKED_BYTES` of a compressed batch is not found: the lookup returns the batch's first offset
instead. Each yield is a pause after at most about a millisecond, or has the future of a batch that a thread
decompresses. Segments that are deleted during a lookup are still searched, because they existed when it began.
Memory: one piece of the file, `PIECE_BYTES`, however large a batch is, and what a compressed one expands to.
Follows: Kafka `UnifiedLog.fetchOffsetByTimestamp`.
"""

import os
import struct
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any

from tidegate.error_codes import INVALID_RECORD
from tidegate.storage.errors import LogDamagedError, UnreadableBatchError
from tidegate.storage.log.file_slice import SegmentFile
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.segment import Segment
from tidegate.storage.log.unpacking import Outcome, Unpack
from tidegate.wire.batch import (
    HEADER_BYTES,
    LEAST_LENGTH,
    LENGTH_AT,
    MAX_TIMESTAMP_AT,
    OVERHEAD_BYTES,
    BatchHeader,
    CorruptRecordsError,
    read_header,
)
from tidegate.wire.records import MAX_VARLONG_BYTES, read_varlong

__all__ = [
    "PIECE_BYTES",
    "Lookup",
    "TimeAndOffset",
    "offset_by_time",
    "offset_of_latest_time",
]

TimeAndOffset = tuple[int, int]
Lookup = Generator[Future[Outcome] | None, None, TimeAndOffset | None]
_Read = Callable[[int, int], bytes]
"""Returns so many bytes of records from a place on, or fewer at their end."""

PIECE_BYTES = 32 * 1024  # read at once: up to 481 headers of the smallest batches
_SEGMENTS_AT_ONCE = 1000
_RECORDS_AT_ONCE = 200
_RECORD_HEAD_BYTES = 3 * MAX_VARLONG_BYTES + 1  # the most that a record's size, time and offset take
_LENGTH_AND_TIME = struct.Struct(f">{LENGTH_AT}xi{MAX_TIMESTAMP_AT - OVERHEAD_BYTES}xq")
"""Layout of a batch's length and its largest timestamp."""


def offset_by_time(log: PartitionLog, time_ms: int, unpack: Unpack) -> Lookup:
    """Return time and offset of the first record that is not older than `time_ms`, None where there is none.

    Raises `OSError`, `LogDamagedError` and `UnreadableBatchError`.
    """
    for count, segment in enumerate(tuple(log.segments)):
        if count % _SEGMENTS_AT_ONCE == _SEGMENTS_AT_ONCE - 1:
            yield None
        yield from _make_sure(log, segment)
        if segment.max_time_ms >= time_ms and _is_there(log, segment):
            found = yield from _find(segment, time_ms, log.start_offset, unpack)
            if found is not None:
                return found
    return None


def offset_of_latest_time(log: PartitionLog, unpack: Unpack) -> Lookup:
    """Return time and offset of the first record with the largest time, None where no record has a time.

    Raises `OSError`, `LogDamagedError` and `UnreadableBatchError`.
    """
    for segment in tuple(log.segments):
        yield from _make_sure(log, segment)
    latest = max(log.segments, key=lambda segment: segment.max_time_ms)
    if latest.max_time_ms < 0:
        return None
    return (yield from _find(latest, latest.max_time_ms, latest.base_offset, unpack))


def _is_there(log: PartitionLog, segment: Segment) -> bool:
    """Return whether a segment was not deleted meanwhile: the oldest go first."""
    return not log.deleted and segment.base_offset >= log.segments[0].base_offset


def _make_sure(log: PartitionLog, segment: Segment) -> Iterator[None]:
    """Find the largest time that recovery left open. Housekeeping does so too, soon after the start."""
    if not segment.time_is_sure and _is_there(log, segment):
        for _ in segment.check_time():
            yield
            if not _is_there(log, segment):
                return


def _find(segment: Segment, time_ms: int, start_offset: int, unpack: Unpack) -> Lookup:
    """Return time and offset of the first record of a segment, from `start_offset` on, not older than `time_ms`."""
    position = segment.position_by_time(time_ms)
    if start_offset > segment.base_offset:
        position = max(position, segment.position_of(start_offset))
    file, size = segment.written_file(), segment.size
    if segment.sealed:
        segment.close_unless_sent()
    while position < size:
        piece = os.pread(file.fd, PIECE_BYTES, position)
        at = 0
        while at + HEADER_BYTES <= len(piece):
            length, max_time_ms = _LENGTH_AND_TIME.unpack_from(piece, at)
            if max_time_ms >= time_ms:
                batch = read_header(piece, at)
                found = yield from _first_record(file, position + at, batch, time_ms, start_offset, unpack)
                if found is not None:
                    return found
            if length < LEAST_LENGTH:
                break
            at += length + OVERHEAD_BYTES
        if not at:
            raise LogDamagedError(f"no record batch at byte {position} of {segment.name}")
        position += at
        yield None
    return None


def _first_record(
    file: SegmentFile, position: int, batch: BatchHeader, time_ms: int, start_offset: int, unpack: Unpack
) -> Lookup:
    """Return time and offset of the first record of `batch` not older than `time_ms`.

    It has one; None where all of them lie before `start_offset`.
    """
    first_offset = max(batch.base_offset, start_offset)
    if batch.is_log_append_time:
        return batch.max_timestamp, first_offset
    try:
        if batch.compression:
            found, is_all = yield from _look_into_packed(file, position, batch, time_ms, start_offset, unpack)
        else:
            read = _reader(file, position + HEADER_BYTES)
            found = yield from _look_into(read, batch.size - HEADER_BYTES, batch, time_ms, start_offset)
            is_all = True
    except CorruptRecordsError as error:
        raise UnreadableBatchError(f"batch at offset {batch.base_offset}: {error}", INVALID_RECORD) from error
    if found is not None or (is_all and batch.base_offset < start_offset):
        return found
    first_time_ms = batch.base_timestamp if batch.base_timestamp >= time_ms else batch.max_timestamp
    return first_time_ms, first_offset


_Found = Generator[Future[Outcome] | None, None, tuple[TimeAndOffset | None, bool]]
"""Yields as a `Lookup`; returns what was found, and whether all records of the batch could be looked at."""


def _reader(file: SegmentFile, start: int) -> _Read:
    """Return a function that reads from the file, relative to `start`."""
    return lambda at, size: os.pread(file.fd, size, start + at)


def _look_into_packed(
    file: SegmentFile, position: int, batch: BatchHeader, time_ms: int, start_offset: int, unpack: Unpack
) -> _Found:
    """Look into a compressed batch: into as much as most of them expand to, then as far as is allowed.

    Raises `OSError`, `UnreadableBatchError` and `CorruptRecordsError`.
    """
    for most in (False, True):
        future = unpack(file, position, batch, most=most)
        try:
            yield future  # also where it is done by now: the request is charged with the time that it took
            while not future.done():
                yield future
        except GeneratorExit:  # the batch is not read
            future.add_done_callback(_free_unread)
            raise
        found, is_all = yield from _look_into_unpacked(future.result(), batch, time_ms, start_offset)
        if found is not None or is_all:
            return found, is_all
    return None, False


def _free_unread(future: Future[Outcome]) -> None:
    if not future.cancelled():
        future.result().on_freed()


def _look_into_unpacked(
    outcome: Outcome, batch: BatchHeader, time_ms: int, start_offset: int
) -> Generator[None, None, tuple[TimeAndOffset | None, bool]]:
    """Look into the records of a batch, and free them. Nothing of them stays while the lookup waits for more."""
    try:
        unpacked = outcome.result()
        data: Any = unpacked.data

        def read(at: int, size: int) -> bytes:
            part: bytes = data[at : at + size]
            return part

        try:
            found = yield from _look_into(read, unpacked.size, batch, time_ms, start_offset)
        except CorruptRecordsError:
            if unpacked.is_all:
                yield from unpacked.free_in_slices()
                raise
            found = None  # the records go on behind what was decompressed
        yield from unpacked.free_in_slices()
        return found, unpacked.is_all
    finally:
        outcome.on_freed()


def _look_into(
    read: _Read, end: int, batch: BatchHeader, time_ms: int, start_offset: int
) -> Generator[None, None, TimeAndOffset | None]:
    """Return time and offset of the first record, from `start_offset` on, not older than `time_ms`.

    end: how many bytes of records there are. Raises `CorruptRecordsError`.
    """
    position, piece, at = 0, b"", 0
    for count in range(batch.record_count):
        if at + _RECORD_HEAD_BYTES > len(piece) and position + at < end:
            position += at
            piece, at = read(position, min(PIECE_BYTES, end - position)), 0
        at, time_delta, offset_delta = _read_head(piece, at)
        if position + at > end:
            raise CorruptRecordsError("a record ends after the end of its batch")
        if batch.base_timestamp + time_delta >= time_ms and batch.base_offset + offset_delta >= start_offset:
            return batch.base_timestamp + time_delta, batch.base_offset + offset_delta
        if count % _RECORDS_AT_ONCE == _RECORDS_AT_ONCE - 1:
            yield
    return None


def _read_head(piece: bytes, at: int) -> tuple[int, int, int]:
    """Return where the record at `at` ends, and how far its time and offset are from those of its batch.

    The end may lie behind `piece`. Raises `CorruptRecordsError` where that is no record.
    """
    size, at = read_varlong(piece, at)
    time_delta, after = read_varlong(piece, at + 1)
    offset_delta, after = read_varlong(piece, after)
    if at + size < after:
        raise CorruptRecordsError(f"a record has {size} bytes, its times alone have more", byte_offset=at)
    return at + size, time_delta, offset_delta
