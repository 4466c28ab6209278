"""The average and the maximum over samples, for the metrics of throttle times.

It is a list of samples, as in Kafka, and every measurement reads all of them. A request that is throttled records one
value. Quotas use the rate of `tidegate.quota.measure.rate`.

>>> average = Avg(samples=2, window_ms=30_000)
>>> average.measure(0)
nan
>>> average.record(100.0, 0)
>>> average.record(200.0, 10)
>>> average.measure(59_999)
150.0

Follows: Kafka `SampledStat`, `Avg`, `Max` (B§1.3).
Differs: no limit on the events of a sample, as no quota sets one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

__all__ = ["Avg", "Max", "Sample", "SampledStat"]


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
                # Measuring has this effect in Kafka, too: the sample starts now, and stays in use (B§1.3).
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
        # n + 1 samples, as since Kafka 3.8 (B§1.3).
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


class Avg(SampledStat):
    """The mean of what was recorded, NaN when that is nothing."""

    def _combine(self, now_ms: int) -> float:
        events = self._events()
        return super()._combine(now_ms) / events if events else math.nan


class Max(SampledStat):
    """The largest value that was recorded, NaN when that is nothing."""

    INITIAL = -math.inf

    def _add(self, sample: Sample, value: float) -> None:
        sample.value = max(sample.value, float(value))

    def _combine(self, now_ms: int) -> float:
        return max(sample.value for sample in self._samples) if self._events() else math.nan
