"""Produce requests that wait behind another of the same client, sent to the broker together with it (decision 0146).

Many clients send several Produce requests without waiting for a response. To send each of them to the broker only when
the one before it is answered would take a send, a receive and a turn for each. The broker serves them one after the
other in any case, and each is decided, recorded and answered in its turn: a throttled client waits for the answers to
those behind.
"""

import struct
from collections.abc import Collection

from tidegate.server.connection.channel import Channel
from tidegate.wire.encoded import LENGTH_BYTES

__all__ = ["MAX_AHEAD_BYTES", "MAX_AHEAD_REQUESTS", "alike_behind"]

MAX_AHEAD_REQUESTS = 32
"""Most requests that are sent behind another. Those of a client that leaves are charged at once, 10 us each."""
MAX_AHEAD_BYTES = 64 * 1024
_LENGTH = struct.Struct(">i")
_KEY_BYTES = 4  # API key and version
_CORRELATION_ID_END = 8


def alike_behind(
    channel: Channel, frame: memoryview, end: int, sent: Collection[int] = ()
) -> tuple[bytes, list[int]]:
    """Return the requests behind `frame`, their length prefixes included, and the size of each frame.

    They are whole, and like it in their first `end` bytes, but for the correlation id: API, version, client id,
    transactional id and acks. So they are valid where it is, and each has a response. sent: sizes of the first ones,
    which were sent already and count for the bounds.
    """
    pending = channel.pending
    begin = channel.pending_at + sum(sent) + LENGTH_BYTES * len(sent)
    at, last = begin, len(pending)
    end_of_all = channel.pending_at + MAX_AHEAD_BYTES
    sizes: list[int] = []
    key, rest = frame[:_KEY_BYTES], frame[_CORRELATION_ID_END:end]
    most = min(channel.max_frame_bytes, MAX_AHEAD_BYTES)
    while last - at >= LENGTH_BYTES + end and len(sent) + len(sizes) < MAX_AHEAD_REQUESTS:
        (size,) = _LENGTH.unpack_from(pending, at)
        first = at + LENGTH_BYTES
        if not end <= size <= most or first + size > last or first + size > end_of_all:
            break
        if (
            pending[first : first + _KEY_BYTES] != key
            or pending[first + _CORRELATION_ID_END : first + end] != rest
        ):
            break
        sizes.append(size)
        at = first + size
    return bytes(pending[begin:at]), sizes
