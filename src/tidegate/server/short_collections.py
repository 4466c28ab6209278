"""Cyclic garbage collection in steps that are too short to be noticed.

Python looks for cycles among all objects once a quarter more of them has come: with 20,000 clients that held the event
loop for 200 ms, to find nothing, as what a broker makes has no cycles. So no collection of all objects comes by itself.
Twice a second, what was made since the last time is looked through: almost all of it has gone by itself by then. What
is left is put aside (`gc.freeze`), never to be looked through again. Where much was made, as by a request of 100,000
array elements, it is put aside at once (decision 0115).

Objects that outlived one collection are looked through some 2,800 at a time instead of Python's 7,700, which took 2 to
6 ms: each is looked through as often, in shorter steps.

Cycles among what was put aside would stay for ever: what lives long must have none when it is dropped.
"""

import gc

from tidegate.scheduling import Scheduler, Timer

__all__ = ["ShortCollections"]

_EVERY_S = 0.5
_NEW_OBJECTS = 700
"""New objects before they are looked through: Python's default up to 3.12."""
_MIDDLE_COLLECTIONS = 3
"""Collections of new objects before those that outlived them are looked through once more; Python's default is 10."""
_NEVER = 2**31 - 1
_FEW = 4
"""Collections of objects that outlived one, 2,800 each: five times as many are looked through in 5 ms, on a slow
machine in 12."""


class ShortCollections:
    """The garbage collection of a process that serves on `loop`, from `start` to `close`."""

    def __init__(self, loop: Scheduler) -> None:
        self._loop = loop
        self._timer: Timer | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Collect once, put all that lives aside, and look at what comes from now on."""
        gc.set_threshold(_NEW_OBJECTS, _MIDDLE_COLLECTIONS, _NEVER)
        gc.collect()
        gc.freeze()
        self._timer = self._loop.call_later(_EVERY_S, self._look)

    def close(self) -> None:
        """Leave garbage collection as it was."""
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _look(self) -> None:
        """Look through what was made since the last time, or its younger part where that is much; put it aside."""
        self._timer = self._loop.call_later(_EVERY_S, self._look)
        if gc.get_count()[2] > _FEW:
            gc.collect(1)
            gc.freeze()
        gc.collect()
        gc.freeze()
