"""The parts of an answer that is being sent: memory, slices of files, and streams from another socket.

A part that is not in memory has a `size`, the number of bytes that are left, and these methods:

* `send_to(fd)` sends some bytes to a socket and returns their number, 0 if the source has ended too early. Raises
  `BlockingIOError` if nothing can be sent now.
* `read_some(count)` returns up to `count` bytes from the beginning without removing them, b"" if the source has ended.
* `rest(sent)` returns the part without its first `sent` bytes; `release()` drops it.
* `wait_for_more(call)`, if defined, returns True if the source has nothing now, and then calls `call` when it has.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

__all__ = ["Sendable", "discard", "drop_bytes", "drop_sent", "first_piece", "memory_bytes"]

Sendable = Any


def memory_bytes(items: Iterable[Sendable]) -> int:
    """Return how many of the bytes to send are in memory."""
    return sum(len(item) for item in items if isinstance(item, (bytes, bytearray, memoryview)))


def discard(items: Iterable[Sendable]) -> None:
    """Discard buffers that will not be sent: release the files behind slices."""
    for item in items:
        if not isinstance(item, (bytes, bytearray, memoryview)):
            item.release()


def drop_sent(out: deque[Sendable], sent: int) -> None:
    """Remove the first `sent` bytes of `out`, whose first part is no memory."""
    first = out[0]
    if sent == first.size:
        out.popleft()
        first.release()
    else:
        out[0] = first.rest(sent)


def first_piece(out: deque[Sendable], most_bytes: int) -> Any:
    """Return up to `most_bytes` from the beginning of `out`, in one piece.

    Raises `BlockingIOError` if the source of its first part has nothing now.
    """
    parts: list[Any] = []
    room = most_bytes
    for item in out:
        if isinstance(item, (bytes, bytearray, memoryview)):
            part = item if len(item) <= room else memoryview(item)[:room]
        else:
            try:
                part = item.read_some(min(item.size, room))
            except BlockingIOError:
                if not parts:
                    raise
                break
            if not part and item.size:
                raise ConnectionAbortedError("the source of an answer is shorter than announced")
        parts.append(part)
        room -= len(part)
        if room <= 0 or len(part) < len(item):
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)


def drop_bytes(out: deque[Sendable], count: int) -> None:
    """Remove `count` bytes that have left from `out`, and the empty items behind them.

    Slices of files that have left are released.
    """
    while out and (count or not len(out[0])):
        first = out[0]
        size = min(count, len(first))
        count -= size
        if not isinstance(first, (bytes, bytearray, memoryview)):
            drop_sent(out, size)
        elif size == len(first):
            out.popleft()
        else:
            out[0] = memoryview(first)[size:]
