"""The two rules that divide a shared bound between principals.

Every table and buffer that clients share has a bound, and every bound has one of two rules:

- `ReclaimableBound`: entries can be evicted without loss of acknowledged data (sessions, states, buffers). One
  principal may use all of it. When it is full, the principal that holds most loses its oldest entry.
- `ThresholdBound`: entries must not be evicted (group members, committed offsets, topics). A principal may add while
  its own use stays at or below what is still free. Alone it gets half, the next one half of the rest, and so on, so
  that a newcomer always finds room.

>>> sessions = ReclaimableBound(capacity=3)
>>> for session in ("a1", "a2", "a3"):
...     sessions.add_entry(session, owner="User:a")
>>> sessions.victim("User:b")
'a1'
>>> members = ThresholdBound(capacity=100)
>>> members.may_add("User:a", 51), members.may_add("User:a", 50)
(False, True)
>>> members.count_use("User:a", 50)
>>> members.may_add("User:a", 1), members.may_add("User:b", 25)
(False, True)

Source: the threshold rule is that of shared-memory packet switches (Choudhury and Hahne, "Dynamic queue length
thresholds for shared-memory packet switches", IEEE/ACM Transactions on Networking 6(2), 1998), with alpha = 1.
"""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import islice
from typing import Final, Generic, TypeVar

__all__ = [
    "ANONYMOUS",
    "UNKNOWN_OWNER",
    "ReclaimableBound",
    "Rounds",
    "ThresholdBound",
    "address_owner",
    "first_in_rounds",
    "owner_of",
]

ANONYMOUS: Final = "ANONYMOUS"
"""The user of a connection without authentication. Source: Kafka `KafkaPrincipal.ANONYMOUS`."""
UNKNOWN_OWNER: Final = ""
"""The owner of entries that were stored before owners were recorded. Together they are one principal."""

_IPV6_PREFIX = 64  # one site usually has a /64: its host part is free to choose
_COMPACT_FROM = 64  # heap entries: below it, stale entries cost nothing

Entry = TypeVar("Entry", bound=Hashable)


def owner_of(user: str, host: str) -> str:
    """Return the principal that a connection's use is counted for; `ANONYMOUS` is divided by address.

    >>> owner_of("alice", "10.0.0.7"), owner_of("ANONYMOUS", "10.0.0.7")
    ('User:alice', 'User:ANONYMOUS 10.0.0.7')
    """
    return f"User:{user}" if user != ANONYMOUS else f"User:{ANONYMOUS} {address_owner(host)}"


@lru_cache(maxsize=4096)
def address_owner(host: str) -> str:
    """Return the address that a connection without a principal is counted for: IPv6 by /64, mapped IPv4 as IPv4.

    >>> address_owner("10.0.0.7"), address_owner("2001:db8::7"), address_owner("::ffff:10.0.0.7")
    ('10.0.0.7', '2001:db8::/64', '10.0.0.7')
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ip_network((address, _IPV6_PREFIX), strict=False))


class Rounds(Generic[Entry]):
    """A queue that is served in rounds: one entry of each owner at a time, those of one owner in order.

    >>> queue: Rounds[str] = Rounds()
    >>> for entry, owner in (("a1", "a"), ("a2", "a"), ("b1", "b")):
    ...     queue.append(entry, owner)
    >>> [queue.popleft() for _ in range(len(queue))]
    ['a1', 'b1', 'a2']
    """

    __slots__ = ("_entries_by", "_size")

    def __init__(self) -> None:
        self._entries_by: OrderedDict[str, deque[Entry]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, entry: Entry, owner: str) -> None:
        """Append an entry to those of its owner."""
        self._size += 1
        entries = self._entries_by.get(owner)
        if entries is None:
            entries = self._entries_by[owner] = deque()
        entries.append(entry)

    def popleft(self) -> Entry:
        """Remove and return the next entry. Raises `KeyError` if there is none."""
        owner, entries = self._entries_by.popitem(last=False)
        self._size -= 1
        entry = entries.popleft()
        if entries:
            self._entries_by[owner] = entries
        return entry

    def pop_of_largest(self) -> Entry:
        """Remove and return the oldest entry of the owner that has most. The search visits every owner."""
        owner = max(self._entries_by, key=lambda owner: len(self._entries_by[owner]))
        entries = self._entries_by[owner]
        self._size -= 1
        entry = entries.popleft()
        if not entries:
            del self._entries_by[owner]
        return entry


def first_in_rounds(entries: Sequence[Entry], owners: Sequence[str], most: int) -> list[Entry]:
    """Return the entries to serve before the rest: one of each owner in a round, at most `most`.

    Owners with few entries go first: beside more than `most` owners with many, one entry of another is chosen. Rounds
    end when only one owner has entries left: these can wait. owners: the owner of each entry.

    >>> first_in_rounds(["a1", "a2", "a3", "b1"], ["a", "a", "a", "b"], most=3)
    ['b1', 'a1']
    """
    if len(set(owners)) < 2:
        return []
    entries_by: dict[str, list[Entry]] = {}
    for entry, owner in zip(entries, owners, strict=True):
        entries_by.setdefault(owner, []).append(entry)
    by_count = sorted(entries_by.values(), key=len)
    rounds = len(by_count[-2])
    in_order = (some[number] for number in range(rounds) for some in by_count if number < len(some))
    return list(islice(in_order, most))


class _Bound:
    """A bound and the use of it by principals. capacity: the bound, in entries or bytes."""

    __slots__ = ("_used_by", "capacity", "used")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._used_by: dict[str, int] = {}

    def used_by(self, owner: str) -> int:
        """Return how much a principal uses."""
        return self._used_by.get(owner, 0)

    def fits(self, size: int = 1) -> bool:
        """Return whether `size` more fits, without an eviction and without regard to principals."""
        return self.used + size <= self.capacity


class ThresholdBound(_Bound):
    """A bound whose entries must not be evicted, divided by dynamic thresholds.

    capacity: the bound, in entries or bytes.
    """

    __slots__ = ()

    def may_add(self, owner: str, size: int = 1) -> bool:
        """Return whether a principal may use `size` more: its own use then does not exceed what is still free."""
        return self._used_by.get(owner, 0) + size <= self.capacity - self.used - size

    def room(self, owner: str) -> int:
        """Return how much a principal may add at most; a negative number if it uses more than is free."""
        return (self.capacity - self.used - self._used_by.get(owner, 0)) // 2

    def count_use(self, owner: str, size: int = 1) -> None:
        """Count `size` more for a principal, or less if negative. The caller has asked `may_add` for what it adds."""
        self.used += size
        used = self._used_by.get(owner, 0) + size
        if used:
            self._used_by[owner] = used
        else:
            self._used_by.pop(owner, None)

    def remove(self, owner: str, size: int = 1) -> None:
        """Count `size` less for a principal."""
        self.count_use(owner, -size)


class ReclaimableBound(_Bound, Generic[Entry]):
    """A bound whose entries can be evicted: when it is full, the principal that holds most loses its oldest entry.

    capacity: the bound, in entries or bytes. This class counts and names the victim; the caller evicts it, and then
    calls `remove`. An operation takes amortized O(log n) for n principals.
    """

    __slots__ = ("_entries_by", "_heap", "_owner_of")

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._owner_of: dict[Entry, str] = {}
        self._entries_by: dict[str, OrderedDict[Entry, int]] = {}
        self._heap: list[tuple[int, str]] = []  # for each principal an entry with at least its use, negated

    def __len__(self) -> int:
        return len(self._owner_of)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self._owner_of

    def __iter__(self) -> Iterator[Entry]:
        """Return the entries in the order in which they were added. Do not keep the result: it changes."""
        return iter(self._owner_of)

    def owner(self, entry: Entry) -> str:
        """Return the principal that an entry is counted for."""
        return self._owner_of[entry]

    def entries_of(self, owner: str) -> Iterable[Entry]:
        """Return the entries of a principal, the oldest first. Do not keep the result: it changes."""
        return self._entries_by.get(owner, ())

    def add_entry(self, entry: Entry, owner: str, size: int = 1) -> None:
        """Count a new entry as the newest one of its principal."""
        assert entry not in self._owner_of
        self._owner_of[entry] = owner
        entries = self._entries_by.get(owner)
        if entries is None:
            entries = self._entries_by[owner] = OrderedDict()
        entries[entry] = size
        self._count(owner, size)

    def resize(self, entry: Entry, size: int) -> None:
        """Count an entry with another size; its age stays."""
        owner = self._owner_of[entry]
        entries = self._entries_by[owner]
        change = size - entries[entry]
        entries[entry] = size
        self._count(owner, change)

    def touch(self, entry: Entry) -> None:
        """Make an entry the newest one of its principal."""
        self._entries_by[self._owner_of[entry]].move_to_end(entry)

    def remove(self, entry: Entry) -> None:
        """Remove an entry from the count. Do nothing if it is not counted."""
        owner = self._owner_of.pop(entry, None)
        if owner is None:
            return
        entries = self._entries_by[owner]
        size = entries.pop(entry)
        self.used -= size
        if entries:
            self._used_by[owner] -= size
        else:
            del self._entries_by[owner], self._used_by[owner]

    def victim(self, owner: str, size: int = 1) -> Entry | None:
        """Return the entry to evict so that `owner` can add `size`: the oldest entry of the largest holder.

        The largest holder may be `owner` itself, with `size` more. Return None if it then has no entry to evict: it
        asks for more than any other holds.
        """
        largest = self.largest()
        if largest is None:
            return None
        if self.used_by(owner) + size > self._used_by[largest]:
            largest = owner
        return next(iter(self._entries_by.get(largest, ())), None)

    def largest(self) -> str | None:
        """Return the principal that uses most; None where the bound is empty."""
        heap = self._heap
        while heap:
            bound, owner = heap[0]
            used = self._used_by.get(owner)
            if used is None:
                heappop(heap)
            elif used != -bound:
                heapreplace(heap, (-used, owner))
            else:
                return owner
        return None

    def _count(self, owner: str, change: int) -> None:
        self.used += change
        before = self._used_by.get(owner)
        used = self._used_by[owner] = (before or 0) + change
        if change > 0 or before is None:
            heap = self._heap
            if len(heap) > _COMPACT_FROM + 4 * len(self._used_by):
                heap[:] = [(-used, owner) for owner, used in self._used_by.items()]
                heapify(heap)
            else:
                heappush(heap, (-used, owner))
