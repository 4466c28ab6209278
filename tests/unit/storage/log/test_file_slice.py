"""Tests of slices of log files."""

import os
from pathlib import Path

from tidegate.storage.log.file_slice import FileSlice, SegmentFile


def written(path: Path, data: bytes) -> SegmentFile:
    """Return an open file that holds `data`."""
    path.write_bytes(data)
    return SegmentFile(path)


def test_slice_has_its_length_and_its_bytes(tmp_path: Path) -> None:
    """A slice is as long as it says and reads what lies there."""
    found = FileSlice(written(tmp_path / "log", b"0123456789"), 2, 5)
    assert (len(found), found.read()) == (5, b"23456")


def test_rest_continues_where_sending_stopped(tmp_path: Path) -> None:
    """The rest of a partly sent slice begins after what was sent."""
    rest = FileSlice(written(tmp_path / "log", b"0123456789"), 2, 5).rest(3)
    assert (rest.offset, rest.size, rest.read()) == (5, 2, b"56")


def test_slice_outlives_the_file_name(tmp_path: Path) -> None:
    """Deleting the file, and everybody else letting go of it, leaves the slice readable."""
    file = written(tmp_path / "log", b"0123456789")
    found = FileSlice(file, 0, 10)
    del file
    (tmp_path / "log").unlink()
    assert found.read() == b"0123456789"


def test_last_release_closes_the_file(tmp_path: Path) -> None:
    """The descriptor is closed when the last slice lets go of it."""
    found = FileSlice(written(tmp_path / "log", b"0123456789"), 0, 10)
    other = found.rest(4)
    fd = found.fd
    inode = os.fstat(fd).st_ino
    found.release()
    assert other.read() == b"456789"
    other.release()
    assert not is_open(fd, inode)


def is_open(fd: int, inode: int) -> bool:
    """Return whether a descriptor still stands for that file."""
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False
