"""The sensor of a cluster-wide quota: one limit for several sensors, at other brokers and in other processes.

Each sensor counts the usage of its own clients. A few times a second it is given the rate of the other sensors
(`set_share`), which counts as if its own clients had used it: a client is throttled as one Kafka broker with the limit
would throttle it for all usage. The unused part of the limit is divided between the sensors by demand, so that several
sensors do not use it before they hear of one another.

With own rate O and rate E of the others when the share was set, limit T and the part w of the unused rate:

    share = O + w * (T - O - E)    if T > O + E
    share = T - E                  otherwise
    throttle time = (rate - share) / T * W

>>> from tidegate.quota.measure.throttle import MAX_INT32
>>> sensor = ClusterSensor(
...     "s", {}, window=QuotaWindow(), bound=1000.0, cap_ms=MAX_INT32, key="k", checks_first=False,
...     follow=lambda sensor, now_ms: None, now_ms=0)
>>> sensor.set_share(own=0.0, others=600.0, part=0.5)
>>> sensor.share, sensor.decide(2000.0, 0), sensor.decide(3000.0, 0)
(200.0, 0, 3000)

Not Kafka's, whose quotas are per broker (KIP-13). The only sensor of a limit decides as `RateSensor` does.
"""

import sys
from collections.abc import Callable, Mapping

from tidegate.quota.measure.rate_kernel import SAMPLES, WINDOW_MS, rate_peek, rate_window_ms
from tidegate.quota.measure.sensors import RateSensor, is_unlimited
from tidegate.quota.measure.throttle import MAX_INT32, round_half_up, share_used
from tidegate.quota.measure.window import QuotaWindow

__all__ = ["ClusterSensor", "share_of_limit"]

RECENT_SAMPLES = 2
"""Windows that the demand is measured over: long enough for a client that sends once a second."""
LARGEST_GAP = 0.1
"""The part of the limit that may stay unused because a fetch is too large for it."""
SMALLEST_FETCH_S = 0.1
"""Seconds' worth of the limit that a fetch may carry where its sensor has less room, as in smooth mode."""


def share_of_limit(*, limit: float, own: float, others: float, part: float, pace: float) -> float:
    """Return the rate above which a sensor throttles its clients, per second.

    own, others: the rate of this sensor, and of the others. part: the part of the unused rate for this sensor.
    pace: the part of an excess that this sensor answers for.

    >>> share_of_limit(limit=100.0, own=10.0, others=30.0, part=0.5, pace=0.5)
    40.0
    >>> share_of_limit(limit=100.0, own=10.0, others=120.0, part=0.1, pace=0.5)
    -5.0
    """
    unused = limit - own - others
    return own + (part if unused > 0.0 else pace) * unused


class ClusterSensor(RateSensor):
    """A rate that shares its limit with other sensors.

    key: the name of the limit, the same for all its sensors. follow: called with the sensor and the time when the
    sensor is used while `is_followed` is false. checks_first: decide by the rate before the request. A fetch of a
    client over its quota is answered empty and not charged, so the rate after it would keep out large batches.
    is_of_broker: the limit is that of one broker, which several processes serve.
    """

    __slots__ = (
        "_cap_ms", "_checks_first", "_divisor", "_follow", "_limit", "_others", "_own", "_pace", "_part",
        "_refused",
        "is_followed", "is_of_broker", "key",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        *,
        window: QuotaWindow,
        bound: float,
        cap_ms: int,
        key: str,
        checks_first: bool,
        follow: Callable[["ClusterSensor", int], None],
        now_ms: int,
    ) -> None:
        self._limit = bound
        self._own, self._others, self._part = 0.0, 0.0, 1.0
        self._pace, self._divisor = 1.0, 1
        super().__init__(name, tags, window=window, bound=bound, cap_ms=cap_ms, now_ms=now_ms)
        self._cap_ms = cap_ms
        self._checks_first = checks_first
        self._follow = follow
        self._refused = 0.0
        self.key = key
        self.is_followed = False
        self.is_of_broker = False

    @property
    def bound(self) -> float:
        """The limit of all sensors together, per second."""
        return self._limit

    @property
    def share(self) -> float:
        """The rate above which this sensor throttles its clients, per second; negative if the others use too much."""
        return super().bound

    def set_bound(self, bound: float) -> None:
        """Set the limit of all sensors together; what was recorded stays."""
        self._limit = bound
        self._update_share()

    def set_share(
        self, *, own: float, others: float, part: float, pace: float = 1.0, divisor: int = 1
    ) -> None:
        """Set the rate of the other sensors and the part of the unused rate, from 0 to 1.

        own: the rate of this sensor at the same time. pace: the part of the limit, above 0 and at most 1, to which the
        throttle times of new requests lower the rate until the next call. divisor: the number of processes that each
        have an equal part of the limit, because their usage is not available.
        """
        self._own, self._others, self._part = own, others, part
        self._pace, self._divisor = pace, divisor
        self._update_share()

    def record(self, value: float, now_ms: int) -> None:
        """Record `value`, unchecked; a negative one takes back a charge, which stays part of the demand."""
        self._be_followed(now_ms)
        if value < 0.0:
            self._refused -= value
        super().record(value, now_ms)

    def decide(self, value: float, now_ms: int) -> int:
        """Record `value` and return the throttle time in ms; 0 while all use less than the limit."""
        self._be_followed(now_ms)
        if self._is_alone():
            return super().decide(value, now_ms)
        if now_ms < self.due_ms and self.total + value <= self.room:
            super().record(value, now_ms)
            return 0
        rate_before = self.measure(now_ms)
        super().record(value, now_ms)
        rate = self.measure(now_ms)
        if self._checks_first:
            rate = min(rate, rate_before + LARGEST_GAP * self._part * self._limit_here)
        return self._throttle_ms(rate, self.window_ms(now_ms))

    def take_refused(self) -> float:
        """Return the charges that were taken back since the last call."""
        refused, self._refused = self._refused, 0.0
        return refused

    def peek_recent(self, now_ms: int) -> float:
        """Return the rate per second of the last `RECENT_SAMPLES` windows, without any effect."""
        floats, ints = self._give()
        recent = [*ints]
        recent[SAMPLES] = min(RECENT_SAMPLES, ints[SAMPLES])
        return rate_peek(floats, recent, now_ms)

    def largest_value(self, now_ms: int) -> float:
        """Return the bytes that a fetch may carry, if its first batch is not larger by itself."""
        _, ints = self._give()
        window = QuotaWindow(samples=ints[SAMPLES], window_ms=ints[WINDOW_MS])
        if self._is_alone():
            return window.max_value(self._limit_here)
        least = max(1.0, SMALLEST_FETCH_S * self._limit_here)
        return max(least, window.max_value(self.share - self.peek(now_ms)))

    def is_over(self, now_ms: int) -> bool:
        """Return whether the rate is above the share, without any effect."""
        return self.peek(now_ms) > self.share

    def peek_rate(self, now_ms: int) -> float:
        """Return the rate of all sensors together per second, without any effect."""
        return self.peek(now_ms) + self._others

    def utilization(self, now_ms: int) -> float | None:
        """Return the rate of all sensors as a share of the limit, without any effect; None without a quota."""
        if is_unlimited(self._limit):
            return None
        return share_used(self.peek_rate(now_ms), self._limit_here)

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return the throttle time in ms of a request that is charged nothing now, without any effect."""
        if self._is_alone():
            return super().peek_throttle_ms(now_ms)
        floats, ints = self._give()
        return max(self._throttle_ms(self.peek(now_ms), rate_window_ms([*floats], [*ints], now_ms)), 0)

    @property
    def _limit_here(self) -> float:
        return self._limit / self._divisor

    def _is_alone(self) -> bool:
        """Return whether no other sensor uses the limit, or nothing is limited."""
        is_only = self._others == 0.0 and self._part == 1.0
        return is_only or not self._limit > 0.0 or is_unlimited(self._limit)

    def _be_followed(self, now_ms: int) -> None:
        if not self.is_followed:
            self._follow(self, now_ms)

    def _throttle_ms(self, rate: float, window_ms: int) -> int:
        over = rate - self.share
        if not over > 0.0:
            return 0
        bound = max(self._pace * self._limit_here, sys.float_info.min)
        return min(round_half_up(over / bound * window_ms), self._cap_ms, MAX_INT32)

    def _update_share(self) -> None:
        share = self._limit_here
        if not self._is_alone():
            share = share_of_limit(
                limit=share, own=self._own, others=self._others, part=self._part, pace=self._pace
            )
        super().set_bound(share)
