"""An event loop that leaves waiting to the poller of a node, which serves requests meanwhile.

asyncio's own loop takes some microseconds for each wait: it checks timers, makes a handle for each ready descriptor,
and calls it. A small request takes only 50 us in all. Here the loop waits in a poller, which returns when the loop
itself has something to do: a timer, a callback, or another descriptor.
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
        """Return after `timeout_s` (None: without a limit), or before, when the loop has something to do.

        The loop has something to do when `TurnLoop.is_wanted` is set, or when `TurnLoop.fileno()` can be read.
        """


class _Selector(selectors.EpollSelector):
    """The selector of a loop: it waits in the loop's `waiter`, if there is one."""

    def __init__(self, loop: "TurnLoop") -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return what is ready, after `timeout` seconds at the latest."""
        if self._loop.waiter is None:
            return super().select(timeout)
        self._loop.waiter.wait(timeout)
        return super().select(0)


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop that waits in a `Waiter` once it has one.

    waiter: what it waits in; None: it waits by itself.
    is_wanted: set when a callback or a timer is scheduled. The waiter then returns, and resets it when it waits again.
    """

    def __init__(self) -> None:
        self.waiter: Waiter | None = None
        self.is_wanted = False
        self._epoll = _Selector(self)
        super().__init__(self._epoll)

    def fileno(self) -> int:
        """Return the descriptor that can be read when another descriptor of the loop is ready."""
        return self._epoll.fileno()

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
