"""A TLS client without sockets, the contexts of both ends, and a node's transport in memory."""

import contextlib
import ssl
import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from tests.server.memory_network import ManualLoop, MemoryPoller, MemoryTransport
from tests.unit.tls.certificates import Identity, identity

from tidegate.server.connection.tls_session import TlsBuffers
from tidegate.server.connection.tls_transport import TlsTransport
from tidegate.testing import ManualClock

__all__ = ["AUTHORITY", "SERVER", "Ends", "TlsClient", "client_context", "server_context"]

AUTHORITY = identity("authority", authority=True)
SERVER = identity("localhost", AUTHORITY)


def _load(context: ssl.SSLContext, own: Identity | None) -> ssl.SSLContext:
    context.load_verify_locations(cadata=AUTHORITY.certificate_pem)
    if own is not None:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "own.pem"
            path.write_text(own.pem)
            context.load_cert_chain(path)
    return context


def server_context(own: Identity = SERVER, **options: Any) -> ssl.SSLContext:
    """Return the context of a node whose key is `own`; options are attributes of the context."""
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), own)
    context.options |= ssl.OP_NO_RENEGOTIATION
    for name, value in options.items():
        setattr(context, name, value)
    return context


def client_context(own: Identity | None = None, **options: Any) -> ssl.SSLContext:
    """Return the context of a client that trusts the authority; options are attributes of the context."""
    context = _load(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), own)
    for name, value in options.items():
        setattr(context, name, value)
    return context


class TlsClient:
    """The client's end: what it wants to send is in `out`, what it was sent is given to `receive`."""

    def __init__(self, context: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None) -> None:
        """session: of a connection before this one, to be resumed."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = (context or client_context()).wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost", session=session
        )
        self.established = False
        self.ended = False  # the server has said that nothing more follows
        self.received = b""

    @property
    def out(self) -> bytes:
        """Take what is to be sent."""
        return self._outgoing.read()

    def receive(self, data: bytes = b"") -> None:
        """Go on with what the server has sent."""
        self._incoming.write(data)
        try:
            if not self.established:
                self.tls.do_handshake()
                self.established = True
            while True:
                part = self.tls.read(1 << 16)
                assert isinstance(part, bytes)
                if not part:
                    self.ended = True
                    return
                self.received += part
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.ended = True

    def encrypt(self, data: bytes) -> bytes:
        """Return what is to be sent for `data`."""
        self.tls.write(data)
        return self.out

    def say_goodbye(self) -> bytes:
        """Return what says that nothing more follows."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self.out


class Owner:
    """Notes how a handshake came out."""

    def __init__(self) -> None:
        self.established: list[bytes | None] = []
        self.failed: list[str] = []

    def on_established(self, certificate: bytes | None) -> None:
        """Note it."""
        self.established.append(certificate)

    def on_handshake_failed(self, reason: str) -> None:
        """Note it."""
        self.failed.append(reason)


class Ends:
    """A `TlsTransport` over a `MemoryTransport`, a reader of it like a channel, and its client."""

    def __init__(
        self, server: ssl.SSLContext | None = None, client: ssl.SSLContext | None = None, **limits: int
    ) -> None:
        clock = ManualClock()
        self.loop = ManualLoop(clock)
        self.poller = MemoryPoller(self.loop, clock.monotonic_ns)
        self.buffers = TlsBuffers()
        self.target_bytes = 1 << 18
        self._contexts = server or server_context(), client or client_context()
        self._limits = limits
        self.connect()

    def connect(self) -> None:
        """Begin a connection, in the place of the one before."""
        server, client = self._contexts
        self.memory = MemoryTransport(self.poller, ("localhost", 9093), **self._limits)
        self.owner = Owner()
        self.transport = TlsTransport(self.memory, server, self.buffers, poller=self.poller, owner=self.owner)
        self.client = TlsClient(client)
        self.calls = 0
        self.read = b""
        self.ended = False
        self.error: OSError | None = None
        self.broken = False
        self.out: deque[Any] = deque()
        self.transport.start_reading(self.on_readable)

    def on_readable(self) -> None:
        """Receive once."""
        assert not self.ended, "called after the end"
        assert self.error is None, "called after an error"
        self.calls += 1
        target = memoryview(bytearray(self.target_bytes))
        try:
            count = self.transport.recv_into(target)
        except BlockingIOError:
            return
        except OSError as error:
            self.error = error
            self.stop()
            return
        finally:
            assert not self.buffers.incoming.pending, "the shared BIOs are empty between two calls"
            assert not self.buffers.outgoing.pending
        self.read += target[:count]
        if not count:
            self.ended = True
            self.stop()

    def stop(self) -> None:
        """Read no more."""
        self.transport.pause_reading(self.on_broken)

    def on_broken(self) -> None:
        """Note that the connection has broken while nobody read it, and close."""
        self.broken = True
        self.transport.close()

    def send(self, data: Any) -> None:
        """Have the server send, as a channel does it: what does not leave at once when there is room."""
        self.out.append(data)
        if not self.transport.send_some(self.out):
            self.transport.start_writing(self.on_writable)

    def on_writable(self) -> None:
        """Send more."""
        if self.transport.send_some(self.out):
            self.transport.stop_writing()

    def give(self, data: bytes, at_once: int = 1 << 30) -> None:
        """Have the client's bytes arrive, so many at once, and the server go on."""
        for at in range(0, len(data), at_once):
            self.memory.client_send(data[at : at + at_once])
            self.loop.turn()

    def take(self) -> bytes:
        """Have the client take what the server has sent."""
        data = self.memory.client_take()
        self.loop.turn()
        return data

    def shake_hands(self, at_once: int = 1 << 30) -> None:
        """Bring the handshake to its end."""
        self.client.receive()
        for _ in range(10):
            self.give(self.client.out, at_once)
            self.client.receive(self.take())
            if self.client.established and self.owner.established:
                return
        raise AssertionError("the handshake does not end")
