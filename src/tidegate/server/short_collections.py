"""Cyclic garbage collection in steps that are too short to be noticed.

Python looks for cycles among all objects once a quarter more of them has come: with 20,000 clients that held the event
loop for 200 ms, to find nothing, as what a broker makes has no cycles. So what was made is looked through twice a
second: almost all of it has gone by itself by then. What is left is put aside (`gc.freeze`), never to be looked through
again, so that a full collection has little to do whenever it comes. While long work goes on none comes (decision 0031).

Cycles among what was put aside would stay for ever: what lives long must have none when it is dropped.
"""

import gc

from tidegate.scheduling import Scheduler, Timer

__all__ = ["ShortCollections"]

_EVERY_S = 0.5
_FEW_COLLECTIONS = 1
"""Of young objects, 7,700 each: twice as many are looked through in 5 ms, on a slow machine in 12."""


class ShortCollections:
    """The garbage collection of a process that serves on `loop`, from `start` to `close`."""

    def __init__(self, loop: Scheduler) -> None:
        self._loop = loop
        self._timer: Timer | None = None

    def start(self) -> None:
        """Collect once, put all that lives aside, and look at what comes from now on."""
        gc.collect()
        gc.freeze()
        self._timer = self._loop.call_later(_EVERY_S, self._look)

    def close(self) -> None:
        """Leave garbage collection as it was."""
        if self._timer is not None:
            self._timer.cancel()
        gc.unfreeze()

    def _look(self) -> None:
        """Look through what was made since the last time, or its younger part where that is much; put it aside."""
        self._timer = self._loop.call_later(_EVERY_S, self._look)
        gc.collect(2 if gc.get_count()[2] <= _FEW_COLLECTIONS else 1)
        gc.freeze()
