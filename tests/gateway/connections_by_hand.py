"""Connections to a broker on sockets, whose turns and clock are moved by hand."""

import itertools
import select
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.server.memory_network import ManualLoop

from tidegate.api_keys import METADATA
from tidegate.gateway.turn_sends import TurnSends
from tidegate.gateway.upstream import Upstream
from tidegate.gateway.upstream_connection import SocketAddress
from tidegate.gateway.upstream_login import Credentials, UpstreamSecurity
from tidegate.gateway.upstream_response import Response
from tidegate.server.connection.tls_session import TlsBuffers
from tidegate.server.requests.handler import Answer, Deferred, Request
from tidegate.testing import ManualClock
from tidegate.wire import RequestHeader

__all__ = ["BrokerByHand", "Connections", "Relayed", "answer", "receive_frame"]

TIMEOUT_S = 10.0
_LENGTH = struct.Struct(">i")


class HandPoller:
    """A `SocketPoller` that looks at its sockets when it is asked to."""

    def __init__(self) -> None:
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._soon: list[Callable[[], None]] = []

    def call_in_turn(self, callback: Callable[[], None], owner: str) -> None:
        """Call back in the next turn."""
        self._soon.append(callback)

    def set_client(self, fd: int, client: object) -> None:
        """Ignore the client."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back in each turn in which the socket can be read."""
        self._readers[fd] = callback

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Stop that."""
        self._readers.pop(fd, None)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call back in each turn in which the socket can be written."""
        self._writers[fd] = callback

    def remove_writer(self, fd: int) -> None:
        """Stop that."""
        self._writers.pop(fd, None)

    def forget(self, fd: int) -> None:
        """Stop both."""
        self._readers.pop(fd, None)
        self._writers.pop(fd, None)

    def turn(self, timeout_s: float = TIMEOUT_S) -> None:
        """Call back for each socket that is ready, once, and for what was asked for."""
        soon, self._soon = self._soon, []
        readable, writable, _ = select.select(self._readers, self._writers, (), 0 if soon else timeout_s)
        assert soon or readable or writable or not timeout_s, "no socket is ready"
        for callback in soon:
            callback()
        for fd in writable:
            if fd in self._writers:
                self._writers[fd]()
        for fd in readable:
            if fd in self._readers:
                self._readers[fd]()


@dataclass
class _Link:
    """The broker that connections lead to."""

    address: SocketAddress
    name: str = "the broker"
    host: str = "localhost"
    lost: int = 0

    def on_unreachable(self) -> None:
        """Ignore it."""

    def on_lost(self) -> None:
        """Count it."""
        self.lost += 1


@dataclass
class _Client:
    """A client's connection, as its channel has it."""

    id: int = 1
    client_host: str = "127.0.0.1"
    owner: str = ""


@dataclass
class _Channel:
    """A channel of which only the bytes that wait are looked at. network_ns: charged to it."""

    connection: _Client = field(default_factory=_Client)
    pending: bytearray = field(default_factory=bytearray)
    pending_at: int = 0
    max_frame_bytes: int = 1 << 20
    network_ns: int = 0
    closed: bool = False

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Connections:
    """The connections of a node to one broker. clock_ns: goes on by 1 at each look; `sends` are those of the turn."""

    def __init__(
        self,
        address: tuple[str, int],
        tls: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        clock_ns = itertools.count()
        self.now_ns = lambda: next(clock_ns)
        self.poller = HandPoller()
        self.loop = ManualLoop(ManualClock())
        self.sends = TurnSends(self.now_ns)
        self.link = _Link((socket.AF_INET, address))
        self.security = UpstreamSecurity(tls=tls, buffers=TlsBuffers(), credentials=credentials)
        self.scratch = memoryview(bytearray(256 * 1024))
        self.relayed: list[Relayed] = []

    def turns_until(self, is_true: Callable[[], object]) -> None:
        """Run turns until a condition holds."""
        while not is_true():
            self.poller.turn()


class Relayed:
    """One connection, and its requests."""

    def __init__(self, node: Connections) -> None:
        self.node = node
        self.channel: Any = _Channel()
        self.upstream = Upstream(
            self.channel,
            node.link,
            security=node.security,
            poller=node.poller,
            loop=node.loop,
            scratch=node.scratch,
            monotonic_ns=node.now_ns,
            turn_sends=node.sends,
        )
        node.relayed.append(self)
        self.responses: list[bytes] = []
        self.number = 0

    def request(self, size: int = 20, *, in_turn: bool = True) -> Request:
        """Return a request whose frame begins with its correlation id."""
        self.number += 1
        header = RequestHeader(METADATA, 9, self.number, "client", 0)
        frame = memoryview(bytearray(_LENGTH.pack(self.number) + bytes(size - _LENGTH.size)))
        quotas: Any = None
        return Request(
            header, frame, self.channel.connection, quotas, 0, self.node.sends if in_turn else None
        )

    def forward(self, request: Request) -> Any:
        """Forward it; return its deferred answer, or the work that gets one."""

        def respond(_: RequestHeader, response: Response) -> Answer:
            self.responses.append(bytes(response.frame))
            return Answer(None)

        return self.upstream.forward(request, respond)

    def put_off(self, size: int = 20) -> tuple[Request, Deferred]:
        """Forward a request that leaves at the end of the turn."""
        request = self.request(size)
        deferred = self.forward(request)
        assert isinstance(deferred, Deferred)
        return request, deferred

    def run(self, work: Any) -> Deferred:
        """Run work until the request has left."""
        while True:
            try:
                wait = next(work)
            except StopIteration as stop:
                deferred: Deferred = stop.value
                return deferred
            ended: list[bool] = []
            wait.then(lambda ended=ended: ended.append(True))
            self.node.turns_until(lambda ended=ended: ended)


class BrokerByHand:
    """The broker's end of connections: a listener, from which `accept` takes one."""

    def __init__(self, options: Iterable[tuple[int, int, int]] = ()) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        for option in options:
            self._listener.setsockopt(*option)
        self.address: tuple[str, int] = self._listener.getsockname()
        self.accepted: list[socket.socket] = []
        self._nodes: list[Connections] = []

    def node(self, **security: Any) -> Connections:
        """Return a node whose connections lead here."""
        self._nodes.append(Connections(self.address, **security))
        return self._nodes[-1]

    def accept(self) -> socket.socket:
        """Return the next connection."""
        sock = self._listener.accept()[0]
        sock.settimeout(TIMEOUT_S)
        self.accepted.append(sock)
        return sock

    def close(self) -> None:
        """Close both ends of all connections."""
        for node in self._nodes:
            for relayed in node.relayed:
                relayed.upstream.close()
        for sock in (self._listener, *self.accepted):
            sock.close()

    def connected(self, node: Connections) -> tuple[Relayed, socket.socket]:
        """Return a connection without TLS that has served a request, and the broker's end of it."""
        relayed = Relayed(node)
        work = relayed.forward(relayed.request())
        next(work).then(lambda: None)
        sock = self.accept()
        node.poller.turn()
        deferred = relayed.run(work)
        answer(sock, receive_frame(sock))
        node.turns_until(lambda: deferred.is_complete)
        return relayed, sock


def receive_frame(sock: socket.socket) -> bytes:
    """Return the frame of the next request, b"" at the end."""
    length = sock.recv(_LENGTH.size)
    if not length:
        return b""
    length += _receive(sock, _LENGTH.size - len(length))
    return _receive(sock, *_LENGTH.unpack(length))


def _receive(sock: socket.socket, size: int) -> bytes:
    """Return so many bytes, others if the connection ends before."""
    found = bytearray()
    while len(found) < size:
        found += sock.recv(size - len(found)) or b"!" * size
    return bytes(found)


def answer(sock: socket.socket, frame: bytes) -> None:
    """Send the response to a request."""
    sock.sendall(_LENGTH.pack(_LENGTH.size) + frame[: _LENGTH.size])
