r"""A request of HTTP/1.x, read from the bytes of its head; only GET and HEAD, without a body.

>>> request = parse_head(b"GET /explain?user=alice HTTP/1.1\r\nHost: localhost:9404\r\n\r\n")
>>> request.path, request.query, request.headers["host"]
('/explain', {'user': 'alice'}, 'localhost:9404')
>>> parse_head(b"POST / HTTP/1.1\r\n\r\n")
Traceback (most recent call last):
tidegate.server.monitoring.http_request.HttpError: method 'POST' is not supported, expected GET or HEAD

Every part has a bound, and a request is refused with the status that RFC 9110 has for it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from tidegate.errors import TidegateError

__all__ = [
    "MAX_HEADERS",
    "MAX_HEAD_BYTES",
    "MAX_QUERY_FIELDS",
    "MAX_TARGET_BYTES",
    "HttpError",
    "HttpRequest",
    "parse_head",
]

MAX_HEAD_BYTES = 32_768
"""The request line and all headers."""
MAX_TARGET_BYTES = 16_384
"""Path and query: a user and a client id of some thousand characters, each written as %XX."""
MAX_HEADERS = 64
MAX_QUERY_FIELDS = 8
_SHOWN_CHARS = 40
_REQUEST_LINE = re.compile(rb"([!-~]{1,20}) ([!-~]+) HTTP/1\.[0-9]")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)


class HttpError(TidegateError):
    """Raised where a request cannot be served. `status` is the number of HTTP."""

    def __init__(self, status: int, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request; names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


def parse_head(head: bytes) -> HttpRequest:
    """Return the request whose head, with the empty line at its end, is `head`. Raises `HttpError`."""
    request_line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(request_line)
    if match is None:
        raise HttpError(400, "malformed request line, expected METHOD PATH HTTP/1.1")
    method = match[1].decode()
    if method not in ("GET", "HEAD"):
        raise HttpError(405, f"method {method!r} is not supported, expected GET or HEAD")
    if len(match[2]) > MAX_TARGET_BYTES:
        raise HttpError(414, f"the path has {len(match[2])} bytes, expected at most {MAX_TARGET_BYTES}")
    headers = _headers(lines)
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise HttpError(413, "the request has a body, expected none")
    target = match[2].decode()
    if not target.startswith("/"):
        raise HttpError(
            400, f"path {target[:_SHOWN_CHARS]!r} is not supported, expected one that begins with /"
        )
    path, _, query = target.partition("?")
    return HttpRequest(method=method, path=unquote(path), query=_query(query), headers=headers)


def _headers(lines: list[bytes]) -> dict[str, str]:
    if len(lines) > MAX_HEADERS:
        raise HttpError(431, f"the request has {len(lines)} headers, expected at most {MAX_HEADERS}")
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise HttpError(400, "malformed header, expected NAME: VALUE")
        name = match[1].decode().lower()
        if name in headers and name in ("authorization", "content-length", "host"):
            raise HttpError(400, f"header {name!r} occurs twice, expected once")
        headers[name] = match[2].decode("latin-1")
    return headers


def _query(text: str) -> dict[str, str]:
    try:
        fields = parse_qsl(
            text, keep_blank_values=True, strict_parsing=bool(text), max_num_fields=MAX_QUERY_FIELDS
        )
    except ValueError as error:
        raise HttpError(
            400, f"malformed query, expected at most {MAX_QUERY_FIELDS} fields NAME=VALUE"
        ) from error
    if len(dict(fields)) < len(fields):
        raise HttpError(400, "a field of the query occurs twice, expected once")
    return dict(fields)
