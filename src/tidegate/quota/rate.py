"""The sampled rate: what every rate quota is measured with, as an object.

>>> rate = SampledRate(samples=11, window_ms=1000, bound=2.0)
>>> rate.decide(30.0, 0)
5000
>>> rate.peek(11_000)
0.0

Follows: Kafka `Rate`, `SampledStat` (B§1.3–1.4); the rules are in `tidegate.quota.rate_kernel`.
"""

from tidegate.quota.rate_kernel import (
    BOUND,
    CAP_MS,
    FLOAT_SLOTS,
    INT_SLOTS,
    rate_configure,
    rate_decide,
    rate_last_record_ms,
    rate_measure,
    rate_peek,
    rate_record,
    rate_state,
    rate_window_ms,
)
from tidegate.quota.throttle import MAX_INT64, UNLIMITED

__all__ = ["SampledRate"]


class SampledRate:
    """A rate per second over n windows, with a bound."""

    __slots__ = ("floats", "ints")

    def __init__(
        self, *, samples: int, window_ms: int, bound: float = UNLIMITED, cap_ms: int = MAX_INT64
    ) -> None:
        self.floats, self.ints = rate_state(samples)
        self.configure(samples=samples, window_ms=window_ms, bound=bound, cap_ms=cap_ms)

    def configure(self, *, samples: int, window_ms: int, bound: float, cap_ms: int = MAX_INT64) -> None:
        """Set bound and windows. What was recorded stays and counts under the new ones."""
        missing = samples + 1 - (len(self.floats) - FLOAT_SLOTS)
        self.floats.extend([0.0] * missing)
        self.ints.extend([0] * (2 * missing))
        assert len(self.ints) - INT_SLOTS == 2 * (len(self.floats) - FLOAT_SLOTS)
        rate_configure(self.floats, self.ints, bound, samples, window_ms, cap_ms)

    @property
    def bound(self) -> float:
        """The quota, per second."""
        return self.floats[BOUND]

    @property
    def cap_ms(self) -> int:
        """The most that a throttle time may be."""
        return self.ints[CAP_MS]

    def record(self, value: float, now_ms: int) -> None:
        """Record `value`, unchecked."""
        rate_record(self.floats, self.ints, value, now_ms)

    def decide(self, value: float, now_ms: int) -> int:
        """Record `value` and return the throttle time in ms as a 32-bit number; 0 while within the bound."""
        return rate_decide(self.floats, self.ints, value, now_ms)

    def measure(self, now_ms: int) -> float:
        """Return the rate as Kafka measures it, which changes later rates; for scrapes there is `peek`."""
        return rate_measure(self.floats, self.ints, now_ms)

    def window_ms(self, now_ms: int) -> int:
        """Return the window in ms that the rate is divided by; forgets samples as `measure` does."""
        return rate_window_ms(self.floats, self.ints, now_ms)

    def peek(self, now_ms: int) -> float:
        """Return what `measure` would return, without any effect."""
        return rate_peek(self.floats, self.ints, now_ms)

    def last_record_ms(self) -> int:
        """Return when a value was last recorded, or `LONG_AGO_MS` if never."""
        return rate_last_record_ms(self.ints)
