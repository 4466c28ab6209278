"""Notice steps of the wall clock: quotas go on in engine time, and the usage record says how far the two are apart."""

import logging
from collections.abc import Callable

from tidegate.clock import Clock

__all__ = ["LEAST_STEP_MS", "ClockWatch"]

LEAST_STEP_MS = 100
"""Steps below are left out: they pile up until they are this large, as a clock that is slewed does not."""

_log = logging.getLogger("tidegate.server")


class ClockWatch:
    """Compares the clocks of one node; `look` every second.

    on_step: if any, called with engine time and with how many ms the wall clock is ahead of it from now on.
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
