"""A clock and a loop of their own time: it passes when it is looked at, when work is done, and when it is told to."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.server.memory_network import ManualLoop, ManualTimer

__all__ = ["NS_PER_MS", "START_MS", "VirtualClock", "VirtualLoop"]

NS_PER_MS = 1_000_000
START_MS = 1_700_000_000_000
_LOADER = "tidegate-callback"  # the thread that loads a class
_LOOK_NS = 2_000
"""What passes with each look at the clock: whatever measures itself finds that it took some time."""


class VirtualClock:
    """A `Clock`."""

    def __init__(self) -> None:
        self.ns = 0
        self._wall_offset_ms = 0

    def now_ms(self) -> int:
        """Return engine time."""
        return START_MS + self.ns // NS_PER_MS

    def wall_ms(self) -> int:
        """Return the wall clock, which is stepped now and then."""
        return self.now_ms() + self._wall_offset_ms

    def monotonic_ns(self) -> int:
        """Return the time since the clock was made, and let some pass."""
        self.ns += _LOOK_NS
        return self.ns

    def advance(self, ms: int) -> None:
        """Let time pass on all clocks."""
        self.ns += ms * NS_PER_MS

    def step_wall(self, ms: int) -> None:
        """Set the wall clock on or back."""
        self._wall_offset_ms += ms


class VirtualLoop(ManualLoop):
    """What other threads ask for waits until `take_in`, so that it comes at the same moment in every run."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._from_threads: deque[tuple[str, Callable[..., Any], tuple[Any, ...]]] = deque()

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> ManualTimer:
        """Keep the call."""
        self._from_threads.append((threading.current_thread().name, callback, args))
        return ManualTimer(callback)

    def take_in(self) -> None:
        """Have the next turn call what was kept, that of one thread after that of another."""
        for thread in threading.enumerate():
            if thread.name == _LOADER:
                thread.join()
        calls = sorted(self._from_threads, key=lambda call: call[0] == _LOADER)
        self._from_threads.clear()
        for _, callback, args in calls:
            self.call_soon(callback, *args)
