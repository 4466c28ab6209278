"""The time that a quota is measured over: a number of samples and the time span of one.

>>> QuotaWindow()
QuotaWindow(samples=11, window_ms=1000)

Follows: Kafka `quota.window.num`, `quota.window.size.seconds` and `MetricConfig`, B§1.1, 3.1.
"""

from dataclasses import dataclass

from tidegate.errors import ConfigError
from tidegate.quota.measure.throttle import MS_PER_S

__all__ = ["MAX_SAMPLES", "REGISTRY_WINDOW", "QuotaWindow"]

MAX_SAMPLES = 3600
"""Most samples that a quota may keep: they are allocated for each client (Kafka sets no limit)."""

MAX_WINDOW_MS = (2**31 - 1) * 1000  # quota.window.size.seconds is a Java int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaWindow:
    """The number of samples, and the span of one in ms. Raises `ConfigError` where Kafka's INT `[1,...]` would."""

    samples: int = 11
    window_ms: int = 1000

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= MAX_SAMPLES:
            raise ConfigError(f"number of samples must be from 1 to {MAX_SAMPLES}, got {self.samples!r}")
        if not 1 <= self.window_ms <= MAX_WINDOW_MS:
            raise ConfigError(
                f"window of a sample must be from 1 to {MAX_WINDOW_MS} ms, got {self.window_ms!r}"
            )

    def max_value(self, bound: float) -> float:
        """Return the most that `bound`, per second, allows in a window: in all samples but one (B§3.7)."""
        return bound * (self.samples - 1) * (self.window_ms / MS_PER_S)


REGISTRY_WINDOW = QuotaWindow(samples=2, window_ms=30_000)
"""For metrics without windows of their own. Follows: `metrics.num.samples`, `metrics.sample.window.ms`, B§1.1."""
