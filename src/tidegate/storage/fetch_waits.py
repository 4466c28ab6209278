"""Fetches that wait for records: woken by appends, by their time, or by the deletion of a topic.

Follows: Kafka `DelayedFetch`: complete when `min_bytes` have come in over all partitions, or `max_wait_ms` have passed.
"""

from collections.abc import Callable, Iterable
from functools import partial

from tidegate.storage.log import PartitionLog
from tidegate.storage.scheduling import Scheduler, Timer

__all__ = ["FetchWaits", "Wait"]


class Wait:
    """One waiting fetch: how many bytes it still wants, and what to call when it has them."""

    __slots__ = ("logs", "missing_bytes", "on_ready", "timer")

    def __init__(
        self, logs: Iterable[PartitionLog], missing_bytes: int, on_ready: Callable[[], None]
    ) -> None:
        self.logs = tuple(dict.fromkeys(logs))
        self.missing_bytes = missing_bytes
        self.on_ready = on_ready
        self.timer: Timer | None = None


class FetchWaits:
    """The waiting fetches by log. A log that nobody waits for pays nothing for an append."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_log: dict[PartitionLog, dict[Wait, None]] = {}

    def __len__(self) -> int:
        return len({wait for waits in self._by_log.values() for wait in waits})

    def add(self, wait: Wait, max_wait_ms: int) -> None:
        """Let a fetch wait; `on_ready` is called once, in a later turn, unless it is removed before."""
        for log in wait.logs:
            waits = self._by_log.get(log)
            if waits is None:
                waits = self._by_log[log] = {}
                log.on_append = partial(self._appended, log)
            waits[wait] = None
        wait.timer = self._scheduler.call_later(max_wait_ms / 1000, self._ready, wait)

    def remove(self, wait: Wait) -> None:
        """Stop waiting."""
        if wait.timer is not None:
            wait.timer.cancel()
            wait.timer = None
        for log in wait.logs:
            waits = self._by_log.get(log)
            if waits is not None and waits.pop(wait, wait) is None and not waits:
                del self._by_log[log]
                log.on_append = None

    def _appended(self, log: PartitionLog, size: int) -> None:
        """Count what came in; `size` 0 tells that the log is gone."""
        for wait in list(self._by_log[log]):
            wait.missing_bytes -= size
            if wait.missing_bytes <= 0 or not size:
                self._ready(wait)

    def _ready(self, wait: Wait) -> None:
        self.remove(wait)
        self._scheduler.call_soon(wait.on_ready)
