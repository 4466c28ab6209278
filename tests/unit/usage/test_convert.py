"""Segments into Parquet, compaction and retention: no loss and no duplicates, whatever was done before."""

import os

import pyarrow.parquet as pq
import pytest
from tests.unit.usage.reading import read_events
from tests.unit.usage.recording import (
    START_MS,
    client,
    closed_events,
    open_recorder,
    parquet_directory,
    patch,
    record,
    segment_of,
    set_file_times,
    spool_directory,
)

from tidegate.errors import ConfigError
from tidegate.usage.convert import (
    COMPACT_AFTER_MS,
    SUPERSEDED_KEEP_MS,
    compact,
    convert_segment,
    delete_expired,
    drain,
)
from tidegate.usage.directory import WRITER_LOCK, lock_file
from tidegate.usage.files import HOUR_MS, hour_directories, list_files
from tidegate.usage.segment import BAD_SUFFIX, CLOSED_SUFFIX, segment_paths

HOUR_START_MS = START_MS // HOUR_MS * HOUR_MS
OVER_MS = HOUR_START_MS + 3 * HOUR_MS


def record_segments(tmp_path, segments=3, *, step_ms=1, start_ms=START_MS):
    """Record some segments of ten rows and return their events."""
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10))
    for index in range(segments * 10):
        record(recorder, client(), start_ms + index * step_ms, index)
    recorder.close()
    return closed_events(tmp_path)


def convert(tmp_path):
    return drain(spool_directory(tmp_path, 1), parquet_directory(tmp_path))


def compact_all(tmp_path, now_ms=OVER_MS):
    for _ in compact(parquet_directory(tmp_path), node_id=1, now_ms=now_ms):
        pass


def test_every_row_once(tmp_path):
    """Rows in Parquet are the rows of the spool, and the spool is empty after."""
    expected = record_segments(tmp_path)
    assert convert(tmp_path) == 3
    assert list(read_events(tmp_path)) == expected
    assert sorted(path.name for path in spool_directory(tmp_path, 1).iterdir()) == [
        "lock",
        "state.json",
        "writer.lock",
    ]
    assert convert(tmp_path) == 0


def test_rows_lie_in_their_own_hour(tmp_path):
    """A segment over several hours, late rows included, becomes a file in each."""
    expected = record_segments(tmp_path, step_ms=-HOUR_MS // 4)
    convert(tmp_path)
    assert list(read_events(tmp_path)) == expected
    for hour_ms, directory in hour_directories(parquet_directory(tmp_path)):
        assert {event["ts_ms"] // HOUR_MS * HOUR_MS for event in read_events(directory)} == {hour_ms}


def test_done_again_gives_the_same_files(tmp_path):
    """Killed after writing and before deleting, the segment is converted again into the same files."""
    expected = record_segments(tmp_path, segments=1, step_ms=HOUR_MS // 4)
    spool = spool_directory(tmp_path, 1)
    kept = {path: path.read_bytes() for path in spool.iterdir() if path.is_file()}
    convert(tmp_path)
    files = list_files(tmp_path)
    for path, data in kept.items():
        path.write_bytes(data)
    convert(tmp_path)
    assert list_files(tmp_path) == files
    assert list(read_events(tmp_path)) == expected


def test_damaged_segment_is_set_aside_as_a_gap(tmp_path, caplog):
    """It is kept for inspection, named in the log, counted in the record, and the next segments go on."""
    expected = record_segments(tmp_path)
    spool = spool_directory(tmp_path, 1)
    damaged = segment_paths(spool, CLOSED_SUFFIX)[1]
    patch(damaged, 4, kind=77)
    os.utime(damaged, (START_MS / 1000, START_MS / 1000))
    convert(tmp_path)
    events = list(read_events(tmp_path))
    assert events[:10] + events[11:] == expected[:10] + expected[20:]
    assert (events[10]["kind"], events[10]["lost_events"], events[10]["seq"]) == (
        "gap",
        10,
        expected[10]["seq"],
    )
    assert segment_paths(spool, BAD_SUFFIX) == [damaged.with_suffix(BAD_SUFFIX)]
    assert f"{damaged} at byte 640: found 'kind 77'" in caplog.text


def test_empty_segment(tmp_path):
    """A closed segment without rows leaves nothing behind."""
    record_segments(tmp_path, segments=1)
    (path,) = segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)
    os.truncate(path, segment_of(0))
    convert_segment(path, parquet_directory(tmp_path), node_id=1)
    assert list(tmp_path.rglob("*.parquet")) == []
    assert not path.exists()


def test_drain_of_no_spool(tmp_path):
    """A directory where no recorder has been is an error."""
    with pytest.raises(ConfigError, match="is not a usage spool"):
        drain(tmp_path, tmp_path / "out")


def test_drain_beside_a_writer(tmp_path):
    """Two never work on one spool: while a writer does, draining waits, then says so."""
    record_segments(tmp_path)
    lock = lock_file(spool_directory(tmp_path, 1) / WRITER_LOCK)
    with pytest.raises(ConfigError, match="a writer is using the usage spool"):
        drain(spool_directory(tmp_path, 1), parquet_directory(tmp_path), timeout_s=0)
    os.close(lock)
    assert convert(tmp_path) == 3


def test_hour_that_is_over_is_compacted(tmp_path):
    """Its files become one, sorted, with every row once; the old ones stay a while but do not count."""
    expected = record_segments(tmp_path)
    convert(tmp_path)
    before = list_files(tmp_path)
    compact_all(tmp_path)
    (compacted,) = list_files(tmp_path)
    assert compacted.name.endswith("-compacted.parquet")
    assert compacted.stat().st_mode & 0o777 == 0o600
    assert list(read_events(tmp_path)) == expected
    assert all(path.exists() for path in before)


@pytest.mark.parametrize(("after_ms", "files"), [(COMPACT_AFTER_MS - 1, 3), (COMPACT_AFTER_MS, 1)])
def test_running_hour_is_left_alone(tmp_path, after_ms, files):
    """An hour is compacted when it has been over for a while."""
    record_segments(tmp_path)
    convert(tmp_path)
    compact_all(tmp_path, HOUR_START_MS + HOUR_MS + after_ms)
    assert len(list_files(tmp_path)) == files


@pytest.mark.parametrize("late_segments", [1, 2])
def test_late_rows_are_compacted_too(tmp_path, late_segments):
    """Rows that come for an hour compacted long ago count at once, and are merged with the next compaction."""
    expected = record_segments(tmp_path)
    convert(tmp_path)
    compact_all(tmp_path)
    expected += record_segments(tmp_path, late_segments)
    convert(tmp_path)
    assert list(read_events(tmp_path)) == expected
    compact_all(tmp_path)
    assert len(list_files(tmp_path)) == 1
    assert list(read_events(tmp_path)) == expected


def test_superseded_files_are_deleted_in_time(tmp_path):
    """They go when no job that listed them can still be reading."""
    expected = record_segments(tmp_path)
    convert(tmp_path)
    compact_all(tmp_path)
    (compacted,) = list_files(tmp_path)
    made_ms = compacted.stat().st_mtime_ns // 1_000_000
    compact_all(tmp_path, max(OVER_MS, made_ms + SUPERSEDED_KEEP_MS - 1))
    assert len(list(compacted.parent.iterdir())) == 4
    compact_all(tmp_path, max(OVER_MS, made_ms + SUPERSEDED_KEEP_MS))
    assert list(compacted.parent.iterdir()) == [compacted]
    assert list(read_events(tmp_path)) == expected


def test_segment_converted_again_after_compaction(tmp_path):
    """Even a segment whose deletion failed until its files were compacted and gone appears once."""
    expected = record_segments(tmp_path)
    spool = spool_directory(tmp_path, 1)
    kept = {path: path.read_bytes() for path in spool.iterdir() if path.is_file()}
    convert(tmp_path)
    compact_all(tmp_path)
    (compacted,) = list_files(tmp_path)
    compact_all(tmp_path, compacted.stat().st_mtime_ns // 1_000_000 + SUPERSEDED_KEEP_MS)
    for path, data in kept.items():
        path.write_bytes(data)
    convert(tmp_path)
    assert list(read_events(tmp_path)) == expected


def _damage(path):
    path.write_bytes(b"damaged")


def _lose_a_column(path):
    pq.write_table(pq.read_table(path).drop_columns(["listener"]), path)


def _change_a_bit(path):
    column = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset - 1] ^= 1  # the last of its dictionary
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_damage, _change_a_bit, _lose_a_column])
def test_unreadable_file_leaves_its_hour_alone(tmp_path, caplog, damage):
    """A damaged Parquet file, or one of a version with other columns, is reported once; other hours are compacted."""
    record_segments(tmp_path)
    record_segments(tmp_path, start_ms=START_MS + HOUR_MS)
    convert(tmp_path)
    damage(list_files(tmp_path)[1])
    unreadable = set()
    for _ in range(2):
        for _ in compact(parquet_directory(tmp_path), node_id=1, now_ms=OVER_MS, unreadable=unreadable):
            pass
    assert [path.name.endswith("-compacted.parquet") for path in list_files(tmp_path)] == [False] * 3 + [True]
    assert len(caplog.records) == 1


def test_old_hours_are_deleted(tmp_path):
    """An hour goes when its last millisecond is older than the retention time, with its directories."""
    record_segments(tmp_path)
    record_segments(tmp_path, start_ms=START_MS + HOUR_MS)
    convert(tmp_path)
    parquet = parquet_directory(tmp_path)
    set_file_times(parquet, HOUR_START_MS + HOUR_MS)
    for now_ms, left in ((HOUR_START_MS + 2 * HOUR_MS - 1, 6), (HOUR_START_MS + 2 * HOUR_MS, 3)):
        delete_expired(parquet, retention_ms=HOUR_MS, now_ms=now_ms, wall_ms=now_ms)
        assert len(list_files(tmp_path)) == left
    assert [hour_ms for hour_ms, _ in hour_directories(parquet)] == [HOUR_START_MS + HOUR_MS]


def test_hours_of_a_clock_that_was_not_set_are_kept(tmp_path):
    """What a broker recorded in 1970, as its machine thought, does not go when the clock is right: it is new."""
    record_segments(tmp_path, start_ms=5000)
    convert(tmp_path)
    parquet = parquet_directory(tmp_path)
    set_file_times(parquet, START_MS)
    for now_ms, left in ((START_MS + HOUR_MS - 1, 3), (START_MS + HOUR_MS, 0)):
        delete_expired(parquet, retention_ms=HOUR_MS, now_ms=now_ms, wall_ms=now_ms)
        assert len(list_files(tmp_path)) == left


def test_segment_without_its_names_becomes_a_gap(tmp_path):
    """Names that somebody has removed do not hold up what comes after."""
    recorder = open_recorder(tmp_path)
    record(recorder, client(), START_MS)
    recorder.maybe_roll(START_MS + 10**6)
    (names,) = spool_directory(tmp_path, 1).glob("*.names")
    names.unlink()
    record(recorder, client(), START_MS, 7)
    recorder.close()
    drain(spool_directory(tmp_path, 1), parquet_directory(tmp_path))
    events = [
        (event["kind"], event["lost_events"], event["request_bytes"]) for event in read_events(tmp_path)
    ]
    assert events == [("gap", 1, 0), ("request", None, 7)]
