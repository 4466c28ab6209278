"""One segment of a partition log: a file of record batches that begins at `base_offset`, with its two indexes."""

import contextlib
import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from tidegate.storage.errors import LogDamagedError
from tidegate.storage.log.file_slice import FileSlice, SegmentFile
from tidegate.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from tidegate.wire.batch import (
    HEADER_BYTES,
    LAST_OFFSET_DELTA_AT,
    LEAST_LENGTH,
    MAGIC,
    OFFSET_AND_LENGTH,
    OVERHEAD_BYTES,
    BatchHeader,
    read_header,
)

__all__ = ["DELETED_SUFFIX", "RECENT_BATCHES", "Segment", "segment_path"]

RECENT_BATCHES = 512  # positions of the newest batches kept in memory: a read at the end needs no search
DELETED_SUFFIX = ".deleted"
_WALK_BYTES = 8192
_CHECKED_AT_ONCE = 100  # headers
_LAST_OFFSET_DELTA = struct.Struct(">i")
_NO_TIME = -1
_UNKNOWN_BYTES = 2**31 - 1


def segment_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Return the name of a segment's file: twenty digits and a suffix, as Kafka's."""
    return directory / f"{base_offset:020d}{suffix}"


class Segment:
    """A log file and its indexes. `size` is the end of the last whole batch."""

    __slots__ = (
        "_file",
        "_recent",
        "_since_entry_bytes",
        "_unwritten",
        "_unwritten_at",
        "base_offset",
        "created_ms",
        "first_time_ms",
        "largest_batch_bytes",
        "max_time_ms",
        "max_time_offset",
        "offsets",
        "path",
        "sealed",
        "size",
        "time_is_sure",
        "times",
    )

    def __init__(self, directory: Path, base_offset: int) -> None:
        self.base_offset = base_offset
        self.path = segment_path(directory, base_offset, ".log")
        self.offsets = SparseIndex(segment_path(directory, base_offset, ".index"), OFFSET_ENTRY)
        self.times = SparseIndex(segment_path(directory, base_offset, ".timeindex"), TIME_ENTRY)
        self.size = 0
        self.sealed = False
        self.max_time_ms = _NO_TIME
        self.max_time_offset = base_offset
        self.time_is_sure = True  # False: `max_time_ms` is what an index says, which may have been cut
        self.first_time_ms = _NO_TIME  # of the first batch: rolling by age counts from it
        self.created_ms = 0  # of a segment whose first batch has no time
        self.largest_batch_bytes = _UNKNOWN_BYTES  # at most this much; known if noted from the first batch on
        self._since_entry_bytes = 0
        self._file: SegmentFile | None = None
        self._recent: dict[int, int] = {}
        self._unwritten: list[bytes] = []  # batches that were gathered, to be written together
        self._unwritten_at = 0

    def written_file(self) -> SegmentFile:
        """Return the open log file, opened at first use, after writing what was gathered for it. Raises `OSError`.

        It must be there: `create` makes it.
        """
        if self._file is None:
            self._file = SegmentFile(self.path)
        if self._unwritten:
            self.write_gathered()
        return self._file

    def create(self) -> None:
        """Make the file, empty. Raises `OSError`."""
        self._file = SegmentFile(self.path, create=True)

    def append(
        self,
        batch: memoryview,
        size: int,
        base_offset: int,
        last_offset: int,
        max_time_ms: int,
        interval: int,
    ) -> None:
        """Write a batch of `size` bytes at the end. On failure the file ends where it did and `OSError` is raised."""
        fd = self.written_file().fd
        position = self.size
        if os.pwrite(fd, batch, position) != size:
            # A short write, which a full disk causes: the next write succeeds or says why not.
            self._write_rest(fd, batch)
        self.record_batch(position, size, base_offset, last_offset, max_time_ms, interval)

    def gather(
        self,
        batch: memoryview,
        size: int,
        base_offset: int,
        last_offset: int,
        max_time_ms: int,
        interval: int,
    ) -> bool:
        """Add a batch as `append` does, but leave the write to `write_gathered`. Return whether it is the first."""
        first = not self._unwritten
        if first:
            self._unwritten_at = self.size
        # A copy: the buffer of the frame is used again before the turn ends (decision 0023).
        self._unwritten.append(bytes(batch))
        self.record_batch(self.size, size, base_offset, last_offset, max_time_ms, interval)
        return first

    def write_gathered(self) -> None:
        """Write what was gathered. On failure `OSError` is raised, and all of it is still to be written."""
        fd = (self._file or SegmentFile(self.path)).fd
        gathered, position = self._unwritten, self._unwritten_at
        written = os.pwritev(fd, gathered, position)
        if written != self.size - position:
            self._write_from(written, fd, memoryview(b"".join(gathered)), position)
        self._unwritten = []

    def drop_gathered(self) -> None:
        """Discard gathered batches, and cut off what was written of them. Size, times and indexes are then wrong."""
        if self._unwritten:
            self._unwritten = []
            self.size = self._unwritten_at
            self.cut(self.size)

    def _write_rest(self, fd: int, batch: memoryview) -> None:
        """Continue after a short write. If the disk accepts no more, undo the write and raise `OSError`."""
        try:
            self._write_from(0, fd, batch, self.size)
        except OSError:
            self.cut(self.size)
            raise

    def _write_from(self, written: int, fd: int, data: memoryview, position: int) -> None:
        """Write what is left of `data`, which belongs at `position`, after its first `written` bytes."""
        while written < len(data):
            count = os.pwrite(fd, data[written:], position + written)
            if count == 0:
                raise OSError(f"wrote {written} of {len(data)} bytes to {self.path.name}")
            written += count

    def record_batch(
        self, position: int, size: int, base_offset: int, last_offset: int, max_time_ms: int, interval: int
    ) -> None:
        """Update size, times and indexes for a batch at `position`."""
        if max_time_ms > self.max_time_ms:
            self.max_time_ms = max_time_ms
            self.max_time_offset = last_offset
        if self._since_entry_bytes > interval:
            self.offsets.add_entry(last_offset - self.base_offset, position)
            self.add_time_entry()
            self._since_entry_bytes = 0
        self._since_entry_bytes += size
        if not position or size > self.largest_batch_bytes:
            self.largest_batch_bytes = size
            if not position:
                self.first_time_ms = max_time_ms
        recent = self._recent
        if len(recent) >= RECENT_BATCHES:
            recent.clear()
        recent[base_offset] = position
        self.size = position + size

    def add_time_entry(self) -> None:
        """Add the largest time so far to the time index if it has grown; called also when the segment is closed."""
        last = self.times.last()
        if self.max_time_ms >= 0 and (last is None or self.max_time_ms > last[0]):
            self.times.add_entry(self.max_time_ms, self.max_time_offset - self.base_offset)

    def position_of(self, offset: int) -> int:
        """Return where the batch with `offset` begins; `size` when every batch lies before it."""
        position = self._recent.get(offset)
        if position is not None:
            return position
        relative = offset - self.base_offset
        entry = self.offsets.floor_on_disk(relative) if self.sealed else self.offsets.floor(relative)
        return self._walk_to(offset, entry[1] if entry else 0)

    def _walk_to(self, offset: int, position: int) -> int:
        """Return where the batch with `offset` begins, looking from `position` on, where an index says one does."""
        fd = self.written_file().fd
        start = position
        while position < self.size:
            chunk = os.pread(fd, _WALK_BYTES, position)
            at = 0
            while at + HEADER_BYTES <= len(chunk):
                base, length = OFFSET_AND_LENGTH.unpack_from(chunk, at)
                if base + _LAST_OFFSET_DELTA.unpack_from(chunk, at + LAST_OFFSET_DELTA_AT)[0] >= offset:
                    if base <= offset:
                        return position + at
                    break
                if length < LEAST_LENGTH:
                    break
                at += length + OVERHEAD_BYTES
            else:
                if at:
                    position += at
                    continue
            break
        # No batch begins where the index says: walk from the start, which needs no index.
        return self.size if not start or position == self.size else self._walk_to(offset, 0)

    def batch_size(self, position: int) -> int:
        """Return the size of the batch that begins at `position`. Raises `OSError`."""
        raw = os.pread(self.written_file().fd, OVERHEAD_BYTES, position)
        if len(raw) != OVERHEAD_BYTES:
            raise OSError(errno.EIO, f"file ends before byte {position + OVERHEAD_BYTES}")
        length: int = OFFSET_AND_LENGTH.unpack(raw)[1]
        return length + OVERHEAD_BYTES

    def batches(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the position and header of each batch from `position` on."""
        while position < self.size:
            header = self.header_at(position)
            yield position, header
            position += header.size

    def slice(self, position: int, size: int) -> FileSlice:
        """Return a piece of the file to send."""
        return FileSlice(self.written_file(), position, size)

    def position_by_time(self, time_ms: int) -> int:
        """Return a position before which no batch has a record of `time_ms` or later."""
        entry = self.times.floor_on_disk(time_ms - 1) if self.sealed else self.times.floor(time_ms - 1)
        position = None if entry is None else self.position_of_time(*entry)
        return position or 0

    def position_of_time(self, time_ms: int, relative_offset: int) -> int | None:
        """Return where the batch of an entry of the time index begins; None where it has another time."""
        position = self.position_of(self.base_offset + relative_offset)
        return (
            position if position < self.size and self.header_at(position).max_timestamp == time_ms else None
        )

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch at `position`. Raises `LogDamagedError` where no batch can begin."""
        raw = os.pread(self.written_file().fd, HEADER_BYTES, position)
        if len(raw) == HEADER_BYTES:
            header = read_header(raw)
            if header.magic == MAGIC and header.length >= LEAST_LENGTH:
                return header
        raise LogDamagedError(f"no record batch at byte {position} of {self.name}")

    @property
    def name(self) -> str:
        """The name of the file and its directory, for people."""
        return f"{self.path.parent.name}/{self.path.name}"

    def check_time(self) -> Iterator[None]:
        """Correct `max_time_ms` by reading the batches after the last one that the time index names.

        Each yield is a pause after well under a millisecond.
        """
        for count, (_, header) in enumerate(self.batches(self.position_by_time(self.max_time_ms + 1))):
            if header.max_timestamp > self.max_time_ms:
                self.max_time_ms = header.max_timestamp
                self.max_time_offset = header.last_offset
            if count % _CHECKED_AT_ONCE == 0:
                yield
        self.time_is_sure = True

    def newest_time_ms(self) -> int:
        """Return the time that retention counts from: the largest of a record, else the file's.

        Follows: Kafka `LogSegment.largestTimestamp`.
        """
        return self.max_time_ms if self.max_time_ms >= 0 else self.modified_ms()

    def modified_ms(self) -> int:
        """Return when the file was last written to."""
        return os.stat(self.path).st_mtime_ns // 1_000_000

    def file_size(self) -> int:
        """Return how long the file is, 0 where there is none."""
        return os.stat(self.path).st_size if self.path.exists() else 0

    def flush_indexes(self) -> None:
        """Write the index entries that are only in memory. Raises `OSError`.

        Times first, so that the time index on disk covers all batches up to the last entry of the offset index.
        """
        self.times.flush()
        self.offsets.flush()

    def seal(self) -> None:
        """End the segment: nothing more is appended; the indexes stay on disk only. Call `flush_indexes` first."""
        self.offsets.forget_memory()
        self.times.forget_memory()
        self._recent.clear()
        self.sealed = True

    def close_unless_sent(self) -> None:
        """Close the file, unless a slice of it is still being sent."""
        self._file = None

    def cut(self, size: int) -> None:
        """Make the file end at `size`."""
        os.ftruncate(self.written_file().fd, size)

    def problem(self) -> str | None:
        """Return what has happened to the file that should hold the records, None where it is as it should be."""
        size = self._unwritten_at if self._unwritten else self.size
        try:
            found = os.stat(self.path) if self._file is None else os.fstat(self._file.fd)
        except FileNotFoundError:
            return f"{self.name} was deleted while in use"
        if not found.st_nlink:
            # An open file survives its name: acknowledged records in it could never be read again (decision 0024).
            return f"{self.name} was deleted while in use"
        return (
            f"{self.name} was truncated to {found.st_size} of {size} bytes while in use"
            if found.st_size < size
            else None
        )

    def set_aside(self) -> list[Path]:
        """Rename the files, so that they do not belong to the log any more; return them, to be removed.

        Slices on their way out still read the data. Raises `OSError`. Follows: Kafka `LogSegment.changeFileSuffixes`.
        """
        self.close_unless_sent()
        aside = []
        # The log file last: a segment without its indexes can be recovered, indexes alone are of no use.
        for path in (self.times.path, self.offsets.path, self.path):
            with contextlib.suppress(FileNotFoundError):
                aside.append(path.rename(path.with_name(path.name + DELETED_SUFFIX)))
        return aside
