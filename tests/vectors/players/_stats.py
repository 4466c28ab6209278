"""Kafka's statistics that Tidegate does not use: maximum, sum, count and the rate of replication quotas.

Their vectors hold `SampledStat`, the samples behind `Avg`.

Follows: Kafka `Max`, `WindowedSum`, `WindowedCount`, `SimpleRate` (B§1.5).
"""

import math
from typing import ClassVar

from tidegate.quota.measure.stats import Sample, SampledStat

__all__ = ["Max", "SimpleRate", "WindowedCount", "WindowedSum"]

_MS_PER_S = 1000.0


class WindowedSum(SampledStat):
    """The sum of the recorded values."""


class WindowedCount(WindowedSum):
    """The number of recorded values."""

    def _add(self, sample: Sample, value: float) -> None:
        sample.value += 1.0


class Max(SampledStat):
    """The largest recorded value, NaN without any."""

    INITIAL: ClassVar[float] = -math.inf

    def _add(self, sample: Sample, value: float) -> None:
        sample.value = _larger(sample.value, value)

    def _combine(self, now_ms: int) -> float:
        largest = self.INITIAL
        for sample in self._samples:
            largest = _larger(largest, sample.value)
        return largest if self._events() else math.nan


class SimpleRate(SampledStat):
    """The sum per second of the time since the oldest sample began, at least one window."""

    def measure_window_ms(self, now_ms: int) -> int:
        """Return the window in ms that the sum is divided by. Call it after `measure` at the same time."""
        self._sample(now_ms)
        return max(now_ms - min(sample.start_ms for sample in self._samples), self.window_ms)

    def _combine(self, now_ms: int) -> float:
        return super()._combine(now_ms) / (self.measure_window_ms(now_ms) / _MS_PER_S)


def _larger(left: float, right: float) -> float:
    """Return the larger number, NaN if either is. Follows: Java `Math.max`."""
    if left != left or left > right:
        return left
    return right
