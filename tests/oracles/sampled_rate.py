"""A straightforward port of Kafka's `SampledStat` with a sum, `Rate`, and the throttle time of a violation.

Written from B§1.3–1.4 and 2.1, sample by sample and without any of the engine's short cuts.
"""

import math
from dataclasses import dataclass

__all__ = ["PortedRate", "java_int", "java_round"]


@dataclass
class _Sample:
    value: float
    start: int
    last_event: int

    def reset(self, now: int) -> None:
        self.value, self.start, self.last_event = 0.0, now, now


class PortedRate:
    """What `tidegate.quota.measure.rate.SampledRate` must equal."""

    def __init__(self, *, samples: int, window_ms: int, bound: float, cap_ms: int | None = None) -> None:
        self.n, self.w, self.bound, self.cap_ms = samples, window_ms, bound, cap_ms
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now: int) -> None:
        """Record, unchecked."""
        if not self._samples:
            self._samples.append(_Sample(0.0, now, now))
        sample = self._samples[self._current]
        if now - sample.start >= self.w:
            self._current = (self._current + 1) % (self.n + 1)
            if self._current >= len(self._samples):
                self._samples.append(_Sample(0.0, now, now))
            else:
                self._samples[self._current].reset(now)
            sample = self._samples[self._current]
        sample.value += value
        sample.last_event = now

    def measure(self, now: int) -> float:
        """Purge, add up, divide by the window."""
        self._purge(now)
        total = 0.0
        for sample in self._samples:
            total += sample.value
        return total / (self.window_ms(now) / 1000.0)

    def window_ms(self, now: int) -> int:
        """Return the age of the oldest sample, padded to n - 1 whole windows."""
        self._purge(now)
        if not self._samples:
            self._samples.append(_Sample(0.0, now, now))
        elapsed = now - min(sample.start for sample in self._samples)
        full = java_int(math.trunc(elapsed / self.w) if abs(elapsed) < 2**52 else elapsed // self.w)
        if full < self.n - 1:
            elapsed += java_int(self.n - 1 - full) * self.w
        return max(elapsed, 1)

    def decide(self, value: float, now: int) -> int:
        """Record, check, and return the throttle time of a violation as a Java int, 0 if there is none."""
        self.record(value, now)
        rate = self.measure(now)
        if rate <= self.bound:
            return 0
        throttle = java_round(_java_divide(rate - self.bound, self.bound) * self.window_ms(now))
        if self.cap_ms is not None:
            throttle = min(throttle, self.cap_ms)
        return java_int(throttle)

    def last_event(self) -> int | None:
        """Return when there was a record last, or a purge."""
        return max((sample.last_event for sample in self._samples), default=None)

    def _purge(self, now: int) -> None:
        for sample in self._samples:
            if now - sample.last_event >= self.n * self.w:
                sample.reset(now)


def java_int(value: int) -> int:
    """Narrow a long to an int."""
    return (value + 2**31) % 2**32 - 2**31


def java_round(value: float) -> int:
    """`Math.round`: the floor of the exact sum of `value` and one half, within a long."""
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return 2**63 - 1 if value > 0 else -(2**63)
    numerator, denominator = value.as_integer_ratio()
    return max(-(2**63), min(2**63 - 1, (2 * numerator + denominator) // (2 * denominator)))


def _java_divide(dividend: float, divisor: float) -> float:
    if divisor != 0:
        return dividend / divisor
    if dividend == 0 or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)
