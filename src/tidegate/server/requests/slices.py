"""Long work in slices, so that no request blocks the event loop.

A handler with much work is a generator function. It yields at points where it can be interrupted, at the latest after
about a millisecond of work, and returns its answer. The front runs the first slice at once. A handler that finishes
within `SLICE_NS` is answered like an ordinary function. Otherwise its further slices take turns with the other work of
the loop, and with other long work in rounds.

    slices = Slices(loop)
    slices.schedule(run_slice)  # is called at most once in a turn of the loop, until it returns True
"""

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

from tidegate.fair_share import Rounds
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Wait

__all__ = ["SLICE_NS", "UNFINISHED", "OneAtATime", "RunSlice", "Slices", "advance", "run_on_thread"]

T = TypeVar("T")

SLICE_NS = 2_000_000
"""Longest slice: other clients wait for at most one between two looks at the sockets."""
UNFINISHED: Any = object()
"""Result of `advance` if the work is not done at the end of the slice."""

RunSlice = Callable[[], bool]


def advance(work: Generator[Any, None, Any], until_ns: int, monotonic_ns: Callable[[], int]) -> Any:
    """Run `work` until it returns, and return its result; return `UNFINISHED` if the time is over before.

    If the work yields a value other than None, it waits for that: return the value.
    """
    try:
        while True:
            wait = next(work)
            if wait is not None:
                return wait
            if monotonic_ns() >= until_ns:
                return UNFINISHED
    except StopIteration as stop:
        return stop.value


def run_on_thread(
    loop: Scheduler,
    work: Callable[[], T],
    *,
    name: str,
    most_s: float | None = None,
    on_late: Callable[[T], object] = lambda _: None,
) -> Generator[Wait, None, T]:
    """Call `work` on a thread of its own; return its result, or raise its exception.

    most_s: time limit in seconds. After it, raise `TimeoutError`, and pass a result that comes later to `on_late`.
    """
    wait, result, is_late = Wait(), Future[T](), False

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end)

    def end() -> None:
        if is_late and result.exception() is None:
            on_late(result.result())
        wait.resume()

    threading.Thread(target=run, name=name, daemon=True).start()
    timer = None if most_s is None else loop.call_later(most_s, wait.resume)
    yield wait
    if timer is not None:
        timer.cancel()
    is_late = not result.done()
    if is_late:
        raise TimeoutError
    return result.result()


class Slices:
    """Unfinished long work of one loop; one slice runs in each turn of the loop.

    Slices run in rounds over owners (`tidegate.fair_share.Rounds`), and over the work of each owner.
    """

    __slots__ = ("_loop", "_scheduled", "_waiting")

    def __init__(self, loop: Scheduler) -> None:
        self._loop = loop
        self._waiting: Rounds[tuple[RunSlice, str]] = Rounds()
        self._scheduled = False

    def __len__(self) -> int:
        return len(self._waiting)

    def schedule(self, run_slice: RunSlice, owner: str = "") -> None:
        """Call `run_slice` from the next turn on, until it returns True. It must not raise.

        owner: the principal whose work it is; by default the node.
        """
        self._waiting.append((run_slice, owner), owner)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run_one)

    def start(self, work: Generator[None, None, None], monotonic_ns: Callable[[], int]) -> None:
        """Run one slice of `work` at once, and the rest in later turns."""

        def run_slice() -> bool:
            return advance(work, monotonic_ns() + SLICE_NS, monotonic_ns) is not UNFINISHED

        if not run_slice():
            self.schedule(run_slice)

    def close(self) -> None:
        """Drop all unfinished work."""
        self._waiting = Rounds()

    def _run_one(self) -> None:
        self._scheduled = False
        if not self._waiting:
            return
        run_slice, owner = self._waiting.popleft()
        try:
            if not run_slice():
                self._waiting.append((run_slice, owner), owner)
        finally:
            if self._waiting and not self._scheduled:
                self._scheduled = True
                self._loop.call_soon(self._run_one)


class OneAtATime:
    """A lock for work in slices: each piece of work begins after the one before it has ended."""

    def __init__(self) -> None:
        self._busy = False
        self._waiting: deque[Wait] = deque()

    def acquire(self) -> Generator[Wait | None, None, None]:
        """Wait until all earlier work has ended."""
        if self._busy:
            self._waiting.append(Wait())
            yield self._waiting[-1]
        self._busy = True

    def release(self) -> None:
        """Resume the next work that waits, if any."""
        if self._waiting:
            self._waiting.popleft().resume()
        else:
            self._busy = False
