"""A connection to a broker of the cluster: its address, TCP, TLS, and the gateway's own login.

    connection = UpstreamConnection(owner, link, client, ...)
    connection.open()          # once, and again whenever a request comes while it is not ready
    connection.transport       # carries requests and responses from `owner.on_ready()` on

If the gateway logs in with its own credentials, it does so before the first request, and again before a request when
the session is about to end (`upstream_login`, KIP-368). The connection is not ready during a login.
"""

import errno
import os
import socket
from collections.abc import Callable
from typing import Protocol

from tidegate.client.connection import session_use_s
from tidegate.gateway.upstream_login import UpstreamLogin, UpstreamSecurity
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.connection.tls_session import TlsError
from tidegate.server.connection.tls_transport import TlsTransport
from tidegate.server.connection.transport import GONE_PROBES, SocketTransport
from tidegate.server.connection.turns import Client, SocketPoller

__all__ = [
    "CONNECT_TIMEOUT_S",
    "ConnectionOwner",
    "SocketAddress",
    "UpstreamConnection",
    "UpstreamLink",
    "reason_of",
]

CONNECT_TIMEOUT_S = 10.0
"""Longest time to connect and log in for the first time. Follows: Kafka `socket.connection.setup.timeout.ms`."""
_RENEWAL_MIN_S = 1.05
"""Shortest time between two logins of a connection that a broker accepts (KIP-368)."""

SocketAddress = tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""Address family and address, as `getaddrinfo` returns them and `socket.connect` takes them."""


class UpstreamLink(Protocol):
    """The broker that the connections of a node lead to. `address` is None while it is not known."""

    @property
    def name(self) -> str:
        """The broker, for messages."""

    @property
    def host(self) -> str:
        """The advertised host of the broker, which its certificate must contain."""

    @property
    def address(self) -> SocketAddress | None:
        """The address to connect to, now."""

    def on_unreachable(self) -> None:
        """Report that the broker cannot be reached now."""

    def on_lost(self) -> None:
        """Report that a connection to the broker has ended unexpectedly."""


class ConnectionOwner(Protocol):
    """The user of a connection. Every call comes from the event loop."""

    @property
    def is_sending(self) -> bool:
        """True while a request is sent in part: no login may interrupt it."""

    def on_ready(self) -> None:
        """Send requests: the connection is open, and the broker has accepted the login, if any."""

    def on_readable(self) -> None:
        """Receive: the broker has sent something, or has closed the connection."""

    def on_broken(self, reason: str) -> None:
        """Close the connection, which is broken or could not be opened."""


class UpstreamConnection:
    """One connection to a broker. `is_ready`: requests can be sent. `was_ready`: they could be once.

    transport: None before `open`, and once closed.
    address: the address of the broker; None before `open`.
    login: the gateway's own login, while it is in progress; it gets the bytes that the broker sends.
    """

    __slots__ = (
        "_client",
        "_ends_when_sent",
        "_link",
        "_loop",
        "_owner",
        "_poller",
        "_security",
        "_timer",
        "_unsent",
        "address",
        "is_closed",
        "is_ready",
        "login",
        "transport",
        "was_ready",
    )

    def __init__(
        self,
        owner: ConnectionOwner,
        link: UpstreamLink,
        client: Client,
        *,
        security: UpstreamSecurity,
        poller: SocketPoller,
        loop: Scheduler,
    ) -> None:
        self._owner = owner
        self._link = link
        self._client = client  # the turns of the connection count for this client
        self._security = security
        self._poller = poller
        self._loop = loop
        self._unsent = b""  # the rest of a request of the login
        self._ends_when_sent = False  # the session is over after the rest of the request is sent
        self._timer: Timer | None = None  # limits the time to get ready, later the time until the next login
        self.address: SocketAddress | None = None
        self.transport: SocketTransport | TlsTransport | None = None
        self.login: UpstreamLogin | None = None
        self.is_ready = self.was_ready = False
        self.is_closed = False

    def open(self) -> None:
        """Begin to connect, or to log in again; `on_ready` or `on_broken` of the owner follows."""
        if self.is_closed or self.login is not None:
            return
        if self.transport is not None:
            if self._security.credentials is not None and self._timer is None:
                self._begin_login()
            return
        found = self._link.address
        if found is None:
            self._link.on_unreachable()
            self._owner.on_broken("its address is not known")
            return
        self.address = found
        family, address = found
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            self.transport = transport = SocketTransport(sock, self._poller)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Detect a broker that disappeared without closing the connection, as Kafka's clients do.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in GONE_PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            code = sock.connect_ex(address)
        except OSError as error:
            self._owner.on_broken(reason_of(error))
            return
        if code not in (0, errno.EINPROGRESS):
            self._owner.on_broken(os.strerror(code))
            return
        transport.set_client(self._client)
        transport.start_writing(lambda: self._on_connected(sock))
        reason = f"not connected within {CONNECT_TIMEOUT_S:.0f} s"
        self._timer = self._loop.call_later(CONNECT_TIMEOUT_S, lambda: self._owner.on_broken(reason))

    def read(self) -> None:
        """Call `on_readable` of the owner again while there is something to receive."""
        if self.transport is not None:
            self.transport.start_reading(self._owner.on_readable)

    def pause(self) -> None:
        """Stop reading: received bytes stay in the kernel."""
        if self.transport is not None:
            self.transport.pause_reading(_ignore)

    def wait_for_bytes(self, call: Callable[[], None]) -> None:
        """Call `call` once when the broker has sent more, or has closed the connection."""

        def on_bytes() -> None:
            self.pause()
            call()

        if self.transport is None:
            self._poller.call_in_turn(call, self._client.owner)
        else:
            self.transport.start_reading(on_bytes)

    def close(self) -> None:
        """Close the connection at once; the owner is not called again."""
        self.is_closed, self.is_ready = True, False
        self._stop_timer()
        self.login = None
        transport, self.transport = self.transport, None
        if transport is not None:
            transport.close()

    # --- connecting; a `HandshakeOwner` -----------------------------------------------------------------------------

    def _on_connected(self, sock: socket.socket) -> None:
        transport, security = self.transport, self._security
        assert transport is not None
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._link.on_unreachable()
            self._owner.on_broken(os.strerror(code))
            return
        transport.stop_writing()
        if security.tls is None:
            transport.start_reading(self._owner.on_readable)
            self.on_established(None)
            return
        self.transport = transport = TlsTransport(
            transport,
            security.tls,
            security.buffers,
            poller=self._poller,
            owner=self,
            server_name=self._link.host,
        )
        try:
            transport.begin()
        except OSError as error:
            self._owner.on_broken(reason_of(error))
            return
        transport.start_reading(self._owner.on_readable)

    def on_established(self, certificate: bytes | None) -> None:
        """Log in if the gateway has its own credentials; otherwise the connection is ready."""
        if self._security.credentials is None:
            self._become_ready()
        else:
            self._begin_login()

    def on_handshake_failed(self, reason: str) -> None:
        """Ignore the failure: `on_readable` of the owner closes the connection."""

    # --- the gateway's own login ------------------------------------------------------------------------------------

    def _begin_login(self) -> None:
        """Begin the gateway's own login: the first one, or the next one before the session ends."""
        credentials = self._security.credentials
        assert credentials is not None
        self.login = UpstreamLogin(credentials, send=self._send_login, on_end=self._on_logged_in)
        self.login.begin()

    def _send_login(self, frame: bytes) -> None:
        """Send a request of the login. The socket may be full of requests without a response (acks=0)."""
        self._unsent = frame
        self._send_unsent()

    def _send_unsent(self) -> None:
        """Send what the socket takes of the login, and the rest when it takes more."""
        transport = self.transport
        if transport is None:
            return
        try:
            self._unsent = self._unsent[transport.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._owner.on_broken(reason_of(error))
            return
        if self._unsent:
            transport.start_writing(self._send_unsent)
        else:
            transport.stop_writing()

    def _on_logged_in(self, failure: str, lifetime_ms: int) -> None:
        """End a login. failure: why it failed; empty: it succeeded."""
        self.login = None
        if self.is_closed:
            return
        if failure:
            self._owner.on_broken(failure)
            return
        self._become_ready()
        if lifetime_ms > 0 and not self.is_closed:
            renewal_s = max(session_use_s(lifetime_ms), _RENEWAL_MIN_S)
            self._timer = self._loop.call_later(renewal_s, self._end_session)

    def _end_session(self) -> None:
        """Mark the session as over, once the current request is sent: a login precedes the next request."""
        self._timer = None
        if self._owner.is_sending:
            self._ends_when_sent = True
        else:
            self.is_ready = False

    def on_sent(self) -> None:
        """Record that the owner has sent a complete request: a login may precede the next one."""
        if self._ends_when_sent:
            self._ends_when_sent = self.is_ready = False

    # --- becoming ready ---------------------------------------------------------------------------------------------

    def _become_ready(self) -> None:
        self._stop_timer()
        self.is_ready = self.was_ready = True
        self._owner.on_ready()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def reason_of(error: OSError) -> str:
    """Return the reason of a failure, for the log."""
    if isinstance(error, TlsError):
        return f"TLS failed: {error.reason}"
    return error.strerror or str(error)


def _ignore() -> None:
    """Ignore that the connection broke: the next read or write reports it."""
