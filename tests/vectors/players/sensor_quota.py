"""Family `sensor_quota` (B§1.2, 2): one statistic with a quota; what a violation reports and how long it throttles.

For rates with an upper bound, the only ones that clients have, the verdict comes from the one function that
decides in the engine, and is compared with what measuring says.
"""

from collections.abc import Iterator

from players._doubles import decode
from players._stats import Max, SimpleRate, WindowedCount, WindowedSum
from players._steps import play_steps
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.stats import Avg
from tidegate.quota.measure.throttle import narrow_to_int32, rate_throttle_ms, tokens_throttle_ms
from tidegate.quota.measure.token_bucket import TokenBucket

__all__ = ["play"]

_STATS = {stat.__name__: stat for stat in (Avg, Max, SimpleRate, WindowedCount, WindowedSum)}


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with the statistic that its config names."""
    config = dict(scenario["config"])
    player = {"Rate": _RatePlayer, "TokenBucket": _BucketPlayer}.get(config["stat"], _StatPlayer)
    return play_steps(player(**config), scenario)


class _Player:
    def __init__(
        self, stat: str, samples: int, window_ms: int, quota: list, upper: bool, max_throttle_ms: int
    ) -> None:
        self._samples, self._window_ms = samples, window_ms
        self._max_throttle_ms = max_throttle_ms
        self._make(stat)
        self.set_quota(quota, upper)

    def set_quota(self, quota: list, upper: bool) -> None:
        self._bound, self._upper = decode(quota), upper
        self._configure()

    def record(self, t: int, v: list, check: bool) -> dict:
        self._stat.record(decode(v), t)
        return self.check(t) if check else {"violated": False}

    def check(self, t: int) -> dict:
        value = self._measure(t)
        if not self._violated(value):
            return {"violated": False}
        return {"violated": True, "value": value, "bound": self._bound, **self._throttle(value, t)}

    def _violated(self, value: float) -> bool:
        return not (value <= self._bound if self._upper else value >= self._bound)

    def _measure(self, t: int) -> float:
        return self._stat.measure(t)

    def _configure(self) -> None:
        """Tell the statistic its bound, if it has to know."""

    def _rate_throttle(self, value: float, window_ms: int) -> dict:
        throttle_ms = rate_throttle_ms(value, self._bound, window_ms)
        return {
            "throttle_ms": throttle_ms,
            "throttle_int32": narrow_to_int32(throttle_ms),
            "bounded_ms": min(throttle_ms, self._max_throttle_ms),
        }


class _StatPlayer(_Player):
    def _make(self, stat: str) -> None:
        self._stat = _STATS[stat](samples=self._samples, window_ms=self._window_ms)

    def _throttle(self, value: float, t: int) -> dict:
        if not isinstance(self._stat, SimpleRate):
            return {"error": "IllegalArgumentException"}  # only rates have a throttle time
        return self._rate_throttle(value, self._stat.measure_window_ms(t))


class _RatePlayer(_Player):
    def _make(self, stat: str) -> None:
        self._stat = SampledRate(samples=self._samples, window_ms=self._window_ms)

    def _configure(self) -> None:
        self._stat.configure(samples=self._samples, window_ms=self._window_ms, bound=self._bound)

    def record(self, t: int, v: list, check: bool) -> dict:
        if not (check and self._upper):
            return super().record(t, v, check)
        decided_ms = self._stat.decide(decode(v), t)
        got = self.check(t)
        if got.get("throttle_int32", 0) != decided_ms:
            got["decided_ms"] = decided_ms
        return got

    def _throttle(self, value: float, t: int) -> dict:
        return self._rate_throttle(value, self._stat.window_ms(t))


class _BucketPlayer(_Player):
    def _make(self, stat: str) -> None:
        self._stat = TokenBucket(samples=self._samples, window_ms=self._window_ms)

    def _configure(self) -> None:
        self._stat.configure(samples=self._samples, window_ms=self._window_ms, rate=self._bound)

    def _measure(self, t: int) -> float:
        return self._stat.tokens(t)

    def _violated(self, value: float) -> bool:
        return value < 0.0

    def _throttle(self, value: float, t: int) -> dict:
        throttle_ms = tokens_throttle_ms(value, self._bound)
        return {"throttle_ms": throttle_ms, "throttle_int32": narrow_to_int32(throttle_ms)}
