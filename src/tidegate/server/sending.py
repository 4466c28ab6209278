"""Write the buffers of an answer to a non-blocking socket: memory by `send`/`sendmsg`, files by `sendfile`."""

import os
import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

__all__ = ["MAX_BURST_BYTES", "Sendable", "discard", "send_some"]

Sendable = Any  # bytes-like, or a file slice with fd, offset, size and release()
MAX_BURST_BYTES = 4 * 1024 * 1024  # one connection's share before the others get a turn
_IOV_MAX = 64


def send_some(sock: socket.SocketType, out: deque[Sendable]) -> bool:
    """Write from the left of `out` until it is empty or the socket takes no more.

    Returns True when everything has left. What was written is removed from `out`. Raises `OSError` when the
    connection is broken.
    """
    budget = MAX_BURST_BYTES
    try:
        while out:
            if budget <= 0:
                return False
            first = out[0]
            if isinstance(first, (bytes, bytearray, memoryview)):
                sent = _send_memory(sock, out)
            else:
                sent = os.sendfile(sock.fileno(), first.fd, first.offset, first.size)
                if not sent:
                    raise ConnectionAbortedError("the file ended before the slice did")
                _advance_file(out, sent)
            budget -= sent
    except (BlockingIOError, InterruptedError):
        return False
    return True


def _send_memory(sock: socket.SocketType, out: deque[Sendable]) -> int:
    if len(out) == 1:
        sent = sock.send(out[0])
        if sent == len(out[0]):
            out.popleft()
        else:
            out[0] = memoryview(out[0])[sent:]
        return sent
    batch: list[Sendable] = []
    for item in out:
        if not isinstance(item, (bytes, bytearray, memoryview)) or len(batch) == _IOV_MAX:
            break
        batch.append(item)
    flags = socket.MSG_MORE if len(batch) < len(out) else 0
    sent = left = sock.sendmsg(batch, (), flags)
    for item in batch:
        size = len(item)
        if left < size:
            out[0] = memoryview(item)[left:]
            break
        left -= size
        out.popleft()
    return sent


def _advance_file(out: deque[Sendable], sent: int) -> None:
    first = out[0]
    if sent == first.size:
        out.popleft()
        first.release()
    else:
        out[0] = first.rest(sent)


def discard(items: Iterable[Sendable]) -> None:
    """Let go of buffers that will not be sent: files behind slices are released."""
    for item in items:
        if not isinstance(item, (bytes, bytearray, memoryview)):
            item.release()
