"""The two sparse indexes beside a segment file, in Kafka's formats: offset → position and time → offset.

An entry is written for about every `log.index.interval.bytes` of records. Those of the segment that is being
written are kept in memory and appended to the file from time to time: what a crash leaves out is found again by
walking the log. Those of older segments stay on disk and are searched there.
Follows: Kafka `OffsetIndex` (int32 relative offset, int32 position), `TimeIndex` (int64 time, int32 relative offset).
"""

import contextlib
import errno
import os
import struct
from array import array
from bisect import bisect_right
from pathlib import Path

from tidegate.storage.private_files import opened_file

__all__ = ["OFFSET_ENTRY", "TIME_ENTRY", "SparseIndex"]

OFFSET_ENTRY = struct.Struct(">Ii")
TIME_ENTRY = struct.Struct(">qI")


class SparseIndex:
    """Pairs of a growing key and a value, on disk and, while they are being added, in memory."""

    __slots__ = ("_entry", "_keys", "_on_disk", "_shorter", "_values", "path")

    def __init__(self, path: Path, entry: struct.Struct) -> None:
        self.path = path
        self._entry = entry
        self._keys = array("q")
        self._values = array("q")
        self._on_disk = 0
        self._shorter = False

    def __len__(self) -> int:
        return len(self._keys)

    def add_entry(self, key: int, value: int) -> None:
        """Add an entry; `key` must not be smaller than the last one."""
        self._keys.append(key)
        self._values.append(value)

    def last(self) -> tuple[int, int] | None:
        """Return the last entry in memory."""
        return (self._keys[-1], self._values[-1]) if self._keys else None

    def floor(self, key: int) -> tuple[int, int] | None:
        """Return the last entry in memory whose key is not above `key`."""
        at = bisect_right(self._keys, key) - 1
        return (self._keys[at], self._values[at]) if at >= 0 else None

    def floor_on_disk(self, key: int) -> tuple[int, int] | None:
        """Return the last entry of the file whose key is not above `key`; None also when there is no file."""
        try:  # without `opened_file`, which takes 2 us: each fetch from a closed segment comes here
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            return self._search(fd, key)
        finally:
            os.close(fd)

    def last_on_disk(self) -> tuple[int, int] | None:
        """Return the last whole entry of the file; None also when there is no file."""
        size = self._entry.size
        with contextlib.suppress(FileNotFoundError), opened_file(self.path) as fd:
            count = os.fstat(fd).st_size // size
            if count:
                key, value = self._entry.unpack(os.pread(fd, size, (count - 1) * size))
                return key, value
        return None

    def set_last_on_disk(self, key: int, value: int) -> None:
        """Add an entry to the file alone, where `key` is above that of its last. Raises `OSError`."""
        last = self.last_on_disk()
        if last is not None and last[0] >= key:
            return
        with opened_file(self.path, os.O_RDWR | os.O_CREAT) as fd:
            whole = os.fstat(fd).st_size // self._entry.size
            os.pwrite(fd, self._entry.pack(key, value), whole * self._entry.size)

    def _search(self, fd: int, key: int) -> tuple[int, int] | None:
        entry, found = self._entry, None
        low, high = 0, os.fstat(fd).st_size // entry.size
        while low < high:
            middle = (low + high) // 2
            candidate = entry.unpack(os.pread(fd, entry.size, middle * entry.size))
            if candidate[0] <= key:
                found, low = candidate, middle + 1
            else:
                high = middle
        return found

    def flush(self) -> None:
        """Append to the file what it lacks, and cut off what was forgotten. Raises `OSError`."""
        if self._on_disk == len(self._keys) and not self._shorter:
            return
        new = b"".join(map(self._entry.pack, self._keys[self._on_disk :], self._values[self._on_disk :]))
        start = self._on_disk * self._entry.size
        shorter, self._shorter = self._shorter, True  # should this fail half-way
        with opened_file(self.path, os.O_RDWR | os.O_CREAT) as fd:
            if os.pwrite(fd, new, start) != len(new):
                raise OSError(errno.ENOSPC, f"no disk space for {len(new)} bytes of {self.path.name}")
            if shorter:
                os.ftruncate(fd, start + len(new))
        self._on_disk = len(self._keys)
        self._shorter = False

    def load(self) -> bool:
        """Read the file as far as its keys grow and its values do not fall; return whether that is all of it."""
        self.clear()
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return True
        last_key = last_value = -1
        for key, value in self._entry.iter_unpack(data[: len(data) // self._entry.size * self._entry.size]):
            if key <= last_key or value < last_value:
                break
            self.add_entry(key, value)
            last_key, last_value = key, value
        self._on_disk = len(self._keys)
        self._shorter = self._on_disk * self._entry.size < len(data)
        return not self._shorter

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` entries."""
        del self._keys[count:]
        del self._values[count:]
        if count < self._on_disk:
            self._on_disk = count
            self._shorter = True

    def values_below(self, bound: int) -> int:
        """Return how many entries have a value below `bound` (values never fall)."""
        return bisect_right(self._values, bound - 1)

    def clear(self) -> None:
        """Forget every entry in memory; the file is overwritten by the next `flush`."""
        self.truncate(0)

    def forget_memory(self) -> None:
        """Write what is missing and keep nothing in memory: the segment is closed."""
        self.flush()
        del self._keys[:]
        del self._values[:]
