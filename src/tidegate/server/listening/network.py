"""The network of a node: its listeners, and a poller for their connections.

`SocketNetwork` uses TCP. Another implementation of this contract, such as a test's network in memory, serves a whole
node without a socket.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Protocol

from tidegate.server.connection.poller import make_poller
from tidegate.server.connection.transport import SocketTransport, Transport
from tidegate.server.connection.turns import Poller
from tidegate.server.listening.accept_queues import ONE_PROCESS, Spread
from tidegate.server.listening.listener import SocketListener
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.settings.config import ServerConfig

__all__ = ["Listener", "Network", "SocketNetwork"]


class Listener(Protocol):
    """A listener: it accepts connections from `start` on."""

    @property
    def port(self) -> int:
        """The port that it is bound to."""

    def start(self) -> None:
        """Accept connections. Do nothing if it already does, or is closed."""

    def stop(self) -> None:
        """Accept no connections until `start`; clients are kept waiting."""

    def refuse(self) -> None:
        """Refuse connections until `stop_refusing`."""

    def stop_refusing(self) -> None:
        """Accept connections again."""

    def close(self) -> None:
        """Stop accepting connections for good."""


class Network(Protocol):
    """The network of one node."""

    @property
    def poller(self) -> Poller:
        """The poller of all connections that its listeners accept."""

    def listen(
        self,
        address: ListenerAddress,
        config: ServerConfig,
        on_accept: Callable[[Transport, str], None],
        make_room: Callable[[str], bool],
    ) -> Listener:
        """Return a listener at `address`, stopped; `on_accept` gets each connection and its client's address.

        make_room: called with a client's address if the system allows no more connections. It closes another
        connection, if that is fair, and returns whether it did. Raises `ConfigError` if the address cannot be bound.
        """


class SocketNetwork:
    """TCP, on an event loop. monotonic_ns: the node's clock. spread: the processes that accept its connections."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        monotonic_ns: Callable[[], int],
        spread: Spread = ONE_PROCESS,
    ) -> None:
        self._loop = loop
        self._spread = spread
        self.poller = make_poller(loop, monotonic_ns)

    def listen(
        self,
        address: ListenerAddress,
        config: ServerConfig,
        on_accept: Callable[[Transport, str], None],
        make_room: Callable[[str], bool],
    ) -> Listener:
        """Return a listener that is bound to `address`. Raises `ConfigError` where it cannot be."""

        def accept(sock: socket.SocketType, host: str) -> None:
            on_accept(SocketTransport(sock, self.poller), host)

        return SocketListener(
            address, config, loop=self._loop, on_accept=accept, make_room=make_room, spread=self._spread
        )
