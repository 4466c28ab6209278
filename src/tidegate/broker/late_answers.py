"""Long answers that come later. They are made in slices here, because the front does not run their work."""

from collections import deque
from collections.abc import Callable

from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Answer, Deferred, Work

__all__ = ["LateAnswers"]

_STEPS_AT_ONCE = 100  # in one slice; each reads or writes one partition
_SLICE_NS = 500_000
"""Longest slice; it may exceed this by its last step."""
_TURN_NS = 2_000_000
"""Longest time of all slices of a turn; it may exceed this by its last slice."""


class LateAnswers:
    """The unfinished late answers of some handlers. A turn of the loop runs a slice of each, while its time lasts.

    One append may wake thousands of fetches, each of which reads thousands of partitions.
    """

    def __init__(self, scheduler: Scheduler, monotonic_ns: Callable[[], int]) -> None:
        self._scheduler = scheduler
        self._monotonic_ns = monotonic_ns
        self._waiting: deque[tuple[Deferred, Work]] = deque()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def complete(self, deferred: Deferred, work: Work) -> None:
        """Complete `deferred` with the result of `work`: now if the work is short, otherwise in later turns.

        The work is dropped if the client leaves.
        """
        if not self._advance(deferred, work):
            self._waiting.append((deferred, work))
            self._go_on_later()

    def _go_on_later(self) -> None:
        if self._waiting and not self._scheduled:
            self._scheduled = True
            self._scheduler.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        until_ns = self._monotonic_ns() + _TURN_NS
        for _ in range(len(self._waiting)):
            deferred, work = self._waiting.popleft()
            if not self._advance(deferred, work):
                self._waiting.append((deferred, work))
            if self._monotonic_ns() >= until_ns:
                break
        self._go_on_later()

    def _advance(self, deferred: Deferred, work: Work) -> bool:
        """Run one slice of the work. Return whether the work has ended or its answer is cancelled."""
        if deferred.cancelled:
            return True
        until_ns = self._monotonic_ns() + _SLICE_NS
        try:
            for _ in range(_STEPS_AT_ONCE):
                next(work)
                if self._monotonic_ns() >= until_ns:
                    break
        except StopIteration as stop:
            deferred.complete(stop.value)
            return True
        except Exception as error:
            deferred.complete(Answer(None, close=True, error=error))
            return True
        return False
