"""Replacement of the broker addresses in a Metadata response.

The brokers come first in every version. The rest of the response, a megabyte for tens of thousands of partitions, is
neither decoded nor encoded.
"""

import struct

from tidegate.gateway.addresses import Addresses
from tidegate.wire import ProtocolError
from tidegate.wire.errors import MalformedError
from tidegate.wire.primitives import MAX_TAGS, uvarint, varint

__all__ = ["MAX_BROKERS", "after_tags", "with_addresses"]

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_ID_AND_SIZE, _ID_AND_COMPACT_SIZE = struct.Struct(">ih"), struct.Struct(">iB")
_THROTTLE_SINCE = 3
_RACK_SINCE = 1
_COMPACT_SINCE = 9
_ONE_BYTE = 128
"""The least size that takes more than a byte as a varint."""
MAX_BROKERS = 2500
"""Most brokers in a response. Their addresses are replaced in one step of 1 to 8 ms; more are an error."""


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
    if count > MAX_BROKERS:
        raise ProtocolError(
            f"a Metadata response has at most {MAX_BROKERS} brokers, this one {count}", path="brokers"
        )
    parts: list[bytes | bytearray | memoryview] = [memoryview(frame)[:at]]
    add, has_rack = parts.append, version >= _RACK_SINCE
    hidden: list[int] = []
    id_and_size = _ID_AND_COMPACT_SIZE if is_compact else _ID_AND_SIZE
    fixed = (id_and_size.size - is_compact) + _INT32.size  # the size of a compact string counts its own byte
    known, field, pack = None, b"", _INT32.pack
    for _ in range(count):
        node_id, size = id_and_size.unpack_from(frame, at)
        if is_compact and not 0 < size < _ONE_BYTE:
            rack_at = _after_string(frame, at + _INT32.size, is_compact) + _INT32.size
        else:
            rack_at = at + fixed + (size if size > 0 else 0)
        next_at = rack_at
        if is_compact:
            size = frame[rack_at]
            next_at = rack_at + size if 0 < size < _ONE_BYTE else _after_string(frame, rack_at, is_compact)
            next_at = after_tags(frame, next_at) if frame[next_at] else next_at + 1
        elif has_rack:
            (size,) = _INT16.unpack_from(frame, rack_at)
            next_at += _INT16.size + (size if size > 0 else 0)
        place = addresses.place(node_id, listener)
        if place is None:
            hidden.append(node_id)
        else:
            host, port = place
            if host != known:
                known, field = host, _string(host, is_compact)
            add(pack(node_id) + field + pack(port))
            add(frame[rack_at:next_at])
        at = next_at
    parts.append(memoryview(frame)[at:])
    if at > len(frame):
        raise IndexError
    if hidden:
        addresses.warn_hidden(hidden, listener)
        visible = count - len(hidden)
        parts[:1] = frame[:count_at], uvarint(visible + 1) if is_compact else _INT32.pack(visible)
    made = bytearray().join(parts)
    _INT32.pack_into(made, 0, len(made) - _INT32.size)
    return made


def _string(text: str, is_compact: bool) -> bytes:
    data = text.encode()
    return (uvarint(len(data) + 1) if is_compact else _INT16.pack(len(data))) + data


def _after_string(frame: bytearray, at: int, is_compact: bool) -> int:
    """Return the offset after a string, which may be null."""
    if is_compact:
        size = frame[at]
        if 0 < size < _ONE_BYTE:
            return at + size
        size, at = varint(frame, at)
        return at + max(size - 1, 0)
    (size,) = _INT16.unpack_from(frame, at)
    return at + _INT16.size + (size if size > 0 else 0)


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
