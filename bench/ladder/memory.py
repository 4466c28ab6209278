"""Memory that a virtual machine's host has given already, for as long as a benchmark runs.

The first touch of a page that the host has yet to give takes some 10 us, and a machine with a balloon gives back what
is free in blocks of 2 MB within seconds: a run that writes much then measures the host. So memory is touched once, and
let go but for one page of each block. What is free in between is in pieces that are not given back, and that the
kernel takes first. Both brokers write to it.
"""

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["given_memory"]

_BLOCK_BYTES = 2 << 20
_PAGE_BYTES = 4096
_LEFT_BYTES = 6 << 30  # for brokers, clients and what else there is
_AT_ONCE = 64 << 20


@contextmanager
def given_memory() -> Iterator[str]:
    """Keep what is free, but for 6 GB, given by the host; yield what was done, in words."""
    size = (_available_bytes() - _LEFT_BYTES) // _AT_ONCE * _AT_ONCE
    if size <= 0:
        yield "memory as it is"
        return
    begun = time.perf_counter()
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE) as memory:
        for at in range(0, size, _BLOCK_BYTES):
            memory.madvise(mmap.MADV_DONTNEED, at + _PAGE_BYTES, _BLOCK_BYTES - _PAGE_BYTES)
        took_s = time.perf_counter() - begun
        yield f"{size >> 20} MB of memory touched before, in {took_s:.0f} s"


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("MemAvailable:")]
    return int(line.split()[1]) * 1024
