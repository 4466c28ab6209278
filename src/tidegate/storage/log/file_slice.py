"""Pieces of log files that are sent without reading them: `os.sendfile` takes them by descriptor."""

import os
import sys
import threading
from pathlib import Path

from tidegate.storage.private_files import PRIVATE_FILE

__all__ = ["FileSlice", "SegmentFile"]

_SLOW_TO_FREE_BYTES = 16 * 1024 * 1024


class SegmentFile:
    """An open log file. It closes with the last reference to it, so a slice on its way out keeps it open.

    A missing file is created only if `create` is set: a log whose file was removed must not begin a new one.
    """

    __slots__ = ("fd",)

    def __init__(self, path: Path, *, create: bool = False) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), PRIVATE_FILE)

    def __del__(self) -> None:
        if self.fd >= 0:
            _close(self.fd)
            self.fd = -1


def _close(fd: int) -> None:
    """Close a file. If that frees the blocks of a large deleted file, which takes long, close it on a thread."""
    found = os.fstat(fd)
    if found.st_nlink or found.st_size < _SLOW_TO_FREE_BYTES or sys.is_finalizing():
        os.close(fd)
    else:
        threading.Thread(target=os.close, args=(fd,), name="tidegate-free", daemon=True).start()


class FileSlice:
    """`size` bytes of a file from `offset`, as the records of a fetch answer.

    Deleting the segment or the topic does not disturb it: the file stays open until the slice is released
    or forgotten.
    """

    __slots__ = ("_file", "fd", "offset", "size")

    def __init__(self, file: SegmentFile, offset: int, size: int) -> None:
        self._file: SegmentFile | None = file
        self.fd = file.fd
        self.offset = offset
        self.size = size

    def __len__(self) -> int:
        return self.size

    def send_to(self, fd: int) -> int:
        """Send some of it to a socket; return the number of bytes, 0 where the file is shorter."""
        return os.sendfile(fd, self.fd, self.offset, self.size)

    def read_some(self, count: int) -> bytes:
        """Return up to `count` bytes from its beginning, b"" where the file is shorter."""
        return os.pread(self.fd, count, self.offset)

    def rest(self, sent: int) -> "FileSlice":
        """Return what is left after the first `sent` bytes."""
        assert self._file is not None, "the slice was released"
        return FileSlice(self._file, self.offset + sent, self.size - sent)

    def read(self) -> bytes:
        """Return the bytes themselves. Raises `OSError` where the file is shorter."""
        data = os.pread(self.fd, self.size, self.offset)
        if len(data) != self.size:
            raise OSError(f"log file is {self.size - len(data)} bytes shorter than the slice to read")
        return data

    def release(self) -> None:
        """Drop the reference to the file. The slice is unusable afterwards."""
        self._file = None
        self.fd = -1
