"""The sampled rate: what every rate quota is measured with, as an object.

>>> rate = SampledRate(samples=11, window_ms=1000, bound=2.0)
>>> rate.decide(30.0, 0)
5000
>>> rate.peek(11_000)
0.0

Follows: Kafka `Rate`, `SampledStat` (B§1.3–1.4); the rules are in `tidegate.quota.measure.rate_kernel`.
"""

from tidegate.quota.measure.rate_kernel import (
    BOUND,
    CAP_MS,
    DUE,
    FLOAT_SLOTS,
    LAST,
    ROOM,
    SAMPLES,
    SUM,
    WINDOW_MS,
    rate_configure,
    rate_decide,
    rate_last_record_ms,
    rate_measure,
    rate_peek,
    rate_record,
    rate_state,
    rate_verdict,
    rate_window_ms,
)
from tidegate.quota.measure.throttle import MAX_INT64, UNLIMITED

__all__ = ["SampledRate"]


class SampledRate:
    """A rate per second over n windows, with a bound.

    While nothing is due and there is room, a decision needs four numbers only; they are kept here, outside of the
    kernel's rows, close to one another: over thousands of clients a decision costs what it reads from memory.

    due_ms, last_ms, total, room: `DUE`, `LAST`, `SUM` and `ROOM` of `tidegate.quota.measure.rate_kernel`.
    """

    __slots__ = ("_floats", "_ints", "due_ms", "last_ms", "room", "total")

    due_ms: int
    last_ms: int
    room: float
    total: float

    def __init__(
        self, *, samples: int, window_ms: int, bound: float = UNLIMITED, cap_ms: int = MAX_INT64
    ) -> None:
        self._floats, self._ints = rate_state(samples)
        self._take()
        self.configure(samples=samples, window_ms=window_ms, bound=bound, cap_ms=cap_ms)

    def configure(self, *, samples: int, window_ms: int, bound: float, cap_ms: int = MAX_INT64) -> None:
        """Set bound and windows. What was recorded stays and counts under the new ones."""
        missing = samples + 1 - (len(self._floats) - FLOAT_SLOTS)
        self._floats.extend([0.0] * missing)
        self._ints.extend([0] * (2 * missing))
        rate_configure(*self._give(), bound, samples, window_ms, cap_ms)
        self._take()

    def set_bound(self, bound: float) -> None:
        """Set the bound; what was recorded stays."""
        floats, ints = self._give()
        rate_configure(floats, ints, bound, ints[SAMPLES], ints[WINDOW_MS], ints[CAP_MS])
        self._take()

    @property
    def bound(self) -> float:
        """The quota, per second."""
        return self._floats[BOUND]

    def record(self, value: float, now_ms: int) -> None:
        """Record `value`, unchecked."""
        if now_ms >= self.due_ms:
            rate_record(*self._give(), value, now_ms)
            self._take()
        else:
            self.last_ms = now_ms
            self.total += value

    def decide(self, value: float, now_ms: int) -> int:
        """Record `value` and return the throttle time in ms as a 32-bit number; 0 while within the bound."""
        if now_ms >= self.due_ms:
            throttle_ms = rate_decide(*self._give(), value, now_ms)
            self._take()
            return throttle_ms
        self.last_ms = now_ms
        self.total = total = self.total + value
        if total <= self.room:
            return 0
        floats = self._floats
        floats[SUM] = total  # all that a verdict reads of what `_give` would bring up to date
        return rate_verdict(floats, self._ints, now_ms)

    def measure(self, now_ms: int) -> float:
        """Return the rate as Kafka measures it, which changes later rates; for scrapes there is `peek`."""
        rate = rate_measure(*self._give(), now_ms)
        self._take()
        return rate

    def window_ms(self, now_ms: int) -> int:
        """Return the window in ms that the rate is divided by; forgets samples as `measure` does."""
        window_ms = rate_window_ms(*self._give(), now_ms)
        self._take()
        return window_ms

    def peek(self, now_ms: int) -> float:
        """Return what `measure` would return, without any effect."""
        return rate_peek(*self._give(), now_ms)

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return the throttle time in ms of a decision that charges nothing now, without any effect."""
        floats, ints = self._give()
        return max(rate_decide([*floats], [*ints], 0.0, now_ms), 0)

    def last_record_ms(self) -> int:
        """Return when a value was last recorded, or `LONG_AGO_MS` if never."""
        return rate_last_record_ms(self._give()[1])

    def _give(self) -> tuple[list[float], list[int]]:
        """Return the kernel's rows, brought up to date."""
        floats, ints = self._floats, self._ints
        floats[SUM] = self.total
        ints[LAST] = self.last_ms
        return floats, ints

    def _take(self) -> None:
        """Read the values that the kernel may have changed."""
        self.total, self.room = self._floats[SUM], self._floats[ROOM]
        self.due_ms, self.last_ms = self._ints[DUE], self._ints[LAST]
