"""Sockets of addresses that connect too fast: kept open, unread, and closed when their throttle is over.

All of them wait for the one whose throttle ends last, as in Kafka; a flood that never stops would keep them open
for ever, so their number is bounded and past it the oldest is closed.

>>> parked = ParkedConnections(limit=2)
>>> parked.park("a", end_ms=1000), parked.park("b", end_ms=500)
(None, None)
>>> parked.take_due(now_ms=1000), parked.due_in_ms(now_ms=1000)
([], 1)
>>> parked.take_due(now_ms=1001)
['a', 'b']

Follows: Kafka `SocketServer.Acceptor.throttledSockets`, B§6.9.3. Different here: the bound.
"""

from collections import deque
from typing import Generic, TypeVar

__all__ = ["MAX_PARKED_CONNECTIONS", "ParkedConnections"]

T = TypeVar("T")

MAX_PARKED_CONNECTIONS = 1000
"""Parked sockets of one listener; each holds a file descriptor."""


class ParkedConnections(Generic[T]):
    """The parked sockets of one listener. Owns none of them: the caller closes what it gets back."""

    __slots__ = ("_end_ms", "_limit", "_parked")

    def __init__(self, *, limit: int = MAX_PARKED_CONNECTIONS) -> None:
        self._parked: deque[T] = deque()
        self._limit = limit
        self._end_ms = 0

    def __len__(self) -> int:
        """Return how many sockets are parked."""
        return len(self._parked)

    def park(self, connection: T, *, end_ms: int) -> T | None:
        """Keep a socket until `end_ms`; return the oldest one, to be closed now, when there are too many."""
        evicted = self._parked.popleft() if len(self._parked) >= self._limit else None
        self._end_ms = max(self._end_ms, end_ms) if self._parked else end_ms
        self._parked.append(connection)
        return evicted

    def due_in_ms(self, *, now_ms: int) -> int:
        """Return how long `take_due` will return none; 0: it returns all now."""
        return max(0, self._end_ms + 1 - now_ms)

    def take_due(self, *, now_ms: int) -> list[T]:
        """Return the sockets to close now: all of them, once the last throttle is over, or none."""
        return [] if self.due_in_ms(now_ms=now_ms) else self.take_all()

    def take_all(self) -> list[T]:
        """Return every socket, to be closed at shutdown."""
        taken = list(self._parked)
        self._parked.clear()
        return taken
