"""A spare file of rows, prepared before a recorder needs it: its blocks are reserved, its pages in memory.

The kernel's work for the first write to a page costs as much as writing all rows of the page. So if a broker fills one
segment after the other, the writer prepares the next file in the spool, and the recorder renames it.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from tidegate.usage.directory import open_private
from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, segment_paths

__all__ = [
    "FILLED_BYTES",
    "MAX_WAITING",
    "SPARE",
    "keep_spare",
    "keeping_spare",
    "make_rows_file",
    "take_spare",
]

SPARE = "spare"
"""Name of the file in the spool."""
FILLED_BYTES = 4 << 20
"""Size of a segment, in bytes, from which on a spare file is prepared for the next one."""
MAX_WAITING = 16
"""Most segments that wait for the writer. With more, the spool is filling up, and no spare file is prepared."""
_AT_A_TIME = 1 << 20


def make_rows_file(path: Path, size_bytes: int) -> int:
    """Return a descriptor of a new file of zeros with all its blocks reserved. Raises `OSError` on a full disk."""
    fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        os.posix_fallocate(fd, 0, size_bytes)  # the disk is full now or not before the segment is
    except OSError:
        os.close(fd)
        raise
    return fd


def take_spare(path: Path, size_bytes: int) -> int | None:
    """Rename the spare file beside `path` to `path` and return its descriptor; None if there is none of that size."""
    spare = path.with_name(SPARE)
    try:
        fd = os.open(spare, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(fd).st_size == size_bytes:
            spare.rename(path)
            return fd
        spare.unlink()
    except OSError:
        pass  # somebody has removed it
    os.close(fd)
    return None


def keep_spare(spool: Path) -> None:
    """Make a spare file as large as the open segment, where segments are filled and there is none. Raises `OSError`."""
    waiting = segment_paths(spool, CLOSED_SUFFIX)
    if (spool / SPARE).exists() or len(waiting) > MAX_WAITING or not any(map(_is_filled, waiting)):
        return
    sizes = [path.stat().st_size for path in segment_paths(spool, OPEN_SUFFIX)]
    if not sizes:
        return
    unfinished = spool / f".{SPARE}.tmp"
    fd = make_rows_file(unfinished, sizes[-1])
    try:
        # Reading brings the pages into memory, so the recorder's first write to each of them costs less.
        for offset in range(0, sizes[-1], _AT_A_TIME):
            os.pread(fd, _AT_A_TIME, offset)
        unfinished.rename(spool / SPARE)
    finally:
        os.close(fd)
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def keeping_spare(spool: Path, every_s: float) -> Iterator[None]:
    """Check on a thread, during the block, whether a spare file is needed. Delete the spare file afterwards."""
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(every_s):
            with contextlib.suppress(OSError):  # a full disk, or a segment that was closed meanwhile
                keep_spare(spool)

    thread = threading.Thread(target=keep, name="spare", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        (spool / SPARE).unlink(missing_ok=True)


def _is_filled(path: Path) -> bool:
    return path.stat().st_size >= FILLED_BYTES
