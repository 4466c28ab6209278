"""One port for the brokers of a listener, distinguished by the server name in the TLS handshake (SNI).

Each broker's node has its own part of the port, which is a `Listener`: the node counts, limits and refuses connections
as at a port of its own. Before a connection belongs to a node, its ClientHello has to come: the port looks at it and
leaves it in the socket, so that the node begins with it.

    port = SharedPort(address, names, config, loop=loop)
    network = BrokerNetwork(SocketNetwork(loop, monotonic_ns), broker_id, {listener: port})    # for the broker's `Node`

| the client names | its connection |
|---|---|
| a broker | goes to the broker's node |
| the cluster (bootstrap) | goes to the node of a broker that can be reached, in turn |
| a broker that is not served, or cannot be reached | is closed, as if its port had no listener |
| anything else, or no server | is refused with a TLS alert and a line in the log |

Bounds: `MAX_WAITING` connections without a complete ClientHello, each for at most `MAX_LOGIN_S`, and as many for each
part that does not accept now. If there are more, the oldest connection of the address with most connections is closed.
Work is done in slices of 0.3 ms, in rounds over brokers and addresses.
"""

import asyncio
import logging
import socket
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping

from tidegate.fair_share import ReclaimableBound, Rounds, address_owner
from tidegate.gateway.addresses import ANY_BROKER, ServerNames
from tidegate.gateway.broker_part import BrokerPart
from tidegate.server.authentication.logins import MAX_LOGIN_S
from tidegate.server.connection.client_hello import MAX_HELLO_BYTES, read_client_hello, server_name
from tidegate.server.connection.tls_session import HANDSHAKE, TlsError
from tidegate.server.connection.transport import Transport
from tidegate.server.connection.turns import SocketPoller
from tidegate.server.listening.accept_queues import ONE_PROCESS, Spread
from tidegate.server.listening.acceptor import MAX_WAITING
from tidegate.server.listening.listener import SocketListener
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.listening.network import Listener, SocketNetwork
from tidegate.server.settings.config import ServerConfig

__all__ = ["BrokerNetwork", "SharedPort"]

_log = logging.getLogger("tidegate.gateway")

_WORK_S = 0.0003  # a connection takes 0.1 ms, and in the same pass of the loop others are accepted for 1 ms
_LATE_EVERY_S = 1.0
_DECODE_ERROR, _MISSING_EXTENSION, _UNRECOGNIZED_NAME = 50, 109, 112  # RFC 8446, 6.2
_ALERT = struct.Struct(">BHHBB")  # record type, version, length, level, description
_ALERT_TYPE, _TLS_1_2, _FATAL = 21, 0x0303, 2
_LOGGED_CHARS = 100


class _Newcomer:
    """A connection whose server name is not known yet. seen_bytes: how much of its ClientHello has come."""

    __slots__ = ("host", "owner", "seen_bytes", "since_s", "sock")

    def __init__(self, sock: socket.SocketType, host: str, since_s: float) -> None:
        self.sock = sock
        self.host = host
        self.owner = address_owner(host)
        self.since_s = since_s
        self.seen_bytes = 0


class SharedPort:
    """One port for several brokers. It accepts connections as soon as a part of it does."""

    def __init__(
        self,
        address: ListenerAddress,
        names: ServerNames,
        config: ServerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        spread: Spread = ONE_PROCESS,
    ) -> None:
        """Bind the port. Raises `ConfigError`."""
        self._name = address.name
        self._names = names
        self._loop = loop
        self._newcomers: ReclaimableBound[_Newcomer] = ReclaimableBound(MAX_WAITING)
        self._arrived: Rounds[_Newcomer] = Rounds()  # newcomers with bytes to examine
        self._parts: OrderedDict[int, BrokerPart] = OrderedDict()  # for a bootstrap name, the first is next
        self._ready: OrderedDict[BrokerPart, None] = OrderedDict()  # with connections for their nodes
        self._closing: deque[socket.SocketType] = deque()
        self._working = False
        self._scratch = memoryview(bytearray(MAX_HELLO_BYTES))
        self._listener = SocketListener(
            address,
            config,
            loop=loop,
            on_accept=self._on_accept,
            make_room=self._make_room,
            spread=spread,
        )
        self.port = self._listener.port
        self.refused = 0  # connections that were refused before they belonged to a broker
        self._late: asyncio.Handle = loop.call_later(_LATE_EVERY_S, self._close_late)

    def part(
        self,
        broker_id: int,
        poller: SocketPoller,
        on_accept: Callable[[Transport, str], None],
        make_room: Callable[[str], bool],
    ) -> BrokerPart:
        """Return the part of a broker, stopped. See `Network.listen`."""
        made = self._parts[broker_id] = BrokerPart(self, poller, on_accept, make_room)
        return made

    def close(self) -> None:
        """Accept no connection any more, and close those that belong to no broker yet."""
        self._late.cancel()
        self._listener.close()
        for newcomer in list(self._newcomers):
            self._drop(newcomer)
        while self._closing:
            self._closing.popleft().close()

    # --- for the parts ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Accept connections. Harmless if the port does already."""
        self._listener.start()

    def serve_soon(self, part: BrokerPart) -> None:
        """Pass on the connections of a part, in slices."""
        self._ready[part] = None
        self._work_soon()

    def close_soon(self, socks: Iterable[socket.SocketType]) -> None:
        """Close connections that no node has, in slices."""
        self._closing.extend(socks)
        self._work_soon()

    def remove(self, part: BrokerPart) -> None:
        """Forget a part."""
        self._ready.pop(part, None)
        self._parts = OrderedDict((key, each) for key, each in self._parts.items() if each is not part)

    # --- connections without a server name --------------------------------------------------------------------------

    def _on_accept(self, sock: socket.SocketType, host: str) -> None:
        newcomer = _Newcomer(sock, host, self._loop.time())
        if not self._newcomers.fits():
            oldest = self._newcomers.victim(newcomer.owner)
            assert oldest is not None, "the bound is full"
            self._drop(oldest)
        self._newcomers.add_entry(newcomer, newcomer.owner)
        self._await_bytes(newcomer)

    def _await_bytes(self, newcomer: _Newcomer) -> None:
        self._loop.add_reader(newcomer.sock.fileno(), self._on_readable, newcomer)

    def _on_readable(self, newcomer: _Newcomer) -> None:
        self._loop.remove_reader(newcomer.sock.fileno())
        self._arrived.append(newcomer, newcomer.owner)
        self._work_soon()

    def _work_soon(self) -> None:
        if not self._working:
            self._working = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Examine newcomers, pass connections on to their nodes, and close others, for `_WORK_S`."""
        self._working = False
        until_s = self._loop.time() + _WORK_S
        try:
            while self._has_work() and self._loop.time() < until_s:
                if self._ready:
                    part, _ = self._ready.popitem(last=False)
                    if part.accept_one():
                        self._ready[part] = None
                if self._arrived:
                    self._examine(self._arrived.popleft())
                if self._closing:
                    self._closing.popleft().close()
        finally:
            if self._has_work():
                self._work_soon()

    def _has_work(self) -> bool:
        return bool(self._ready or self._arrived or self._closing)

    def _examine(self, newcomer: _Newcomer) -> None:
        """Pass a connection on if its ClientHello is complete; otherwise wait for the rest, or refuse it."""
        if newcomer not in self._newcomers:
            return  # dropped meanwhile
        sock = newcomer.sock
        try:
            count = sock.recv_into(self._scratch, len(self._scratch), socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self._await_bytes(newcomer)
            return
        except OSError:
            count = 0
        if count <= newcomer.seen_bytes:
            self._drop(newcomer)  # the client has closed its end
            return
        try:
            hello = read_client_hello(self._scratch[:count])
            if isinstance(hello, int):
                newcomer.seen_bytes = count
                # The kernel does not report fewer bytes, so a client that sends byte by byte does not cost a turn each.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, hello)
                self._await_bytes(newcomer)
                return
            name = server_name(hello)
        except TlsError as error:
            # No alert: a Kafka client without TLS would read it as the length of a response.
            is_tls = self._scratch[0] == HANDSHAKE
            self._refuse(newcomer, error.reason, _DECODE_ERROR if is_tls else None)
            return
        if newcomer.seen_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._pass_on(newcomer, name)

    def _pass_on(self, newcomer: _Newcomer, name: str | None) -> None:
        """Move a connection to the part of the broker that it names, or refuse it."""
        if name is None:
            hint = f"hint: connect by host name, such as {self._example}, not by address"
            self._refuse(newcomer, f"client named no server (SNI); {hint}", _MISSING_EXTENSION)
            return
        broker_id = self._names.find(name)
        if broker_id is None:
            reason = f"unknown server name {name[:_LOGGED_CHARS]!r}, expected a name such as {self._example}"
            self._refuse(newcomer, reason, _UNRECOGNIZED_NAME)
            return
        if broker_id == ANY_BROKER:
            part = self._next_part()
        elif broker_id in self._parts:
            part = self._parts[broker_id]
        else:
            # No alert: clients do not retry after one, and a broker that joins is served some seconds later.
            self._refuse(newcomer, f"server name {name!r} is of broker {broker_id}, which is not served here")
            return
        if part is None or part.is_refusing:
            self._drop(newcomer)
            return
        self._newcomers.remove(newcomer)
        part.add(newcomer.sock, newcomer.host)

    @property
    def _example(self) -> str:
        return next(iter(self._names.bootstrap), self._names.pattern)

    def _next_part(self) -> BrokerPart | None:
        """Return the part for a client that names no broker: one that accepts connections now, if there is any."""
        reachable = [key for key, part in self._parts.items() if not part.is_refusing]
        if not reachable:
            return None
        chosen = next((key for key in reachable if self._parts[key].is_accepting), reachable[0])
        self._parts.move_to_end(chosen)
        return self._parts[chosen]

    def _refuse(self, newcomer: _Newcomer, reason: str, alert: int | None = None) -> None:
        """Close a connection, count and log that, and send the client an alert."""
        self.refused += 1
        host, sock = newcomer.host, newcomer.sock
        _log.warning(
            "rejected connection from %s (listener %s): %s",
            *(host, self._name, reason),
            extra={"repeats": f"server name {host}", "repeats_of": newcomer.owner},
        )
        if alert is not None:
            try:
                # Unread bytes would make the kernel reset the connection, and the client would not get the alert.
                sock.recv_into(self._scratch)
                sock.send(_ALERT.pack(_ALERT_TYPE, _TLS_1_2, 2, _FATAL, alert))
            except OSError:
                pass  # the client has left
        self._drop(newcomer)

    def _drop(self, newcomer: _Newcomer) -> None:
        self._newcomers.remove(newcomer)
        self._loop.remove_reader(newcomer.sock.fileno())
        newcomer.sock.close()

    def _close_late(self) -> None:
        """Close the connections whose ClientHello has not come in time, for `_WORK_S`; the rest in the next turns."""
        now_s = self._loop.time()
        since_s, until_s = now_s - MAX_LOGIN_S, now_s + _WORK_S
        for newcomer in list(self._newcomers):
            if newcomer.since_s > since_s:
                break
            if self._loop.time() >= until_s:
                self._late = self._loop.call_soon(self._close_late)
                return
            self._refuse(newcomer, f"no complete ClientHello within {MAX_LOGIN_S:.0f} s")
        self._late = self._loop.call_later(_LATE_EVERY_S, self._close_late)

    def _make_room(self, host: str) -> bool:
        """Close a connection, if that is fair, for a client at `host`, because the system allows no more."""
        oldest = self._newcomers.victim(address_owner(host))
        if oldest is not None:
            self._drop(oldest)
            return True
        largest = max(self._parts.values(), key=len, default=None)
        if largest:
            largest.drop_oldest()
            return True
        return any(part.make_room(host) for part in self._parts.values())


class BrokerNetwork:
    """The network of one broker's node: a part of each shared port, and ports of its own. ports: by listener."""

    def __init__(self, own: SocketNetwork, broker_id: int, ports: Mapping[str, SharedPort]) -> None:
        self.poller = own.poller
        self._own = own
        self._broker_id = broker_id
        self._ports = ports

    def listen(
        self,
        address: ListenerAddress,
        config: ServerConfig,
        on_accept: Callable[[Transport, str], None],
        make_room: Callable[[str], bool],
    ) -> Listener:
        """Return a part of a shared port, or a listener that is bound to `address`. Raises `ConfigError`."""
        port = self._ports.get(address.name)
        if port is None:
            return self._own.listen(address, config, on_accept, make_room)
        return port.part(self._broker_id, self.poller, on_accept, make_room)
