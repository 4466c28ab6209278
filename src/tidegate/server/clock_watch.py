"""Detection of steps of the wall clock. Quotas use engine time; the usage record contains the difference of the two."""

import logging
from collections.abc import Callable

from tidegate.clock import Clock

__all__ = ["LEAST_STEP_MS", "ClockWatch"]

LEAST_STEP_MS = 100
"""Smallest step, in ms, that is reported. Smaller steps add up until they are as large; a slewed clock adds none."""

_log = logging.getLogger("tidegate.server")


class ClockWatch:
    """Compares the clocks of one node; `look` every second.

    on_step: if given, called with engine time and with the ms by which the wall clock is now ahead of it.
    """

    def __init__(self, clock: Clock, on_step: Callable[[int, int], None] | None) -> None:
        self._clock = clock
        self._on_step = on_step
        self._offset_ms = 0

    def look(self) -> None:
        """Report the wall clock if it was stepped since the last look."""
        now_ms = self._clock.now_ms()
        offset_ms = self._clock.wall_ms() - now_ms
        stepped_ms = offset_ms - self._offset_ms
        if abs(stepped_ms) < LEAST_STEP_MS:
            return
        self._offset_ms = offset_ms
        _log.warning("wall clock jumped by %+d ms; quotas are not affected", stepped_ms)
        if self._on_step is not None:
            self._on_step(now_ms, offset_ms)
