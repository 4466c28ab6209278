"""Statistics over samples other than the rate of a quota: average, maximum, sum, count and the simple rate.

They are as Kafka keeps them and as plain as that: a list of samples, looked through at every reading. Only
`Avg` is on the way of a request, once per throttled one. The rate that decides is `tidegate.quota.measure.rate`.

>>> average = Avg(samples=2, window_ms=30_000)
>>> average.measure(0)
nan
>>> average.record(100.0, 0)
>>> average.record(200.0, 10)
>>> average.measure(59_999)
150.0

Follows: Kafka `SampledStat`, `Avg`, `Max`, `WindowedSum`, `WindowedCount`, `SimpleRate` (B§1.3, 1.5).
Differs: no limit on the events of a sample, as no quota sets one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from tidegate.quota.measure.throttle import MS_PER_S

__all__ = ["Avg", "Max", "SampledStat", "SimpleRate", "WindowedCount", "WindowedSum"]


@dataclass(slots=True)
class Sample:
    """The values recorded in one window, combined."""

    value: float
    events: int
    start_ms: int
    last_ms: int


class SampledStat:
    """A list of up to n + 1 samples; subclasses say how a value is added and how samples are combined."""

    INITIAL: ClassVar[float] = 0.0

    def __init__(self, *, samples: int, window_ms: int) -> None:
        self._samples: list[Sample] = []
        self._current = 0
        self.configure(samples=samples, window_ms=window_ms)

    def configure(self, *, samples: int, window_ms: int) -> None:
        """Set number and span of the samples; those that exist stay."""
        self.samples, self.window_ms = samples, window_ms

    def record(self, value: float, now_ms: int) -> None:
        """Record `value`."""
        sample = self._sample(now_ms)
        if now_ms - sample.start_ms >= self.window_ms:
            sample = self._advance(now_ms)
        self._add(sample, value)
        sample.events += 1
        sample.last_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """Return the combined value; samples whose last event is n windows ago begin anew."""
        for sample in self._samples:
            if now_ms - sample.last_ms >= self.samples * self.window_ms:
                self._restart(sample, now_ms)
        return self._combine(now_ms)

    def peek(self, now_ms: int) -> float:
        """Return what `measure` would return, without any effect."""
        kept = self._samples
        self._samples = [Sample(s.value, s.events, s.start_ms, s.last_ms) for s in kept]
        value = self.measure(now_ms)
        self._samples = kept
        return value

    def _sample(self, now_ms: int) -> Sample:
        if not self._samples:
            self._samples.append(Sample(self.INITIAL, 0, now_ms, now_ms))
        return self._samples[self._current]

    def _advance(self, now_ms: int) -> Sample:
        self._current = (self._current + 1) % (self.samples + 1)
        if self._current >= len(self._samples):
            self._samples.append(Sample(self.INITIAL, 0, now_ms, now_ms))
        else:
            self._restart(self._samples[self._current], now_ms)
        return self._samples[self._current]

    def _restart(self, sample: Sample, now_ms: int) -> None:
        sample.value, sample.events = self.INITIAL, 0
        sample.start_ms = sample.last_ms = now_ms

    def _add(self, sample: Sample, value: float) -> None:
        sample.value += value

    def _combine(self, now_ms: int) -> float:
        total = 0.0
        for sample in self._samples:
            total += sample.value
        return total

    def _events(self) -> int:
        return sum(sample.events for sample in self._samples)


class WindowedSum(SampledStat):
    """The sum of what was recorded."""


class WindowedCount(WindowedSum):
    """The number of values recorded."""

    def _add(self, sample: Sample, value: float) -> None:
        sample.value += 1.0


class Avg(SampledStat):
    """The mean of what was recorded, NaN when that is nothing."""

    def _combine(self, now_ms: int) -> float:
        events = self._events()
        return super()._combine(now_ms) / events if events else math.nan


class Max(SampledStat):
    """The largest value recorded, NaN when there is none."""

    INITIAL: ClassVar[float] = -math.inf

    def _add(self, sample: Sample, value: float) -> None:
        sample.value = _larger(sample.value, value)

    def _combine(self, now_ms: int) -> float:
        largest = self.INITIAL
        for sample in self._samples:
            largest = _larger(largest, sample.value)
        return largest if self._events() else math.nan


class SimpleRate(SampledStat):
    """The sum per second of the time since the oldest sample began, at least one window (replication quotas)."""

    def measure_window_ms(self, now_ms: int) -> int:
        """Return the window in ms that the sum is divided by, when `measure` was just called at `now_ms`."""
        self._sample(now_ms)
        return max(now_ms - min(sample.start_ms for sample in self._samples), self.window_ms)

    def _combine(self, now_ms: int) -> float:
        return super()._combine(now_ms) / (self.measure_window_ms(now_ms) / MS_PER_S)


def _larger(left: float, right: float) -> float:
    """Return the larger number, NaN if either is. Follows: Java `Math.max`."""
    if left != left or left > right:
        return left
    return right
