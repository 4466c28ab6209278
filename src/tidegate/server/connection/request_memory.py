"""How much memory the requests that are coming in may take together (`queued.max.request.bytes`).

A request that does not fit into one receive asks for a grant of its whole size before it gets a buffer of its own; who
is not granted is not read. Grants are given in the order in which they were asked for. One request always fits, and
who has a grant needs no other to come in whole: nobody waits in a circle. Who has a grant and does not use it while
others wait is named by `slow`, to be closed: half a request must not keep whole ones out.

>>> memory = RequestMemory(1000, monotonic_ns=lambda: 0, later=lambda run: run())
>>> class Client:
...     collected_bytes = 0
...     def on_grant(self): print("granted")
>>> first, second = Client(), Client()
>>> memory.ask(first, 800), memory.ask(second, 300)
(True, False)
>>> memory.give_back(first)
granted

Follows: Kafka `SimpleMemoryPool`, `Selector` (there without order, and without an end for who sends nothing).
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["GRACE_S", "NO_BOUND", "SLOWEST_S", "GrantHolder", "RequestMemory"]

NO_BOUND = -1
GRACE_S = 5.0
SLOWEST_S = 60.0
"""While others wait, a request may take so long to come in, evenly, after the grace. Kafka's own clients give a request
up after half of that (`request.timeout.ms`)."""
_GRANTS_PER_TURN = 100  # each begins a buffer: some 20 us


class GrantHolder(Protocol):
    """Whose request wants memory."""

    @property
    def collected_bytes(self) -> int:
        """How much of the request has come."""

    def on_grant(self) -> None:
        """Go on: the memory that was asked for is there."""


class RequestMemory:
    """The grants of one node.

    most_bytes: what all of them may be together, but for one request that always fits; `NO_BOUND` for no bound.
    later: calls a function in later turns of the loop until it returns True.
    """

    __slots__ = (
        "_depleted_ns",
        "_depleted_since_ns",
        "_granted",
        "_granted_bytes",
        "_granting",
        "_later",
        "_monotonic_ns",
        "_most_bytes",
        "_waiting",
    )

    def __init__(
        self,
        most_bytes: int,
        *,
        monotonic_ns: Callable[[], int],
        later: Callable[[Callable[[], bool]], object],
    ) -> None:
        self._most_bytes = most_bytes
        self._monotonic_ns = monotonic_ns
        self._later = later
        self._granted: dict[GrantHolder, tuple[int, int]] = {}
        self._granted_bytes = 0
        self._waiting: OrderedDict[GrantHolder, int] = OrderedDict()
        self._granting = False
        self._depleted_ns = 0
        self._depleted_since_ns = 0

    @property
    def depleted_ns(self) -> int:
        """Return how long somebody waited, all in all."""
        since_ns = self._monotonic_ns() - self._depleted_since_ns if self._waiting else 0
        return self._depleted_ns + since_ns

    @property
    def available_bytes(self) -> int:
        """Return how much may still be granted; 2**63 - 1 without a bound."""
        if self._most_bytes == NO_BOUND:
            return MAX_INT64
        return max(self._most_bytes - self._granted_bytes, 0)

    @property
    def granted_bytes(self) -> int:
        """Return how much is granted."""
        return self._granted_bytes

    @property
    def waiting(self) -> int:
        """Return how many requests wait."""
        return len(self._waiting)

    def ask(self, holder: GrantHolder, size: int) -> bool:
        """Return whether `holder` may take `size` bytes now; if not, `on_grant` is called when it may."""
        if self._waiting or not self._fits(size):
            if not self._waiting:
                self._depleted_since_ns = self._monotonic_ns()
            self._waiting[holder] = size
            return False
        self._grant(holder, size)
        return True

    def give_back(self, holder: GrantHolder) -> None:
        """Take back the grant of `holder`, or its place among those who wait. Harmless where it has neither."""
        granted = self._granted.pop(holder, None)
        if granted is not None:
            self._granted_bytes -= granted[0]
        elif holder in self._waiting:
            self._stop_waiting(holder)
        else:
            return
        if self._waiting and not self._granting:
            self._granting = True
            self._later(self._grant_some)

    def slow(self) -> list[GrantHolder]:
        """Return, while others wait, those whose requests come in too slowly."""
        if not self._waiting:
            return []
        now_ns = self._monotonic_ns()
        return [
            holder
            for holder, (size, since_ns) in self._granted.items()
            if holder.collected_bytes < size * min(((now_ns - since_ns) / 1e9 - GRACE_S) / SLOWEST_S, 1.0)
        ]

    def _fits(self, size: int) -> bool:
        return (
            self._most_bytes == NO_BOUND
            or self._granted_bytes + size <= self._most_bytes
            or not self._granted
        )

    def _stop_waiting(self, holder: GrantHolder) -> None:
        del self._waiting[holder]
        if not self._waiting:
            self._depleted_ns += self._monotonic_ns() - self._depleted_since_ns

    def _grant(self, holder: GrantHolder, size: int) -> None:
        self._granted[holder] = size, self._monotonic_ns()
        self._granted_bytes += size

    def _grant_some(self) -> bool:
        """Give grants to those who have waited longest; return whether there are none to give."""
        for _ in range(_GRANTS_PER_TURN):
            holder, size = next(iter(self._waiting.items()), (None, 0))
            if holder is None or not self._fits(size):
                self._granting = False
                return True
            self._stop_waiting(holder)
            self._grant(holder, size)
            holder.on_grant()
        return False
