"""Tests of late answers: in rounds, one slice in a turn of the loop."""

from collections.abc import Generator

from tests.unit.storage.node import ManualScheduler

from tidegate.broker.late_answers import LateAnswers
from tidegate.server.requests.handler import Answer, Deferred
from tidegate.testing import ManualClock


def work(steps: int, log: list[str], name: str) -> Generator[None, None, Answer]:
    """Take so many steps, each written down."""
    for _ in range(steps):
        log.append(name)
        yield
    return Answer(None)


def test_a_short_answer_is_given_at_once() -> None:
    """No turn of the loop is waited for."""
    deferred = Deferred()
    late = LateAnswers(ManualScheduler(), ManualClock().monotonic_ns)
    late.complete(deferred, work(3, [], "a"))
    assert (deferred.given, len(late)) == (Answer(None), 0)


def test_long_answers_go_on_turn_by_turn() -> None:
    """Each has a slice in a turn; who has left has none."""
    scheduler, log = ManualScheduler(), list[str]()
    late = LateAnswers(scheduler, ManualClock().monotonic_ns)
    waiting = [Deferred() for _ in "abc"]
    for deferred, name in zip(waiting, "abc", strict=True):
        late.complete(deferred, work(250, log, name))
    assert (log.count("a"), log.count("b"), log.count("c")) == (100, 100, 100)
    waiting[1].cancelled = True
    scheduler.one_turn()
    assert (log.count("a"), log.count("b"), log.count("c")) == (200, 100, 200)
    scheduler.turn()
    assert [deferred.given for deferred in waiting] == [Answer(None), None, Answer(None)]
    assert (len(log), len(late)) == (600, 0)


def test_a_turn_has_an_end() -> None:
    """Where steps take long, or very many answers are under way, some wait for the next turn."""
    scheduler, clock, log = ManualScheduler(), ManualClock(), list[str]()
    late = LateAnswers(scheduler, clock.monotonic_ns)

    def slow(name: str) -> Generator[None, None, Answer]:
        for _ in range(3):
            clock.advance(1)
            log.append(name)
            yield
        return Answer(None)

    for name in "abc":
        late.complete(Deferred(), slow(name))
    assert "".join(log) == "abc"
    scheduler.one_turn()
    assert "".join(log) == "abcab"
    scheduler.one_turn()
    assert "".join(log) == "abcabca"
    scheduler.turn()
    assert (sorted(log), len(late)) == (sorted("abc" * 3), 0)
