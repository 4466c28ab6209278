"""Tests of what a storage does again and again: it goes on, and it holds the loop for no longer than it may."""

import gc
import logging
import os
import shutil
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.logs import NOW_MS, append, batch, new_log
from tests.unit.storage.node import ManualScheduler, StorageNode

from tidegate.clock import SystemClock
from tidegate.in_slices import run_at_once
from tidegate.storage import Storage, StorageConfig
from tidegate.storage.housekeeping import SAVE_EVERY_S, clean_every_s, start_housekeeping
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.producers import MAX_PRODUCERS, REMEMBERED_BATCHES
from tidegate.testing import ManualClock

MIB = 1024 * 1024
MOST_PARTITIONS = 4000
MOST_HELD_MS = 20  # how long nothing else may run
SLICE_HELD_MS = 5  # by one slice of work for one partition


class MeasuringScheduler(ManualScheduler):
    """A scheduler that knows how much of this thread's time each call took."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_ms: list[float] = []

    def call_later(self, delay: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Put a call off, to be measured."""

        def measured() -> None:
            begun_ns = time.thread_time_ns()
            callback(*args)
            self.taken_ms.append((time.thread_time_ns() - begun_ns) / 1e6)

        return super().call_later(delay, measured)


@pytest.mark.alone
def test_most_partitions_hold_the_loop_for_a_moment_only(tmp_path: Path) -> None:
    """Looking after the files, saving positions and retention of 4000 partitions come in slices."""
    storage = Storage.open(tmp_path, StorageConfig(log_retention_ms=1000), SystemClock())
    run_at_once(storage.topics.create_in_slices("many", MOST_PARTITIONS, {}))
    logs = storage.topics.by_name["many"].logs
    now_ms = storage.clock.now_ms()
    for log in logs:
        append(log, batch(time_ms=now_ms - 5000), now_ms)
    gc.freeze()  # as `tidegate serve` does
    scheduler = MeasuringScheduler()
    start_housekeeping(storage, scheduler)
    for _ in range(61):
        scheduler.advance(1)
    while any(log.start_offset == 0 for log in logs):
        scheduler.advance(0.01)
    storage._worker.submit(lambda: None).result()
    storage._removal.wait()
    shutil.rmtree(tmp_path)
    while not all(log.damaged for log in logs):
        scheduler.advance(0.01)
    gc.unfreeze()
    assert len(scheduler.taken_ms) > 100
    late = len(scheduler.taken_ms) // 1000  # a busy file system makes one of its calls in a thousand wait
    assert sorted(scheduler.taken_ms)[-1 - late] < MOST_HELD_MS
    storage.close()


def test_failure_does_not_end_it(node: StorageNode, caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong once is in the log with its traceback, and is tried again."""
    node.create("orders", retention_ms="1000", segment_bytes=str(MIB))
    log = node.log("orders")
    for _ in range(3):
        append(log, batch(value=bytes(700_000)))
    node.clock.advance(10_000)
    producers = log.producers
    log.producers = None  # type: ignore[assignment]
    node.scheduler.advance(61)
    assert "Traceback" in caplog.text
    assert log.start_offset == 0
    log.producers = producers
    node.scheduler.advance(61)
    assert log.start_offset == 3


def test_retention_says_what_it_deleted(node: StorageNode, caplog: pytest.LogCaptureFixture) -> None:
    """One line a pass: how many segments of which partitions, and up to where."""
    for name in ("orders", "bills"):
        node.create(name, retention_ms="1000", segment_bytes=str(MIB))
        for _ in range(3):
            append(node.log(name), batch(value=bytes(700_000)))
    node.clock.advance(10_000)
    with caplog.at_level(logging.INFO):
        node.scheduler.advance(61)
        node.scheduler.advance(61)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "deleted expired segments: orders-0 (3 before offset 3), bills-0 (3 before offset 3)"


def test_times_that_recovery_left_open_are_looked_for(node: StorageNode) -> None:
    """A segment whose time index may have been cut is looked through before anybody asks."""
    node.create("orders")
    log = node.log("orders")
    for at in range(1000):
        append(log, batch(time_ms=NOW_MS + at))
    segment = log.segments[0]
    segment.time_is_sure, segment.max_time_ms = False, NOW_MS + 10
    node.scheduler.advance(61)
    assert (segment.time_is_sure, segment.max_time_ms) == (True, NOW_MS + 999)


def walked_bytes(node: StorageNode, copy: Path) -> int:
    """Return how much of the partition a start after a kill now would have to walk."""
    shutil.copytree(node.storage.directory, copy)
    log = new_log(copy / "orders-0")
    return log.segments[-1].size - min(log.segments[-1]._recent.values(), default=log.segments[-1].size)


def test_little_is_walked_after_a_kill(node: StorageNode, tmp_path: Path) -> None:
    """What was appended some seconds ago is not walked again, even where it is little."""
    node.create("orders")
    for _ in range(300):
        append(node.log("orders"), batch(value=bytes(1000)))
    assert walked_bytes(node, tmp_path / "before") > 300_000
    node.scheduler.advance(SAVE_EVERY_S + 0.1)
    assert walked_bytes(node, tmp_path / "after") < 20_000
    for _ in range(100):
        append(node.log("orders"), batch(value=bytes(1000)))
    for _ in range(10):
        node.scheduler.advance(SAVE_EVERY_S + 0.1)
    assert walked_bytes(node, tmp_path / "late") < 20_000


@pytest.mark.parametrize("restarted", [False, True])
def test_a_topic_does_not_inherit_positions(tmp_path: Path, caplog, restarted: bool) -> None:
    """One of a deleted topic's name, created a moment later, has not lost what that was known to have synced."""
    node = StorageNode(tmp_path / "data")
    node.create("orders")
    append(node.log("orders"), batch())
    node.log("orders").recovery_point = 1
    node.scheduler.advance(61)
    node.round()  # the disk thread writes it
    checkpoint = node.storage.directory / "recovery-point-offset-checkpoint"
    assert "orders 0 1" in checkpoint.read_text()
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["orders"]))
    node.round()  # the disk thread removes the files
    if restarted:
        shutil.copytree(tmp_path / "data", tmp_path / "again")
        node.storage.close()
        node = StorageNode(tmp_path / "again")
    node.create("orders")
    shutil.copytree(node.storage.directory, tmp_path / "killed")
    killed = StorageNode(tmp_path / "killed")
    assert caplog.messages == []
    for each in (node, killed):
        each.storage.close()


def test_nothing_is_written_for_a_topic_that_is_deleted_meanwhile(node: StorageNode, caplog) -> None:
    """Positions are saved in slices: what is left of a topic is no part of its successor."""
    for name in ("bills", "orders"):
        node.create(name)
        append(node.log(name), batch(value=bytes(300_000), producer_id=7, producer_epoch=0, base_sequence=0))
    saving = node.storage.save_positions()
    next(saving)
    run_at_once(node.storage.topics.delete_in_slices(node.storage.topics.by_name["orders"]))
    node.create("orders")
    names = set(os.listdir(node.log("orders").directory))
    for _ in saving:
        pass
    assert set(os.listdir(node.log("orders").directory)) == names
    assert caplog.messages == []


@pytest.mark.alone
def test_removing_a_large_file_holds_nobody(tmp_path: Path) -> None:
    """A segment of 1 GB is renamed at once and removed by the disk thread; its last reader closes it on a thread."""
    storage = Storage.open(tmp_path, StorageConfig(log_retention_ms=1000), ManualClock(start_ms=NOW_MS))
    run_at_once(storage.topics.create_in_slices("large", 1, {}))
    log = storage.topics.by_name["large"].logs[0]
    append(log, batch())
    fill(log, 1 << 30)
    slice_of_it = log.read(0, 100)
    begun_ns = time.thread_time_ns()
    for _ in storage.clean(NOW_MS + 5000):
        pass
    held_ms = (time.thread_time_ns() - begun_ns) / 1e6
    storage._worker.submit(lambda: None).result()
    storage._removal.wait()
    begun_ns = time.thread_time_ns()
    del slice_of_it
    held_ms = max(held_ms, (time.thread_time_ns() - begun_ns) / 1e6)
    assert held_ms < MOST_HELD_MS
    assert log.start_offset == 1
    assert not list(tmp_path.rglob("*.deleted"))
    storage.close()


def fill(log: PartitionLog, size: int) -> None:
    """Give the newest file blocks up to `size`, without writing them."""
    os.posix_fallocate(log.segments[-1].written_file().fd, 0, size)


@pytest.mark.alone
def test_most_producers_hold_the_loop_for_a_moment_only(tmp_path: Path) -> None:
    """A snapshot of all the producers that a partition may remember, with five batches each, is made in slices."""
    log = new_log(tmp_path)
    append(log, batch())
    for at in range(MAX_PRODUCERS * REMEMBERED_BATCHES):
        log.producers.record_batch(10**12 + at % MAX_PRODUCERS, 0, at, 0, at, NOW_MS)
    longest_ms = []
    for _ in range(5):
        log.producers.changed = True
        begun_ns, taken_ms = time.thread_time_ns(), []
        for _ in chain(log.checkpoint_in_slices(), [None]):
            ended_ns = time.thread_time_ns()
            taken_ms.append((ended_ns - begun_ns) / 1e6)
            begun_ns = ended_ns
        longest_ms.append(max(taken_ms))
    assert len(log.producers) == MAX_PRODUCERS
    assert sorted(longest_ms)[len(longest_ms) // 2] < SLICE_HELD_MS, longest_ms


@pytest.mark.parametrize(
    ("interval_ms", "every_s"), [(300_000, 60.0), (60_001, 60.0), (1500, 1.5), (100, 0.1), (1, 0.1)]
)
def test_retention_is_looked_after_as_often_as_is_said(interval_ms: int, every_s: float) -> None:
    """At least each minute, when it is also written down what is synced; at most ten times a second."""
    assert clean_every_s(StorageConfig(log_retention_check_interval_ms=interval_ms)) == every_s


def test_short_retention_deletes_when_it_is_looked_next(tmp_path: Path) -> None:
    """What is past its time goes within the interval that the node was given, not after a minute."""
    node = StorageNode(tmp_path, log_retention_check_interval_ms=500, log_retention_ms=1000)
    node.fill("orders")
    assert node.log("orders").start_offset == 0
    node.clock.advance(2000)
    for _ in range(60):
        node.scheduler.advance(0.01)
    assert node.log("orders").start_offset == node.log("orders").end_offset == 3
    node.storage.close()
