"""Family `delay_queue` (B§3.8): channels that start, wait and end on a clock that moves when told to."""

import itertools
from collections.abc import Iterator

from players._steps import play_steps
from tidegate.quota.connections.delay_queue import DelayQueue, ThrottledChannel

__all__ = ["play"]


def play(scenario: dict) -> Iterator[tuple[int, object, object]]:
    """Play one scenario; the monotonic clock begins at `start_ms`."""
    return play_steps(_Player(scenario["config"]["start_ms"]), scenario)


class _Player:
    def __init__(self, start_ms: int) -> None:
        self._now_ns = start_ms * 1_000_000
        self._queue = DelayQueue()
        self._channels: list[ThrottledChannel] = []
        self._ended: list[int] = []

    def throttle(self, id: int, ms: int) -> dict:
        events: list[list] = []
        channel = self._queue.throttle(
            ms,
            now_ns=self._now_ns,
            on_start=lambda: events.append(["start", id]),
            on_end=lambda: self._ended.append(id),
        )
        assert id == len(self._channels)
        self._channels.append(channel)
        return {"events": events, "throttle_time_ms": channel.throttle_time_ms}

    def advance(self, ms: int) -> None:
        self._now_ns += ms * 1_000_000

    def reap(self) -> dict:
        left_ns = [channel.end_ns - self._now_ns for channel in self._channels]
        remaining_ms = [
            ns // 1_000_000 if ns >= 0 else -(-ns // 1_000_000) for ns in left_ns
        ]  # as Java divides
        self._ended.clear()
        self._queue.reap(now_ns=self._now_ns)
        groups = itertools.groupby(self._ended, key=lambda id: self._channels[id].end_ns)
        ended = [sorted(group) for _, group in groups]
        return {"remaining_ms": remaining_ms, "ended": ended, "left": self._queue.size}
