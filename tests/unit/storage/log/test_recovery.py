"""Tests of opening a log again: after a clean end, `kill -9`, a power cut, and damage."""

import itertools
import logging
import shutil
import struct
from pathlib import Path

import pytest
from tests.unit.storage.logs import append, batch, contents, expire, new_log

from tidegate import error_codes
from tidegate.storage.errors import AppendError
from tidegate.storage.log.partition_log import PartitionLog
from tidegate.storage.log.recovery import Progress, open_log
from tidegate.storage.topics.topic_settings import TopicSettings

LOG = "00000000000000000000.log"


def killed(directory: Path, to: Path) -> Path:
    """Return a copy of a log's directory as the death of the process would leave it: nothing is closed."""
    shutil.copytree(directory, to)
    return to


def filled(directory: Path, count: int = 6, **settings: int) -> PartitionLog:
    """Return a log with `count` batches of two records, each of its own size."""
    log = new_log(directory, **settings)
    for at in range(count):
        append(log, batch(2, value=bytes(10 + at)))
    return log


@pytest.mark.parametrize("trust", [True, False])
def test_every_torn_tail_is_cut_and_nothing_else(tmp_path: Path, trust: bool) -> None:
    """Whatever part of the last batch was written, everything before it is there and appending goes on."""
    log = filled(tmp_path / "log")
    whole = contents(log)
    last = log.read(10, 10**6)
    assert last is not None
    start = len(whole) - len(last)
    for size in range(start, len(whole)):
        copy = killed(tmp_path / "log", tmp_path / f"copy-{size}")
        with open(copy / LOG, "r+b") as file:
            file.truncate(size)
        again = new_log(copy, trust_writes=trust)
        assert (again.end_offset, contents(again)) == (10, whole[:start])
        assert append(again, batch()) == 10
        shutil.rmtree(copy)


@pytest.mark.parametrize("trust", [True, False])
def test_killed_log_is_whole(tmp_path: Path, trust: bool) -> None:
    """Every append that returned is there after the process has died."""
    log = filled(tmp_path / "log", 50, index_interval_bytes=300, segment_bytes=1000)
    again = new_log(killed(tmp_path / "log", tmp_path / "copy"), trust_writes=trust)
    assert (again.start_offset, again.end_offset) == (0, 100)
    assert contents(again) == contents(log)


def test_closed_log_is_whole(tmp_path: Path) -> None:
    """A closed log opens with the same records, reads from every offset and appends."""
    log = filled(tmp_path / "log", 50, index_interval_bytes=300, segment_bytes=1000)
    whole = contents(log)
    log.close()
    again = new_log(tmp_path / "log", index_interval_bytes=300, segment_bytes=1000)
    assert contents(again) == whole
    for offset in range(100):
        found = again.read(offset, 10**6)
        assert found is not None
        assert struct.unpack(">q", found.read()[:8])[0] == offset // 2 * 2
    assert append(again, batch()) == 100


@pytest.mark.parametrize("at", [0, 8, 12, 16, 17, 21, 23, 40, 57, 61, 75])
def test_broken_byte_cuts_there_after_a_power_cut(tmp_path: Path, at: int) -> None:
    """After the machine went down everything is checked: the log ends before the first batch that is not right."""
    log = filled(tmp_path / "log")
    whole = contents(log)
    third = log.segments[0].position_of(4)
    damaged = bytearray(whole)
    damaged[third + at] ^= 0xFF
    copy = killed(tmp_path / "log", tmp_path / "copy")
    (copy / LOG).write_bytes(damaged)
    again = new_log(copy, trust_writes=False)
    if at == 12:  # the leader epoch is not covered by the CRC
        assert again.end_offset == 12
    else:
        assert (again.end_offset, contents(again)) == (4, whole[:third])


def test_broken_segment_ends_the_log_there(tmp_path: Path) -> None:
    """Segments after a broken one are deleted: offsets never have holes."""
    log = filled(tmp_path / "log", 12, segment_bytes=300)
    second = log.segments[1]
    with open(second.path, "r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 20)
    again = new_log(tmp_path / "log", trust_writes=False)
    assert second.base_offset <= again.end_offset < log.segments[2].base_offset
    assert len(list((tmp_path / "log").glob("*.log"))) == 2
    assert append(again, batch()) == again.end_offset - 1


def test_synced_segments_are_not_looked_at(tmp_path: Path) -> None:
    """Before the recovery point nothing is walked: opening a large log is fast."""
    log = filled(tmp_path / "log", 12, segment_bytes=300)
    log.close()
    first = log.segments[0].path
    damaged = bytearray(first.read_bytes())
    damaged[70] ^= 0xFF
    first.write_bytes(damaged)
    again = new_log(tmp_path / "log", trust_writes=False, recovery_point=log.recovery_point)
    assert again.end_offset == 24
    assert again.size_bytes == log.size_bytes


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("damage", ["gone", "empty", "garbage"])
def test_other_files_may_be_lost(tmp_path: Path, suffix: str, damage: str) -> None:
    """Indexes and snapshots can be rebuilt from the records."""
    log = filled(tmp_path / "log", 40, index_interval_bytes=200, segment_bytes=2000)
    append(log, batch(producer_id=5, producer_epoch=0, base_sequence=0))
    whole, end = contents(log), log.end_offset
    log.close()
    for path in (tmp_path / "log").glob(f"*{suffix}"):
        path.unlink()
        if damage != "gone":
            path.write_bytes(b"" if damage == "empty" else b"\x01\x7f" * 30)
    again = new_log(tmp_path / "log", index_interval_bytes=200, segment_bytes=2000)
    assert (again.end_offset, contents(again)) == (end, whole)
    for offset in range(0, 80, 7):
        found = again.read(offset, 10**6)
        assert found is not None
        assert struct.unpack(">q", found.read()[:8])[0] == offset // 2 * 2
    with pytest.raises(AppendError):
        append(again, batch(producer_id=5, producer_epoch=0, base_sequence=7))


def test_index_ahead_of_the_log_is_not_believed(tmp_path: Path) -> None:
    """An index that points where no batch begins costs time, never records."""
    log = filled(tmp_path / "log", 40, index_interval_bytes=200)
    whole = contents(log)
    log.close()
    index = tmp_path / "log" / LOG.replace(".log", ".index")
    entries = list(struct.iter_unpack(">ii", index.read_bytes()))
    index.write_bytes(b"".join(struct.pack(">ii", key, position + 3) for key, position in entries))
    assert contents(new_log(tmp_path / "log")) == whole


def test_producers_survive_a_kill(tmp_path: Path) -> None:
    """Retries after a crash are recognised, all five of them, and gaps are still gaps."""
    log = new_log(tmp_path / "log")
    sent = [batch(2, producer_id=5, producer_epoch=1, base_sequence=2 * at) for at in range(7)]
    for data in sent:
        append(log, data)
    again = new_log(killed(tmp_path / "log", tmp_path / "copy"))
    assert [append(again, data) for data in sent[2:]] == [4, 6, 8, 10, 12]
    assert again.end_offset == 14
    with pytest.raises(AppendError) as raised:
        append(again, batch(producer_id=5, producer_epoch=1, base_sequence=15))
    assert raised.value.error_code == error_codes.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_survive_a_clean_end(tmp_path: Path) -> None:
    """The same from a snapshot alone."""
    log = new_log(tmp_path / "log")
    sent = [batch(2, producer_id=5, producer_epoch=1, base_sequence=2 * at) for at in range(7)]
    for data in sent:
        append(log, data)
    log.close()
    again = new_log(tmp_path / "log")
    assert [append(again, data) for data in sent[2:]] == [4, 6, 8, 10, 12]


def test_snapshot_ahead_of_the_log_is_not_believed(tmp_path: Path) -> None:
    """When a power cut took records that a snapshot knows, their retry is stored, not answered from memory."""
    log = new_log(tmp_path / "log")
    sent = [batch(2, producer_id=5, producer_epoch=1, base_sequence=2 * at) for at in range(4)]
    for data in sent:
        append(log, data)
    log.close()
    with open(tmp_path / "log" / LOG, "r+b") as file:
        file.truncate(2 * len(sent[0]))
    again = new_log(tmp_path / "log", trust_writes=False)
    assert again.end_offset == 4
    assert [append(again, data) for data in sent[1:]] == [2, 4, 6]
    assert again.end_offset == 8


def test_expired_start_is_kept(tmp_path: Path) -> None:
    """A log whose first segments were deleted begins where it began before."""
    log = filled(tmp_path / "log", 12, segment_bytes=300, retention_bytes=300, retention_ms=-1)
    expire(log, 0)
    start = log.start_offset
    assert start > 0
    again = new_log(killed(tmp_path / "log", tmp_path / "copy"))
    assert (again.start_offset, again.end_offset) == (start, 24)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """A file that is no segment does not become one."""
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "notes.log").write_text("mine")
    log = filled(tmp_path / "log")
    log.close()
    assert new_log(tmp_path / "log").end_offset == 12
    assert (tmp_path / "log" / "notes.log").read_text() == "mine"


def test_long_recovery_says_how_far_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every three seconds a line names the partition, the file and how much of it has been looked at."""
    log = new_log(tmp_path / "orders-0", max_message_bytes=2 * 1024 * 1024)
    for _ in range(21):
        append(log, batch(value=bytes(1_000_000)))
    seconds = itertools.count(0, 2)
    progress = Progress(monotonic=lambda: float(next(seconds)))
    progress.at = " (partition 3 of 8)"
    with caplog.at_level(logging.INFO):
        again = open_log(
            killed(tmp_path / "orders-0", tmp_path / "copy-0"),
            TopicSettings(),
            producer_expiration_ms=86_400_000,
            trust_writes=False,
            progress=progress,
        )
    assert again.end_offset == 21
    assert [record.getMessage() for record in caplog.records] == [
        f"recovering copy-0/{LOG} (partition 3 of 8): read {walked} of 21 MB" for walked in (10, 20)
    ]
