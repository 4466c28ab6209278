"""What an answer is made of on its way out: memory, and slices of files."""

from collections.abc import Iterable
from typing import Any

__all__ = ["Sendable", "discard"]

Sendable = Any  # bytes-like, or a file slice with fd, offset, size and release()


def discard(items: Iterable[Sendable]) -> None:
    """Let go of buffers that will not be sent: files behind slices are released."""
    for item in items:
        if not isinstance(item, (bytes, bytearray, memoryview)):
            item.release()
