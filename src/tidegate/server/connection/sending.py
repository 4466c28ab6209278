"""The parts of an answer that is being sent: memory, and slices of files."""

from collections.abc import Iterable
from typing import Any

__all__ = ["Sendable", "discard", "memory_bytes"]

Sendable = Any  # bytes-like, or a file slice with fd, offset, size and release()


def memory_bytes(items: Iterable[Sendable]) -> int:
    """Return how much of what is to be sent lies in memory."""
    return sum(len(item) for item in items if isinstance(item, (bytes, bytearray, memoryview)))


def discard(items: Iterable[Sendable]) -> None:
    """Discard buffers that will not be sent: release the files behind slices."""
    for item in items:
        if not isinstance(item, (bytes, bytearray, memoryview)):
            item.release()
