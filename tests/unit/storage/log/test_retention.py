"""Tests of retention: which segments go, before and after a restart, with sound and broken indexes."""

import os
import shutil
from pathlib import Path

import pytest
from tests.unit.in_slices import whole
from tests.unit.storage.logs import NOW_MS, append, batch, contents, expire, new_log

from tidegate.storage.errors import OffsetOutOfRangeError
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.time_lookup import offset_by_time, offset_of_latest_time
from tidegate.storage.log.unpacking import Unpacker

MIB = 1024 * 1024
DAY_MS = 86_400_000


def test_old_segments_expire(tmp_path: Path) -> None:
    """Segments whose newest record is past `retention.ms` go."""
    log = new_log(tmp_path, segment_bytes=100, retention_ms=1000)
    for at in range(4):
        append(log, batch(time_ms=NOW_MS + at), NOW_MS)
    assert expire(log, NOW_MS + 1001) == 1
    assert (log.start_offset, len(list(tmp_path.glob("*.log")))) == (1, 3)
    assert expire(log, NOW_MS + 1003) == 2
    assert (log.start_offset, log.end_offset) == (3, 4)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(2, MIB)


@pytest.mark.parametrize("closed", [True, False])
def test_newest_segment_expires(tmp_path: Path, closed: bool) -> None:
    """As in Kafka the newest segment goes too; the log goes on where it ended, after a restart as well."""
    log = new_log(tmp_path, retention_ms=1000)
    for _ in range(3):
        append(log, batch())
    assert expire(log, NOW_MS + 1000) == 0
    assert expire(log, NOW_MS + 1001) == 1
    assert expire(log, NOW_MS + 10**9) == 0
    assert (log.start_offset, log.end_offset, log.size_bytes) == (3, 3, 0)
    if closed:
        log.close()
    log = new_log(tmp_path, retention_ms=1000)
    assert (log.start_offset, log.end_offset) == (3, 3)
    assert append(log, batch()) == 3
    assert len(list(tmp_path.glob("*.log"))) == 1


def test_segments_beyond_the_size_go(tmp_path: Path) -> None:
    """With `retention.bytes` the oldest segments go while enough is left without them."""
    size = len(batch())
    log = new_log(tmp_path, segment_bytes=100, retention_bytes=2 * size, retention_ms=-1)
    for _ in range(5):
        append(log, batch())
    assert expire(log, NOW_MS) == 3
    assert log.size_bytes == 2 * size


def test_without_times_the_file_counts(tmp_path: Path) -> None:
    """Records without a time are as old as their file."""
    log = new_log(tmp_path, segment_bytes=100, retention_ms=1000)
    for _ in range(3):
        append(log, batch(time_ms=-1))
    for segment in log.segments:
        os.utime(segment.path, (NOW_MS / 1000, NOW_MS / 1000))
    os.utime(log.segments[0].path, (NOW_MS / 1000 - 1, NOW_MS / 1000 - 1))
    assert expire(log, NOW_MS) == 0
    assert expire(log, NOW_MS + 1) == 1
    again = reopened(log, retention_ms=1000)
    assert expire(again, NOW_MS) == 0
    assert expire(again, NOW_MS + 1001) == 2


def reopened(log: PartitionLog, **settings: int) -> PartitionLog:
    """Return the log as a new start after a kill finds it."""
    return new_log(log.directory, segment_bytes=100, **settings)


@pytest.mark.parametrize("closed", [True, False])
def test_restart_deletes_nothing_fresh(tmp_path: Path, closed: bool) -> None:
    """Closed segments of one batch, which have no index entry of the ordinary kind, keep their age."""
    log = new_log(tmp_path, segment_ms=1000, retention_ms=30 * DAY_MS)
    for day in range(10):
        append(log, batch(time_ms=NOW_MS + day * DAY_MS), NOW_MS + day * DAY_MS)
    assert len(log.segments) == 10
    if closed:
        log.close()
    log = new_log(tmp_path, retention_ms=30 * DAY_MS)
    assert [segment.max_time_ms for segment in log.segments] == [NOW_MS + day * DAY_MS for day in range(10)]
    assert expire(log, NOW_MS + 10 * DAY_MS) == 0
    assert expire(log, NOW_MS + 31 * DAY_MS) == 1


def filled(directory: Path, *, closed: bool) -> PartitionLog:
    """Return a log of three large closed segments and a newest one; the first has its largest time near its start.

    So near that what follows it is not looked at when the log is opened.
    """
    log = new_log(directory, segment_bytes=300_000, retention_ms=DAY_MS)
    for at in range(1000):
        append(log, batch(value=bytes(930), time_ms=NOW_MS + (5000 if at == 10 else at)))
    assert len(log.segments) == 4
    if closed:
        log.close()
    return log


def zero(path: Path) -> None:
    """Overwrite a file with zeros."""
    path.write_bytes(bytes(path.stat().st_size))


def halve(path: Path) -> None:
    """Cut off the second half of a file of entries."""
    entry = 12 if path.suffix == ".timeindex" else 8
    os.truncate(path, path.stat().st_size // entry // 2 * entry)


DAMAGE = {
    "absent": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "zeroed": zero,
    "halved": halve,
    "cut within an entry": lambda path: os.truncate(path, path.stat().st_size - 3),
    "shifted": lambda path: path.write_bytes(path.read_bytes()[5:]),
    "nonsense": lambda path: path.write_bytes(b"\x00\x00\x01\x7f" * (path.stat().st_size // 4)),
    "of the future": lambda path: path.write_bytes(b"\x7f" * path.stat().st_size),
    "first": lambda path: os.truncate(path, 12 if path.suffix == ".timeindex" else 8),
}


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("suffixes", [[".timeindex"], [".index"], [".index", ".timeindex"]], ids="-".join)
@pytest.mark.parametrize("damage", DAMAGE)
def test_broken_indexes_change_no_age(tmp_path: Path, damage: str, suffixes: list[str], closed: bool) -> None:
    """Whatever has become of the indexes: ages, times and records are found as before."""
    log = filled(tmp_path / "log", closed=closed)
    found, records = lookups(log), contents(log)
    ages = [segment.max_time_ms for segment in log.segments]
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    for suffix in suffixes:
        for path in (tmp_path / "copy").glob(f"*{suffix}"):
            DAMAGE[damage](path)
    again = new_log(tmp_path / "copy", segment_bytes=300_000, retention_ms=DAY_MS)
    assert expire(again, max(ages)) == 0
    assert (lookups(again), contents(again)) == (found, records)
    assert expire(again, ages[1] + DAY_MS + 1) == 0
    assert [segment.max_time_ms for segment in again.segments] == ages
    assert expire(again, ages[0] + DAY_MS + 1) == 4
    assert again.start_offset == again.end_offset == 1000


def lookups(log: PartitionLog) -> list[object]:
    """Return what is found for times over the whole log."""
    times = (0, NOW_MS, *range(NOW_MS, NOW_MS + 1020, 37), NOW_MS + 5000, NOW_MS + 5001)
    unpacker = Unpacker()
    found = [whole(offset_by_time(log, time_ms, unpacker.unpack)) for time_ms in times]
    return [*found, whole(offset_of_latest_time(log, unpacker.unpack))]
