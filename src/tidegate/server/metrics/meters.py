"""Numbers of Kafka's Yammer metrics: a meter's rates, and what a histogram says of a sample.

>>> meter = Meter(now_ns=0)
>>> meter.tick(2)
>>> dict(meter.numbers(2, now_ns=10 * 10**9))["OneMinuteRate"]
0.4
>>> dict(summary([0, 0, 0, 0, 1040, 12180]))["75thPercentile"]
3825.0

Follows: Yammer `Meter`, `EWMA`, `Histogram`, `Snapshot` 2.2 (B§12.2).
"""

import math
from collections.abc import Iterator, Sequence

__all__ = [
    "HISTOGRAM_NUMBERS",
    "METER_NUMBERS",
    "TICK_S",
    "Meter",
    "percentiles",
    "standard_deviation",
    "summary",
]

TICK_S = 5.0
METER_NUMBERS = ("Count", "MeanRate", "OneMinuteRate", "FiveMinuteRate", "FifteenMinuteRate")
_DECAYS = tuple(1 - math.exp(-TICK_S / 60.0 / minutes) for minutes in (1, 5, 15))
_NS_PER_S = 1_000_000_000
_TICK_NS = TICK_S * _NS_PER_S
_PERCENTILES = (
    ("50thPercentile", 0.5),
    ("75thPercentile", 0.75),
    ("95thPercentile", 0.95),
    ("98thPercentile", 0.98),
    ("99thPercentile", 0.99),
    ("999thPercentile", 0.999),
)
HISTOGRAM_NUMBERS = ("Count", "Min", "Max", "Mean", "StdDev", *(name for name, _ in _PERCENTILES))


class Meter:
    """Rates of a count that is kept elsewhere: the mean since the beginning, and three that decay.

    unit_ns: of what time the rates are, a second unless given.
    """

    __slots__ = ("_begun_ns", "_counted", "_rates", "_unit_ns")

    def __init__(self, *, now_ns: int, unit_ns: int = _NS_PER_S) -> None:
        self._begun_ns = now_ns
        self._unit_ns = unit_ns
        self._counted = 0
        self._rates: list[float] | None = None

    def tick(self, count: int) -> None:
        """Update the rates with the current `count`; call it every `TICK_S`."""
        now = (count - self._counted) / _TICK_NS
        self._counted = count
        if self._rates is None:
            self._rates = [now] * len(_DECAYS)
        else:
            self._rates = [
                rate + decay * (now - rate) for rate, decay in zip(self._rates, _DECAYS, strict=True)
            ]

    def per_unit(self) -> list[float]:
        """Return the rates over one, five and fifteen minutes; 0.0 before the first tick."""
        rates = self._rates or [0.0] * len(_DECAYS)
        return [rate * self._unit_ns for rate in rates]

    def numbers(self, count: int, *, now_ns: int) -> Iterator[tuple[str, float]]:
        """Yield the meter's numbers by name, `count` being what it has come to."""
        elapsed_ns = now_ns - self._begun_ns
        mean = count / elapsed_ns * self._unit_ns if count and elapsed_ns > 0 else 0.0
        yield from zip(METER_NUMBERS, (float(count), mean, *self.per_unit()), strict=True)


def summary(values: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a histogram over all of `values`, but for `Count`; 0.0 where there are none."""
    count, total = len(values), sum(values)
    yield "Min", float(min(values, default=0))
    yield "Max", float(max(values, default=0))
    yield "Mean", total / count if count else 0.0
    yield "StdDev", standard_deviation(count, total, sum(value * value for value in values))
    yield from percentiles(values)


def standard_deviation(count: int, total: int, squares: int) -> float:
    """Return that of a sample with so many values, their sum and the sum of their squares."""
    return math.sqrt(max(squares - total * total / count, 0.0) / (count - 1)) if count > 1 else 0.0


def percentiles(values: Sequence[int]) -> Iterator[tuple[str, float]]:
    """Yield the percentiles of `values` by name, between two neighbours where they fall there."""
    ordered = sorted(values)
    count = len(ordered)
    for name, share in _PERCENTILES:
        position = share * (count + 1)
        if not count:
            value = 0.0
        elif position < 1:
            value = float(ordered[0])
        elif position >= count:
            value = float(ordered[-1])
        else:
            below, above = ordered[int(position) - 1], ordered[int(position)]
            value = below + (position - math.floor(position)) * (above - below)
        yield name, value
