"""The segment that a recorder is writing: a pre-sized file of rows and a table of names.

Rows are written with `pwrite`, not into a mapping of the file: if a mapped file is truncated, the next write into the
mapping ends the process with SIGBUS (decision 0026).
"""

import contextlib
import os
from pathlib import Path

from tidegate.usage.directory import open_private
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
from tidegate.usage.spare import make_rows_file, take_spare

__all__ = ["NAMES_FULL", "OpenSegment"]

NAMES_FULL = -1
"""Result of `OpenSegment.name_index` if the table of names is full."""


class OpenSegment:
    """A segment on disk. All its blocks are reserved, so that a full disk cannot stop a row. Raises `OSError`.

    fd: of the file of rows; size_bytes: of its header and all rows.
    """

    def __init__(self, directory: Path, header: Header, size_bytes: int) -> None:
        self.header = header
        self.size_bytes = size_bytes
        self._path = segment_path(directory, header.first_seq, OPEN_SUFFIX)
        self._names_path = self._path.with_suffix(NAMES_SUFFIX)
        self._numbers: dict[bytes, int] = {}
        self._names_bytes = self._used_bytes = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
        self._names_fd = open_private(self._names_path, flags | os.O_APPEND)
        try:
            spare = take_spare(self._path, size_bytes)
            self.fd = make_rows_file(self._path, size_bytes) if spare is None else spare
        except OSError:
            os.close(self._names_fd)
            self._unlink()
            raise
        try:
            self.write(encode_header(header), 0)
        except OSError:
            self.close_files(0)
            self._unlink()
            raise

    def write(self, data: bytes | memoryview, offset: int) -> None:
        """Write whole rows at `offset` of the file."""
        written = os.pwrite(self.fd, data, offset)
        if written != len(data):
            raise OSError(f"{self._path}: wrote only {written} of {len(data)} bytes")

    def name_index(self, names: Names) -> int:
        """Return the number of `names`, after writing new ones to the names file; `NAMES_FULL` if that is full.

        The table in memory has as many bytes as the names file, at most `NAMES_BYTES_MAX`.
        """
        record = encode_names(names)
        number = self._numbers.get(record)
        if number is not None:
            return number
        if len(self._numbers) >= NAMES_MAX or self._names_bytes + len(record) > NAMES_BYTES_MAX:
            return NAMES_FULL
        if os.fstat(self._names_fd).st_size != self._names_bytes:
            raise OSError(
                f"{self._names_path}: another process changed the file"
            )  # a number would mean another name
        written = os.write(self._names_fd, record)
        if written != len(record):
            raise OSError(f"{self._names_path}: wrote only {written} of {len(record)} bytes")
        self._names_bytes += written
        number = self._numbers[record] = len(self._numbers) + 1
        return number

    def damage(self) -> str | None:
        """Return how another process has damaged the files; None if they are whole."""
        for path, fd, size_bytes in (
            (self._path, self.fd, self.size_bytes),
            (self._names_path, self._names_fd, self._names_bytes),
        ):
            mine = os.fstat(fd)
            try:
                there = path.stat()
            except OSError:
                return f"{path} was removed"
            if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
                return f"{path} was replaced"
            if mine.st_size != size_bytes:
                return f"{path} was truncated to {mine.st_size} of {size_bytes} bytes"
        return None

    def close_files(self, used_bytes: int) -> None:
        """Close the files and accept no more rows. used_bytes: where the last row ended."""
        self._used_bytes = used_bytes
        with contextlib.suppress(OSError):  # if the file was cut: what came after that can be read
            if os.fstat(self.fd).st_size != self.size_bytes:
                self.write(encode_header(self.header), 0)
        os.close(self.fd)
        os.close(self._names_fd)
        self._numbers.clear()

    def hand_over(self) -> int:
        """Cut the file after its last row and hand it to the writer, or drop it when it has none; after `end`.

        Returns the number of lost rows: 0, or all if the file was deleted. May be called again after `OSError`.
        """
        if self._used_bytes <= HEADER_BYTES:
            self._unlink()
            return 0
        try:
            # Cut before the rename: the size of a `.closed` file says how many rows it had (`load_segment`).
            os.truncate(self._path, self._used_bytes)
            self._path.rename(self._path.with_suffix(CLOSED_SUFFIX))
        except FileNotFoundError:
            return (self._used_bytes - HEADER_BYTES) // ROW_BYTES
        return 0

    def _unlink(self) -> None:
        for path in (self._path, self._names_path):
            with contextlib.suppress(OSError):
                path.unlink()
