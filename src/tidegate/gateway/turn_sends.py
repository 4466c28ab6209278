"""Requests that are sent to the broker together, at the end of a turn (decision 0159).

If the gateway sent each request as soon as it was read, a fast broker would serve one request at a time, and wake its
threads for each. Requests that arrive together cost the broker less.
"""

from collections.abc import Callable
from typing import Protocol

__all__ = ["MAX_TOGETHER", "TurnSends"]

MAX_TOGETHER = 16
"""Most requests that wait for each other: the first one waits until the others are read."""


class _Sender(Protocol):
    """The connection of one client to the broker."""

    def send_put_off(self, since_ns: int) -> int:
        """Send the queued requests, charge their client for the time since `since_ns`, and return the time."""

    def on_failed(self, error: Exception) -> None:
        """Close the connection after an error of ours."""


class TurnSends:
    """The connections with queued requests. A `Turn` of a front."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        self._monotonic_ns = monotonic_ns
        self._senders: list[_Sender] = []

    def add(self, sender: _Sender) -> int:
        """Queue `sender` until the turn ends or `MAX_TOGETHER` wait. Return the time of sends in this call, in ns."""
        self._senders.append(sender)
        if len(self._senders) < MAX_TOGETHER:
            return 0
        begun_ns = self._monotonic_ns()
        self.finish()
        return self._monotonic_ns() - begun_ns

    def finish(self) -> bool:
        """Send all queued requests. Return True: a connection that breaks or fails answers its own request."""
        if self._senders:
            senders, self._senders = self._senders, []
            at_ns = self._monotonic_ns()
            for sender in senders:
                try:
                    at_ns = sender.send_put_off(at_ns)
                except Exception as error:
                    sender.on_failed(error)
                    at_ns = self._monotonic_ns()
        return True
