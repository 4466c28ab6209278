"""Produce requests that are sent to the broker ahead of their turn, with an earlier one of the client (decision 0146).

Many clients send several Produce requests without waiting for a response. If each were sent to the broker only after
the answer to the one before it, each would take a send, a receive and a turn. The broker serves them one by one in
any case. The gateway still decides, records and answers each request in its own turn, so a throttled client waits
for the answers to its later requests.
"""

import struct
from collections.abc import Collection

from tidegate.server.connection.channel import Channel
from tidegate.wire.encoded import LENGTH_BYTES

__all__ = ["MAX_AHEAD_BYTES", "MAX_AHEAD_REQUESTS", "alike_behind"]

MAX_AHEAD_REQUESTS = 32
"""Most requests that are sent ahead. If the client leaves, all of them are charged at once, 10 us each."""
MAX_AHEAD_BYTES = 64 * 1024
_LENGTH = struct.Struct(">i")
_KEY_BYTES = 4  # API key and version
_CORRELATION_ID_END = 8


def alike_behind(
    channel: Channel, frame: memoryview, end: int, sent: Collection[int] = ()
) -> tuple[bytes, list[int]]:
    """Return the requests after `frame` that can be sent with it, with their length prefixes, and the size of each.

    They are complete, and their first `end` bytes equal those of `frame` except for the correlation id: API, version,
    client id, transactional id and acks. So they are valid if `frame` is, and each has a response. sent: sizes of
    requests after `frame` that were sent before; they count toward the bounds.
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
