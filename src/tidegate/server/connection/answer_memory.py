"""A bound on the memory of answers that clients have not read yet, as large as that of incoming requests.

An answer that cannot be sent at once is counted until all of it is sent. While all answers together exceed the bound,
the principal that holds most loses connections, first the one whose client has read nothing for the longest time. One
answer always fits.

>>> memory = AnswerMemory(1000, later=lambda run: run(), on_excess=print)
>>> memory.hold("first", 400, "User:a")
>>> memory.hold("second", 300, "User:a")
>>> memory.record_progress("first")
>>> memory.hold("third", 400, "User:b")
second

Kafka has no such bound: an answer that is not read stays in its heap until `connections.max.idle.ms`.
"""

from collections.abc import Callable, Hashable
from typing import Any

from tidegate.fair_share import ReclaimableBound
from tidegate.server.connection.request_memory import NO_BOUND

__all__ = ["AnswerMemory"]


class AnswerMemory:
    """The answers of one node that wait for their clients.

    most_bytes: bound on the sum of all answers, -1 for no bound. later: calls a function in later turns of the loop
    until it returns True. on_excess: closes a connection, whose memory is no longer counted.
    """

    __slots__ = ("_closing", "_held", "_later", "_on_excess")

    def __init__(
        self,
        most_bytes: int,
        *,
        later: Callable[[Callable[[], bool]], object],
        on_excess: Callable[[Any], object],
    ) -> None:
        self._later = later
        self._on_excess = on_excess
        self._held: ReclaimableBound[Hashable] = ReclaimableBound(most_bytes)
        self._closing = False

    def hold(self, holder: Hashable, size: int, owner: str) -> None:
        """Set the bytes that are counted for a holder, a connection of the principal `owner`."""
        self._held.remove(holder)
        self._held.add_entry(holder, owner, size)
        if self._is_too_much() and not self._closing:
            self._closing = True
            self._later(self._close_one)

    def record_progress(self, holder: Hashable) -> None:
        """Record that the holder's client has read some bytes."""
        self._held.touch(holder)

    def release(self, holder: Hashable) -> None:
        """Remove the holder's bytes. Do nothing if none are counted."""
        self._held.remove(holder)

    def _is_too_much(self) -> bool:
        held = self._held
        return held.used > held.capacity != NO_BOUND and len(held) > 1

    def _close_one(self) -> bool:
        """Close one connection; more at once would block the loop. Return True if no other has to close."""
        if self._is_too_much():
            largest = self._held.largest()
            assert largest is not None, "more than one is held"
            holder = next(iter(self._held.entries_of(largest)))
            # Before the callback, which may use the sum.
            self.release(holder)
            self._on_excess(holder)
        self._closing = self._is_too_much()
        return not self._closing
