"""Connection quotas: how many connections a broker, a listener and an address may have, and how fast they come.

Nothing here waits. The acceptor of a listener asks, for each socket that it accepted, in this order:

1. `record_arrival` returns how long to hold back; accept no more connections on this listener meanwhile.
2. `slot_available` returns whether there is room; if not, ask again after each `release`.
3. `admit`, called right after that, counts the connection or returns why it is refused. A throttled socket is parked
   (`ParkedConnections`) and not counted. A socket that is refused as one too many *is* counted: close it and `release`
   it. If another process took the last slot meanwhile, the socket is not counted and waits.

>>> quotas = ConnectionQuotas(ConnectionLimits(max_connections_per_ip=1), samples=11, window_ms=1000)
>>> quotas.add_listener("PLAINTEXT")
>>> quotas.record_arrival("PLAINTEXT", now_ms=0), quotas.slot_available("PLAINTEXT")
(0, True)
>>> quotas.admit("PLAINTEXT", "192.0.2.7", now_ms=0).outcome
<AdmissionOutcome.ACCEPTED: 'accepted'>
>>> quotas.admit("PLAINTEXT", "192.0.2.7", now_ms=0).message
'Too many connections from /192.0.2.7 (maximum = 1)'

Follows: Kafka `ConnectionQuotas`, `ConnectionThrottledException`, `TooManyConnectionsException`, KIP-612, B§6.9.
Different here: the number of addresses whose rate is kept is bounded (`MAX_IP_RATES`, `MAX_IP_RATE_BYTES`); past it,
the address that has been idle longest begins anew.
"""

import enum
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol

from tidegate.errors import TidegateError
from tidegate.quota.connections.limits import (
    UNLIMITED_CONNECTIONS,
    ConnectionLimits,
    ListenerLimits,
    host_address,
)
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.sensor_table import SAMPLE_BYTES, SENSOR_BYTES, SWEPT_AT_A_TIME
from tidegate.quota.measure.sensors import EXPIRY_MS
from tidegate.quota.measure.stats import Avg
from tidegate.quota.measure.throttle import saturate_to_int32
from tidegate.quota.measure.window import REGISTRY_WINDOW
from tidegate.quota.metric import Metric

__all__ = [
    "CONNECTION_METRICS",
    "IP_RATE_EXPIRY_MS",
    "MAX_IP_RATES",
    "MAX_IP_RATE_BYTES",
    "Admission",
    "AdmissionOutcome",
    "ConnectionCountError",
    "ConnectionQuotas",
    "OtherProcesses",
]

CONNECTION_METRICS = "socket-server-metrics"
"""The group of all metrics of connections (B§6.9)."""
MAX_IP_RATES = 50_000
"""Addresses whose connection rate is kept at a time."""
MAX_IP_RATE_BYTES = 96 << 20
"""Most memory of all these rates: with many samples in a window there are fewer of them."""

IP_RATE_EXPIRY_MS = EXPIRY_MS
"""Idle time after which the rate of an address expires. Follows: Kafka, one hour."""


class AdmissionOutcome(enum.Enum):
    """The outcome of a socket's admission."""

    ACCEPTED = "accepted"
    THROTTLED = "throttled"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    NO_SLOT = "no_slot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The verdict over one socket.

    THROTTLED has `throttle_ms` and `end_ms`, TOO_MANY_CONNECTIONS the `maximum`; both have Kafka's `message`. NO_SLOT:
    another process took the last slot.
    """

    outcome: AdmissionOutcome
    message: str | None = None
    throttle_ms: int = 0
    end_ms: int = 0
    maximum: int = 0


class ConnectionCountError(TidegateError, ValueError):
    """Raise when a connection is released that was never counted. Has the text of Kafka's exception."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"Attempted to decrease connection count for address with no connections, address: /{address}"
        )
        self.address = address


_ACCEPTED = Admission(outcome=AdmissionOutcome.ACCEPTED)
_NO_SLOT = Admission(outcome=AdmissionOutcome.NO_SLOT)
_BROKER = "broker"


class _Listener:
    """Counts and rates of one listener."""

    __slots__ = ("connections", "ip_throttle_time", "max_connections", "name", "rate", "throttle_time")

    def __init__(self, name: str, rate: SampledRate, max_connections: int) -> None:
        self.name = name
        self.rate = rate
        self.max_connections = max_connections
        self.connections = 0
        self.throttle_time = Avg(samples=REGISTRY_WINDOW.samples, window_ms=REGISTRY_WINDOW.window_ms)
        self.ip_throttle_time = Avg(samples=REGISTRY_WINDOW.samples, window_ms=REGISTRY_WINDOW.window_ms)


class OtherProcesses(Protocol):
    """The other processes that serve the same broker. name: of the broker, a listener or an address."""

    def count(self, name: str) -> int:
        """Return the connections that they count."""

    def set_own(self, name: str, connections: int, *, keeps_place: bool = False) -> None:
        """Publish the connections that are counted here. keeps_place: the name will be published again."""

    def rate(self, name: str, *, samples: int, window_ms: int, bound: float, cap_ms: int) -> SampledRate:
        """Return a rate that they record, too."""


class ConnectionQuotas:
    """Counts and rates of all connections of one broker. others: share its limits."""

    def __init__(
        self,
        limits: ConnectionLimits,
        *,
        samples: int,
        window_ms: int,
        inter_broker_listener: str | None = None,
        max_ip_rates: int = MAX_IP_RATES,
        others: OtherProcesses | None = None,
    ) -> None:
        self._others = others
        each_bytes = SENSOR_BYTES + SAMPLE_BYTES * (samples + 1)
        self._max_ip_rates = max(1, min(max_ip_rates, MAX_IP_RATE_BYTES // each_bytes))
        self._samples, self._window_ms = samples, window_ms
        self._inter_broker_listener = inter_broker_listener
        self._listeners: dict[str, _Listener] = {}
        self._broker_rate = self._new_rate(_BROKER, limits.max_connection_creation_rate)
        self._ip_rates: dict[str, SampledRate] = {}  # in the order of their last record
        self._ip_limits: dict[str, int] = {}
        self._default_ip_limit = UNLIMITED_CONNECTIONS
        self._counts: dict[str, int] = {}
        self.total = 0
        if others is not None:
            others.set_own(_BROKER, 0, keeps_place=True)
        self.update_limits(limits)

    # What is configured

    def update_limits(self, limits: ConnectionLimits) -> None:
        """Set new limits of the broker. Limits that a listener inherited earlier stay as they are."""
        self._limits = limits
        overrides = limits.max_connections_per_ip_overrides
        self._overrides = {host_address(address): count for address, count in overrides.items()}
        self._configure(self._broker_rate, limits.max_connection_creation_rate)

    def add_listener(self, name: str, limits: ListenerLimits | None = None) -> None:
        """Add a listener, or give a known one other limits; its counts and rates stay."""
        limits = limits or ListenerLimits()
        rate = _given(limits.max_connection_creation_rate, self._limits.max_connection_creation_rate)
        max_connections = _given(limits.max_connections, self._limits.max_connections)
        listener = self._listeners.get(name)
        if listener is None:
            shared_name = f"listener {name}"
            self._listeners[name] = _Listener(shared_name, self._new_rate(shared_name, rate), max_connections)
            if self._others is not None:
                self._others.set_own(shared_name, 0, keeps_place=True)
        else:
            listener.max_connections = max_connections
            self._configure(listener.rate, rate)

    def set_ip_rate(self, address: str | None, rate: float | None) -> None:
        """Set a stored `connection_creation_rate`, None for the default address; the rate None removes it.

        Raises `ConfigError` where `address` is none: resolve host names first.
        """
        limit = None if rate is None else saturate_to_int32(rate)
        if address is None:
            self._default_ip_limit = UNLIMITED_CONNECTIONS if limit is None else limit
        elif limit is None:
            self._ip_limits.pop(host_address(address), None)
        else:
            self._ip_limits[host_address(address)] = limit

    def set_ip_override(self, address: str, maximum: int) -> None:
        """Set how many connections one address may have. Raises `ConfigError` where `address` is none."""
        self._overrides[host_address(address)] = maximum

    def ip_limit(self, ip: str) -> int:
        """Return the connections per second that an address may make; `UNLIMITED_CONNECTIONS`: no limit.

        ip: the address as `host_address` writes it.
        """
        return self._ip_limits.get(ip, self._default_ip_limit)

    # What happens

    def record_arrival(self, listener_name: str, *, now_ms: int) -> int:
        """Record a connection on broker and listener; return for how many ms to accept no more."""
        listener = self._listeners[listener_name]
        hold_ms = 0 if self.is_protected(listener_name) else self._broker_rate.decide(1.0, now_ms)
        hold_ms = max(hold_ms, listener.rate.decide(1.0, now_ms))
        if hold_ms > 0:
            listener.throttle_time.record(float(hold_ms), now_ms)
        return hold_ms

    def slot_available(self, listener_name: str) -> bool:
        """Return whether listener and broker have room for one more; a protected listener only asks itself."""
        return self._has_room(listener_name, 1)

    def is_protected(self, listener_name: str) -> bool:
        """Return whether `max.connections` closes and refuses no connection of a listener."""
        return listener_name == self._inter_broker_listener and len(self._listeners) > 1

    def address_is_full(self, address: str) -> bool:
        """Return whether an address has as many connections as it may."""
        ip = host_address(address)
        return self._room(ip, self._counts.get(ip, 0), self._most_of(ip)) <= 0

    def listener_is_full(self, listener_name: str) -> bool:
        """Return whether a listener has as many connections as its own maximum."""
        listener = self._listeners[listener_name]
        return self._room(listener.name, listener.connections, listener.max_connections) <= 0

    def excess(self) -> int:
        """Return how many connections to close because the broker has too many: a part of those over `max.connections`.

        The part is that of the broker's connections that are counted here, rounded up.
        """
        most = self._limits.max_connections
        over = -self._room(_BROKER, self.total, most)
        return 0 if over <= 0 else -(-over * self.total // (most + over))

    def admit(self, listener_name: str, address: str, *, now_ms: int) -> Admission:
        """Count a connection, or say why not. Call it right after `slot_available` said yes."""
        ip = host_address(address)
        # Before the others are asked, so that two processes never take the last slot.
        self._count(listener_name, ip, 1)
        if self._others is not None and not self._has_room(listener_name, 0):
            self._count(listener_name, ip, -1)
            return _NO_SLOT
        throttle_ms = self._record_ip(listener_name, ip, now_ms)
        if throttle_ms > 0:
            self._count(listener_name, ip, -1)
            return Admission(
                outcome=AdmissionOutcome.THROTTLED,
                message=f"/{ip} throttled for {throttle_ms}",
                throttle_ms=throttle_ms,
                end_ms=now_ms + throttle_ms,
            )
        maximum = self._most_of(ip)
        if self._room(ip, self._counts[ip], maximum) < 0:
            return Admission(
                outcome=AdmissionOutcome.TOO_MANY_CONNECTIONS,
                message=f"Too many connections from /{ip} (maximum = {maximum})",
                maximum=maximum,
            )
        return _ACCEPTED

    def release(self, listener_name: str, address: str) -> None:
        """Remove a closed connection from the counts. Raises `ConnectionCountError` if its address has none left."""
        ip = host_address(address)
        if ip not in self._counts:
            raise ConnectionCountError(ip)
        self._count(listener_name, ip, -1)

    def expire_in_slices(self, now_ms: int) -> Generator[None, None, None]:
        """Forget addresses that have been quiet for an hour, in slices. An address that connects meanwhile stays."""
        while True:
            quietest = list(islice(self._ip_rates.items(), SWEPT_AT_A_TIME))
            for ip, rate in quietest:
                if now_ms - rate.last_record_ms() <= IP_RATE_EXPIRY_MS:
                    return
                del self._ip_rates[ip]
            if not quietest:
                return
            yield

    # What can be seen

    def metrics(self, now_ms: int) -> Iterator[Metric]:
        """Yield every metric without any effect. Addresses may come and go while that is under way."""
        for name, tags, stat in self.stats():
            bound = stat.bound if isinstance(stat, SampledRate) else None
            yield Metric(group=CONNECTION_METRICS, name=name, tags=tags, value=stat.peek(now_ms), bound=bound)

    def stats(self) -> Iterator[tuple[str, Mapping[str, str], SampledRate | Avg]]:
        """Yield name, tags and statistic of every metric; `peek` reads one without any effect."""
        yield "broker-connection-accept-rate", {}, self._broker_rate
        for name, listener in list(self._listeners.items()):
            tags = {"listener": name}
            yield "connection-accept-rate", tags, listener.rate
            yield "connection-accept-throttle-time", tags, listener.throttle_time
            yield "ip-connection-accept-throttle-time", tags, listener.ip_throttle_time
        for ip in list(self._ip_rates):
            if ip in self._ip_rates:
                rate = self._ip_rates[ip]
                self._bring_up_to_date(rate, self.ip_limit(ip))
                yield "connection-accept-rate", {"ip": ip}, rate

    # Helpers

    def _count(self, listener_name: str, ip: str, change: int) -> None:
        """Count a connection, or count it no longer."""
        listener = self._listeners[listener_name]
        self._counts[ip] = count = self._counts.get(ip, 0) + change
        if count == 0:
            del self._counts[ip]
        self.total += change
        listener.connections += change
        if self._others is not None:
            self._others.set_own(ip, count)
            self._others.set_own(_BROKER, self.total, keeps_place=True)
            self._others.set_own(listener.name, listener.connections, keeps_place=True)

    def _has_room(self, listener_name: str, more: int) -> bool:
        """Return whether `more` connections are within the limits of broker and listener."""
        listener = self._listeners[listener_name]
        if (
            not self.is_protected(listener_name)
            and self._room(_BROKER, self.total, self._limits.max_connections) < more
        ):
            return False
        return self._room(listener.name, listener.connections, listener.max_connections) >= more

    def _room(self, name: str, here: int, most: int) -> int:
        """Return how many connections more a limit allows, here and in the other processes."""
        if self._others is None or most == UNLIMITED_CONNECTIONS:
            return most - here
        return most - here - self._others.count(name)

    def _most_of(self, ip: str) -> int:
        return self._overrides.get(ip, self._limits.max_connections_per_ip)

    def _record_ip(self, listener_name: str, ip: str, now_ms: int) -> int:
        """Record the connection on its address; a violation is taken back everywhere."""
        limit = self.ip_limit(ip)
        if limit == UNLIMITED_CONNECTIONS:
            return 0
        rate = self._ip_rate(ip, limit)
        throttle_ms = rate.decide(1.0, now_ms)
        if throttle_ms > 0:
            listener = self._listeners[listener_name]
            rate.record(-1.0, now_ms)
            listener.rate.record(-1.0, now_ms)
            if not self.is_protected(listener_name):
                self._broker_rate.record(-1.0, now_ms)
            listener.ip_throttle_time.record(float(throttle_ms), now_ms)
        return throttle_ms

    def _ip_rate(self, ip: str, limit: int) -> SampledRate:
        """Return the rate of an address with the limit that holds now, moved to the end of the order of use."""
        rate = self._ip_rates.pop(ip, None)
        if rate is not None:
            self._bring_up_to_date(rate, limit)
        else:
            rate = self._new_rate(ip, limit)
            if len(self._ip_rates) >= self._max_ip_rates:
                del self._ip_rates[next(iter(self._ip_rates))]
        self._ip_rates[ip] = rate
        return rate

    def _bring_up_to_date(self, rate: SampledRate, limit: int) -> None:
        """Set the limit of its address on a rate in use: a change of the limit for all addresses touches no rate."""
        if rate.bound != limit:
            self._configure(rate, limit)

    def _new_rate(self, name: str, limit: int) -> SampledRate:
        new: Callable[..., SampledRate]
        new = SampledRate if self._others is None else partial(self._others.rate, name)
        return new(
            samples=self._samples, window_ms=self._window_ms, bound=float(limit), cap_ms=self._window_ms
        )

    def _configure(self, rate: SampledRate, limit: int) -> None:
        rate.configure(
            samples=self._samples, window_ms=self._window_ms, bound=float(limit), cap_ms=self._window_ms
        )


def _given(own: int | None, broker: int) -> int:
    return broker if own is None else own
