"""Heads of HTTP requests: what is read, and what is refused with which status."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.server.monitoring.http_request import (
    MAX_HEADERS,
    MAX_QUERY_FIELDS,
    MAX_TARGET_BYTES,
    HttpError,
    parse_head,
)

END = b"\r\n\r\n"


def test_names_in_a_query_are_decoded() -> None:
    """Client ids may have any characters."""
    request = parse_head(b"GET /explain?user=O%3DA%2CCN&client-id=a+b%26%C3%BC%00 HTTP/1.1" + END)
    assert request.query == {"user": "O=A,CN", "client-id": "a b&ü\0"}


def test_names_of_headers_are_in_lower_case_and_values_are_stripped() -> None:
    """As RFC 9110 has it."""
    request = parse_head(b"HEAD / HTTP/1.0\r\nAuthorization:\t Bearer x \r\nX-A:" + END)
    assert (request.method, request.headers) == ("HEAD", {"authorization": "Bearer x", "x-a": ""})


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET / HTTP/2.0", 400),
        (b"GET /\x00 HTTP/1.1", 400),
        (b"GET http://example.com/ HTTP/1.1", 400),
        (b"GET * HTTP/1.1", 400),
        (b"PUT / HTTP/1.1", 405),
        (b"get / HTTP/1.1", 405),
        (b"GET /" + b"x" * MAX_TARGET_BYTES + b" HTTP/1.1", 414),
        (b"GET / HTTP/1.1\r\n" + b"\r\n".join([b"A: b"] * (MAX_HEADERS + 1)), 431),
        (b"GET / HTTP/1.1\r\nno colon", 400),
        (b"GET / HTTP/1.1\r\n folded: x", 400),
        (b"GET / HTTP/1.1\r\nA : b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 5", 413),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked", 413),
        (
            b"GET /?" + b"&".join(b"%d=x" % number for number in range(MAX_QUERY_FIELDS + 1)) + b" HTTP/1.1",
            400,
        ),
        (b"GET /?user HTTP/1.1", 400),
        (b"GET /?user=a&user=b HTTP/1.1", 400),
    ],
)
def test_what_is_refused(head: bytes, status: int) -> None:
    """Each with the status of HTTP that a client expects."""
    with pytest.raises(HttpError) as refused:
        parse_head(head + END)
    assert refused.value.status == status


@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: b"GET /?" + tail))
def test_any_bytes_are_read_or_refused(head: bytes) -> None:
    """No other error is possible."""
    status = 400
    try:
        parse_head(head + END)
    except HttpError as error:
        status = error.status
    assert 400 <= status < 500
