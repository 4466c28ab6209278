"""The request header: which API, which version, which request of the connection, and whose.

Follows: Kafka `RequestHeader` v1 and v2 (with tagged fields, KIP-482). In both the client id is a legacy string, so the
version of the header need not be known to read as far as there. A null client id is read as "" (B§6.1).
"""

import struct
from dataclasses import dataclass, field

from tidegate.wire.apis import API_BY_KEY, spoken_pairs
from tidegate.wire.errors import MalformedError, ProtocolError, UnsupportedVersionError
from tidegate.wire.primitives import read_tags, tag_count, uvarint

__all__ = [
    "RequestHeader",
    "decode_any_request_header",
    "decode_request_header",
    "decode_response_header",
    "encode_request_header",
]

_FIXED = struct.Struct(">hhih")  # api key, api version, correlation id, length of the client id
_FIXED_BYTES = _FIXED.size
_CLIENT_ID_BYTES = struct.Struct(">h")
_CORRELATION_ID = struct.Struct(">i")
_unpack_fixed = _FIXED.unpack_from

_SPOKEN = {pair: (pair, API_BY_KEY[pair[0]].is_flexible(pair[1])) for pair in spoken_pairs()}
"""Every (api key, api version) spoken, the same object always, and whether its request header has tagged fields."""


_new_header = object.__new__  # without `__init__`: a call less

MAX_KNOWN_CLIENT_IDS = 4096
MAX_KNOWN_CLIENT_ID_BYTES = 64
_client_ids: dict[bytes, str] = {}
"""Short client ids by their bytes: one text for all requests of a client is decoded, and hashed, once. At most 2 MB."""


@dataclass(slots=True)
class RequestHeader:
    """A decoded request header. `body_at` is the offset of the body in the frame; a null client id is `""`.

    `api` is api key and version once more: one object for all requests that have them, where they are spoken.
    Nobody changes it. A slot is read several times faster than a field of a named tuple, some fifteen times a request.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body_at: int
    api: tuple[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pair = self.api_key, self.api_version
        self.api = _SPOKEN.get(pair, (pair, False))[0]


def decode_any_request_header(frame: bytes | bytearray | memoryview) -> RequestHeader:
    """Return the header of a request of any API and version, for a gateway that forwards what it cannot read.

    Of an unknown API or version `body_at` is the offset behind the client id. Raises `ProtocolError` for a header that
    is cut short.
    """
    try:
        return decode_request_header(frame)
    except UnsupportedVersionError as error:
        (size,) = _CLIENT_ID_BYTES.unpack_from(frame, _FIXED_BYTES - _CLIENT_ID_BYTES.size)
        body_at = _FIXED_BYTES + max(size, 0)
        return RequestHeader(error.api_key, error.api_version, error.correlation_id, error.client_id, body_at)


def decode_request_header(frame: bytes | bytearray | memoryview) -> RequestHeader:
    """Return the header of a request; `frame` is what follows the length prefix.

    A client id that is not UTF-8 is accepted, its wrong bytes replaced, as by Kafka. Raises
    `UnsupportedVersionError` for an API or version that is not spoken, `ProtocolError` for a header cut short.
    """
    try:
        api_key, api_version, correlation_id, size = _unpack_fixed(frame)
    except struct.error:
        raise ProtocolError(
            f"malformed request header: {_FIXED.size} or more bytes expected, got {len(frame)}", byte_offset=0
        ) from None
    at = _FIXED_BYTES + size if size > 0 else _FIXED_BYTES
    if at > len(frame):
        raise ProtocolError(
            f"malformed request header at byte {_FIXED.size}, client_id: {size} bytes of string expected, "
            f"{len(frame) - _FIXED.size} remain",
            path="client_id",
            byte_offset=_FIXED.size,
        )
    if size > 0:
        data = bytes(frame[_FIXED_BYTES:at])
        client_id = _client_ids.get(data) or _new_client_id(data)
    else:
        client_id = ""
    spoken = _SPOKEN.get((api_key, api_version))
    if spoken is None:
        if (api := API_BY_KEY.get(api_key)) is not None and api.is_flexible(api_version):
            _after_tags(frame, at)  # the header must be complete, even of an unknown version
        raise _unsupported(api_key, api_version, correlation_id, client_id)
    pair, tagged = spoken
    if tagged:
        at = at + 1 if at < len(frame) and not frame[at] else _after_tags(frame, at)
    header = _new_header(RequestHeader)
    header.api_key = api_key
    header.api_version = api_version
    header.correlation_id = correlation_id
    header.client_id = client_id
    header.body_at = at
    header.api = pair
    return header


def _new_client_id(data: bytes) -> str:
    """Return the client id of `data`; a short one is kept, and when there are too many all are forgotten."""
    client_id = data.decode("utf-8", "replace")
    if len(data) <= MAX_KNOWN_CLIENT_ID_BYTES:
        if len(_client_ids) >= MAX_KNOWN_CLIENT_IDS:
            _client_ids.clear()
        _client_ids[data] = client_id
    return client_id


def encode_request_header(
    api_key: int, api_version: int, correlation_id: int, client_id: str | None
) -> bytes:
    """Return the header of a request, in the version that goes with the API's version."""
    name = (client_id or "").encode()
    fixed = _FIXED.pack(api_key, api_version, correlation_id, -1 if client_id is None else len(name))
    return fixed + name + (uvarint(0) if API_BY_KEY[api_key].is_flexible(api_version) else b"")


def decode_response_header(
    frame: bytes | bytearray | memoryview, api_key: int, api_version: int
) -> tuple[int, int]:
    """Return the correlation id of a response and the offset of its body. Raises `ProtocolError`.

    frame: without its length prefix. api_key, api_version: of the request that it answers.
    """
    if len(frame) < _CORRELATION_ID.size:
        raise ProtocolError(
            f"malformed response header: {_CORRELATION_ID.size} bytes expected, got {len(frame)}",
            path="correlation_id",
            byte_offset=0,
        )
    (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
    has_tags = API_BY_KEY[api_key].has_tagged_response_header(api_version)
    return correlation_id, _after_tags(
        frame, _CORRELATION_ID.size, "response"
    ) if has_tags else _CORRELATION_ID.size


def _after_tags(frame: bytes | bytearray | memoryview, at: int, kind: str = "request") -> int:
    """Return the offset after a header's tagged fields, none of which is known."""
    try:
        count, first_at = tag_count(frame, at)
        return read_tags(frame, first_at, len(frame), {}, count)
    except (MalformedError, IndexError) as error:
        problem = str(error) if isinstance(error, MalformedError) else "more bytes expected, none remain"
        raise ProtocolError(
            f"malformed {kind} header at byte {at}, tagged fields: {problem}",
            path="tagged fields",
            byte_offset=at,
        ) from None


def _unsupported(
    api_key: int, api_version: int, correlation_id: int, client_id: str
) -> UnsupportedVersionError:
    api = API_BY_KEY.get(api_key)
    if api is None:
        problem = f"api_key must be one of the {len(API_BY_KEY)} that a broker speaks, got {api_key!r}"
    else:
        problem = (
            f"api_version of {api.name} must be {api.min_version} to {api.max_version}, got {api_version!r}"
        )
    return UnsupportedVersionError(
        problem, api_key=api_key, api_version=api_version, correlation_id=correlation_id, client_id=client_id
    )
