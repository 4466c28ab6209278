"""A `Transport` that encrypts: TLS over another transport, behind the same contract.

The handshake proceeds as bytes arrive, one step in a turn. Decrypted bytes that the channel has not received count as
readable, like bytes in a socket: the transport asks the poller for another turn. While reading is paused, encrypted
bytes stay in the kernel. One call works on a bounded number of records (`tidegate.server.connection.tls_session`), and
an answer is sent in pieces.

Bounds: `MAX_KEPT_BYTES` of received encrypted bytes, and one encrypted piece to send, `PIECE_BYTES` of an answer.
Slices of files are read and encrypted in such pieces.

If a client closes the connection without close_notify, that counts as its last byte, as in Kafka. If it asks for
another handshake (TLS 1.2), it gets an alert, because the context has OP_NO_RENEGOTIATION, and the connection closes.

Follows: Kafka `SslTransportLayer`.
"""

import contextlib
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from tidegate.server.connection.sending import Sendable, drop_bytes, first_piece
from tidegate.server.connection.tls_session import TlsBuffers, TlsError, TlsSession
from tidegate.server.connection.transport import Transport
from tidegate.server.connection.turns import Client, Poller

__all__ = ["BURST_BYTES", "MAX_UNSENT_BYTES", "PIECE_BYTES", "HandshakeOwner", "TlsTransport"]

PIECE_BYTES = 64 * 1024
"""Bytes of an answer that are encrypted at a time: four records of the largest size."""
BURST_BYTES = 1024 * 1024
"""One connection's share of a turn; encrypting it takes about a millisecond."""
MAX_UNSENT_BYTES = 2 * PIECE_BYTES
"""Most encrypted bytes that wait to be sent. A client that reads nothing and makes TLS send more is disconnected."""
_REQUEST_RECORD_BYTES = 33  # a record with the shortest request: header 5, frame 12, tag 16


class HandshakeOwner(Protocol):
    """The receiver of a handshake's result."""

    def on_established(self, certificate: bytes | None) -> None:
        """Note that it is over. certificate: that of the other end, as DER, where it has shown one.

        Raises `TlsError` where this client may not go on.
        """

    def on_handshake_failed(self, reason: str) -> None:
        """Note that it has failed; the connection closes next."""


class TlsTransport:
    """One end of one connection, encrypted. `inner` carries what is encrypted.

    server_name: the host that the server's certificate has to name, at the client's end; `begin` starts its handshake.
    """

    __slots__ = (
        "_ahead",
        "_client",
        "_closed",
        "_ended",
        "_inner",
        "_on_readable",
        "_on_writable",
        "_owner",
        "_poller",
        "_scratch",
        "_session",
        "_soon",
        "_unsent",
        "_writing",
    )

    def __init__(
        self,
        inner: Transport,
        context: ssl.SSLContext,
        buffers: TlsBuffers,
        *,
        poller: Poller,
        owner: HandshakeOwner,
        server_name: str | None = None,
    ) -> None:
        self._inner = inner
        self._session = TlsSession(context, buffers, server_name=server_name)
        self._scratch = buffers.scratch
        self._poller = poller
        self._owner: HandshakeOwner | None = owner  # until it was told
        self._ended = False  # nothing more comes from below
        self._closed = False
        self._client: Client | None = None
        self._soon = False  # the poller was asked for a turn
        self._on_readable: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._writing = False  # the transport below calls when it can be written
        self._unsent: bytes | memoryview = b""  # encrypted
        self._ahead = (
            0  # bytes of what the channel sends next that are encrypted, the last of them in `_unsent`
        )

    @property
    def local_address(self) -> tuple[str, int]:
        """The host and port that the client connected to."""
        return self._inner.local_address

    def begin(self) -> None:
        """Send the ClientHello, at the client's end. Raises `OSError`."""
        self._session.handshake()
        self._send_own()

    # --- in ---------------------------------------------------------------------------------------------------------

    def recv_into(self, target: memoryview, /) -> int:
        """Continue the handshake; when it is over, decrypt into `target`."""
        session = self._session
        if self._unsent:
            self._flush()
        if not (session.has_more or self._ended):
            count = self._inner.recv_into(self._scratch)
            if count:
                session.receive(self._scratch[:count])
                if session.has_only_hello:
                    self._receive_more(len(self._scratch) - count)
            else:
                self._ended = True
        try:
            if not session.established:
                self._go_on_with_handshake()
            count = session.read_into(target) if session.has_more else 0
        finally:
            self._send_own()
        more = session.has_more and (count or not session.ended)
        if more:
            self._read_again()
        if count or session.ended or (self._ended and not more):
            return count
        raise BlockingIOError

    def _receive_more(self, most: int) -> None:
        """Receive up to `most` bytes that have come behind the beginning of a ClientHello.

        A client that has left cannot go on: it is not worth an answer, which takes a signature. Raises `OSError` then.
        """
        try:
            count = self._inner.recv_into(self._scratch[:most])
        except (BlockingIOError, InterruptedError):
            return
        if count:
            self._session.receive(self._scratch[:count])
        elif most:
            raise ConnectionAbortedError("client closed the connection before the end of its ClientHello")

    def _go_on_with_handshake(self) -> None:
        """Run one step of the handshake.

        Raises `TlsError` if the handshake fails, `ConnectionAbortedError` if the client has left, and `BlockingIOError`
        otherwise: nothing is decrypted in this call.
        """
        session, owner = self._session, self._owner
        assert owner is not None, "nothing is read after a failed handshake"
        try:
            if session.has_more and session.handshake():
                owner.on_established(session.certificate)
                self._owner = None
        except TlsError as error:
            self._owner = None
            owner.on_handshake_failed(error.reason)
            raise
        if self._ended and not session.has_more:
            raise ConnectionAbortedError("the connection was closed during the TLS handshake")
        if session.has_more:
            self._read_again()
        raise BlockingIOError

    def _read_again(self) -> None:
        """Ask the poller for another turn, for bytes that the socket does not report."""
        if not self._soon:
            self._soon = True
            self._poller.call_in_turn(self._on_soon, "" if self._client is None else self._client.owner)

    def _on_soon(self) -> None:
        self._soon = False
        if self._on_readable is not None:
            self._on_readable()

    def set_client(self, client: Client) -> None:
        """Set the client of the connection."""
        self._client = client
        self._inner.set_client(client)

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` while there is something to receive, decrypted or not."""
        self._on_readable = on_readable
        self._inner.start_reading(on_readable)
        if self._session.has_more:
            self._read_again()

    def pause_reading(self, on_broken: Callable[[], None]) -> None:
        """Pause the transport below: encrypted bytes stay in it."""
        self._on_readable = None
        self._inner.pause_reading(on_broken)

    def watch(self, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Watch the transport below. Bytes that have arrived already count as early."""
        if self._session.has_more:
            on_early()
        self._inner.watch(on_early, on_gone)

    def unwatch(self) -> None:
        """Stop that."""
        self._inner.unwatch()

    def unread_bytes(self) -> int:
        """Return how many bytes have arrived and were not received: decrypted, or still encrypted.

        Bytes in the transport below that are too short for a record with a request do not count: they are the client's
        close_notify.
        """
        below, session = self._inner.unread_bytes(), self._session
        if below < _REQUEST_RECORD_BYTES and not session.is_inside_record:
            below = 0
        return below + session.unread_bytes

    # --- out --------------------------------------------------------------------------------------------------------

    def send(self, data: Any, /) -> int:
        """Encrypt and send as much of `data` as one call may; return how many of its bytes were sent.

        Bytes that are encrypted but not sent do not count. Pass them again: nothing else can be sent before them.
        """
        out: deque[Sendable] = deque((data,))
        self.send_some(out)
        return len(data) - (len(out[0]) if out else 0)

    def sendmsg(self, buffers: Iterable[Any], /) -> int:
        """Encrypt and send `buffers` in their order, as `send` does."""
        out: deque[Sendable] = deque(buffers)
        size = sum(map(len, out))
        self.send_some(out)
        return size - sum(map(len, out))

    def send_some(self, out: deque[Sendable], /) -> bool:
        """Encrypt and send `out` from its left end, in pieces; small buffers share a piece."""
        budget = BURST_BYTES
        while True:
            if self._unsent and not self._flush():
                return False
            drop_bytes(out, self._ahead)
            self._ahead = 0
            if not out:
                return True
            if budget <= 0:
                return False
            try:
                piece = first_piece(out, PIECE_BYTES)
            except BlockingIOError:  # the source of the next part has nothing now
                return False
            self._ahead = len(piece)
            budget -= self._ahead
            self._unsent = self._session.encrypt(piece)

    def _flush(self) -> bool:
        """Send what is encrypted; return whether all of it has left."""
        try:
            sent = self._inner.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return False
        if sent == len(self._unsent):
            self._unsent = b""
            return True
        self._unsent = memoryview(self._unsent)[sent:]
        return False

    def _send_own(self) -> None:
        """Send what TLS itself has to, now or when there is room."""
        own = self._session.take_out()
        if not own:
            return
        if self._unsent:
            if len(self._unsent) > MAX_UNSENT_BYTES:
                raise ConnectionAbortedError("client does not read TLS messages")
            own = bytes(self._unsent) + own
        self._unsent = own
        if not self._flush():
            self._write_later()

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        """Call `on_writable` while something can be sent."""
        self._on_writable = on_writable
        self._write_later()

    def stop_writing(self) -> None:
        """Stop that, unless TLS has something to send."""
        self._on_writable = None
        if self._writing and not self._unsent:
            self._writing = False
            self._inner.stop_writing()

    def _write_later(self) -> None:
        if not self._writing:
            self._writing = True
            self._inner.start_writing(self._on_room)

    def _on_room(self) -> None:
        if self._on_writable is not None:
            self._on_writable()
            return
        try:
            if self._unsent and not self._flush():
                return
        except OSError:
            self._unsent = b""  # the connection is broken: the next read, or the watch of its end, finds out
        self.stop_writing()

    # --- the end ----------------------------------------------------------------------------------------------------

    def ask_for_client(self) -> None:
        """Check for the client through the transport below."""
        self._inner.ask_for_client()

    def end(self) -> None:
        """End the transport below after the bytes that have arrived."""
        self._inner.end()

    def close(self) -> None:
        """Send close_notify if there is room for it, and close."""
        self._on_readable = self._on_writable = self._owner = None  # all of them know the channel
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                if not self._unsent:
                    end = self._session.close_notify()
                    if end:
                        self._inner.send(end)
        self._inner.close()
