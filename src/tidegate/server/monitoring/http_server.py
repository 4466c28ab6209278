"""A small HTTP server on the event loop of a node, which no client can make slow or large.

One request for each connection. A connection has `REQUEST_S` to send it and `RESPONSE_S` to read the response. At most
`MAX_CONNECTIONS` wait for their request: a new one takes the place of the oldest. As many are answered at a time; past
that, a request gets status 503. No response is made for a client that has gone. The listen queue is short, too, so that
a flood is accepted a few connections at a time.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain

from tidegate.errors import ConfigError
from tidegate.server.monitoring.http_request import MAX_HEAD_BYTES, HttpError, HttpRequest, parse_head

__all__ = ["MAX_CONNECTIONS", "REQUEST_S", "RESPONSE_S", "HttpResponse", "HttpServer"]

_log = logging.getLogger("tidegate.server")

MAX_CONNECTIONS = 16
REQUEST_S = 5.0
RESPONSE_S = 20.0
"""More than it takes to read the largest response over a slow network."""
_CHUNK_BYTES = 65_536
_HEADERS = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """A response. body: its parts, of any size. headers: those beside the usual ones, or in their place."""

    content_type: str
    body: list[bytes]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_error(cls, error: HttpError) -> "HttpResponse":
        """Return the response that tells an error and its hint, as JSON."""
        document = {"error": str(error), "hint": error.hint}
        return cls(
            content_type="application/json",
            body=[json.dumps(document).encode() + b"\n"],
            status=error.status,
            headers={
                **({"WWW-Authenticate": 'Bearer realm="tidegate"'} if error.status == 401 else {}),
                **({"Allow": "GET, HEAD"} if error.status == 405 else {}),
            },
        )


Respond = Callable[[HttpRequest], Awaitable[HttpResponse]]


class HttpServer:
    """Serves requests until `close`. Make it with `start`."""

    def __init__(self, respond: Respond, *, request_s: float = REQUEST_S) -> None:
        self._respond = respond
        self._request_s = request_s
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.StreamWriter, None] = {}
        """The connections whose request has not come yet, in the order in which they came."""
        self._answering: set[asyncio.StreamWriter] = set()

    @classmethod
    async def start(
        cls, respond: Respond, *, host: str, port: int, request_s: float = REQUEST_S
    ) -> "HttpServer":
        """Listen at an address (port 0: any free one). Raises `ConfigError` where that is not possible."""
        server = cls(respond, request_s=request_s)
        try:
            server._server = await asyncio.start_server(
                server._on_connection, host, port, limit=MAX_HEAD_BYTES, backlog=MAX_CONNECTIONS
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {host}:{port} for metrics: {error.strerror or error}",
                hint="choose another port in tidegate.metrics.listener, or stop the process that uses this one",
            ) from error
        return server

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening, and drop all connections."""
        if self._server is not None:
            self._server.close()
        for writer in (*self._waiting, *self._answering):
            writer.transport.abort()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._waiting) >= MAX_CONNECTIONS:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        self._waiting[writer] = None
        try:
            await self._answer(reader, writer)
        except (ConnectionError, TimeoutError):
            writer.transport.abort()
        except Exception:
            _log.exception("closed a connection of the metrics listener: internal error")
            writer.transport.abort()
        finally:
            self._waiting.pop(writer, None)
            self._answering.discard(writer)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_body = True
        try:
            request = await self._receive(reader)
            self._waiting.pop(writer, None)
            if len(self._answering) >= MAX_CONNECTIONS:
                raise HttpError(
                    503, "too many requests to the metrics listener at a time", hint="try again shortly"
                )
            self._answering.add(writer)
            with_body = request.method == "GET"
            response = await self._unless_gone(reader, self._respond(request))
        except HttpError as error:
            response = HttpResponse.of_error(error)
        except asyncio.IncompleteReadError:
            return  # the client has gone
        await self._send(writer, response, with_body=with_body)

    @staticmethod
    async def _unless_gone(reader: asyncio.StreamReader, work: Awaitable[HttpResponse]) -> HttpResponse:
        """Return the response, or cancel it and raise `ConnectionError` when the client closes the connection."""
        response, more = asyncio.ensure_future(work), asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((response, more), return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and not more.result():
                raise ConnectionAbortedError("the client has gone")
            return await response
        finally:
            response.cancel()
            if not more.cancel():
                more.exception()  # it is known, whatever it is

    async def _receive(self, reader: asyncio.StreamReader) -> HttpRequest:
        try:
            async with asyncio.timeout(self._request_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise HttpError(431, f"the request has more than {MAX_HEAD_BYTES} bytes") from error
        except TimeoutError as error:
            raise HttpError(408, f"the request did not arrive within {self._request_s:g} s") from error
        return parse_head(head)

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, response: HttpResponse, *, with_body: bool) -> None:
        status = HTTPStatus(response.status)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(sum(map(len, response.body))),
            **_HEADERS,
            **response.headers,
        }
        lines = [
            f"HTTP/1.1 {status.value} {status.phrase}",
            *(f"{name}: {text}" for name, text in headers.items()),
        ]
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        writer.transport.set_write_buffer_limits(high=_CHUNK_BYTES)
        async with asyncio.timeout(RESPONSE_S):
            for chunk in _chunks(chain([head], response.body if with_body else ())):
                writer.write(chunk)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()


def _chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of `parts` in pieces of about `_CHUNK_BYTES`."""
    waiting, size = [], 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)
