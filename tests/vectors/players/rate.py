"""Family `rate` (B§1.3–1.5, 1.7): statistics over samples."""

from collections.abc import Iterator

from players._doubles import decode
from players._stats import Max, SimpleRate, WindowedCount, WindowedSum
from players._steps import play_steps
from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.stats import Avg
from tidegate.quota.measure.throttle import UNLIMITED

__all__ = ["play"]

_STATS = {stat.__name__: stat for stat in (Avg, Max, SimpleRate, WindowedCount, WindowedSum)}


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with the statistic that its config names."""
    config = scenario["config"]
    player = _RatePlayer if config["stat"] == "Rate" else _StatPlayer
    return play_steps(player(**config), scenario)


class _RatePlayer:
    def __init__(self, stat: str, samples: int, window_ms: int) -> None:
        self._rate = SampledRate(samples=samples, window_ms=window_ms)

    def record(self, t: int, v: list) -> None:
        self._rate.record(decode(v), t)

    def measure(self, t: int) -> dict:
        return {"value": self._rate.measure(t), "window_ms": self._rate.window_ms(t)}

    def window(self, t: int) -> dict:
        return {"window_ms": self._rate.window_ms(t)}

    def set_config(self, samples: int, window_ms: int) -> None:
        self._rate.configure(samples=samples, window_ms=window_ms, bound=UNLIMITED)


class _StatPlayer:
    def __init__(self, stat: str, samples: int, window_ms: int) -> None:
        self._stat = _STATS[stat](samples=samples, window_ms=window_ms)

    def record(self, t: int, v: list) -> None:
        self._stat.record(decode(v), t)

    def measure(self, t: int) -> dict:
        got = {"value": self._stat.measure(t)}
        if isinstance(self._stat, SimpleRate):
            got["window_ms"] = self._stat.measure_window_ms(t)
        return got
