"""Cyclic garbage collection in steps that are too short to be noticed.

Python looks for cycles among all objects once a quarter more of them has come: with 20,000 clients that holds the event
loop for 200 ms, to find nothing, as what a broker makes has no cycles. So there are no such full collections here. What
is younger is still looked through, and twice a second, what was made since the last time: by then almost all of it has
gone by itself. What is left is put aside, never to be looked through again.

Cycles among what was put aside would stay for ever: what lives long must have none when it is dropped.
"""

import asyncio
import gc

__all__ = ["ShortCollections"]

_EVERY_S = 0.5
_NEVER = 1_000_000_000  # young collections before a full one
_FEW_COLLECTIONS = 4  # at 7,700 objects each: looked through in 5 ms


class ShortCollections:
    """The garbage collection of a process that serves on `loop`, from `start` to `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Collect once, put all that lives aside, and look at what comes from now on."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*self._thresholds[:2], _NEVER)
        self._timer = self._loop.call_later(_EVERY_S, self._look)

    def close(self) -> None:
        """Leave garbage collection as it was."""
        if self._timer is not None:
            self._timer.cancel()
        gc.set_threshold(*self._thresholds)
        gc.unfreeze()

    def _look(self) -> None:
        """Look through what was made since the last time, unless that is too much at once; put it aside."""
        self._timer = self._loop.call_later(_EVERY_S, self._look)
        young_collections = gc.get_count()[2]
        if young_collections > _FEW_COLLECTIONS:
            gc.freeze()
        if young_collections:
            gc.collect()  # which begins the count anew
            gc.freeze()
