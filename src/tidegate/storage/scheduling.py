"""What the storage needs of an event loop, and the housekeeping that runs on it."""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.storage.storage import Storage

__all__ = ["HOUSEKEEPING_EVERY_S", "Scheduler", "Timer", "keep_house", "running_loop"]

HOUSEKEEPING_EVERY_S = 60.0  # Kafka's `log.flush.offset.checkpoint.interval.ms`


class Timer(Protocol):
    """A call that comes later."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Scheduler(Protocol):
    """The part of `asyncio.AbstractEventLoop` that is used here; tests hand in one that moves by hand."""

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call in the next turn."""
        ...

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Timer:
        """Call after `delay` seconds."""
        ...


def running_loop() -> Scheduler:
    """Return the event loop that runs this."""
    return asyncio.get_running_loop()


def keep_house(storage: Storage, scheduler: Scheduler) -> None:
    """Let `storage` clean up again and again, until it is closed."""

    def run() -> None:
        if not storage.closed:
            storage.keep_house(storage.clock.now_ms())
            scheduler.call_later(HOUSEKEEPING_EVERY_S, run)

    scheduler.call_later(HOUSEKEEPING_EVERY_S, run)
