"""The delay queue against a plain sorted list, and its bounds."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidegate.quota.connections.delay_queue import MAX_ENDED_PER_REAP, DelayQueue, ThrottledChannel

MS = 1_000_000


def test_start_is_called_at_once_and_end_when_it_is_over() -> None:
    """The callbacks fire once each, in this order."""
    calls: list[str] = []
    queue = DelayQueue()
    queue.throttle(10, now_ns=5, on_start=lambda: calls.append("start"), on_end=lambda: calls.append("end"))
    assert calls == ["start"]
    assert queue.next_end_ns == 10 * MS + 5
    assert queue.reap(now_ns=10 * MS + 4) == 0
    assert queue.reap(now_ns=10 * MS + 5) == 1
    assert queue.reap(now_ns=20 * MS) == 0
    assert calls == ["start", "end"]
    assert queue.next_end_ns is None


def test_equal_ends_come_in_the_order_they_were_queued() -> None:
    """Nobody overtakes at the same end time."""
    ended: list[int] = []
    queue = DelayQueue()
    for number in range(5):
        queue.throttle(7, now_ns=0, on_end=lambda number=number: ended.append(number))
    queue.reap(now_ns=7 * MS)
    assert ended == [0, 1, 2, 3, 4]


def test_cancelled_throttle_leaves_at_once_and_calls_nothing() -> None:
    """A closed connection is out of the queue size, and its end never fires."""
    queue = DelayQueue()
    gone = queue.throttle(1, now_ns=0, on_end=lambda: pytest.fail("was cancelled"))
    kept = queue.throttle(2, now_ns=0, on_end=lambda: None)
    assert queue.cancel(gone)
    assert not queue.cancel(gone)
    assert (queue.size, gone.waiting, kept.waiting) == (1, False, True)
    assert queue.next_end_ns == kept.end_ns
    assert queue.reap(now_ns=5 * MS) == 1
    assert not queue.cancel(kept)
    assert queue.size == 0


def test_cancelled_throttles_do_not_fill_memory() -> None:
    """Clients that come, are throttled and go leave no more than a few entries behind."""
    queue = DelayQueue()
    for _ in range(10_000):
        queue.cancel(queue.throttle(60_000, now_ns=0, on_end=lambda: None))
        assert len(queue._heap) <= 66
    assert queue.size == 0


def test_reap_is_bounded() -> None:
    """A mass expiry is ended in portions."""
    queue = DelayQueue()
    for _ in range(MAX_ENDED_PER_REAP + 1):
        queue.throttle(1, now_ns=0, on_end=lambda: None)
    assert queue.reap(now_ns=MS) == MAX_ENDED_PER_REAP
    assert queue.reap(now_ns=MS) == 1
    assert queue.reap(now_ns=MS, limit=0) == 0


def test_error_of_a_callback_leaves_the_others_queued() -> None:
    """The throttle whose end failed is over; the next call ends the rest."""

    def fail() -> None:
        raise OSError("gone")

    ended: list[str] = []
    queue = DelayQueue()
    queue.throttle(1, now_ns=0, on_end=fail)
    queue.throttle(1, now_ns=0, on_end=lambda: ended.append("other"))
    with pytest.raises(OSError, match="gone"):
        queue.reap(now_ns=MS)
    assert queue.size == 1
    assert queue.reap(now_ns=MS) == 1
    assert ended == ["other"]


def test_callback_may_throttle_and_cancel() -> None:
    """What an end callback does to the queue is seen by the same reap."""
    queue = DelayQueue()
    other = queue.throttle(2, now_ns=0, on_end=lambda: pytest.fail("was cancelled"))

    def end() -> None:
        queue.cancel(other)
        queue.throttle(0, now_ns=MS, on_end=lambda: None)

    queue.throttle(1, now_ns=0, on_end=end)
    assert queue.reap(now_ns=2 * MS) == 2
    assert queue.size == 0


class QueueMachine(RuleBasedStateMachine):
    """The queue beside a list that is sorted at every reap."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = DelayQueue()
        self.now_ns = 0
        self.waiting: list[tuple[int, int, ThrottledChannel]] = []
        self.ended: list[int] = []
        self.made = 0

    @rule(ms=st.integers(min_value=0, max_value=50))
    def throttle(self, ms: int) -> None:
        number = self.made = self.made + 1
        channel = self.queue.throttle(ms, now_ns=self.now_ns, on_end=lambda: self.ended.append(number))
        self.waiting.append((self.now_ns + ms * MS, number, channel))

    @rule(ns=st.integers(min_value=0, max_value=30 * MS))
    def advance(self, ns: int) -> None:
        self.now_ns += ns

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        assert self.queue.cancel(entry[2])

    @rule(limit=st.integers(min_value=1, max_value=5))
    def reap(self, limit: int) -> None:
        self.ended.clear()
        due = sorted(entry[:2] for entry in self.waiting if entry[0] <= self.now_ns)[:limit]
        assert self.queue.reap(now_ns=self.now_ns, limit=limit) == len(due)
        assert self.ended == [number for _, number in due]
        self.waiting = [entry for entry in self.waiting if entry[:2] not in due]

    @invariant()
    def agrees_with_the_list(self) -> None:
        assert self.queue.size == len(self.waiting)
        assert self.queue.next_end_ns == min((entry[0] for entry in self.waiting), default=None)


TestDelayQueueAgainstSortedList = QueueMachine.TestCase
TestDelayQueueAgainstSortedList.settings = settings(max_examples=60, stateful_step_count=25)
TestDelayQueueAgainstSortedList.__doc__ = (
    "The queue ends, cancels and counts exactly what a sorted list would."
)
