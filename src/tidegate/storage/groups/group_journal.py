"""The journal of groups: changes that are acknowledged, and not yet in the database.

A small change is appended to a file with one `write`, which takes some microseconds, and is acknowledged then: it
outlives the process, as a record in a log does. A thread writes it to the database later, together with many others
(`tidegate.storage.groups.group_writes`). The next start writes what a kill has left.

There are two files. While the records of one file are moved to the database, new changes go to the other; a file is
emptied when all of its records are in the database and the database is synced. When both are full, changes wait.

A header precedes each record: the record's length, its CRC-32 (4 bytes each) and its number (8 bytes). The CRC covers
the number and the record.

The end of a file may be torn by a power failure: reading ends at the first record that is not whole.
"""

import logging
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate.storage.log.group_commit import sync_path
from tidegate.storage.private_files import PRIVATE_FILE

__all__ = ["FULL_BYTES", "MAX_RECORD_BYTES", "SWITCH_BYTES", "GroupJournal"]

SWITCH_BYTES: Final = 2 << 20
"""From this size on the other file is used, if it is empty."""
FULL_BYTES: Final = 8 << 20
"""A file of this size takes no more records: 260,000 positions without metadata."""
MAX_RECORD_BYTES: Final = 64 * 1024
"""Larger changes go to the database directly: appending them would hold the loop."""

_NAMES = ("groups-0.journal", "groups-1.journal")
_HEADER = struct.Struct(">IIQ")
_MASK = 0xFFFFFFFF

_logger = logging.getLogger(__name__)


class _File:
    """One of the two files. is_broken: a failed write could not be undone, so nothing is appended until it is emptied.

    size: bytes of whole records. last: the number of the last one.
    """

    __slots__ = ("fd", "is_broken", "last", "path", "size")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE_FILE)
        self.size = os.fstat(self.fd).st_size
        self.last = 0
        self.is_broken = False

    def empty(self) -> None:
        """Remove all records. Raises `OSError`."""
        os.ftruncate(self.fd, 0)
        self.is_broken = False
        self.size = 0

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and bytes of each whole record, and log what follows the last one. Raises `OSError`."""
        data = self.path.read_bytes()
        at = 0
        while at + _HEADER.size <= len(data):
            length, checksum, number = _HEADER.unpack_from(data, at)
            record = data[at + _HEADER.size : at + _HEADER.size + length]
            if len(record) < length or _checksum(number, record) != checksum:
                break
            at += _HEADER.size + length
            yield number, record
        if at < len(data):
            _logger.warning(
                "ignored an incomplete record at the end of %s (%d bytes, from byte %d), for example after a power "
                "failure; the last commits of consumer groups may be missing",
                self.path,
                len(data) - at,
                at,
            )


class GroupJournal:
    """The journal in one data directory. Called on the event loop, except for `retire` and `sync`.

    number: that of the last record.
    """

    def __init__(self, directory: Path) -> None:
        """Open the files, made when absent. Raises `OSError`."""
        self._active, self._other = (_File(directory / name) for name in _NAMES)
        sync_path(directory)  # their names outlive a power failure
        self.number = 0
        self._is_lost = False

    def read(self, after: int) -> list[bytes]:
        """Return the records whose number is larger than `after`, in order. Raises `OSError`."""
        records = [found for file in (self._active, self._other) for found in file.records()]
        records.sort()
        self.number = max([after, *(number for number, _ in records)])
        return [record for number, record in records if number > after]

    def append(self, record: bytes) -> int | None:
        """Append a record; return its number. None where it cannot be appended: too large, no room, or disk full."""
        if self._active.size >= SWITCH_BYTES or self._active.is_broken:
            if not self._other.size:
                self._active, self._other = self._other, self._active
            elif self._active.size >= FULL_BYTES or self._active.is_broken:
                return None
        if len(record) > MAX_RECORD_BYTES or self._is_lost:
            return None
        file, number = self._active, self.number + 1
        framed = _HEADER.pack(len(record), _checksum(number, record), number) + record
        try:
            written = os.write(file.fd, framed)
        except OSError as error:
            written = 0
            _logger.error("cannot append to %s: %s", file.path, error, extra={"repeats": "append journal"})
        if written != len(framed):
            self._take_back(file)
            return None
        file.size += written
        file.last = self.number = number
        return number

    @staticmethod
    def _take_back(file: _File) -> None:
        """Truncate a file behind its last whole record, after a write that failed."""
        try:
            os.ftruncate(file.fd, file.size)
        except OSError:
            file.is_broken = True
            file.size = max(file.size, 1)

    def check_files(self) -> None:
        """Stop using the journal once one of its files was removed from the directory: its records would be lost."""
        for file in (self._active, self._other):
            if not self._is_lost and not os.fstat(file.fd).st_nlink:
                self._is_lost = True
                _logger.error(
                    "%s was deleted while in use; group commits now wait for the database", file.path
                )

    # --- on the thread that writes the database

    def can_retire(self, number: int) -> bool:
        """Return whether a file that is no longer written has no record after `number`."""
        return bool(self._other.size) and self._other.last <= number

    def retire(self) -> None:
        """Empty the file that is no longer written: its records are in the database, and that is synced."""
        try:
            self._other.empty()
        except OSError as error:
            _logger.error("cannot empty %s: %s", self._other.path, error, extra={"repeats": "empty journal"})

    def sync(self) -> None:
        """Sync both files, so that they outlive a power failure."""
        for file in (self._active, self._other):
            if file.size:
                os.fdatasync(file.fd)

    # --- at a start and at the end

    def empty(self) -> None:
        """Remove all records: all of them are in the database, and that is synced. Raises `OSError`."""
        for file in (self._active, self._other):
            if file.size:
                file.empty()

    def close(self) -> None:
        """Close the files."""
        for file in (self._active, self._other):
            os.close(file.fd)


def _checksum(number: int, record: bytes) -> int:
    return zlib.crc32(record, number & _MASK)
