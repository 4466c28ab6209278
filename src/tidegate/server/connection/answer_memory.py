"""The memory of answers that clients have not read yet: together as much as requests that are coming in.

An answer that does not leave at once is counted until it has. Where all of them are too much, the principal that holds
most loses a connection: of its connections the one that took no byte of its answer for the longest is closed, until the
rest fits. One answer always fits.

>>> memory = AnswerMemory(1000, later=lambda run: run(), on_excess=print)
>>> memory.hold("first", 400, "User:a")
>>> memory.hold("second", 300, "User:a")
>>> memory.took_some("first")
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

    most_bytes: what all may be together, -1 for no bound. later: calls a function in later turns of the loop until it
    returns True. on_excess: closes a connection; what it held is let go of already.
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
        """Count `size` bytes for a holder, a connection of the principal `owner`, instead of what it had."""
        self._held.remove(holder)
        self._held.add_entry(holder, owner, size)
        if self._is_too_much() and not self._closing:
            self._closing = True
            self._later(self._close_one)

    def took_some(self, holder: Hashable) -> None:
        """Note that bytes have left."""
        self._held.touch(holder)

    def let_go(self, holder: Hashable) -> None:
        """Count nothing more for a holder. Harmless where nothing is counted."""
        self._held.remove(holder)

    def _is_too_much(self) -> bool:
        held = self._held
        return held.used > held.capacity != NO_BOUND and len(held) > 1

    def _close_one(self) -> bool:
        """Close one connection, because freeing its memory takes a while; return whether no other has to close."""
        if self._is_too_much():
            largest = self._held.largest()
            assert largest is not None, "more than one is held"
            holder = next(iter(self._held.entries_of(largest)))
            # First, so that the sum is right whatever the callback does.
            self.let_go(holder)
            self._on_excess(holder)
        self._closing = self._is_too_much()
        return not self._closing
