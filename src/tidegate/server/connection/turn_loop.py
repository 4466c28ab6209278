"""An event loop that leaves waiting to the poller of a node, which serves requests meanwhile.

asyncio's own loop takes some microseconds for each time that it waits: it looks for timers, makes a handle for what is
ready, and calls that. A small request takes 50 us in all. Here the loop waits in a poller, which returns when the loop
has something to do: a timer, a callback, or another descriptor. All of that stays with the loop.
"""

import asyncio
import selectors
from collections.abc import Callable
from contextvars import Context
from typing import Protocol, TypeVarTuple

__all__ = ["TurnLoop", "Waiter"]


_Args = TypeVarTuple("_Args")


class Waiter(Protocol):
    """Waits in place of an event loop."""

    def wait(self, timeout_s: float | None) -> None:
        """Return after `timeout_s` (None: never) or when the loop has something to do, which is for `TurnLoop` to say.

        Its descriptor is in `TurnLoop.fileno`: when that can be read, it has.
        """


class _Selector(selectors.EpollSelector):
    """The selector of a loop: it waits in `waiter`, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.waiter: Waiter | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, after `timeout` seconds at the latest."""
        if self.waiter is None:
            return super().select(timeout)
        self.waiter.wait(timeout)
        return super().select(0)


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that waits in a `Waiter` once it has one.

    is_wanted: set when a callback or a timer is scheduled: the waiter returns, and sets it back when it waits again.
    """

    def __init__(self) -> None:
        self.is_wanted = False
        self._waiting = _Selector()
        super().__init__(self._waiting)

    def fileno(self) -> int:
        """Return the descriptor that can be read when another descriptor of the loop is ready."""
        return self._waiting.fileno()

    @property
    def waiter(self) -> Waiter | None:
        """Return what the loop waits in; None: it waits by itself."""
        return self._waiting.waiter

    @waiter.setter
    def waiter(self, waiter: Waiter | None) -> None:
        self._waiting.waiter = waiter

    def call_soon(
        self, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.Handle:
        """Call `callback` soon, as by asyncio."""
        self.is_wanted = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Args], object], *args: *_Args, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call `callback` at `when`, as by asyncio; so does `call_later`."""
        self.is_wanted = True
        return super().call_at(when, callback, *args, context=context)
