"""The segment that a recorder is writing: a pre-sized, memory-mapped file of rows and a table of names."""

import contextlib
import mmap
import os
from pathlib import Path

from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    HEADER_BYTES,
    NAMES_BYTES_MAX,
    NAMES_MAX,
    NAMES_SUFFIX,
    OPEN_SUFFIX,
    ROW_BYTES,
    Header,
    Names,
    encode_header,
    encode_names,
    segment_path,
)

__all__ = ["NAMES_FULL", "OpenSegment"]

NAMES_FULL = -1
"""Answer of `OpenSegment.number` when the table of names takes no more."""


class OpenSegment:
    """A segment on disk with all its blocks reserved: writing a row can meet no full disk. Raises `OSError`.

    `rows`: the mapped file; the recorder packs rows into it from `HEADER_BYTES` on.
    """

    def __init__(self, directory: Path, header: Header, size_bytes: int) -> None:
        self.header = header
        self._path = segment_path(directory, header.first_seq, OPEN_SUFFIX)
        self._names_path = self._path.with_suffix(NAMES_SUFFIX)
        self._numbers: dict[Names, int] = {}
        self._names_bytes = self._used_bytes = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._names_fd = os.open(self._names_path, flags | os.O_APPEND, 0o600)
        try:
            self.rows = _map_new_file(self._path, flags, size_bytes)
        except OSError:
            os.close(self._names_fd)
            self._unlink()
            raise
        self.rows[:HEADER_BYTES] = encode_header(header)

    def number(self, names: Names) -> int:
        """Return the number of `names`, written to the names file before; `NAMES_FULL` when it is full."""
        number = self._numbers.get(names)
        if number is not None:
            return number
        record = encode_names(names)
        if len(self._numbers) >= NAMES_MAX or self._names_bytes + len(record) > NAMES_BYTES_MAX:
            return NAMES_FULL
        written = os.write(self._names_fd, record)
        if written != len(record):
            raise OSError(f"{self._names_path}: {written} of {len(record)} bytes written")
        self._names_bytes += written
        number = self._numbers[names] = len(self._numbers) + 1
        return number

    def end(self, used_bytes: int) -> None:
        """Take no more rows; `used_bytes` is where the last one ended."""
        self._used_bytes = used_bytes
        self.rows.close()
        os.close(self._names_fd)
        self._numbers.clear()

    def hand_over(self) -> int:
        """Cut the file after its last row and hand it to the writer, or drop it when it has none; after `end`.

        Returns how many rows were lost: 0, or all when somebody has deleted the file. May be tried again
        when it raises `OSError`.
        """
        if self._used_bytes <= HEADER_BYTES:
            self._unlink()
            return 0
        try:
            os.truncate(self._path, self._used_bytes)
            self._path.rename(self._path.with_suffix(CLOSED_SUFFIX))
        except FileNotFoundError:
            return (self._used_bytes - HEADER_BYTES) // ROW_BYTES
        return 0

    def _unlink(self) -> None:
        for path in (self._path, self._names_path):
            with contextlib.suppress(OSError):
                path.unlink()


def _map_new_file(path: Path, flags: int, size_bytes: int) -> mmap.mmap:
    fd = os.open(path, flags, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)  # a hole in the file would be a SIGBUS when the disk is full
        return mmap.mmap(fd, size_bytes)
    finally:
        os.close(fd)
