"""Work in threads: the order, the errors, and no thread left behind."""

import threading

import pytest

from tidegate.pipeline.threads import available_cores, made_ahead, mapped


def test_results_come_in_order():
    """Whatever is done first."""
    done = [threading.Event() for _ in range(4)]

    def work(number):
        if number % 2 == 0:  # waits for the one after it
            done[number + 1].wait(10)
        done[number].set()
        return number * 10

    assert list(mapped(work, range(4), threads=2)) == [0, 10, 20, 30]
    assert list(mapped(lambda number: number + 1, [1, 2], threads=1)) == [2, 3]


def test_more_items_are_begun_than_there_are_threads():
    """A thread begins a later item while an earlier one takes longer."""
    is_begun = threading.Event()

    def work(number):
        if number == 2:
            is_begun.set()
        return is_begun.wait(10) if number == 0 else number

    assert list(mapped(work, range(3), threads=2, ahead=1)) == [True, 1, 2]


def test_one_thread_makes_the_next_result_while_the_first_is_used():
    """With one item ahead; without, the caller makes each itself."""
    is_begun = threading.Event()

    def work(number):
        if number == 1:
            is_begun.set()
        return number, threading.current_thread() is threading.main_thread()

    results = mapped(work, range(3), threads=1, ahead=1)
    assert next(results) == (0, False)
    assert is_begun.wait(10)
    assert list(results) == [(1, False), (2, False)]
    assert list(mapped(work, range(2), threads=1)) == [(0, True), (1, True)]


def test_an_error_comes_where_its_result_would():
    """The results before it are there."""
    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend(mapped(lambda number: 6 // number, [3, 2, 0, 1], threads=2))
    assert found == [2, 3]


def test_items_are_made_ahead_in_order():
    """And an error of theirs is raised where they are taken."""

    def items():
        yield from (1, 2, 3)
        raise ValueError("no more")

    taken = []
    with pytest.raises(ValueError, match="no more"), made_ahead(items()) as several:
        taken.extend(several)
    assert taken == [1, 2, 3]


def test_the_maker_ends_with_the_block():
    """Also where nobody takes what it makes."""
    before = threading.active_count()
    with made_ahead(iter(range(1_000_000))) as several:
        assert next(several) == 0
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match="enough"), made_ahead(iter(range(1_000_000))):
        raise RuntimeError("enough")
    assert threading.active_count() == before


def test_there_is_a_core():
    """At least the one that this runs on."""
    assert available_cores() >= 1
