"""Metrics of connections, bytes and time: Kafka's metrics of a network thread, its memory and its idleness.

All listeners share one thread, the event loop's: `networkProcessor` is 0, and it is idle while the thread takes no
processor time. The parts that count keep the totals; rates cover the last minute, or the time since the start.

Follows: Kafka `Selector.SelectorMetrics`, `SocketServer`, `KafkaRequestHandlerPool` (B§12.4).
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain

from tidegate.clock import Clock
from tidegate.quota import REGISTRY_WINDOW, Metric
from tidegate.quota.connections.connection_quotas import CONNECTION_METRICS
from tidegate.server.connection.request_memory import RequestMemory
from tidegate.server.metrics.meters import TICK_S, Meter
from tidegate.server.requests.front import Front
from tidegate.wire.encoded import LENGTH_BYTES

__all__ = ["NetworkMetrics"]

_WINDOW_MS = REGISTRY_WINDOW.samples * REGISTRY_WINDOW.window_ms
_TICKS_KEPT = int(_WINDOW_MS / 1000 / TICK_S) + 1
_NS_PER_S = 1e9
_NS_PER_MS = 1e6
_OF_LISTENER = (
    "connection-creation",
    "connection-close",
    "incoming-byte",
    "outgoing-byte",
    "request",
    "response",
    "successful-authentication",
    "failed-authentication",
    "successful-reauthentication",
    "failed-reauthentication",
)
_SELECT, _IO_TIME, _DEPLETED_TIME = ("", "select"), ("", "io-time-ns"), ("", "MemoryPoolDepletedTime")

_Key = tuple[str, str]
"""A listener, or nothing, and what is counted of it."""


class NetworkMetrics:
    """Totals of one node, and their rates.

    thread_time_ns: the processor time of the loop's thread.
    """

    def __init__(
        self,
        front: Front,
        memory: RequestMemory,
        *,
        clock: Clock,
        thread_time_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._front = front
        self._memory = memory
        self._clock = clock
        self._thread_time_ns = thread_time_ns
        self._begun_ns, self._begun_thread_ns = clock.monotonic_ns(), thread_time_ns()
        self._handler_idle = Meter(now_ns=self._begun_ns, unit_ns=1)
        self._earlier = deque([(clock.now_ms(), self._totals())], maxlen=_TICKS_KEPT)

    def tick(self) -> None:
        """Record the current totals; call it every `tidegate.server.metrics.meters.TICK_S`."""
        self._earlier.append((self._clock.now_ms(), self._totals()))
        self._handler_idle.tick(self._handler_idle_ns())

    def metrics(self, now_ms: int) -> Iterator[Metric]:
        """Yield the metrics without any effect. Call it on the loop's thread."""
        totals = self._totals()
        rates = self._rates(totals, now_ms)
        for listener in self._front.requests.listeners:
            tags = {"listener": listener, "networkProcessor": "0"}
            for name, value in chain(
                self._of_listener(listener, totals, rates), self._of_thread(totals, rates)
            ):
                yield Metric(group=CONNECTION_METRICS, name=name, tags=tags, value=value)
        for name, value in (
            ("MemoryPoolDepletedTimeTotal", totals[_DEPLETED_TIME] / _NS_PER_MS),
            ("MemoryPoolAvgDepletedPercent", rates[_DEPLETED_TIME] / _NS_PER_S),
        ):
            yield Metric(group=CONNECTION_METRICS, name=name, tags={}, value=value)
        for name, value in (
            ("ExpiredConnectionsKilledCount", float(self._expired())),
            ("MemoryPoolAvailable", float(self._memory.available_bytes)),
            ("MemoryPoolUsed", float(self._memory.granted_bytes)),
            ("NetworkProcessorAvgIdlePercent", _idle_share(rates[_IO_TIME])),
        ):
            yield Metric(group="SocketServer", name=name, tags={}, value=value)
        yield Metric(
            group="RequestChannel", name="RequestQueueSize", tags={}, value=float(self._front.waiting)
        )
        now_ns = self._clock.monotonic_ns()
        for name in ("RequestHandlerAvgIdlePercent", "BrokerRequestHandlerAvgIdlePercent"):
            for attribute, value in self._handler_idle.numbers(self._handler_idle_ns(), now_ns=now_ns):
                yield Metric(
                    group="KafkaRequestHandlerPool", name=name, tags={}, value=value, attribute=attribute
                )

    def _of_listener(
        self, listener: str, totals: dict[_Key, int], rates: dict[_Key, float]
    ) -> Iterator[tuple[str, float]]:
        """Yield name and value of what the connections of a listener bring."""
        counts = self._front.requests.listeners[listener]
        for name in _OF_LISTENER:
            yield f"{name}-total", float(totals[listener, name])
            yield f"{name}-rate", rates[listener, name]
        yield "successful-authentication-no-reauth-total", float(counts.logins_without_relogin)
        yield "connection-count", float(counts.created - counts.closed)
        yield "expired-connections-killed-count", float(counts.expired)
        yield "request-size-avg", _mean(rates[listener, "outgoing-byte"], rates[listener, "request"])

    def _of_thread(self, totals: dict[_Key, int], rates: dict[_Key, float]) -> Iterator[tuple[str, float]]:
        """Yield name and value of what the thread does; it is the same for all listeners."""
        io_ns, idle_share = rates[_IO_TIME], _idle_share(rates[_IO_TIME])
        yield "select-total", float(totals[_SELECT])
        yield "select-rate", rates[_SELECT]
        yield "io-time-ns-total", float(totals[_IO_TIME])
        yield "io-time-ns-avg", _mean(io_ns, rates[_SELECT])
        yield "io-ratio", 1.0 - idle_share
        yield "io-wait-time-ns-total", float(max(self._elapsed_ns() - totals[_IO_TIME], 0))
        yield "io-wait-time-ns-avg", _mean(idle_share * _NS_PER_S, rates[_SELECT])
        yield "io-wait-ratio", idle_share

    def _totals(self) -> dict[_Key, int]:
        """Return what was counted so far."""
        totals: dict[_Key, int] = {}
        for listener, counts in self._front.requests.listeners.items():
            answers = counts.requests - counts.unanswered
            of_listener = {
                "connection-creation": counts.created,
                "connection-close": counts.closed,
                "incoming-byte": counts.request_bytes + LENGTH_BYTES * counts.requests,
                "outgoing-byte": counts.response_bytes + LENGTH_BYTES * answers,
                # Kafka's names are those of a client: what it calls requests are the answers that were sent.
                "request": answers,
                "response": counts.requests,
                "successful-authentication": counts.logins,
                "failed-authentication": counts.failed_logins,
                "successful-reauthentication": counts.relogins,
                "failed-reauthentication": counts.failed_relogins,
            }
            totals |= {(listener, name): total for name, total in of_listener.items()}
        return totals | {
            _SELECT: self._front.turns,
            _IO_TIME: self._thread_time_ns() - self._begun_thread_ns,
            _DEPLETED_TIME: self._memory.depleted_ns,
        }

    def _expired(self) -> int:
        return sum(counts.expired for counts in self._front.requests.listeners.values())

    def _rates(self, totals: dict[_Key, int], now_ms: int) -> dict[_Key, float]:
        """Return how much a second `totals` have grown; a fresh node's divides by a whole sample, as Kafka's do."""
        earlier_ms, earlier = self._earlier[0]
        seconds = max(now_ms - earlier_ms, REGISTRY_WINDOW.window_ms) / 1000
        return {name: (total - earlier[name]) / seconds for name, total in totals.items()}

    def _elapsed_ns(self) -> int:
        return self._clock.monotonic_ns() - self._begun_ns

    def _handler_idle_ns(self) -> int:
        """Return how long no handler was at work."""
        busy_ns = sum(counts.handler_ns for counts in self._front.requests.all_counts())
        return max(self._elapsed_ns() - busy_ns, 0)


def _idle_share(io_ns_per_s: float) -> float:
    return max(1.0 - io_ns_per_s / _NS_PER_S, 0.0)


def _mean(total: float, count: float) -> float:
    """Return the mean of what two rates of one window have counted; NaN where that is nothing."""
    return total / count if count else float("nan")
