"""Tests of deadlines: their order, and what becomes of those that are put off, brought forward and cancelled."""

import random
import sys

from tidegate.groups.deadlines import Deadline, Deadlines


def taken(deadlines: Deadlines, now_ms: int) -> list[Deadline]:
    """Return all that are over."""
    found = []
    while (deadline := deadlines.pop_expired(now_ms)) is not None:
        found.append(deadline)
    return found


def test_order_and_changes() -> None:
    """The last word counts, whenever a deadline was to be over before."""
    deadlines = Deadlines()
    first, second, third = Deadline(), Deadline(), Deadline()
    for deadline, at_ms in ((first, 30), (second, 20), (third, 10)):
        deadlines.start(deadline, at_ms)
    deadlines.start(third, 40)
    deadlines.start(first, 5)
    deadlines.cancel(second)
    assert deadlines.next_ms() == 5
    assert taken(deadlines, 39) == [first]
    assert taken(deadlines, 40) == [third]
    assert (first.at_ms, len(deadlines), deadlines.next_ms()) == (None, 0, None)
    deadlines.start(second, 50)
    assert taken(deadlines, 50) == [second]


def test_cancelled_ones_take_no_room() -> None:
    """Members that come and go with long sessions leave nothing behind."""
    deadlines = Deadlines()
    for _ in range(10_000):
        deadline = Deadline()
        deadlines.start(deadline, 1_800_000)
        deadlines.cancel(deadline)
    assert len(deadlines) < 200


def test_cancelled_ones_take_no_room_when_others_are_over() -> None:
    """Cancelled deadlines are removed when they are most of those that are left."""
    deadlines, later = Deadlines(), [Deadline() for _ in range(1000)]
    deadlines.start_all([(Deadline(), 10) for _ in range(1000)])
    deadlines.start_all([(deadline, 1_800_000) for deadline in later])
    for deadline in later[1:]:
        deadlines.cancel(deadline)
    assert len(taken(deadlines, 10)) == 1000
    assert len(deadlines) < 100


def test_against_a_table() -> None:
    """Whatever is started and cancelled, what is over is what a plain table says."""
    rng = random.Random(5)
    deadlines, all_of_them = Deadlines(), [Deadline() for _ in range(200)]
    due: dict[Deadline, int] = {}
    for now_ms in range(3_000):
        for _ in range(rng.randrange(4)):
            deadline = rng.choice(all_of_them)
            if rng.random() < 0.4:
                deadlines.cancel(deadline)
                due.pop(deadline, None)
            else:
                due[deadline] = now_ms + rng.randrange(300)
                deadlines.start(deadline, due[deadline])
        if not now_ms % 50:  # few of the running ones, or all of them
            together = rng.sample(all_of_them, rng.choice((2, 200)))
            at_ms = {deadline: now_ms + rng.randrange(300) for deadline in together}
            deadlines.start_all(list(at_ms.items()))
            due |= at_ms
            assert len(deadlines) <= 2 * len(due) + 65
        over = {deadline for deadline, at_ms in due.items() if at_ms <= now_ms}
        assert set(taken(deadlines, now_ms)) == over
        for deadline in over:
            del due[deadline]


def test_what_is_cancelled_is_let_go() -> None:
    """A member that has left may have megabytes to say, and a session of half an hour."""
    deadlines, deadline = Deadlines(), Deadline()
    ours_alone = sys.getrefcount(deadline)
    for at_ms in (1_800_000, 1_000_000):
        deadlines.start(deadline, at_ms)
    for _ in range(2):
        deadlines.cancel(deadline)
    assert sys.getrefcount(deadline) == ours_alone
