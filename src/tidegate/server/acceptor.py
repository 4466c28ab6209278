"""Which accepted sockets become connections, when, and which are parked or refused (KIP-612, B§6.9).

The listener hands over each socket it accepted. While the broker's or the listener's rate asks for a wait, or no
slot is free, the listener accepts nobody and the kernel keeps new clients waiting. A socket of an address over its
own rate is kept unread and closed when its throttle is over.
"""

import asyncio
import logging
import socket
from collections.abc import Callable

from tidegate.clock import Clock
from tidegate.quota import AdmissionOutcome, ConnectionQuotas
from tidegate.quota.connections.limits import ConnectionLimits, parse_per_ip_overrides
from tidegate.quota.connections.parked_connections import ParkedConnections
from tidegate.server.config import ServerConfig
from tidegate.server.host_names import addresses_of_literal
from tidegate.server.listener import Listener

__all__ = ["Acceptor", "connection_quotas"]

_log = logging.getLogger("tidegate.server")

_CLOSE_PARKED_EVERY_S = 0.5  # Kafka's acceptor looks at them as often
_WITHOUT_SLOT_WAIT_S = 0.1


class Acceptor:
    """Asks the connection quotas about every socket of one listener; `on_admitted` gets those that may stay."""

    def __init__(
        self,
        quotas: ConnectionQuotas,
        listener_name: str,
        *,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        on_admitted: Callable[[socket.SocketType, str], None],
    ) -> None:
        self._quotas = quotas
        self._name = listener_name
        self._clock = clock
        self._loop = loop
        self._on_admitted = on_admitted
        self._listener: Listener | None = None
        self._held: tuple[socket.SocketType, str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parked: ParkedConnections[socket.SocketType] = ParkedConnections()
        self._parked_timer: asyncio.TimerHandle | None = None

    def attach(self, listener: Listener) -> None:
        """Say which listener to hold back."""
        self._listener = listener

    def on_accept(self, sock: socket.SocketType, host: str) -> None:
        """Take a socket that was just accepted."""
        hold_ms = self._quotas.record_arrival(self._name, now_ms=self._clock.now_ms())
        if hold_ms > 0 or not self._quotas.slot_available(self._name):
            assert self._listener is not None
            assert self._held is None, "a held listener accepts nobody"
            self._listener.stop()
            self._held = (sock, host)
            self._timer = self._loop.call_later(hold_ms / 1000, self._retry)
            return
        self._admit(sock, host)

    def release(self, host: str) -> None:
        """Take back the slot of a connection that closed."""
        self._quotas.release(self._name, host)

    def close(self) -> None:
        """Close the sockets that wait."""
        for timer in (self._timer, self._parked_timer):
            if timer is not None:
                timer.cancel()
        if self._held is not None:
            self._held[0].close()
        for sock in self._parked.take_all():
            sock.close()

    def _retry(self) -> None:
        """Admit the held socket if there is a slot now, else look again shortly."""
        assert self._held is not None
        assert self._listener is not None
        if not self._quotas.slot_available(self._name):
            self._timer = self._loop.call_later(_WITHOUT_SLOT_WAIT_S, self._retry)
            return
        (sock, host), self._held, self._timer = self._held, None, None
        try:
            self._admit(sock, host)
        finally:
            self._listener.start()

    def _admit(self, sock: socket.SocketType, host: str) -> None:
        admission = self._quotas.admit(self._name, host, now_ms=self._clock.now_ms())
        if admission.outcome is AdmissionOutcome.ACCEPTED:
            try:
                self._on_admitted(sock, host)
            except Exception:
                self.release(host)
                raise
        elif admission.outcome is AdmissionOutcome.THROTTLED:
            self._park(sock, admission.end_ms)
        else:
            _log.info(
                "Rejected connection from /%s, address already has the configured maximum of %d connections.",
                host,
                admission.maximum,
                extra={"repeats": f"rejected {host}"},
            )
            self.release(host)
            sock.close()

    def _park(self, sock: socket.SocketType, end_ms: int) -> None:
        evicted = self._parked.park(sock, end_ms=end_ms)
        if evicted is not None:
            evicted.close()
        if self._parked_timer is None:
            self._parked_timer = self._loop.call_later(_CLOSE_PARKED_EVERY_S, self._close_parked)

    def _close_parked(self) -> None:
        for sock in self._parked.take_due(now_ms=self._clock.now_ms()):
            sock.close()
        self._parked_timer = None
        if len(self._parked):
            self._parked_timer = self._loop.call_later(_CLOSE_PARKED_EVERY_S, self._close_parked)


def connection_quotas(config: ServerConfig, listener_name: str) -> ConnectionQuotas:
    """Return the connection quotas that the settings ask for, with one listener. Raises `ConfigError`."""
    quotas = ConnectionQuotas(
        ConnectionLimits(
            max_connections=config["max.connections"],
            max_connection_creation_rate=config["max.connection.creation.rate"],
            max_connections_per_ip=config["max.connections.per.ip"],
            max_connections_per_ip_overrides=_of_literals(config["max.connections.per.ip.overrides"]),
        ),
        samples=config["quota.window.num"],
        window_ms=1000 * config["quota.window.size.seconds"],
    )
    quotas.add_listener(listener_name)
    return quotas


def _of_literals(text: str) -> dict[str, int]:
    """Return the overrides of addresses; those of hosts are set when their addresses are known."""
    counts = parse_per_ip_overrides(text)
    return {address: count for host, count in counts.items() for address in addresses_of_literal(host)}
