"""The part of an event loop that Tidegate uses, without its sockets."""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Scheduler", "Timer"]


class Timer(Protocol):
    """A call that comes later."""

    def cancel(self) -> None:
        """Cancel the call."""


class Scheduler(Protocol):
    """The part of `asyncio.AbstractEventLoop` that is used here; tests hand in one that moves by hand."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call in the next turn."""

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call in a later turn; the only call that other threads may make."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call after `delay` seconds."""
