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

    Where that is not below the bar, again, so many times at most. Of each step the shortest time counts: other
    processes make steps longer, at another place each time. Garbage is not collected meanwhile.
    """
    steps_ns: list[int] = []
    with no_collection():
        for _ in range(times):
            result, again_ns = _run_timed(begin())
            if len(again_ns) == len(steps_ns):
                steps_ns = list(map(min, steps_ns, again_ns))
            else:  # the first time, or it had less to do
                steps_ns = min([each for each in (steps_ns, again_ns) if each], key=max)
            if max(steps_ns) < MOST_STEP_MS * 1e6:
                break
    return result, max(steps_ns) / 1e6


def _run_timed(work: Generator[None, None, Result]) -> tuple[Result, list[int]]:
    """Run work to its end; return its result, and the CPU time of each step in ns."""
    steps_ns = []
    while True:
        begun_ns = time.thread_time_ns()
        try:
            next(work)
        except StopIteration as stop:
            steps_ns.append(time.thread_time_ns() - begun_ns)
            return stop.value, steps_ns
        steps_ns.append(time.thread_time_ns() - begun_ns)
