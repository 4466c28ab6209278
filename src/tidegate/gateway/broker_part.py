"""The part of one broker in a port that several brokers share (`shared_port`)."""

import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.fair_share import Rounds, address_owner
from tidegate.server.connection.transport import SocketTransport, Transport
from tidegate.server.connection.turns import SocketPoller
from tidegate.server.listening.acceptor import MAX_WAITING

if TYPE_CHECKING:
    from tidegate.gateway.shared_port import SharedPort

__all__ = ["BrokerPart"]

_log = logging.getLogger("tidegate.gateway")


class BrokerPart:
    """A `Listener` that accepts the connections whose clients name its broker."""

    def __init__(
        self,
        port: "SharedPort",
        poller: SocketPoller,
        on_accept: Callable[[Transport, str], None],
        make_room: Callable[[str], bool],
    ) -> None:
        self.port = port.port
        self.make_room = make_room
        self.is_accepting = self.is_refusing = False
        self._port = port
        self._poller = poller
        self._on_accept = on_accept
        self._waiting: Rounds[tuple[socket.SocketType, str]] = Rounds()

    def __len__(self) -> int:
        """Return how many connections wait for the node."""
        return len(self._waiting)

    def start(self) -> None:
        """Begin to accept. Ignored while connections are refused."""
        if not self.is_refusing:
            self.is_accepting = True
            self._port.start()
            self._port.serve_soon(self)

    def stop(self) -> None:
        """Accept no connection until `start`; clients are kept waiting."""
        self.is_accepting = False

    def refuse(self) -> None:
        """Refuse connections until `stop_refusing`."""
        self.stop()
        self.is_refusing = True
        self._close_waiting()

    def stop_refusing(self) -> None:
        """Accept connections again."""
        self.is_refusing = False
        self.start()

    def close(self) -> None:
        """Accept no more connections, and close those that wait."""
        self.stop()
        self._port.remove(self)
        self._close_waiting()

    def add(self, sock: socket.SocketType, host: str) -> None:
        """Queue a connection. The node accepts it soon, or when it next accepts connections."""
        self._waiting.append((sock, host), address_owner(host))
        if len(self._waiting) > MAX_WAITING:
            self.drop_oldest()
        self._port.serve_soon(self)

    def drop_oldest(self) -> None:
        """Close the oldest waiting connection of the address that has most of them."""
        oldest, _ = self._waiting.pop_of_largest()
        oldest.close()

    def accept_one(self) -> bool:
        """Pass the next connection to the node; return whether another one can follow."""
        if not (self.is_accepting and self._waiting):
            return False
        sock, host = self._waiting.popleft()
        try:
            self._on_accept(SocketTransport(sock, self._poller), host)
        except Exception:
            _log.exception("closed a new connection: internal error", extra={"repeats": "serve"})
            sock.close()
        return self.is_accepting and bool(self._waiting)

    def _close_waiting(self) -> None:
        self._port.close_soon(self._waiting.popleft()[0] for _ in range(len(self._waiting)))
