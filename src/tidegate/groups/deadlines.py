"""Deadlines on a clock that the caller passes in as `now_ms`. Most are set, postponed and cancelled before they end.

>>> deadlines, one = Deadlines(), Deadline()
>>> deadlines.start(one, 10)
>>> deadlines.start(one, 30)  # put off: its entry finds that out when its time comes
>>> deadlines.pop_expired(20) is None
True
>>> deadlines.pop_expired(30) is one
True
"""

import heapq
from collections.abc import Iterable
from typing import Any

__all__ = ["Deadline", "Deadlines"]

_KEPT = 64  # stale entries that cost nothing


class Deadline:
    """A deadline that ends at `at_ms`; None: it is not running. Subclasses define what is due then."""

    __slots__ = ("at_ms", "entry")

    def __init__(self) -> None:
        self.at_ms: int | None = None
        self.entry: _Entry | None = None  # its own in the heap, at `at_ms` or before


_Entry = list[Any]
"""An entry of the heap: time, number, and the deadline, or None for one that was dropped: it may hold a large group."""
_TIME, _DEADLINE = 0, 2


class Deadlines:
    """The running deadlines of one coordinator, each once in a heap."""

    __slots__ = ("_dropped", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._number = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._heap)

    def start(self, deadline: Deadline, at_ms: int) -> None:
        """Set a deadline to end at `at_ms`, in place of any earlier setting."""
        deadline.at_ms = at_ms
        entry = deadline.entry
        if entry is None or at_ms < entry[_TIME]:
            if entry is not None:
                self._drop_entry(deadline)
            self._number += 1
            deadline.entry = entry = [at_ms, self._number, deadline]
            heapq.heappush(self._heap, entry)

    def start_all(self, deadlines: Iterable[tuple[Deadline, int]]) -> None:
        """Set deadlines to end at their times, as `start` does. Many at once cost less than one by one."""
        heap, number, dropped = self._heap, self._number, self._dropped
        for deadline, at_ms in deadlines:
            deadline.at_ms = at_ms
            entry = deadline.entry
            if entry is None or at_ms < entry[_TIME]:
                if entry is not None:
                    entry[_DEADLINE] = None
                    dropped += 1
                number += 1
                deadline.entry = entry = [at_ms, number, deadline]
                heapq.heappush(heap, entry)
        self._number, self._dropped = number, dropped
        self._rebuild_if_sparse()

    def cancel(self, deadline: Deadline) -> None:
        """Stop a deadline. Its place in the heap is freed when its time comes, or when most places are unused."""
        deadline.at_ms = None
        self._drop_entry(deadline)

    def next_ms(self) -> int | None:
        """Return when `take` may have something, None: never."""
        return self._heap[0][_TIME] if self._heap else None

    def pop_expired(self, now_ms: int) -> Deadline | None:
        """Return one that is over, the first of all, and stop it; None where there is none."""
        while self._heap and self._heap[0][_TIME] <= now_ms:
            found: Deadline | None = heapq.heappop(self._heap)[_DEADLINE]
            if found is None:
                self._dropped -= 1
                continue
            deadline = found
            deadline.entry = None
            assert deadline.at_ms is not None
            if deadline.at_ms > now_ms:
                self.start(deadline, deadline.at_ms)
            else:
                deadline.at_ms = None
                return deadline
        self._rebuild_if_sparse()  # of those that were popped none was dropped, of the others most may be
        return None

    def _drop_entry(self, deadline: Deadline) -> None:
        entry, deadline.entry = deadline.entry, None
        if entry is None:
            return
        entry[_DEADLINE] = None
        self._dropped += 1
        self._rebuild_if_sparse()

    def _rebuild_if_sparse(self) -> None:
        """Remove dropped entries where most are, and bring the others in order."""
        if self._dropped > _KEPT and self._dropped * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept[_DEADLINE] is not None]
            heapq.heapify(self._heap)
            self._dropped = 0
