"""Calls that connections request in a turn of the poller, whether or not their sockets are ready."""

import asyncio
from collections.abc import Callable

from tidegate.fair_share import Rounds
from tidegate.server.connection.turns import BATCH, SERVE_NS, NoTurns, Poller, Turns

__all__ = ["LATE_NS", "CallsInTurn"]

LATE_NS = 1_000_000
"""Least time for late calls in each turn of calls, in ns."""


class CallsInTurn:
    """The queue of callbacks to call in turns, whether or not their sockets are ready."""

    def __init__(
        self, poller: Poller, loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int]
    ) -> None:
        self.turns: Turns = NoTurns()
        self._poller = poller
        self._loop = loop
        self._monotonic_ns = monotonic_ns
        self._callbacks: Rounds[Callable[[], None]] = Rounds()
        self._late: Rounds[Callable[[], None]] = Rounds()
        self._closed = self._scheduled = False

    def schedule(self, callback: Callable[[], None], owner: str) -> None:
        """Call `callback` in the loop's next turn, or a later one where there is no time."""
        self._callbacks.append(callback, owner)
        self._serve_soon()

    def add_late(self, callback: Callable[[], None], owner: str) -> None:
        """Call `callback` behind those of `add`, and behind sockets that are ready."""
        self._late.append(callback, owner)
        self._serve_soon()

    def close(self) -> None:
        """Make no more calls."""
        self._closed = True

    def _serve_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._scheduled = False
        if self._closed:
            return
        now_ns = self._monotonic_ns()
        until_ns = now_ns + SERVE_NS
        self.turns.begin_turn(now_ns)
        try:
            now_ns = self._call(self._callbacks, now_ns, until_ns)
            self._call(self._late, now_ns, now_ns + LATE_NS)
        finally:
            if self._callbacks or self._late:
                self._serve_soon()
            if self.turns.finish_turn(until_ns):
                self._poller.wake()

    def _call(self, callbacks: Rounds[Callable[[], None]], now_ns: int, until_ns: int) -> int:
        """Call the queued callbacks until the time is over; return the time."""
        for _ in range(min(len(callbacks), BATCH)):
            since_ns = self.turns.at_ns
            callbacks.popleft()()
            now_ns = self._monotonic_ns()
            # A callback that has handled a request has set `at_ns`. After any other, set it here (decision 0053).
            if self.turns.at_ns == since_ns:
                self.turns.at_ns = now_ns
            if now_ns >= until_ns:
                break
        return now_ns
