"""Whole frames, ready to send: a length prefix, a header and a body in a list of buffers.

A response's throttle time is decided after the response was made, so its place is remembered and filled in later.
"""

import struct
from collections.abc import Generator
from typing import Any

from tidegate.wire.apis import API_BY_KEY
from tidegate.wire.codec_types import UNWRITABLE, Message
from tidegate.wire.codecs import (
    SLICED_REQUEST_WRITERS,
    SLICED_RESPONSE_WRITERS,
    message_error,
    write_into,
    writer,
)
from tidegate.wire.errors import MessageError
from tidegate.wire.header import encode_request_header
from tidegate.wire.program import Program

__all__ = [
    "Encoded",
    "encode_request",
    "encode_request_in_slices",
    "encode_response",
    "encode_response_in_slices",
]

_INT32 = struct.Struct(">i")
_PREFIX = struct.Struct(">ii")  # length, correlation id
LENGTH_BYTES = 4
MAX_FRAME_BYTES = 2**31 - 1
NO_FIELD = -1


class Encoded:
    """One response on its way out.

    buffers: what to send, in order. The first is a bytearray that begins with the length prefix; records are the
        caller's own objects: bytes-like, or anything with `len()` that the server knows how to send.
    size: bytes after the length prefix.
    body_size: bytes of the body, without the response header.
    """

    __slots__ = ("body_size", "buffers", "size", "throttle_at")

    def __init__(self, buffers: list[Any], size: int, body_size: int, throttle_at: int) -> None:
        self.buffers = buffers
        self.size = size
        self.body_size = body_size
        self.throttle_at = throttle_at

    def set_throttle_time_ms(self, throttle_time_ms: int) -> None:
        """Write the throttle time into the response, unless it contains a longer one from a broker behind a gateway.

        Nothing happens where the version has no field for it.
        """
        if self.throttle_at != NO_FIELD:
            first, at = self.buffers[0], self.throttle_at
            if throttle_time_ms > _INT32.unpack_from(first, at)[0]:
                _INT32.pack_into(first, at, throttle_time_ms)

    def with_correlation_id(self, correlation_id: int) -> "Encoded":
        """Return a copy that answers another request: for answers that are kept encoded.

        The first buffer is copied, with the throttle time it had; records are shared.
        """
        first = bytearray(self.buffers[0])
        _INT32.pack_into(first, LENGTH_BYTES, correlation_id)
        return Encoded([first, *self.buffers[1:]], self.size, self.body_size, self.throttle_at)

    def __repr__(self) -> str:
        """Return the sizes, never the content."""
        return f"Encoded(buffers={len(self.buffers)}, size={self.size}, throttle_at={self.throttle_at})"


def encode_request(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: Message
) -> bytes:
    """Return a whole request frame, length prefix included. Raises `MessageError` as `write_request` does."""
    out = bytearray(LENGTH_BYTES)
    out += encode_request_header(api_key, api_version, correlation_id, client_id)
    buffers: list[Any] = [out]
    write_into(writer(api_key, api_version, "request"), message, out, buffers)
    frame = bytearray().join(buffers)
    _INT32.pack_into(frame, 0, len(frame) - LENGTH_BYTES)
    return bytes(frame)


def encode_request_in_slices(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None, message: Message
) -> Generator[None, None, bytes]:
    """Return what `encode_request` returns, and raise what it raises, yielding after each array element."""
    program = SLICED_REQUEST_WRITERS[api_key, api_version]
    out = bytearray(LENGTH_BYTES)
    out += encode_request_header(api_key, api_version, correlation_id, client_id)
    buffers: list[Any] = [out]
    try:
        yield from program.function(message, out, buffers)
    except UNWRITABLE as error:
        raise message_error(program, error) from error
    frame = bytearray().join(buffers)
    _INT32.pack_into(frame, 0, len(frame) - LENGTH_BYTES)
    return bytes(frame)


def encode_response(api_key: int, api_version: int, correlation_id: int, message: Message) -> Encoded:
    """Return a whole response frame. Raises `MessageError` where `message` cannot be written."""
    program, prefix = _RESPONSES[api_key, api_version]
    out = bytearray(prefix)
    buffers: list[Any] = [out]
    try:
        throttle_at = program.function(message, out, buffers)
    except UNWRITABLE as error:
        raise message_error(program, error) from error
    return _framed(buffers, prefix, correlation_id, throttle_at)


def encode_response_in_slices(
    api_key: int, api_version: int, correlation_id: int, message: Message
) -> Generator[None, None, Encoded]:
    """Return the frame that `encode_response` returns, and raise what it raises, yielding after each array element.

    The same bytes are in more buffers where they are many.
    """
    program, prefix = SLICED_RESPONSE_WRITERS[api_key, api_version], _prefix(api_key, api_version)
    out = bytearray(prefix)
    buffers: list[Any] = [out]
    try:
        throttle_at = yield from program.function(message, out, buffers)
    except UNWRITABLE as error:
        raise message_error(program, error) from error
    return _framed(buffers, prefix, correlation_id, throttle_at)


def _framed(buffers: list[Any], prefix: bytes, correlation_id: int, throttle_at: int) -> Encoded:
    out = buffers[0]
    size = len(out) - LENGTH_BYTES if len(buffers) == 1 else _size(buffers)
    if size > MAX_FRAME_BYTES:
        raise MessageError(f"an answer has at most {MAX_FRAME_BYTES} bytes, this one has {size}", path="")
    _PREFIX.pack_into(out, 0, size, correlation_id)
    return Encoded(buffers, size, size + LENGTH_BYTES - len(prefix), throttle_at)


def _size(buffers: list[Any]) -> int:
    """Return the bytes after the length prefix; an empty last buffer goes."""
    if not buffers[-1]:
        buffers.pop()
    return sum(map(len, buffers)) - LENGTH_BYTES


def _prefix(api_key: int, api_version: int) -> bytes:
    """Return a zeroed length and header."""
    return bytes(_PREFIX.size + API_BY_KEY[api_key].has_tagged_response_header(api_version))


class _Responses(dict[tuple[int, int], tuple[Program, bytes]]):
    """(writer, zeroed length and header) by (api key, api version)."""

    def __missing__(self, key: tuple[int, int]) -> tuple[Program, bytes]:
        found = self[key] = writer(*key, "response"), _prefix(*key)
        return found


_RESPONSES = _Responses()
