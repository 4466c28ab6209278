"""Damage in the write-ahead log of the metadata store: SQLite ignores it without a word, and commits are lost.

SQLite reads its log up to the first frame whose checksum is wrong. That is right for the end of a log that a power
failure cut off, and silent about a damaged page in the middle: all commits behind it are gone. This module looks at the
frames that SQLite left out. If a commit behind the first wrong frame is good by itself, the log goes on there, so it is
damaged. Frames of a transaction that was rolled back may be left over too, but no commit ends them.

Follows: SQLite's file format, section "WAL File Format".
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

__all__ = ["LogDamage", "find_damage"]

_HEADER = struct.Struct(">IIIIIIII")
"""Magic, format, page size, checkpoint number, two salts, two checksums."""
_FRAME = struct.Struct(">IIIIII")
"""Page number, pages of the database if it ends a commit, two salts, two checksums."""
_MAGIC: Final = 0x377F0682
"""With little-endian checksums; one more with big-endian ones."""
_COMMITTED_PAGES = 1
_SALTS = slice(2, 4)
_SUMS = slice(4, 6)
_COVERED = 8  # bytes of a frame's header that its checksum covers
_MASK = 0xFFFFFFFF

Sums = tuple[int, int]


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Damage in a log: the byte where it begins, and how many frames from there on are not read (None: not known).

    A frame is a page of the database that a commit changed. is_end: no commit follows, as when a power failure has torn
    the last commit.
    """

    offset: int
    lost_frames: int | None
    is_end: bool = False


def find_damage(path: Path, read_frames: int) -> LogDamage | None:
    """Return where a log is damaged; None where SQLite has read all that was committed.

    read_frames: how many frames SQLite has read (`PRAGMA wal_checkpoint`). Raises `OSError`.
    """
    try:
        with path.open("rb") as file:
            return _find_damage(file, read_frames)
    except FileNotFoundError:
        return None


def _find_damage(file: BinaryIO, read_frames: int) -> LogDamage | None:
    header = file.read(_HEADER.size)
    if not any(header):
        return None  # empty, or begun and never written
    size = file.seek(0, 2)
    page_bytes = 0
    if len(header) == _HEADER.size:
        magic, _, page_bytes, _, *salts, first, second = _HEADER.unpack(header)
        order = "<" if magic == _MAGIC else ">"
        is_good = magic | 1 == _MAGIC | 1 and _sums(order, (0, 0), header[:-_COVERED]) == (first, second)
    else:
        is_good = False
    if not is_good:
        return LogDamage(0, None) if size > _HEADER.size + _FRAME.size else None
    frame_bytes = _FRAME.size + page_bytes
    frames = (size - _HEADER.size) // frame_bytes
    sums = (first, second) if read_frames == 0 else _stored_sums(file, read_frames - 1, frame_bytes)
    bad = commit = last_written = None
    for number in range(read_frames, frames):
        file.seek(_HEADER.size + number * frame_bytes)
        fields = _FRAME.unpack(file.read(_FRAME.size))
        is_good = False
        if list(fields[_SALTS]) == salts:  # else it is a frame of an earlier log, which was begun anew
            covered = _FRAME.pack(*fields)[:_COVERED] + file.read(page_bytes)
            is_good = _sums(order, sums, covered) == fields[_SUMS]
            last_written = number
        if not is_good and bad is None:
            bad = number
        if is_good and bad is not None and fields[_COMMITTED_PAGES]:
            commit = number
        sums = fields[_SUMS][0], fields[_SUMS][1]
    if bad is None or last_written is None or last_written < bad:
        return None
    end = commit if commit is not None else last_written
    return LogDamage(_HEADER.size + bad * frame_bytes, end - bad + 1, is_end=commit is None)


def _stored_sums(file: BinaryIO, number: int, frame_bytes: int) -> Sums:
    file.seek(_HEADER.size + number * frame_bytes)
    first, second = _FRAME.unpack(file.read(_FRAME.size))[_SUMS]
    return first, second


def _sums(order: str, sums: Sums, data: bytes) -> Sums:
    """Return SQLite's checksum of `data`, continued from the checksum `sums`. `data` has a multiple of 8 bytes."""
    first, second = sums
    words: Iterator[tuple[int, int]] = struct.iter_unpack(f"{order}II", data)
    for left, right in words:
        first = (first + left + second) & _MASK
        second = (second + right + first) & _MASK
    return first, second
