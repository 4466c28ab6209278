"""Cyclic garbage collection in steps that are too short to be noticed.

Python searches all objects for cycles whenever their number has grown by a quarter. With 20,000 clients, such a search
held the event loop for 200 ms and found nothing, because serving makes no cycles. `ShortCollections` never lets
Python start one. Twice a second it searches the objects that were made since the last time, most of which are freed by
then, and puts the rest aside (`gc.freeze`): they are never searched again. While long work is under way, and after a
request that made many objects, it puts them aside without a search (decision 0115).

Objects that outlived one search are searched again some 2,800 at a time instead of Python's 7,700: each object is
searched as often, in shorter steps.

Cycles among the objects that were put aside stay for ever, so a long-lived object must have none when it is dropped.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidegate.scheduling import Scheduler, Timer

__all__ = ["ShortCollections", "import_without_collections"]

_EVERY_S = 0.5
_NEW_OBJECTS = 700
"""New objects before they are searched: Python's default up to 3.12."""
_MIDDLE_COLLECTIONS = 3
"""Searches of new objects before those that outlived them are searched once more; Python's default is 10."""
_NEVER = 2**31 - 1
_FEW = 2
"""Searches of objects that outlived one, 2,800 each; with more, the objects are put aside without a search of all."""


@contextmanager
def import_without_collections() -> Iterator[None]:
    """Run imports without a search for cycles, and put aside what they made: modules stay for ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


class ShortCollections:
    """The garbage collection of a process that serves on `loop`, from `start` to `close`.

    has_work: returns whether long work is under way, which has made many objects.
    """

    def __init__(self, loop: Scheduler, has_work: Callable[[], bool] = lambda: False) -> None:
        self._loop = loop
        self._has_work = has_work
        self._timer: Timer | None = None
        self._thresholds = gc.get_threshold()

    def start(self) -> None:
        """Search all objects once, put them aside, and search new ones from now on."""
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
        """Search the objects made since the last time, or only the youngest of many; put the rest aside.

        Work that frees as many objects as it makes lets no search begin, so that all that it has made are young. They
        are not searched here.
        """
        self._timer = self._loop.call_later(_EVERY_S, self._look)
        if not self._has_work():
            gc.collect(1 if gc.get_count()[2] > _FEW else 2)
        gc.freeze()
