"""The memory of incoming requests (`queued.max.request.bytes`), divided between principals.

A request that does not fit into one receive asks for a grant of its full size before it gets a buffer of its own. A
connection that waits for a grant is not read. One request always fits, and a request with a grant needs no other, so
there is no deadlock.

While all requests fit, or only one principal has any, grants are given in the order of asking, up to the full memory.
While several principals wait, the next grant goes to the principal that would then hold least, in rounds between
equals. If a principal has waited for `REVOKE_AFTER_S`, and would hold less than the largest holder does, grants of the
largest holder are revoked: first the one that will be complete last at its rate so far. When a request has waited for
`PATIENCE_S`, the next grant is reserved for it for `RESERVED_S`, so that small requests cannot keep out a large one.

`slow` returns connections whose requests arrive too slowly while others wait, whatever their principals.

>>> memory = RequestMemory(1000, monotonic_ns=lambda: 0, later=lambda run: run())
>>> class Client:
...     collected_bytes = 0
...     def on_grant(self): print("granted")
>>> first, second = Client(), Client()
>>> memory.ask(first, 800, "User:a"), memory.ask(second, 300, "User:a")
(True, False)
>>> memory.release(first)
granted

Follows: Kafka `SimpleMemoryPool`, `Selector` (there without order, and without an end for clients that send nothing).
Decision 0098.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any, NamedTuple, Protocol

from tidegate.fair_share import ReclaimableBound
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = [
    "GRACE_S",
    "NO_BOUND",
    "PATIENCE_S",
    "RESERVED_S",
    "REVOKE_AFTER_S",
    "SLOWEST_S",
    "GrantHolder",
    "RequestMemory",
]

NO_BOUND = -1
GRACE_S = 5.0
SLOWEST_S = 60.0
"""Longest time for a request to arrive, at an even rate, while others wait, after the grace. Kafka's own clients give
up after half of it (`request.timeout.ms`)."""
REVOKE_AFTER_S = 0.25
"""Time that a principal waits before grants of the largest holder are revoked for it. At the speed of most networks
requests have arrived by then, and a tenant's first request has to be answered within a second."""
PATIENCE_S = 10.0
RESERVED_S = 0.5
_GRANTS_PER_TURN = 100  # each begins a buffer: some 20 us
_REVOKED_AT_ONCE = 20  # closing one connection takes some 100 us
_LOOKED_AT = 1000  # grants of the largest holder, the oldest: 0.2 ms
_COMPACT_FROM = 64  # heap entries: below it, stale entries cost nothing


class GrantHolder(Hashable, Protocol):
    """A connection whose request needs memory."""

    @property
    def collected_bytes(self) -> int:
        """Return the bytes received of the request."""

    def on_grant(self) -> None:
        """Resume receiving the request: its memory is granted."""


class _Asked(NamedTuple):
    """The size of a request, and the time of its grant or, before that, of its asking."""

    size: int
    since_ns: int


class RequestMemory:
    """The grants of one node.

    most_bytes: bound on the sum of all grants, except that one request always fits; `NO_BOUND` for no bound.
    later: calls a function in later turns of the loop until it returns True. on_revoke: closes a connection to free its
    grant for another principal. Without it no grant is revoked.
    """

    __slots__ = (
        "_depleted_ns",
        "_depleted_since_ns",
        "_granted",
        "_granting",
        "_held",
        "_later",
        "_monotonic_ns",
        "_most_bytes",
        "_order",
        "_owners",
        "_places",
        "_reserved",
        "_reserved_until_ns",
        "_rounds",
        "_waiting",
        "on_revoke",
    )

    def __init__(
        self,
        most_bytes: int,
        *,
        monotonic_ns: Callable[[], int],
        later: Callable[[Callable[[], bool]], object],
        on_revoke: Callable[[Any], object] | None = None,
    ) -> None:
        self.on_revoke = on_revoke
        self._most_bytes = most_bytes
        self._monotonic_ns = monotonic_ns
        self._later = later
        self._granted: dict[GrantHolder, _Asked] = {}
        self._held: ReclaimableBound[GrantHolder] = ReclaimableBound(
            most_bytes
        )  # bytes of grants, by principal
        self._owners: dict[GrantHolder, str] = {}  # of those that wait
        self._waiting: dict[
            str, OrderedDict[GrantHolder, _Asked]
        ] = {}  # by principal, in the order of asking
        self._order: list[
            tuple[int, int, str]
        ] = []  # a heap: what each principal would hold, its place, and itself
        self._places: dict[str, int] = {}  # each principal's latest one: others in `_order` are stale
        self._rounds = 0
        self._reserved = ""  # the principal that has the next grant to itself
        self._reserved_until_ns = 0
        self._granting = False
        self._depleted_ns = 0
        self._depleted_since_ns = 0

    @property
    def depleted_ns(self) -> int:
        """Return the total time in which at least one request has waited."""
        since_ns = self._monotonic_ns() - self._depleted_since_ns if self._owners else 0
        return self._depleted_ns + since_ns

    @property
    def available_bytes(self) -> int:
        """Return how many bytes may still be granted; 2**63 - 1 without a bound."""
        if self._most_bytes == NO_BOUND:
            return MAX_INT64
        return max(self._most_bytes - self._held.used, 0)

    @property
    def granted_bytes(self) -> int:
        """Return how many bytes are granted."""
        return self._held.used

    def ask(self, holder: GrantHolder, size: int, owner: str) -> bool:
        """Return whether `holder` may take `size` bytes now; if not, `on_grant` is called when it may.

        owner: the principal of the connection.
        """
        if self._fits(size) and self._is_first(owner, size):
            self._grant(holder, size, owner)
            return True
        now_ns = self._monotonic_ns()
        if not self._owners:
            self._depleted_since_ns = now_ns
        self._owners[holder] = owner
        asked = self._waiting.get(owner)
        if asked is None:
            asked = self._waiting[owner] = OrderedDict()
        asked[holder] = _Asked(size, now_ns)
        if len(asked) == 1:
            self._put_in_order(owner)
        return False

    def release(self, holder: GrantHolder) -> None:
        """Release the grant of `holder`, or remove its waiting request. Harmless if it has neither."""
        if self._granted.pop(holder, None) is not None:
            owner = self._held.owner(holder)
            self._held.remove(holder)
            if owner in self._waiting:
                self._put_in_order(owner)
        elif holder in self._owners:
            self._stop_waiting(holder)
        else:
            return
        self._grant_later()

    def slow(self) -> list[GrantHolder]:
        """Return the connections whose requests arrive too slowly; none while no request waits."""
        if not self._owners:
            return []
        now_ns = self._monotonic_ns()
        return [
            holder
            for holder, (size, since_ns) in self._granted.items()
            if holder.collected_bytes < size * min(((now_ns - since_ns) / 1e9 - GRACE_S) / SLOWEST_S, 1.0)
        ]

    def revoke_some(self) -> None:
        """Revoke grants of the largest holder if one that would hold less has waited too long. Call it often."""
        if not self._owners:
            return
        now_ns = self._monotonic_ns()
        self._reserve(now_ns)
        self._grant_later()  # a reservation may be over
        if self.on_revoke is None:
            return
        for _ in range(_REVOKED_AT_ONCE):
            owner = self._next()
            if owner is None:
                return
            size, since_ns = next(iter(self._waiting[owner].values()))
            if self._fits(size) or now_ns - since_ns < REVOKE_AFTER_S * 1e9:
                return
            slowest = self._slowest_but_of(owner, size, now_ns)
            if slowest is None:
                return
            self.on_revoke(slowest)
            self.release(slowest)

    # --- who is next ------------------------------------------------------------------------------------------------

    def _fits(self, size: int) -> bool:
        # One request always fits, even above the bound: no request waits for ever (decision 0098).
        return self._most_bytes == NO_BOUND or self._held.used + size <= self._most_bytes or not self._granted

    def _is_first(self, owner: str, size: int) -> bool:
        """Return whether a new request may get its grant before all that wait."""
        if not self._owners:
            return True
        first = self._next()
        # The requests of one principal keep their order: else its small ones could keep its large one waiting for ever.
        if owner in self._waiting or first is None or first == self._reserved:
            return False
        return self._held.used_by(owner) + size < self._would_hold(first)

    def _would_hold(self, owner: str) -> int:
        """Return how many bytes a principal would hold with its next grant."""
        return self._held.used_by(owner) + next(iter(self._waiting[owner].values())).size

    def _put_in_order(self, owner: str) -> None:
        """Insert a waiting principal into the order by the bytes that it would hold, after its equals."""
        self._rounds += 1
        self._places[owner] = self._rounds
        order = self._order
        # `_next` removes stale entries that it reaches. Remove the others here, or they would accumulate.
        if len(order) > _COMPACT_FROM + 4 * len(self._waiting):
            order[:] = [(self._would_hold(owner), self._places[owner], owner) for owner in self._waiting]
            heapify(order)
        else:
            heappush(order, (self._would_hold(owner), self._rounds, owner))

    def _next(self) -> str | None:
        """Return the principal that gets the next grant, if any waits."""
        if self._reserved:
            if self._reserved in self._waiting and self._monotonic_ns() < self._reserved_until_ns:
                return self._reserved
            self._reserved = ""
        order = self._order
        while order:
            _, place, owner = order[0]
            if self._places.get(owner) == place:
                return owner
            heappop(order)
        return None

    def _reserve(self, now_ns: int) -> None:
        """Reserve the next grant for the principal that has waited longest, if that is too long."""
        # After a reservation, other principals get the grants for `PATIENCE_S`.
        if self._reserved or now_ns - self._reserved_until_ns < PATIENCE_S * 1e9:
            return
        owner, first = min(
            ((owner, next(iter(asked.values()))) for owner, asked in self._waiting.items()),
            key=lambda waiting: waiting[1].since_ns,
        )
        if now_ns - first.since_ns >= PATIENCE_S * 1e9:
            self._reserved, self._reserved_until_ns = owner, now_ns + int(RESERVED_S * 1e9)

    def _slowest_but_of(self, owner: str, size: int, now_ns: int) -> GrantHolder | None:
        """Return the grant of the largest holder to revoke for `owner`; None if that holder does not hold more.

        Of the requests that are still arriving, it is the one that will be complete last at its rate so far.
        """
        held = self._held
        largest = held.largest()
        # Not from an equal: two principals with requests of the same size would revoke each other's grants for ever.
        if largest is None or held.used_by(largest) <= held.used_by(owner) + size:
            return None
        slowest, longest = None, 0.0
        for holder in islice(held.entries_of(largest), _LOOKED_AT):
            granted, since_ns = self._granted[holder]
            collected = holder.collected_bytes
            if collected < granted:
                left = (now_ns - since_ns + 1) * (granted - collected) / (collected + 1)
                if left > longest:
                    slowest, longest = holder, left
        return slowest

    # --- grants -----------------------------------------------------------------------------------------------------

    def _stop_waiting(self, holder: GrantHolder) -> None:
        owner = self._owners.pop(holder)
        asked = self._waiting[owner]
        was_first = next(iter(asked)) is holder
        del asked[holder]
        if not asked:
            del self._waiting[owner], self._places[owner]
            if not self._owners:
                self._order.clear()
                self._depleted_ns += self._monotonic_ns() - self._depleted_since_ns
        elif was_first:
            self._put_in_order(owner)

    def _grant(self, holder: GrantHolder, size: int, owner: str) -> None:
        self._granted[holder] = _Asked(size, self._monotonic_ns())
        self._held.add_entry(holder, owner, size)
        if owner in self._waiting:
            self._put_in_order(owner)

    def _grant_later(self) -> None:
        if self._owners and not self._granting:
            self._granting = True
            self._later(self._grant_some)

    def _grant_some(self) -> bool:
        """Grant memory to the requests that are next. Return whether no more can be granted."""
        for _ in range(_GRANTS_PER_TURN):
            owner = self._next()
            holder, asked = next(iter(self._waiting[owner].items())) if owner is not None else (None, None)
            if owner is None or holder is None or asked is None or not self._fits(asked.size):
                self._granting = False
                return True
            self._stop_waiting(holder)
            self._grant(holder, asked.size, owner)
            if owner == self._reserved:
                self._reserved = ""
            holder.on_grant()
        return False
