"""Throttle times as a client's metrics: average and maximum over all responses of the last samples.

Zeros count, and responses of Metadata and ApiVersions: the average is per response, not per throttled request.

>>> times = ThrottleTimes("produce", samples=2, window_ms=30_000)
>>> times.record(0)
>>> times.record(300)
>>> times.values()
{'produce-throttle-time-avg': 150.0, 'produce-throttle-time-max': 300.0}

Follows: Kafka `SenderMetricsRegistry`, `FetchMetricsRegistry`, B§7.2.
"""

import time
from collections.abc import Callable

from tidegate.quota.measure.stats import Avg, Max

__all__ = ["ThrottleTimes"]


class ThrottleTimes:
    """The throttle times of the responses to one client. kind: `produce` or `fetch`. now_ms: the clock, in ms."""

    def __init__(
        self,
        kind: str,
        *,
        samples: int,
        window_ms: int,
        now_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    ) -> None:
        self._kind, self._now_ms = kind, now_ms
        self._average = Avg(samples=samples, window_ms=window_ms)
        self._maximum = Max(samples=samples, window_ms=window_ms)

    def record(self, throttle_time_ms: int) -> None:
        """Count a response."""
        now_ms = self._now_ms()
        self._average.record(throttle_time_ms, now_ms)
        self._maximum.record(throttle_time_ms, now_ms)

    def values(self) -> dict[str, float]:
        """Return the metrics by name, in ms; NaN before the first response."""
        now_ms = self._now_ms()
        return {
            f"{self._kind}-throttle-time-avg": self._average.measure(now_ms),
            f"{self._kind}-throttle-time-max": self._maximum.measure(now_ms),
        }
