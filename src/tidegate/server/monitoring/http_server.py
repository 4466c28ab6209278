"""A small HTTP server on the event loop of a node, which no client can make slow or large.

One request for each connection. A connection has `REQUEST_S` to send it, the TLS handshake included, and `RESPONSE_S`
to read the response. At most `MAX_CONNECTIONS` wait for their request, and as many are answered at a time. Past that,
the address that has most loses its oldest connection; a request of an address that has as many itself gets status 503.
No response is made for a client that has gone. Connections come from a listener of the node and use its poller, as
those of Kafka clients do.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import chain
from typing import TYPE_CHECKING

from tidegate.errors import ConfigError
from tidegate.fair_share import ReclaimableBound
from tidegate.server.connection.other_protocols import HTTP_HINT, NO_TLS_HINT
from tidegate.server.connection.tls_session import TlsBuffers, TlsError
from tidegate.server.connection.transport import Transport
from tidegate.server.connection.turns import Poller
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.listening.network import Listener, Network
from tidegate.server.monitoring.http_request import MAX_HEAD_BYTES, HttpError, HttpRequest, parse_head
from tidegate.server.monitoring.http_stream import HttpStream
from tidegate.server.settings.config import ServerConfig

if TYPE_CHECKING:
    from tidegate.server.listening.tls_config import TlsConfig

__all__ = ["LINGER_S", "MAX_CONNECTIONS", "REQUEST_S", "RESPONSE_S", "HttpResponse", "HttpServer", "Respond"]

_log = logging.getLogger("tidegate.server")

MAX_CONNECTIONS = 16
REQUEST_S = 5.0
RESPONSE_S = 20.0
"""More than it takes to read the largest response over a slow network."""
LINGER_S = 1.0
"""Time for a client to read why its TLS handshake has failed."""
_CHUNK_BYTES = 65_536
_KIND_CHARS = 15
"""Length of the part that distinguishes lines about failed handshakes; numbers come later in them."""
_END_OF_HEAD = b"\r\n\r\n"
_TLS_HANDSHAKE = b"\x16\x03"
_NO_TLS = "looks like a TLS handshake, but the metrics listener does not use TLS"
_NO_TLS_HINT = "write http:// in the URL, or https:// in tidegate.metrics.listener of the broker"
_TLS_FAILURES = {
    HTTP_HINT: "looks like an HTTP request without TLS; hint: write https:// in the URL",
    NO_TLS_HINT: "looks like a Kafka client; hint: this is the address of the metrics, not that of a listener",
}
"""Meanings of some of TLS's reasons here."""
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

    def __init__(
        self,
        respond: Respond,
        *,
        poller: Poller,
        tls: "Callable[[], TlsConfig | None]",
        buffers: TlsBuffers,
        request_s: float,
    ) -> None:
        self._respond = respond
        self._poller = poller
        self._tls = tls
        self._buffers = buffers
        self._request_s = request_s
        self._listener: Listener
        self._waiting: ReclaimableBound[HttpStream] = ReclaimableBound(MAX_CONNECTIONS)
        """The connections whose request has not come yet."""
        self._answering: ReclaimableBound[HttpStream] = ReclaimableBound(MAX_CONNECTIONS)
        self._tasks: dict[HttpStream, asyncio.Task[None]] = {}

    @classmethod
    def start(
        cls,
        respond: Respond,
        address: ListenerAddress,
        *,
        network: Network,
        config: ServerConfig,
        tls: "Callable[[], TlsConfig | None]" = lambda: None,
        buffers: TlsBuffers,
        request_s: float = REQUEST_S,
    ) -> "HttpServer":
        """Listen at an address (port 0: any free one). Raises `ConfigError` where that is not possible.

        tls: returns TLS for a connection that begins now, None where the server does not use it.
        """
        server = cls(respond, poller=network.poller, tls=tls, buffers=buffers, request_s=request_s)
        try:
            # Its connections are few: they may have descriptors that those of Kafka clients leave to the broker.
            server._listener = network.listen(address, config, server._on_accept, lambda host: True)
        except ConfigError as error:
            hint = error.hint and (
                "choose another port in tidegate.metrics.listener, or stop the process that uses this one"
            )
            raise ConfigError(f"cannot serve metrics: {error}", hint=hint) from error
        server._listener.start()
        return server

    @property
    def port(self) -> int:
        """The port that the server listens on."""
        return self._listener.port

    def close(self) -> None:
        """Stop listening, and drop all connections."""
        self._listener.close()
        for stream in self._tasks:
            stream.close()

    def _on_accept(self, transport: Transport, host: str) -> None:
        """Serve a new connection. If too many wait, the address with most of them loses its oldest."""
        stream = HttpStream(transport, host, poller=self._poller, tls=self._tls(), buffers=self._buffers)
        if not self._waiting.fits():
            self._evict(self._waiting, stream.owner)
        self._waiting.add_entry(stream, stream.owner)
        self._tasks[stream] = asyncio.get_running_loop().create_task(self._serve(stream))

    @staticmethod
    def _evict(connections: "ReclaimableBound[HttpStream]", owner: str) -> None:
        """Close the oldest connection of the address with most, also counting one more of `owner`."""
        oldest = connections.victim(owner)
        assert oldest is not None, "the bound is full"
        connections.remove(oldest)
        oldest.close()

    async def _serve(self, stream: HttpStream) -> None:
        try:
            await self._answer(stream)
        except (OSError, TimeoutError):
            pass  # the client has gone, or has lost its place
        except Exception:
            _log.exception("closed a connection of the metrics listener: internal error")
        finally:
            del self._tasks[stream]
            self._waiting.remove(stream)
            self._answering.remove(stream)
            stream.close()

    async def _answer(self, stream: HttpStream) -> None:
        with_body = True
        try:
            request = await self._receive(stream)
            self._waiting.remove(stream)
            self._begin_to_answer(stream)
            with_body = request.method == "GET"
            response = await self._unless_gone(stream, self._respond(request))
        except HttpError as error:
            response = HttpResponse.of_error(error)
        except TlsError:
            await self._end_failed_handshake(stream)
            return
        await self._send(stream, response, with_body=with_body)

    def _begin_to_answer(self, stream: HttpStream) -> None:
        """Count a request that is answered. If too many are, an address with more of them loses its oldest.

        Raises `HttpError` where no address has more.
        """
        answering, owner = self._answering, stream.owner
        if not answering.fits():
            largest = answering.largest()
            assert largest is not None, "the bound is full"
            if answering.used_by(largest) <= answering.used_by(owner) + 1:
                raise HttpError(
                    503, "too many requests to the metrics listener at a time", hint="try again shortly"
                )
            self._evict(answering, owner)
        answering.add_entry(stream, owner)

    @staticmethod
    async def _unless_gone(stream: HttpStream, work: Awaitable[HttpResponse]) -> HttpResponse:
        """Return the response, or cancel it and raise `ConnectionError` when the client closes the connection."""
        response, more = asyncio.ensure_future(work), asyncio.ensure_future(stream.receive())
        try:
            await asyncio.wait((response, more), return_when=asyncio.FIRST_COMPLETED)
            if not response.done() and not more.result():
                raise ConnectionAbortedError("the client has gone")
            return await response
        finally:
            response.cancel()
            if not more.cancel():
                more.exception()  # it is known, whatever it is
            del response, more  # they may refer to an exception, which refers to this frame

    async def _receive(self, stream: HttpStream) -> HttpRequest:
        head, end = bytearray(), -1
        try:
            async with asyncio.timeout(self._request_s):
                while end < 0:
                    more = await stream.receive()
                    if not more:
                        raise ConnectionAbortedError("the client has gone")
                    seen = max(len(head) - len(_END_OF_HEAD) + 1, 0)
                    head += more
                    end = head.find(_END_OF_HEAD, seen)
                    if head.startswith(_TLS_HANDSHAKE):
                        raise HttpError(400, _NO_TLS, hint=_NO_TLS_HINT)
                    if (len(head) if end < 0 else end) > MAX_HEAD_BYTES:
                        raise HttpError(431, f"the request has more than {MAX_HEAD_BYTES} bytes")
        except TimeoutError as error:
            if not stream.established:
                self._log_failed_handshake(stream, f"not complete within {self._request_s:g} s")
                raise
            raise HttpError(408, f"the request did not arrive within {self._request_s:g} s") from error
        return parse_head(bytes(head[: end + len(_END_OF_HEAD)]))

    @staticmethod
    def _log_failed_handshake(stream: HttpStream, reason: str) -> None:
        _log.warning(
            "closed connection from %s (metrics listener): TLS handshake failed: %s",
            stream.host,
            reason,
            extra={
                "repeats": f"metrics {reason[:_KIND_CHARS]} {stream.host}",
                "repeats_of": stream.owner,
            },
        )

    async def _end_failed_handshake(self, stream: HttpStream) -> None:
        """Log why a TLS handshake failed, and wait until the client closes, so that it reads the alert first.

        A client that uses HTTP without TLS gets a response that says so. A failure after the handshake is not logged.
        """
        if not stream.tls_failure:
            return
        self._log_failed_handshake(stream, _TLS_FAILURES.get(stream.tls_failure, stream.tls_failure))
        async with asyncio.timeout(LINGER_S):
            if stream.tls_failure == HTTP_HINT:
                refusal = HttpError(400, "the metrics listener uses TLS", hint="write https:// in the URL")
                await self._send(stream, HttpResponse.of_error(refusal), with_body=True)
            while await stream.receive():
                pass

    @staticmethod
    async def _send(stream: HttpStream, response: HttpResponse, *, with_body: bool) -> None:
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
        async with asyncio.timeout(RESPONSE_S):
            for chunk in _chunks(chain([head], response.body if with_body else ())):
                await stream.send(chunk)
                await asyncio.sleep(0)


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
