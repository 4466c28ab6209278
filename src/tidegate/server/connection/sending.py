"""The parts of an answer that is being sent: memory, slices of files, and streams from another socket.

A part that is no memory has a `size`, the bytes that are left of it, and:

* `send_to(fd)` sends some of it to a socket and returns the number of bytes, 0 where its source has ended too early.
  Raises `BlockingIOError` if nothing can be sent now.
* `read_some(count)` returns up to `count` bytes from its beginning, which stay there, b"" where its source has ended.
* `rest(sent)` returns the part without its first `sent` bytes; `release()` drops it.
* `wait_for_more(call)`, where there is one, returns whether its source has nothing now, and calls `call` later then.
"""

from collections.abc import Iterable
from typing import Any

__all__ = ["Sendable", "discard", "memory_bytes"]

Sendable = Any


def memory_bytes(items: Iterable[Sendable]) -> int:
    """Return how much of what is to be sent lies in memory."""
    return sum(len(item) for item in items if isinstance(item, (bytes, bytearray, memoryview)))


def discard(items: Iterable[Sendable]) -> None:
    """Discard buffers that will not be sent: release the files behind slices."""
    for item in items:
        if not isinstance(item, (bytes, bytearray, memoryview)):
            item.release()
