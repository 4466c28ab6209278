"""Tests of finding offsets by time."""

from pathlib import Path

import pytest
from tests.unit.storage.node import NOW_MS, append, batch, new_log

from tidegate.storage.log import PartitionLog
from tidegate.storage.time_lookup import offset_by_time, offset_of_latest_time

TIMES = [NOW_MS + delta for delta in (10, 20, 15, 40, 40, 30, 50)]


@pytest.fixture(params=[1 << 30, 300], ids=["one segment", "several"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> PartitionLog:
    """Return a log of batches of two records, not in the order of their times."""
    log = new_log(tmp_path, segment_bytes=request.param, index_interval_bytes=0)
    for time_ms in TIMES:
        append(log, batch(2, time_ms=time_ms), NOW_MS)
    return log


@pytest.mark.parametrize("time_ms", [0, *(NOW_MS + delta for delta in range(8, 53, 3))])
def test_first_record_not_older_is_found(log: PartitionLog, time_ms: int) -> None:
    """The answer is the first record in the log whose time is not before the one asked for."""
    expected = next(((at, 2 * n) for n, at in enumerate(TIMES) if at >= time_ms), None)
    assert offset_by_time(log, time_ms) == expected


def test_latest_time_is_found(log: PartitionLog) -> None:
    """The record with the largest time, the first of them."""
    assert offset_of_latest_time(log) == (NOW_MS + 50, 12)


def test_empty_log_has_no_times(tmp_path: Path) -> None:
    """Nothing is found in a log without records."""
    log = new_log(tmp_path)
    assert offset_by_time(log, 0) is None
    assert offset_of_latest_time(log) is None


def test_compressed_batch_is_answered_whole(tmp_path: Path) -> None:
    """What is compressed is not opened: the batch's first offset stands for its records."""
    log = new_log(tmp_path)
    append(log, batch(3, attributes=2))
    assert offset_by_time(log, NOW_MS) == (NOW_MS, 0)


def test_append_time_counts_where_it_is_kept(tmp_path: Path) -> None:
    """With LogAppendTime all records of a batch have the broker's time."""
    log = new_log(tmp_path, log_append_time=True)
    append(log, batch(3, time_ms=5), NOW_MS)
    assert offset_by_time(log, 6) == (NOW_MS, 0)


def test_times_survive_a_restart(tmp_path: Path) -> None:
    """After a clean end and after a kill the same offsets are found."""
    log = new_log(tmp_path, segment_bytes=300, index_interval_bytes=0)
    for time_ms in TIMES:
        append(log, batch(2, time_ms=time_ms), NOW_MS)
    wanted = [offset_by_time(log, NOW_MS + delta) for delta in range(60)]
    assert [offset_by_time(new_log(tmp_path), NOW_MS + delta) for delta in range(60)] == wanted
    log.close()
    again = new_log(tmp_path)
    assert [offset_by_time(again, NOW_MS + delta) for delta in range(60)] == wanted
    assert offset_of_latest_time(again) == (NOW_MS + 50, 12)
