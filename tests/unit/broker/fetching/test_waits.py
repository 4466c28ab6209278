"""Tests of fetches that wait for records."""

import time
from pathlib import Path

import pytest
from tests.unit.in_slices import no_collection
from tests.unit.storage.logs import append, batch, new_log
from tests.unit.storage.node import ManualScheduler

from tidegate.broker.fetching.waits import ANSWERED_AT_ONCE, FetchWaits, Wait
from tidegate.storage.log.partition_log import PartitionLog

SIZE = len(batch())


@pytest.fixture
def logs(tmp_path: Path) -> list[PartitionLog]:
    """Return two empty logs."""
    return [new_log(tmp_path / str(at)) for at in range(2)]


def waiting(
    logs: list[PartitionLog], missing_bytes: int
) -> tuple[ManualScheduler, FetchWaits, Wait, list[str]]:
    """Return a fetch that waits half a second for bytes in `logs`, and what has happened."""
    scheduler, happened = ManualScheduler(), []
    waits = FetchWaits(scheduler)
    wait = Wait(logs, missing_bytes, lambda: happened.append("ready"))
    waits.add_wait(wait, 500)
    return scheduler, waits, wait, happened


def test_enough_bytes_wake_in_the_next_turn(logs: list[PartitionLog]) -> None:
    """The append that completes a fetch does not pay for its answer."""
    scheduler, waits, _, happened = waiting(logs, SIZE + 1)
    append(logs[0], batch())
    append(logs[1], batch())
    assert happened == []
    scheduler.turn()
    assert happened == ["ready"]
    assert (len(waits), scheduler.waiting()) == (0, 0)


def test_too_few_bytes_wait_for_the_time(logs: list[PartitionLog]) -> None:
    """When the time is over the fetch is answered with what there is."""
    scheduler, waits, _, happened = waiting(logs, SIZE + 1)
    append(logs[0], batch())
    scheduler.advance(0.499)
    assert happened == []
    scheduler.advance(0.001)
    assert (happened, len(waits)) == (["ready"], 0)


def test_deleted_log_wakes(logs: list[PartitionLog]) -> None:
    """Nobody waits for a topic that is gone."""
    scheduler, _, _, happened = waiting(logs, 10**6)
    logs[1].forget()
    scheduler.turn()
    assert happened == ["ready"]


def test_removed_wait_is_never_called(logs: list[PartitionLog]) -> None:
    """A client that went away leaves nothing behind."""
    scheduler, waits, wait, happened = waiting(logs, 1)
    waits.remove(wait)
    append(logs[0], batch())
    scheduler.advance(1)
    assert (happened, len(waits), scheduler.waiting()) == ([], 0, 0)
    assert all(log.on_append is None for log in logs)


def test_several_wait_for_one_log(logs: list[PartitionLog]) -> None:
    """Each waits for its own number of bytes."""
    scheduler = ManualScheduler()
    waits = FetchWaits(scheduler)
    happened: list[int] = []
    for number in (1, 2, 3):
        waits.add_wait(Wait([logs[0]], number * SIZE, lambda number=number: happened.append(number)), 500)
    for expected in ([1], [1, 2], [1, 2, 3]):
        append(logs[0], batch())
        scheduler.turn()
        assert happened == expected


@pytest.mark.alone
def test_thousands_are_answered_over_many_turns(logs: list[PartitionLog]) -> None:
    """One append wakes 10,000 fetches: it holds nobody up, and each turn answers a few of them, in their order."""
    scheduler = ManualScheduler()
    waits = FetchWaits(scheduler)
    happened: list[int] = []
    for number in range(10_000):
        waits.add_wait(Wait(logs, 1, lambda number=number: happened.append(number)), 500)
    with no_collection():
        begun_ns = time.thread_time_ns()
        append(logs[0], batch())
        took_ns = time.thread_time_ns() - begun_ns
    assert took_ns / 1e6 < 20.0  # the longest that anything may hold the loop
    assert happened == []
    turns = 0
    while len(happened) < 10_000:
        scheduler.one_turn()
        turns += 1
        assert len(happened) == min(turns * ANSWERED_AT_ONCE, 10_000)
    assert happened == list(range(10_000))
    assert (len(waits), scheduler.waiting()) == (0, 0)
    assert all(log.on_append is None for log in logs)


def test_fetch_that_goes_away_when_it_is_ready_is_not_called(logs: list[PartitionLog]) -> None:
    """It is removed between the append and its turn."""
    scheduler, waits, wait, happened = waiting(logs, 1)
    append(logs[0], batch())
    waits.remove(wait)
    scheduler.advance(1)
    assert happened == []
