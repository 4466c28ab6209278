"""Family `token_bucket` (B§1.6): tokens after records, reads and changes of the quota."""

from collections.abc import Iterator

from players._doubles import decode
from players._steps import play_steps
from tidegate.quota.measure.throttle import UNLIMITED
from tidegate.quota.measure.token_bucket import TokenBucket

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario with a new bucket."""
    return play_steps(_Player(**scenario["config"]), scenario)


class _Player:
    def __init__(self, samples: int, window_ms: int, quota: list | None) -> None:
        self._bucket = TokenBucket(samples=samples, window_ms=window_ms)
        self.set_config(samples, window_ms, quota)

    def set_config(self, samples: int, window_ms: int, quota: list | None) -> None:
        self._limited = quota is not None
        if quota is not None:
            self._bucket.configure(samples=samples, window_ms=window_ms, rate=decode(quota))

    def record(self, t: int, v: list) -> None:
        if self._limited:
            self._bucket.record(decode(v), t)

    def measure(self, t: int) -> dict:
        return {"tokens": self._bucket.tokens(t) if self._limited else UNLIMITED}
