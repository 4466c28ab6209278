"""Addresses in a Metadata response, replaced where they lie.

The brokers come first in every version. What follows, a megabyte for tens of thousands of partitions, is neither read
nor written anew.
"""

import struct

from tidegate.gateway.addresses import Addresses
from tidegate.wire import ProtocolError
from tidegate.wire.errors import MalformedError
from tidegate.wire.primitives import MAX_TAGS, uvarint, varint

__all__ = ["after_tags", "with_addresses"]

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_THROTTLE_SINCE = 3
_RACK_SINCE = 1
_COMPACT_SINCE = 9


def with_addresses(
    frame: bytearray, version: int, body_at: int, addresses: Addresses, listener: str
) -> bytearray:
    """Return a Metadata response with the gateway's addresses, its length prefix too. Raises `ProtocolError`."""
    try:
        return _with_addresses(frame, version, body_at, addresses, listener)
    except (struct.error, IndexError, MalformedError):
        raise ProtocolError(
            f"malformed Metadata response v{version}: the brokers do not end in its {len(frame)} bytes",
            path="brokers",
        ) from None


def _with_addresses(
    frame: bytearray, version: int, body_at: int, addresses: Addresses, listener: str
) -> bytearray:
    is_compact = version >= _COMPACT_SINCE
    at = body_at + (_INT32.size if version >= _THROTTLE_SINCE else 0)
    count_at = at
    if is_compact:
        count, at = varint(frame, at)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(frame, at)
        at += _INT32.size
    parts: list[bytes | bytearray | memoryview] = [memoryview(frame)[:at]]
    left_out = 0
    for _ in range(count):
        broker: dict[str, int | str] = {"node_id": _INT32.unpack_from(frame, at)[0], "host": "", "port": -1}
        rack_at = _after_string(frame, at + _INT32.size, is_compact=is_compact) + _INT32.size
        next_at = _after_string(frame, rack_at, is_compact=is_compact) if version >= _RACK_SINCE else rack_at
        if is_compact:
            next_at = after_tags(frame, next_at)
        if not addresses.rewrite_one(broker, "node_id", listener):
            left_out += 1
            at = next_at
            continue
        host = str(broker["host"]).encode()
        size = uvarint(len(host) + 1) if is_compact else _INT16.pack(len(host))
        parts += (
            frame[at : at + _INT32.size],
            size,
            host,
            _INT32.pack(broker["port"]),
            frame[rack_at:next_at],
        )
        at = next_at
    parts.append(memoryview(frame)[at:])
    if at > len(frame):
        raise IndexError
    if left_out:
        visible = count - left_out
        parts[:1] = frame[:count_at], uvarint(visible + 1) if is_compact else _INT32.pack(visible)
    made = bytearray().join(parts)
    _INT32.pack_into(made, 0, len(made) - _INT32.size)
    return made


def _after_string(frame: bytearray, at: int, *, is_compact: bool) -> int:
    """Return the offset behind a string, which may be null."""
    if is_compact:
        size, at = varint(frame, at)
        return at + max(size - 1, 0)
    (size,) = _INT16.unpack_from(frame, at)
    return at + _INT16.size + max(int(size), 0)


def after_tags(frame: memoryview | bytearray, at: int) -> int:
    """Return the offset behind tagged fields. Raises `MalformedError` where they are more than `MAX_TAGS`."""
    count, at = varint(frame, at)
    if count > MAX_TAGS:
        raise MalformedError(f"a structure has at most {MAX_TAGS} tagged fields, this one {count}")
    for _ in range(count):
        _, at = varint(frame, at)
        size, at = varint(frame, at)
        at += max(size, 0)
    return at
