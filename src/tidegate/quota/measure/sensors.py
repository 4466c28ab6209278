"""Sensors: the usage that is counted under one set of tags.

A quota sensor has a bound; a throttle sensor averages the throttle times of the same clients. Each expires when nothing
was recorded for an hour (`tidegate.quota.measure.sensor_table`).

Follows: Kafka `Sensor`, `SensorAccess` (B§1.2, 3.5).
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.rate_kernel import LONG_AGO_MS
from tidegate.quota.measure.snapshot import rate_snapshot
from tidegate.quota.measure.stats import Avg
from tidegate.quota.measure.throttle import UNLIMITED, share_used
from tidegate.quota.measure.window import REGISTRY_WINDOW, QuotaWindow

if TYPE_CHECKING:
    from tidegate.quota.measure.smooth import SmoothMode

__all__ = ["EXPIRY_MS", "RateSensor", "Sensor", "ThrottleSensor"]

EXPIRY_MS = 3600 * 1000  # Kafka `ClientQuotaManager.INACTIVE_SENSOR_EXPIRATION_TIME_SECONDS`


def is_unlimited(bound: float) -> bool:
    """Return whether no rate can exceed `bound`; a quota of NaN, which Kafka stores, limits nothing."""
    return bound == UNLIMITED or bound != bound


class Sensor(Protocol):
    """The interface of every quota sensor, whatever it counts.

    limits_seen: the state of the quotas that its bound is from. found_for: the first user that it was remembered for.
    """

    name: str
    tags: Mapping[str, str]
    limits_seen: int
    found_for: str | None

    @property
    def bound(self) -> float:
        """The bound, per second."""

    def set_bound(self, bound: float) -> None:
        """Set the bound; what was recorded stays."""

    def last_record_ms(self) -> int:
        """Return when a value was last recorded, or when the sensor was made if never."""

    def is_over(self, now_ms: int) -> bool:
        """Return whether more was used than the bound allows, without any effect."""

    def peek_rate(self, now_ms: int) -> float:
        """Return the rate per second, without any effect."""

    def utilization(self, now_ms: int) -> float | None:
        """Return the share of the quota that is used, above 1 where it is exceeded, without any effect.

        None where nothing limits. Follows: KIP-13, "fraction of quota used".
        """

    def peek_throttle_ms(self, now_ms: int) -> int:
        """Return the throttle time in ms of a request that is charged nothing now, without any effect."""

    def snapshot(self, now_ms: int) -> dict[str, Any]:
        """Return what it takes to go on from here, as `tidegate.quota.measure.snapshot` has it, without any effect."""


class RateSensor(SampledRate):
    """The rate of the clients with certain tags."""

    __slots__ = ("_created_ms", "found_for", "limits_seen", "name", "tags")

    def __init__(
        self,
        name: str,
        tags: Mapping[str, str],
        *,
        window: QuotaWindow,
        bound: float,
        cap_ms: int,
        now_ms: int,
    ) -> None:
        super().__init__(samples=window.samples, window_ms=window.window_ms, bound=bound, cap_ms=cap_ms)
        self.name = name
        self.tags = tags
        self.limits_seen = 0
        self.found_for: str | None = None
        self._created_ms = now_ms

    @property
    def mode(self) -> "SmoothMode | None":
        """Return the settings of the token bucket; None: there is no bucket, the rate decides."""
        return None

    def last_record_ms(self) -> int:
        """Return when a value was last recorded, or when the sensor was made if never."""
        recorded_ms = super().last_record_ms()
        return self._created_ms if recorded_ms == LONG_AGO_MS else recorded_ms

    def is_over(self, now_ms: int) -> bool:
        """Return whether the rate is above the bound, without any effect."""
        return self.peek(now_ms) > self.bound

    def peek_rate(self, now_ms: int) -> float:
        """Return the rate per second, without any effect."""
        return self.peek(now_ms)

    def utilization(self, now_ms: int) -> float | None:
        """Return the rate as a share of the bound, without any effect; None without a quota."""
        return None if is_unlimited(self.bound) else share_used(self.peek(now_ms), self.bound)

    def snapshot(self, now_ms: int) -> dict[str, Any]:
        """Return the samples, without any effect."""
        return rate_snapshot(*self._give(), now_ms)


class ThrottleSensor:
    """The mean of throttle times, NaN until there was one and again a minute after the last."""

    __slots__ = ("_average", "_recorded_ms", "tags")

    def __init__(self, tags: Mapping[str, str], *, now_ms: int) -> None:
        self.tags = tags
        self._recorded_ms = now_ms
        self._average: Avg | None = None  # most clients are never throttled

    def record(self, throttle_ms: int, now_ms: int) -> None:
        """Record one throttle time."""
        if self._average is None:
            self._average = Avg(samples=REGISTRY_WINDOW.samples, window_ms=REGISTRY_WINDOW.window_ms)
        self._average.record(float(throttle_ms), now_ms)
        self._recorded_ms = now_ms

    def measure(self, now_ms: int) -> float:
        """Return the mean as Kafka measures it, which forgets samples."""
        return math.nan if self._average is None else self._average.measure(now_ms)

    def peek(self, now_ms: int) -> float:
        """Return the mean without any effect."""
        return math.nan if self._average is None else self._average.peek(now_ms)

    def last_record_ms(self) -> int:
        """Return when a throttle time was last recorded, or when the sensor was made if never."""
        return self._recorded_ms
