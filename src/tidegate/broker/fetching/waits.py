"""Fetches that wait for records until enough are appended, their time is over, or a topic is deleted.

Follows: Kafka `DelayedFetch`: complete when `min_bytes` have come in over all partitions, or `max_wait_ms` have passed.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from tidegate.scheduling import Scheduler, Timer
from tidegate.storage.log.partition_log import PartitionLog

__all__ = ["ANSWERED_AT_ONCE", "FetchWaits", "Wait"]


ANSWERED_AT_ONCE = 16
"""Fetches that are answered in one turn. One append may complete thousands; later turns answer the others."""


class Wait:
    """One waiting fetch: the bytes that it still needs, and the function to call when it has them."""

    __slots__ = ("logs", "missing_bytes", "on_ready", "over", "timer")

    def __init__(
        self, logs: Iterable[PartitionLog], missing_bytes: int, on_ready: Callable[[], None]
    ) -> None:
        self.logs = tuple(dict.fromkeys(logs))
        self.missing_bytes = missing_bytes
        self.on_ready = on_ready
        self.over = False
        self.timer: Timer | None = None


class FetchWaits:
    """The waiting fetches by log. An append to a log without waiting fetches costs nothing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._by_log: dict[PartitionLog, dict[Wait, None]] = {}
        self._ready: deque[Wait] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len({wait for waits in self._by_log.values() for wait in waits})

    def add_wait(self, wait: Wait, max_wait_ms: int) -> None:
        """Add a waiting fetch. `on_ready` is called once, in a later turn, unless the fetch is removed before."""
        for log in wait.logs:
            waits = self._by_log.get(log)
            if waits is None:
                waits = self._by_log[log] = {}
                log.on_append = partial(self._appended, log)
            waits[wait] = None
        wait.timer = self._scheduler.call_later(max_wait_ms / 1000, self._put_ready, wait)

    def remove(self, wait: Wait) -> None:
        """Stop waiting."""
        wait.over = True
        if wait.timer is not None:
            wait.timer.cancel()
            wait.timer = None
        for log in wait.logs:
            waits = self._by_log.get(log)
            if waits is not None and waits.pop(wait, wait) is None and not waits:
                self._forget(log)

    def _forget(self, log: PartitionLog) -> None:
        del self._by_log[log]
        log.on_append = None

    def _appended(self, log: PartitionLog, size: int) -> None:
        """Count `size` appended bytes for the fetches that wait for a log; 0: the log was deleted."""
        waits = self._by_log[log]
        ready = []
        for wait in waits:
            wait.missing_bytes -= size
            if wait.missing_bytes <= 0 or not size:
                ready.append(wait)
        for wait in ready:
            del waits[wait]
            self._put_ready(wait)
        if not waits:
            self._forget(log)

    def _put_ready(self, wait: Wait) -> None:
        self._ready.append(wait)
        self._answer_soon()

    def _answer_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._scheduler.call_soon(self._answer_some)

    def _answer_some(self) -> None:
        """Call the first of the fetches that are ready; the next turns call the others."""
        self._scheduled = False
        some = [self._ready.popleft() for _ in range(min(ANSWERED_AT_ONCE, len(self._ready)))]
        if self._ready:
            # Before the calls: an error in one of them must not leave the others waiting.
            self._answer_soon()
        for wait in some:
            # An append and the timer may both have queued it.
            if not wait.over:
                self.remove(wait)
                wait.on_ready()
