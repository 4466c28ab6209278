"""The part of an event loop that Tidegate uses, without its sockets."""

from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Scheduler", "Timer"]


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Scheduler(Protocol):
    """The part of `asyncio.AbstractEventLoop` that Tidegate uses; tests pass in one that they advance themselves."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call in the next turn."""

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call in a later turn; the only call that other threads may make."""

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call after `delay` seconds."""
