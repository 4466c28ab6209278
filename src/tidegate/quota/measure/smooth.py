"""The sensor of smooth mode: bytes from a token bucket in place of a sampled rate. Not Kafka's; off unless it is set.

A sampled rate lets a client use its quota for ten seconds at once, then makes it wait for the rest of the window. A
bucket holds one second's worth (`burst_s`): after a first burst each second carries about one quota, as long as
requests are no larger than a tenth of it.

Produced bytes are charged, and the client waits until the tokens are back at zero. Fetched bytes are known only after
the read: a fetch that finds tokens below zero is answered empty after that time; any other is charged and sent.

>>> mode = SmoothMode(burst_s=1, debt_max_s=0, observed=False)
>>> sensor = SmoothSensor("s", {}, window=QuotaWindow(), bound=1000.0, mode=mode, checks_first=False, now_ms=10_000)
>>> sensor.decide(1000.0, 10_000), sensor.decide(100.0, 10_000), sensor.decide(100.0, 10_100)
(0, 100, 100)
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.quota.measure.sensors import RateSensor, is_unlimited
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64, MIN_INT64, UNLIMITED
from tidegate.quota.measure.token_bucket import TokenBucket
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["BURST_WINDOW_MS", "SmoothMode", "SmoothSensor", "smooth_max_value"]

_FETCH_S = 0.1  # seconds' worth of a fetch
BURST_WINDOW_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SmoothMode:
    """Settings of a bucket: its burst and its largest debt, in seconds of its rate. A largest debt of 0 sets no bound.

    observed: the clients of the bucket are not throttled. Each request is decided as if the clients had waited for the
        throttle times of the requests before it.
    """

    burst_s: int
    debt_max_s: int
    observed: bool


def smooth_max_value(bound: float) -> float:
    """Return how many bytes a fetch may carry, if its first batch is not larger by itself."""
    return max(1.0, _FETCH_S * bound)


class SmoothSensor(RateSensor):
    """A bucket of bytes, and the rate of bytes for the metric. checks_first: decide before charging, as for fetches."""

    __slots__ = ("_bucket", "_checks_first", "_forgiven", "_mode")

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        *,
        window: QuotaWindow,
        bound: float,
        mode: SmoothMode,
        checks_first: bool,
        now_ms: int,
    ) -> None:
        super().__init__(name, tags, window=window, bound=bound, cap_ms=MAX_INT64, now_ms=now_ms)
        self._bucket = TokenBucket(samples=mode.burst_s, window_ms=BURST_WINDOW_MS, rate=bound)
        self._mode = mode
        self._checks_first = checks_first and not mode.observed
        self._forgiven = 0.0  # of the last charge

    @property
    def mode(self) -> SmoothMode | None:
        """Return the settings of the bucket."""
        return self._mode

    def set_bound(self, bound: float) -> None:
        """Set the bound; the tokens stay."""
        super().set_bound(bound)
        self._bucket.configure(samples=self._mode.burst_s, window_ms=BURST_WINDOW_MS, rate=bound)

    def record(self, value: float, now_ms: int) -> None:
        """Record `value`, unchecked; a negative one takes back the last charge, less what was forgiven of it."""
        super().record(value, now_ms)
        self._bucket.record(value if value >= 0.0 else min(value + self._forgiven, 0.0), now_ms)
        self._forgiven = 0.0

    def decide(self, value: float, now_ms: int) -> int:
        """Record `value` and return the throttle time in ms, at most the largest of 32 bits; 0 where nothing limits.

        A clock that stepped back takes tokens away, of an unlimited bucket too.
        """
        super().record(value, now_ms)
        bucket, mode = self._bucket, self._mode
        before_ms = bucket.throttle_ms(now_ms)
        bucket.record(value, now_ms)
        self._forgiven = bucket.forgive(mode.debt_max_s, now_ms) if mode.debt_max_s else 0.0
        throttle_ms = before_ms if self._checks_first else bucket.throttle_ms(now_ms)
        if mode.observed:
            self._forgiven += bucket.forgive(0, now_ms)
        return 0 if self.bound == UNLIMITED else min(throttle_ms, MAX_INT32)

    def is_over(self, now_ms: int) -> bool:
        """Return whether tokens are owed, without any effect."""
        return self._bucket.peek(now_ms) < 0.0

    def utilization(self, now_ms: int) -> float | None:
        """Return the share of the bucket that was used, above 1 where tokens are owed; None without a quota."""
        return None if is_unlimited(self.bound) else self._bucket.peek_used(now_ms)

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return the time in ms until no tokens are owed, without any effect."""
        is_free = self._mode.observed or is_unlimited(self.bound)
        return 0 if is_free else min(self._bucket.peek_throttle_ms(now_ms), MAX_INT32)

    def _take(self) -> None:
        """Copy the state that the kernel may have changed: every decision is made in this class."""
        super()._take()
        self.due_ms = MIN_INT64
