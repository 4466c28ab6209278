"""Kafka's wire protocol: bytes in, messages out, and back.

Nothing here opens a socket or knows the time. Messages are plain dicts, read and written by straight-line code that is
compiled from one table of definitions; see `codecs` for what a message looks like.

    >>> from tidegate.wire import decode_request_header, encode_request, read_request
    >>> frame = encode_request(3, 3, 7, "reader", {"topics": None})[4:]
    >>> header = decode_request_header(frame)
    >>> header.client_id, read_request(header.api_key, header.api_version, frame, header.body_at)
    ('reader', {'topics': None})
"""

from tidegate.wire.apis import API_BY_KEY, Api
from tidegate.wire.codec_types import UNKNOWN, ZERO_ID, EncodedElements, PlainRows
from tidegate.wire.codecs import (
    AT_ONCE_BYTES,
    Message,
    compile_ahead,
    read_request,
    read_request_in_slices,
    read_request_with_rows,
    read_response,
    read_response_in_slices,
    write_request,
    write_response,
)
from tidegate.wire.definitions import field_since
from tidegate.wire.encoded import (
    Encoded,
    encode_request,
    encode_request_in_slices,
    encode_response,
    encode_response_in_slices,
)
from tidegate.wire.errors import MessageError, ProtocolError, UnsupportedVersionError
from tidegate.wire.header import (
    RequestHeader,
    decode_any_request_header,
    decode_request_header,
    decode_response_header,
)
from tidegate.wire.slices import copies_in_slices

__all__ = [
    "API_BY_KEY",
    "AT_ONCE_BYTES",
    "UNKNOWN",
    "ZERO_ID",
    "Api",
    "Encoded",
    "EncodedElements",
    "Message",
    "MessageError",
    "PlainRows",
    "ProtocolError",
    "RequestHeader",
    "UnsupportedVersionError",
    "compile_ahead",
    "copies_in_slices",
    "decode_any_request_header",
    "decode_request_header",
    "decode_response_header",
    "encode_request",
    "encode_request_in_slices",
    "encode_response",
    "encode_response_in_slices",
    "field_since",
    "read_request",
    "read_request_in_slices",
    "read_request_with_rows",
    "read_response",
    "read_response_in_slices",
    "write_request",
    "write_response",
]
