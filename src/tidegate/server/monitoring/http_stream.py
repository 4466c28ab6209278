"""One connection of the HTTP server: its bytes as coroutines, over a transport of the node, encrypted or not.

It is read behind the connections of Kafka clients that are ready, in rounds over addresses: the same queue as for
logins (decision 0094). A step of a TLS handshake, a signature among them, runs when the queue has come to it, and
within the queue's time of each turn.

An exception refers to the frames that it went through: those forget their future, which refers to the exception, so
that no reference cycle stays (`tidegate.server.short_collections`).
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.fair_share import address_owner
from tidegate.server.connection.sending import Sendable
from tidegate.server.connection.tls_session import TlsBuffers
from tidegate.server.connection.tls_transport import TlsTransport
from tidegate.server.connection.transport import Transport
from tidegate.server.connection.turns import Poller

if TYPE_CHECKING:
    from tidegate.server.listening.tls_config import TlsConfig

__all__ = ["RECEIVED_BYTES", "HttpStream"]

RECEIVED_BYTES = 16_384
"""Most bytes of one receive."""


@dataclass(frozen=True, slots=True)
class _Address:
    """The client of a connection for the poller: its address. Transports keep it, so it does not refer to them."""

    owner: str


class HttpStream:
    """The server's end of a connection, and the `HandshakeOwner` of its own TLS.

    owner: the address that the connection counts for. established: whether a response can be sent; with TLS after the
    handshake. tls_failure: why the handshake has failed; what is sent and received afterwards is not encrypted.
    """

    def __init__(
        self,
        transport: Transport,
        host: str,
        *,
        poller: Poller,
        tls: "TlsConfig | None" = None,
        buffers: TlsBuffers,
    ) -> None:
        self.host = host
        self.owner = address_owner(host)
        self.established = tls is None
        self.tls_failure = ""
        self._poller = poller
        self._plain = self._transport = transport
        if tls is not None:
            self._transport = TlsTransport(transport, tls.context, buffers, poller=poller, owner=self)
        self._received: asyncio.Future[bytes] | None = None
        self._writable: asyncio.Future[None] | None = None
        self._closed = False
        self._transport.set_client(_Address(self.owner))

    async def receive(self) -> bytes:
        """Return the next bytes, none after the client's last one. Raises `OSError` if the connection is broken."""
        self._check_open()
        received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._received = received
        try:
            self._transport.start_reading(self._on_readable)
            return await received
        finally:
            self._received = None
            del received

    async def send(self, data: bytes) -> None:
        """Send `data`; return when all of it is in the kernel. Raises `OSError` if the connection is broken."""
        out: deque[Sendable] = deque((data,))
        self._check_open()
        while not self._transport.send_some(out):
            writable = self._writable = asyncio.get_running_loop().create_future()
            try:
                self._transport.start_writing(self._on_writable)
                await writable
            finally:
                self._writable = None
                del writable
            self._check_open()

    def close(self) -> None:
        """Close the connection at once; a coroutine that waits for it raises `OSError`. Harmless when closed."""
        if self._closed:
            return
        self._closed = True
        self._transport.close()
        for future in (self._received, self._writable):
            if future is not None and not future.done():
                future.set_exception(ConnectionAbortedError("the connection was closed"))

    # --- the TLS handshake: a `HandshakeOwner` ------------------------------------------------------------------------

    def on_established(self, certificate: bytes | None) -> None:
        """Note that responses can be sent."""
        self.established = True

    def on_handshake_failed(self, reason: str) -> None:
        """Note the reason. `receive` raises `TlsError` next."""
        self.tls_failure = reason

    # --- callbacks of the transport -----------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Wait for the connection's turn."""
        self._transport.pause_reading(self._receive_once)
        self._poller.call_late_in_turn(self._receive_once, self.owner)

    def _receive_once(self) -> None:
        """Receive: it is the connection's turn, or it is broken."""
        if self._closed or self._received is None or self._received.done():
            return
        scratch = memoryview(bytearray(RECEIVED_BYTES))
        try:
            count = self._transport.recv_into(scratch)
        except (BlockingIOError, InterruptedError):  # a part of a handshake, or of an encrypted record
            self._transport.start_reading(self._on_readable)
        except OSError as error:
            if self.tls_failure:
                self._transport = self._plain
            self._received.set_exception(error)
        else:
            self._received.set_result(bytes(scratch[:count]))

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the connection was closed")

    def _on_writable(self) -> None:
        self._transport.stop_writing()
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
