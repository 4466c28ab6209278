"""Request headers: versions 1 and 2, client ids of all kinds, versions that are not spoken."""

import struct

import pytest

from tidegate.api_keys import API_VERSIONS
from tidegate.wire import ProtocolError, RequestHeader, UnsupportedVersionError, decode_request_header, header
from tidegate.wire.header import encode_request_header


def frame(key, version, correlation_id, client_id, rest=b""):
    """Return a request frame with this header."""
    size = -1 if client_id is None else len(client_id)
    return struct.pack(">hhih", key, version, correlation_id, size) + (client_id or b"") + rest


def test_header_without_tags():
    """A header of version 1 ends after the client id."""
    assert decode_request_header(frame(3, 4, 77, b"abc", b"body")) == RequestHeader(3, 4, 77, "abc", 13)


def test_header_with_tags():
    """A header of version 2 has tagged fields, which are skipped."""
    assert decode_request_header(frame(3, 12, -1, b"abc", b"\0body")).body_at == 14
    assert decode_request_header(frame(3, 12, -1, b"abc", b"\x01\x05\x02xybody")).body_at == 18


@pytest.mark.parametrize("size", [-1, -2, -32768])
def test_negative_client_id_is_null(size):
    """Every negative length is a null client id, which is the empty one."""
    header = decode_request_header(struct.pack(">hhih", 3, 4, 1, size) + b"body")
    assert (header.client_id, header.body_at) == ("", 10)


def test_client_id_that_is_not_utf8_is_taken():
    """Bytes that are not UTF-8 are replaced, as by Java."""
    assert decode_request_header(frame(3, 4, 1, b"\xff\xfe")).client_id == "\ufffd\ufffd"


def test_any_buffer_will_do():
    """A frame is bytes, a bytearray or a memoryview."""
    raw = frame(3, 4, 1, b"abc")
    assert (
        decode_request_header(raw)
        == decode_request_header(bytearray(raw))
        == decode_request_header(memoryview(raw))
    )


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "malformed request header: 10 or more bytes expected, got 0"),
        (b"\0\3\0\4\0\0\0\1", "malformed request header: 10 or more bytes expected, got 8"),
        (
            struct.pack(">hhih", 3, 4, 1, 50) + b"x",
            "malformed request header at byte 10, client_id: 50 bytes of string expected, 1 remain",
        ),
        (
            frame(3, 12, 1, b"x"),
            "malformed request header at byte 11, tagged fields: more bytes expected, none remain",
        ),
        (
            frame(3, 12, 1, b"x", b"\x80" * 8),
            "malformed request header at byte 11, tagged fields: a varint has at most 5 bytes, this one is longer",
        ),
        (
            frame(3, 12, 1, b"x", b"\x01\x00\x09ab"),
            "malformed request header at byte 11, tagged fields: tagged field 0 is said to have 9 bytes, 2 remain",
        ),
    ],
)
def test_malformed_headers(raw, message):
    """A header cut short is refused with what was expected."""
    with pytest.raises(ProtocolError) as caught:
        decode_request_header(raw)
    assert str(caught.value) == message
    assert not isinstance(caught.value, UnsupportedVersionError)


@pytest.mark.parametrize(
    ("key", "version", "message"),
    [
        (9999, 0, "api_key must be one of the 77 that a broker speaks, got 9999"),
        (-1, 0, "api_key must be one of the 77 that a broker speaks, got -1"),
        (18, 99, "api_version of ApiVersions must be 0 to 4, got 99"),
        (18, -1, "api_version of ApiVersions must be 0 to 4, got -1"),
        (0, 2, "api_version of Produce must be 3 to 13, got 2"),
    ],
)
def test_versions_not_spoken_carry_the_header(key, version, message):
    """An API or version that is not spoken is told with the header read so far."""
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request_header(frame(key, version, 77, b"abc", b"\0whatever"))
    error = caught.value
    assert str(error) == message
    assert (error.api_key, error.api_version, error.correlation_id, error.client_id) == (
        key,
        version,
        77,
        "abc",
    )


@pytest.mark.parametrize("client_id", [None, "", "reader", "ünï"])
@pytest.mark.parametrize("version", [4, 12])
def test_encoded_header_comes_back(client_id, version):
    """A header that we write is read back; a null client id comes back as the empty one."""
    raw = encode_request_header(3, version, 5, client_id)
    assert decode_request_header(raw) == RequestHeader(3, version, 5, client_id or "", len(raw))


def test_client_ids_that_are_kept_are_bounded():
    """One text for all requests of a client, if its id is short; a flood of ids is forgotten, not kept."""
    frames = [encode_request_header(API_VERSIONS, 0, 1, f"client-{number}") for number in range(10_000)]
    for frame in frames:
        decode_request_header(frame)
    assert 0 < len(header._client_ids) <= header.MAX_KNOWN_CLIENT_IDS
    first, second = (decode_request_header(frames[-1]).client_id for _ in range(2))
    assert first is second
    long = encode_request_header(API_VERSIONS, 0, 1, "x" * (header.MAX_KNOWN_CLIENT_ID_BYTES + 1))
    known = len(header._client_ids)
    decode_request_header(long)
    assert len(header._client_ids) == known
