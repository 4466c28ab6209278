"""How much memory the answers that clients have not read yet may take together: as much as requests that are coming in.

An answer that does not leave at once is counted until it has. Where all of them are too much, the connection that took
no byte of its answer for the longest is closed, then the next: who reads is not among them while there is one that
does not. One answer always fits.

>>> memory = AnswerMemory(1000, later=lambda run: run(), on_excess=print)
>>> memory.hold("first", 600)
>>> memory.hold("second", 300)
>>> memory.took_some("first")
>>> memory.hold("third", 300)
second

Kafka has no such bound: what nobody reads stays in its heap until `connections.max.idle.ms`.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["AnswerMemory"]

_NO_BOUND = -1


class AnswerMemory:
    """The answers of one node that wait for their clients.

    most_bytes: what all may be together, -1 for no bound. later: calls a function in later turns of the loop until it
    returns True. on_excess: closes a connection; what it held is let go of already.
    """

    __slots__ = ("_bytes", "_closing", "_held", "_later", "_most_bytes", "_on_excess")

    def __init__(
        self,
        most_bytes: int,
        *,
        later: Callable[[Callable[[], bool]], object],
        on_excess: Callable[[Any], object],
    ) -> None:
        self._most_bytes = most_bytes
        self._later = later
        self._on_excess = on_excess
        self._held: OrderedDict[Hashable, int] = OrderedDict()  # first who has taken nothing for the longest
        self._bytes = 0
        self._closing = False

    @property
    def held_bytes(self) -> int:
        """Return how much waits."""
        return self._bytes

    def hold(self, holder: Hashable, size: int) -> None:
        """Count `size` bytes for a holder, instead of what it had."""
        self.let_go(holder)
        self._held[holder] = size
        self._bytes += size
        if self._is_too_much() and not self._closing:
            self._closing = True
            self._later(self._close_one)

    def took_some(self, holder: Hashable) -> None:
        """Note that bytes have left."""
        self._held.move_to_end(holder)

    def let_go(self, holder: Hashable) -> None:
        """Count nothing more for a holder. Harmless where nothing is counted."""
        self._bytes -= self._held.pop(holder, 0)

    def _is_too_much(self) -> bool:
        return self._bytes > self._most_bytes != _NO_BOUND and len(self._held) > 1

    def _close_one(self) -> bool:
        """Close one connection, for letting go of its memory takes its time; return whether there is no other."""
        if self._is_too_much():
            holder = next(iter(self._held))
            self.let_go(holder)
            self._on_excess(holder)
        self._closing = self._is_too_much()
        return not self._closing
