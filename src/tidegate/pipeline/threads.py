"""Work on several cores in one process, in threads: Arrow and compiled kernels do not hold Python's lock.

Results are in the order of the items, whatever the number of threads.
"""

import os
import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, TypeVar

__all__ = ["available_cores", "made_ahead", "mapped"]

_AHEAD = 2
_A = TypeVar("_A")
_B = TypeVar("_B")


def available_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def mapped(
    function: Callable[[_A], _B], items: Iterable[_A], *, threads: int, ahead: int = 0
) -> Iterator[_B]:
    """Yield the result of a function for each item, in their order. Begin as many items ahead as there are threads.

    ahead: number of further items to begin, so that no thread is idle while an earlier item takes longer. Their results
    wait in memory.
    """
    if threads == 1 and not ahead:
        yield from map(function, items)
        return
    waiting: deque[Future[_B]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(copy_context().run, function, item))
                del item  # else it is held while the next is made
                if len(waiting) == threads + ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


@contextmanager
def made_ahead(items: Iterable[_A]) -> Iterator[Iterator[_A]]:
    """Yield an iterator of the same items, which a thread makes before they are needed."""
    made: queue.Queue[tuple[bool, Any]] = queue.Queue(_AHEAD)
    is_over = False

    def make() -> None:
        try:
            for item in items:
                made.put((False, item))
                del item
                if is_over:
                    return
            made.put((True, None))
        except BaseException as error:
            made.put((True, error))

    def taken() -> Iterator[_A]:
        while True:
            is_last, item = made.get()
            if not is_last:
                yield item
                del item
            elif item is None:
                return
            else:
                raise item

    maker = Thread(target=copy_context().run, args=(make,), daemon=True)
    maker.start()
    try:
        yield taken()
    finally:
        is_over = True
        while maker.is_alive():
            with suppress(queue.Empty):  # it may wait for room
                made.get(timeout=0.01)
        maker.join()
