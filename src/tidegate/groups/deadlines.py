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

_KEPT = 64  # entries of nobody that are not worth looking for


class Deadline:
    """What is to be looked at when `at_ms` has passed; None: it is not running. For who knows what it stands for."""

    __slots__ = ("at_ms", "entry")

    def __init__(self) -> None:
        self.at_ms: int | None = None
        self.entry: _Entry | None = None  # its own in the heap, at `at_ms` or before


class _Entry:
    """A place in the heap; `deadline` None: of nobody any more, what it stood for may be large."""

    __slots__ = ("at_ms", "deadline")

    def __init__(self, at_ms: int, deadline: Deadline) -> None:
        self.at_ms = at_ms
        self.deadline: Deadline | None = deadline


class Deadlines:
    """The running deadlines of one coordinator, each once in a heap."""

    __slots__ = ("_dropped", "_heap", "_number")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Entry]] = []
        self._number = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._heap)

    def start(self, deadline: Deadline, at_ms: int) -> None:
        """Let a deadline be over at `at_ms`, whenever it was to be before."""
        deadline.at_ms = at_ms
        if deadline.entry is None or at_ms < deadline.entry.at_ms:
            self._drop_entry(deadline)
            self._push(deadline, at_ms)

    def cancel(self, deadline: Deadline) -> None:
        """Let a deadline never be over. The place of its entry goes when its time comes, or with half of all."""
        deadline.at_ms = None
        self._drop_entry(deadline)

    def next_ms(self) -> int | None:
        """Return when `take` may have something, None: never."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ms: int) -> Deadline | None:
        """Return one that is over, the first of all, and stop it; None where there is none."""
        while self._heap and self._heap[0][0] <= now_ms:
            deadline = heapq.heappop(self._heap)[2].deadline
            if deadline is None:
                self._dropped -= 1
                continue
            deadline.entry = None
            assert deadline.at_ms is not None
            if deadline.at_ms > now_ms:
                self._push(deadline, deadline.at_ms)
            else:
                deadline.at_ms = None
                return deadline
        return None

    def _push(self, deadline: Deadline, at_ms: int) -> None:
        deadline.entry = _Entry(at_ms, deadline)
        self._number += 1
        heapq.heappush(self._heap, (at_ms, self._number, deadline.entry))

    def _drop_entry(self, deadline: Deadline) -> None:
        entry, deadline.entry = deadline.entry, None
        if entry is None:
            return
        entry.deadline = None
        self._dropped += 1
        if self._dropped > _KEPT and self._dropped * 2 > len(self._heap):
            self._heap = [place for place in self._heap if place[2].deadline is not None]
            heapq.heapify(self._heap)
            self._dropped = 0
