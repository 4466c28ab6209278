"""Admission of accepted connections: each is admitted, kept waiting, parked or refused (KIP-612, B§6.9).

The listener passes on each connection that it accepted. While the broker's or the listener's rate requires a wait, the
listener accepts no connections and the kernel keeps new clients waiting. If no slot is free, a principal with fewer
connections than another takes a slot from that one (`tidegate.server.connection_shares`); other clients wait, in
rounds over addresses, until connections close. With `tidegate.kafka.exact` all clients wait in the kernel. A connection
from an address over its own rate is kept unread and closed when its throttle is over.
"""

import logging
from collections.abc import Callable, Generator

from tidegate.clock import Clock
from tidegate.fair_share import Rounds, address_owner
from tidegate.in_slices import run_at_once
from tidegate.quota import AdmissionOutcome, ConnectionQuotas
from tidegate.quota.connections.connection_quotas import OtherProcesses
from tidegate.quota.connections.limits import ConnectionLimits, parse_per_ip_overrides
from tidegate.quota.connections.parked_connections import ParkedConnections
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.administration.host_names import addresses_of_literal
from tidegate.server.connection.transport import Transport
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.listening.network import Network
from tidegate.server.repeated_lines import repeats
from tidegate.server.settings.config import ServerConfig

__all__ = ["MAX_WAITING", "Acceptor", "connection_quotas", "limit_connections"]

_log = logging.getLogger("tidegate.server")

_CLOSED_AT_ONCE = 100  # closing a socket takes 10 us
_WITHOUT_SLOT_WAIT_S = 0.1  # time until the next check for a free slot; `slot_freed` reports most sooner
_ADMITTED_AT_ONCE = 10  # one with TLS takes 0.1 ms
MAX_WAITING = 1000
"""Accepted connections of one listener that wait for a slot; past it the address that has most loses its oldest."""


class Acceptor:
    """Asks the connection quotas about every connection of one listener; `on_admitted` gets the admitted ones.

    make_room: closes a connection of a principal that has more than the client at an address; returns whether it did.
    Its first argument is the listener if the listener's own maximum is reached, else None.
    """

    def __init__(
        self,
        address: ListenerAddress,
        config: ServerConfig,
        *,
        network: Network,
        quotas: ConnectionQuotas,
        clock: Clock,
        loop: Scheduler,
        on_admitted: Callable[[str, Transport, str], None],
        make_room: Callable[[str | None, str], bool],
    ) -> None:
        self.listener = network.listen(address, config, self._on_accept, self._free_descriptor)
        self._is_exact: bool = config["tidegate.kafka.exact"]
        self._make_room = make_room
        self._waiting: Rounds[tuple[Transport, str]] = Rounds()  # for a slot
        self._admitting = False
        self._quotas = quotas
        self._name = address.name
        self._clock = clock
        self._loop = loop
        self._on_admitted = on_admitted
        self._held: tuple[Transport, str] | None = None
        self._timer: Timer | None = None
        self._lacks_slot = False
        self._parked: ParkedConnections[Transport] = ParkedConnections()
        self._parked_timer: Timer | None = None
        self._closing: list[Transport] = []  # parked connections that are due

    def _on_accept(self, transport: Transport, host: str) -> None:
        """Admit a connection that was just accepted, or queue it, or hold it and stop the listener."""
        hold_ms = self._quotas.record_arrival(self._name, now_ms=self._clock.now_ms())
        if hold_ms > 0 or (self._is_exact and not self._quotas.slot_available(self._name)):
            assert self._held is None, "a held listener accepts no connection"
            self.listener.stop()
            self._held = (transport, host)
            self._timer = self._loop.call_later(hold_ms / 1000, self._retry)
            return
        self._admit_or_wait(transport, host)

    def _admit_or_wait(self, transport: Transport, host: str) -> None:
        """Admit a connection if there is a slot, or one can be freed; otherwise queue it until there is one."""
        if self._has_slot(host):
            self._admit(transport, host)
        else:
            self._wait(transport, host)

    def _wait(self, transport: Transport, host: str) -> None:
        self._waiting.append((transport, host), address_owner(host))
        if len(self._waiting) > MAX_WAITING:
            self._drop_waiting()

    def _drop_waiting(self) -> None:
        oldest, _ = self._waiting.pop_of_largest()
        oldest.close()

    def _free_descriptor(self, host: str) -> bool:
        """Close a connection for a client at `host`: one that waits, or else one that was admitted, if that is fair."""
        if self._waiting:
            self._drop_waiting()
            return True
        return self._make_room(None, host)

    def _has_slot(self, host: str) -> bool:
        quotas, name = self._quotas, self._name
        if not (quotas.slot_available(name) or quotas.address_is_full(host)):
            self._make_room(name if quotas.listener_is_full(name) else None, host)
        return quotas.slot_available(name)

    def slot_freed(self) -> None:
        """Admit, soon, connections that wait only for a slot."""
        if len(self._waiting) and not self._admitting:
            self._admitting = True
            self._loop.call_soon(self._admit_waiting)
        if self._lacks_slot and self._timer is not None:
            self._lacks_slot = False
            self._timer.cancel()
            self._timer = self._loop.call_soon(self._retry)

    def close(self) -> None:
        """Stop accepting, and close waiting connections."""
        self.listener.close()
        self._lacks_slot = False
        for timer in (self._timer, self._parked_timer):
            if timer is not None:
                timer.cancel()
        if self._held is not None:
            self._held[0].close()
        while len(self._waiting):
            self._waiting.popleft()[0].close()
        for transport in (*self._closing, *self._parked.take_all()):
            transport.close()
        self._closing.clear()

    def _admit_waiting(self) -> None:
        """Admit connections that have waited, while there are slots."""
        self._admitting = False
        for _ in range(_ADMITTED_AT_ONCE):
            if not (len(self._waiting) and self._quotas.slot_available(self._name)):
                return
            transport, host = self._waiting.popleft()
            try:
                self._admit(transport, host)
            except Exception:
                _log.exception(
                    "closed a new connection (listener %s): internal error",
                    self._name,
                    extra={"repeats": "serve"},
                )
                transport.close()
        self.slot_freed()

    def _retry(self) -> None:
        """Admit or queue the held connection; with `tidegate.kafka.exact`, try again soon if there is no slot."""
        assert self._held is not None
        self._lacks_slot = self._is_exact and not self._quotas.slot_available(self._name)
        if self._lacks_slot:
            self._timer = self._loop.call_later(_WITHOUT_SLOT_WAIT_S, self._retry)
            return
        (transport, host), self._held, self._timer = self._held, None, None
        try:
            self._admit_or_wait(transport, host)
        finally:
            self.listener.start()

    def _admit(self, transport: Transport, host: str) -> None:
        admission = self._quotas.admit(self._name, host, now_ms=self._clock.now_ms())
        if admission.outcome is AdmissionOutcome.ACCEPTED:
            try:
                self._on_admitted(self._name, transport, host)
            except Exception:
                self._quotas.release(self._name, host)
                raise
        elif admission.outcome is AdmissionOutcome.THROTTLED:
            self._park(transport, admission.end_ms)
        elif admission.outcome is AdmissionOutcome.NO_SLOT:
            self._wait(transport, host)
        else:
            _log.info(
                "Rejected connection from /%s, address already has the configured maximum of %d connections.",
                host,
                admission.maximum,
                extra=repeats("rejected", host),
            )
            self._quotas.release(self._name, host)
            transport.close()

    def _park(self, transport: Transport, end_ms: int) -> None:
        evicted = self._parked.park(transport, end_ms=end_ms)
        if evicted is not None:
            evicted.close()
        if self._parked_timer is None:
            self._close_parked_later()

    def _close_parked_later(self) -> None:
        due_in_ms = self._parked.due_in_ms(now_ms=self._clock.now_ms())
        self._parked_timer = self._loop.call_later(due_in_ms / 1000, self._close_parked)

    def _close_parked(self) -> None:
        """Close the parked connections if they are due. If more were parked since, all wait for the latest end."""
        self._closing += self._parked.take_due(now_ms=self._clock.now_ms())
        self._close_some()
        self._parked_timer = None
        if len(self._parked):
            self._close_parked_later()

    def _close_some(self) -> None:
        """Close parked connections that are due, some in a turn: there may be a thousand."""
        for transport in self._closing[:_CLOSED_AT_ONCE]:
            transport.close()
        del self._closing[:_CLOSED_AT_ONCE]
        if self._closing:
            self._loop.call_soon(self._close_some)


def connection_quotas(config: ServerConfig, others: OtherProcesses | None = None) -> ConnectionQuotas:
    """Return the connection quotas for the settings. Raises `ConfigError`."""
    window = config.quota_windows.rate
    quotas = ConnectionQuotas(
        ConnectionLimits(),
        samples=window.samples,
        window_ms=window.window_ms,
        inter_broker_listener=config.inter_broker_listener,
        others=others,
    )
    run_at_once(limit_connections(quotas, config))
    return quotas


def limit_connections(quotas: ConnectionQuotas, config: ServerConfig) -> Generator[None, None, list[str]]:
    """Apply the limits in `config`; return the hosts of overrides that are still to be resolved.

    Existing connections stay open. Raises `ConfigError`.
    """
    overrides: dict[str, int] = {}
    hosts = []
    for host, count in parse_per_ip_overrides(config["max.connections.per.ip.overrides"]).items():
        addresses = addresses_of_literal(host)
        overrides.update(dict.fromkeys(addresses, count))
        if not addresses:
            hosts.append(host)
        yield
    quotas.update_limits(
        ConnectionLimits(
            max_connections=config["max.connections"],
            max_connection_creation_rate=config["max.connection.creation.rate"],
            max_connections_per_ip=config["max.connections.per.ip"],
            max_connections_per_ip_overrides=overrides,
        )
    )
    for listener in config.listeners:
        quotas.add_listener(listener.name, listener.limits)
    return hosts
