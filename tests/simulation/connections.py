"""How many connections of a node there may be, and how fast they may come, as an onlooker counts them (B§6.9).

A listener that is protected does not ask the broker's limits, and other connections close for its sake.
"""

from collections import Counter, deque
from typing import TYPE_CHECKING

from tests.simulation.accounts import LeakingBucket, Window
from tests.simulation.clock import NS_PER_MS, VirtualClock
from tests.simulation.rules import Limits

if TYPE_CHECKING:
    from tests.simulation.auditor import Line

__all__ = ["Connections"]

ADMITTED_NS = 90_000 * NS_PER_MS
"""How long all others may take to be admitted before, at the lowest rate."""
PARKED_NS = 20_000 * NS_PER_MS


class Connections:
    """Those of one node. Each method that takes one returns what is wrong, if anything is."""

    def __init__(self, clock: VirtualClock, window: Window, limits: Limits, protected: str | None) -> None:
        self.open: dict[Line, None] = {}
        self.waiting: dict[Line, None] = {}
        self.limits = limits
        self.ip_rates: dict[str | None, float] = {}
        self._clock, self._window, self._protected = clock, window, protected
        self._by_host: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._full_ns = dict.fromkeys(limits.listeners, 0)
        self._taken_back: deque[int] = deque()
        self._arrivals: dict[str | None, LeakingBucket] = {}
        self._ip_arrivals: dict[str, LeakingBucket] = {}
        self._ip_rates_changed_ns = 0

    def follow(self, limits: Limits) -> None:
        """Follow changed limits."""
        self._look()
        self.limits = limits

    def set_ip_rate(self, name: str | None, rate: float | None) -> None:
        """Follow a quota of connections."""
        self._ip_rates_changed_ns = self._clock.ns
        self._ip_arrivals.clear()
        if rate is None:
            self.ip_rates.pop(name, None)
        else:
            self.ip_rates[name] = rate

    def on_admitted(self, line: "Line") -> str | None:
        """Count one more."""
        self._look()
        self.open[line] = self.waiting.pop(line, None)
        self._by_host[line.host] += 1
        self._by_listener[line.listener] += 1
        most, rate = self.limits.listeners[line.listener]
        now_ms, slack = self._clock.now_ms(), self._slack()
        if self._by_listener[line.listener] > most:
            return f"is one connection too many, {most} are allowed by {line.listener}"
        if line.listener != self._protected:
            if len(self.open) > self.limits.most:
                return f"is one connection too many, {self.limits.most} are allowed"
            if self._bucket(None, self.limits.rate).admit(1, now_ms) > slack:
                return f"is one connection too many at {self.limits.rate} a second"
        if self._bucket(line.listener, rate).admit(1, now_ms) > slack:
            return f"is one connection too many at {rate} a second by {line.listener}"
        if self._by_host[line.host] > self._most_of(line.host):
            return f"is one connection too many of its address, {self._most_of(line.host)} are allowed"
        ip_rate = self.ip_rates.get(line.host, self.ip_rates.get(None))
        if ip_rate is None:
            return None
        bucket = self._ip_arrivals.get(line.host)
        if bucket is None or bucket.bound != ip_rate:
            bucket = self._ip_arrivals[line.host] = LeakingBucket.of_samples(ip_rate, self._window, now_ms)
        return f"is one connection too many at {ip_rate} a second" if bucket.admit(1, now_ms) > 0 else None

    def on_closed(self, line: "Line") -> None:
        """Count one less."""
        self._look()
        self.waiting.pop(line, None)
        if line in self.open:
            del self.open[line]
            self._by_host[line.host] -= 1
            self._by_listener[line.listener] -= 1

    def refusal(self, line: "Line") -> str | None:
        """Return why a connection is not admitted; None: for no reason."""
        if self._by_host[line.host] >= self._most_of(line.host):
            return "refused"
        if self.ip_rates or self._clock.ns - self._ip_rates_changed_ns <= PARKED_NS:
            self._taken_back.append(self._clock.ns)
            return "parked"
        return None

    def is_excess(self, line: "Line") -> bool:
        """Return whether a connection may have to go for the sake of a protected one; it is gone already."""
        return line.listener != self._protected and len(self.open) >= self.limits.most

    def is_displaced(self, line: "Line") -> bool:
        """Return whether a connection may have made room for one of an address that has fewer; it is gone already."""
        most_of_listener, _ = self.limits.listeners[line.listener]
        same = [other for other in self.open if other.listener == line.listener]
        if len(same) >= most_of_listener - 1 and self._has_most(line, same):
            return True
        closable = [other for other in self.open if other.listener != self._protected]
        is_full = line.listener != self._protected and len(self.open) >= self.limits.most - 1
        return is_full and self._has_most(line, closable)

    def _has_most(self, line: "Line", others: "list[Line]") -> bool:
        counts = Counter(other.host for other in others)
        counts[line.host] += 1
        is_needed = any(counts[other.host] + 1 < counts[line.host] for other in self.waiting)
        return is_needed and counts[line.host] == max(counts.values())

    def surplus(self) -> "Line | None":
        """Return one that should have gone, as there are too many."""
        if len(self.open) <= self.limits.most:
            return None
        return next((line for line in self.open if line.listener != self._protected), None)

    def forgotten(self) -> "Line | None":
        """Return one that waits though there is room for it."""
        self._look()
        for line in self.waiting:
            since_ns = max(line.made_ns, self._full_ns[line.listener])
            if self._clock.ns - since_ns > ADMITTED_NS:
                return line
        return None

    def _most_of(self, host: str) -> int:
        return self.limits.overrides.get(host, self.limits.per_ip)

    def _look(self) -> None:
        """Note at which listeners there is no room; called before anything changes."""
        for name, (most, _) in self.limits.listeners.items():
            is_full = name != self._protected and len(self.open) >= self.limits.most
            if is_full or self._by_listener[name] >= most:
                self._full_ns[name] = self._clock.ns

    def _slack(self) -> int:
        """Return how many come in past a rate: one that each listener held, and what was taken back of others."""
        oldest_ns = (
            self._clock.ns - (self._window.samples + 2) * self._window.window_ms * NS_PER_MS - PARKED_NS
        )
        while self._taken_back and self._taken_back[0] < oldest_ns:
            self._taken_back.popleft()
        return len(self.limits.listeners) + len(self._taken_back)

    def _bucket(self, name: str | None, rate: int) -> LeakingBucket:
        bucket = self._arrivals.get(name)
        if bucket is None or bucket.bound != rate:
            bucket = self._arrivals[name] = LeakingBucket.of_samples(
                float(rate), self._window, self._clock.now_ms()
            )
        return bucket
