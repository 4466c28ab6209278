"""Deadlines on a clock that comes in as `now_ms`: set, put off and cancelled far more often than they are over.

>>> deadlines, one = Deadlines(), Deadline()
>>> deadlines.start(one, 10)
>>> deadlines.start(one, 30)  # put off: its entry finds that out when its time comes
>>> deadlines.take(20) is None
True
>>> deadlines.take(30) is one
True
"""

import heapq

__all__ = ["Deadline", "Deadlines"]

_KEPT = 64  # entries of cancelled deadlines that are not worth looking for


class Deadline:
    """What is to be looked at when `at_ms` has passed; None: it is not running. For who knows what it stands for."""

    __slots__ = ("at_ms", "entry_ms")

    def __init__(self) -> None:
        self.at_ms: int | None = None
        self.entry_ms: int | None = None  # of the one entry in the heap that counts


class Deadlines:
    """The running deadlines of one coordinator, each once in a heap."""

    __slots__ = ("_cancelled", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Deadline]] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap)

    def start(self, deadline: Deadline, at_ms: int) -> None:
        """Let a deadline be over at `at_ms`, whenever it was to be before."""
        if deadline.at_ms is None and deadline.entry_ms is not None:
            self._cancelled -= 1
        deadline.at_ms = at_ms
        if deadline.entry_ms is None or at_ms < deadline.entry_ms:
            self._push(deadline, at_ms)

    def cancel(self, deadline: Deadline) -> None:
        """Let a deadline never be over. Its entry goes when its time comes, or when half of all are such."""
        if deadline.at_ms is None:
            return
        deadline.at_ms = None
        self._cancelled += 1
        if self._cancelled > _KEPT and self._cancelled * 2 > len(self._heap):
            self._drop_cancelled()

    def next_ms(self) -> int | None:
        """Return when `take` may have something, None: never."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> Deadline | None:
        """Return one that is over, the first of all, and stop it; None where there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            entry_ms, _, deadline = heapq.heappop(self._heap)
            if entry_ms != deadline.entry_ms:
                continue  # it was brought forward since
            deadline.entry_ms = None
            if deadline.at_ms is None:
                self._cancelled -= 1
            elif deadline.at_ms > now_ms:
                self._push(deadline, deadline.at_ms)
            else:
                deadline.at_ms = None
                return deadline
        return None

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        deadline.entry_ms = at_ms
        self._number += 1
        heapq.heappush(self._heap, (at_ms, self._number, deadline))

    def _drop_cancelled(self) -> None:
        kept = []
        for entry in self._heap:
            entry_ms, _, deadline = entry
            if entry_ms == deadline.entry_ms:
                if deadline.at_ms is None:
                    deadline.entry_ms = None
                else:
                    kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
        self._cancelled = 0
