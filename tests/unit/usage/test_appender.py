"""Room for rows: when segments roll, and what happens when there is no room."""

import os
import resource
import shutil
from contextlib import contextmanager

import pytest
from tests.descriptors import limited_descriptors
from tests.unit.usage.recording import (
    START_MS,
    Decided,
    client,
    closed_events,
    lose_events,
    open_recorder,
    record,
    record_requests,
    segment_of,
    spool_directory,
)

from tidegate.errors import ConfigError
from tidegate.server.requests.recorder import Recorder
from tidegate.testing import ManualClock
from tidegate.usage.appender import RETRY_MS
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    NAMES_BYTES_MAX,
    OPEN_SUFFIX,
    SEGMENT_BYTES_MAX,
    segment_paths,
)


def test_age_rolls(tmp_path):
    """A segment with rows is handed over when it is old enough, and none is opened while nothing happens."""
    recorder = open_recorder(tmp_path, segment_age_ms=1000)
    spool = spool_directory(tmp_path, 1)
    record(recorder, client(), START_MS)
    recorder.maybe_roll(START_MS + 999)
    assert segment_paths(spool, CLOSED_SUFFIX) == []
    recorder.maybe_roll(START_MS + 1000)
    recorder.maybe_roll(START_MS + 5000)
    assert len(segment_paths(spool, CLOSED_SUFFIX)) == 1
    assert segment_paths(spool, OPEN_SUFFIX) == []
    recorder.close()


def test_clock_stepping_back_rolls(tmp_path):
    """A segment opened in what is now the future does not wait for it."""
    recorder = open_recorder(tmp_path, segment_age_ms=1000)
    record(recorder, client(), START_MS)
    recorder.maybe_roll(START_MS - 3_600_000)
    assert len(segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)) == 1
    recorder.close()


def test_full_table_of_names_rolls(tmp_path):
    """Client ids that never repeat fill the table of names; the next segment has an empty one."""
    recorder = open_recorder(tmp_path)
    ids = [f"{index:05d}" + "x" * 30_000 for index in range(NAMES_BYTES_MAX // 30_000 + 3)]
    for client_id in ids:
        record(recorder, client(client_id), START_MS)
    recorder.close()
    assert [event["client_id"] for event in closed_events(tmp_path)] == ids
    sizes = [path.stat().st_size for path in spool_directory(tmp_path, 1).glob("*.names")]
    assert len(sizes) == 2
    assert max(sizes) <= NAMES_BYTES_MAX


def test_no_room_drops_and_counts(tmp_path, caplog):
    """Past the bound of the spool, events are dropped and counted, and nothing is raised."""
    bound = 2 * (segment_of(10_000) + NAMES_BYTES_MAX)
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10_000), max_spool_bytes=bound)
    who = client()
    while not recorder.lost_events:
        record(recorder, who, START_MS)
    record(recorder, who, START_MS)
    assert recorder.lost_events == 2
    assert bound - 2 * segment_of(10_000) - NAMES_BYTES_MAX < spool_bytes(tmp_path) <= bound
    assert "another segment would exceed the limit of" in caplog.text
    recorder.close()
    assert len(closed_events(tmp_path)) % 10_000 == 0


def spool_bytes(tmp_path):
    paths = spool_directory(tmp_path, 1).iterdir()
    return sum(path.stat().st_size for path in paths if path.suffix in (".open", ".closed", ".names"))


def test_room_again_ends_the_gap(tmp_path):
    """When the writer has taken segments away, a gap row says how many events are missing, before the next event."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(
        tmp_path, clock, segment_bytes=segment_of(10), max_spool_bytes=2 * (segment_of(10) + NAMES_BYTES_MAX)
    )
    ids = iter(range(10**6))
    while not recorder.lost_events:
        record(recorder, client(f"{next(ids)}" + "x" * 30_000), START_MS)
    empty_spool(tmp_path)
    record(recorder, client(), START_MS)
    clock.advance(RETRY_MS)
    record(recorder, client(), START_MS + 9)
    recorder.close()
    gap, event = closed_events(tmp_path)
    assert (gap["kind"], gap["lost_events"], gap["ts_ms"]) == ("gap", 2, START_MS + 9)
    assert (event["kind"], event["seq"]) == ("request", gap["seq"] + 1)
    assert recorder.lost_events == 2


def empty_spool(tmp_path):
    for path in spool_directory(tmp_path, 1).iterdir():
        if path.suffix in (".closed", ".names"):
            path.unlink()


def test_failing_disk_drops_and_counts(tmp_path, caplog):
    """When no file can be made, for whatever reason, the broker goes on and the loss is in the record."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    lose_events(recorder, tmp_path, 5)
    assert "File exists" in caplog.text
    clock.advance(RETRY_MS)
    recorder.maybe_roll(START_MS)
    recorder.close()
    assert [(event["kind"], event["lost_events"]) for event in closed_events(tmp_path)] == [("gap", 5)]


def test_close_tries_to_record_the_gap(tmp_path):
    """What was lost just before the end is in the record when there is room again, without waiting."""
    recorder = open_recorder(tmp_path)
    lose_events(recorder, tmp_path, 4)
    recorder.close()
    assert [event["lost_events"] for event in closed_events(tmp_path)] == [4]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment_bytes": 1000}, "segment_bytes must be from 1152 to 268435456, got 1000"),
        ({"segment_bytes": SEGMENT_BYTES_MAX + 1}, "got 268435457"),
        ({"max_spool_bytes": 1 << 20}, "max_spool_bytes must be from 50331648 to .*, got 1048576"),
        ({"segment_age_ms": 0}, "segment_age_ms must be from 1 to .*, got 0"),
    ],
)
def test_bad_settings(tmp_path, settings, message):
    """A setting that cannot work is refused by name before anything is made."""
    with pytest.raises(ConfigError, match=message):
        open_recorder(tmp_path, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("node_id", [-1, 2**31])
def test_bad_node_id(tmp_path, node_id):
    """A node id is one that Kafka could give."""
    with pytest.raises(ConfigError, match=f"node_id must be from 0 to 2147483647, got {node_id}"):
        Recorder(tmp_path, node_id=node_id, clock=ManualClock())


@contextmanager
def file_size_limit(size_bytes):
    """Let no file grow past `size_bytes`: what a full disk does, for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_that_takes_no_segment(tmp_path, caplog):
    """A segment's blocks are reserved when it is made: a full disk is a counted loss then, not a crash later."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    with file_size_limit(100_000):
        recorder.expire(START_MS)
        assert "File too large" in caplog.text
        assert list(spool_directory(tmp_path, 1).glob("0*")) == []
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    recorder.close()
    assert [(event["kind"], event["lost_events"]) for event in closed_events(tmp_path)] == [
        ("gap", 1),
        ("expire", None),
    ]


@pytest.mark.parametrize("taken_bytes", [0, 50])
def test_disk_that_takes_no_names(tmp_path, taken_bytes):
    """A name that is written in part or not at all costs its event, and no other."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    alice, bob = client(), client(user="bob")
    record(recorder, alice, START_MS)
    (names,) = spool_directory(tmp_path, 1).glob("*.names")
    with file_size_limit(names.stat().st_size + taken_bytes):
        record(recorder, bob, START_MS)
    clock.advance(RETRY_MS)
    record(recorder, bob, START_MS)
    recorder.close()
    events = [(event["kind"], event["user"], event["lost_events"]) for event in closed_events(tmp_path)]
    assert events == [("request", "alice", None), ("gap", "", 1), ("request", "bob", None)]


def test_segment_that_cannot_be_handed_over_holds_up_the_next(tmp_path):
    """Segments are handed over in order: while one cannot be, events are lost rather than out of order."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    recorder.start(START_MS)
    (path,) = segment_paths(spool_directory(tmp_path, 1), OPEN_SUFFIX)
    path.with_suffix(CLOSED_SUFFIX).mkdir()
    recorder.maybe_roll(START_MS + 10**6)
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    assert recorder.lost_events == 1
    path.with_suffix(CLOSED_SUFFIX).rmdir()
    clock.advance(RETRY_MS)
    recorder.maybe_roll(START_MS)
    recorder.close()
    assert [event["kind"] for event in closed_events(tmp_path)] == ["start", "gap"]


def test_segment_deleted_by_somebody(tmp_path):
    """Rows in a file that is gone are counted as lost."""
    recorder = open_recorder(tmp_path)
    for _ in range(3):
        recorder.start(START_MS)
    spool = spool_directory(tmp_path, 1)
    shutil.rmtree(spool)
    spool.mkdir()
    recorder.maybe_roll(START_MS + 10**6)
    recorder.close()
    assert [event["lost_events"] for event in closed_events(tmp_path)] == [3]


def test_spool_that_is_removed_is_made_again(tmp_path, caplog):
    """Within one look of the timer: what was lost is counted, said once and a `gap`, and the record goes on."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path / "usage", clock)
    who = client()
    for _ in range(3):
        record(recorder, who, START_MS)
    shutil.rmtree(tmp_path / "usage")
    record(recorder, who, START_MS)
    for _ in range(3):
        clock.advance(500)
        recorder.maybe_roll(START_MS)
    record(recorder, who, START_MS, 77)
    assert recorder.lost_events == 4
    assert [text for text in caplog.messages if "was removed" in text and "lost" in text] == [
        f"usage record: {spool_directory(tmp_path / 'usage', 1)}/{START_MS * 1000:020d}.open was removed; "
        "its rows are lost"
    ]
    with pytest.raises(ConfigError, match="in use"):
        open_recorder(tmp_path / "usage", clock)
    recorder.close()
    events = closed_events(tmp_path / "usage")
    assert [(event["kind"], event["lost_events"], event["request_bytes"]) for event in events] == [
        ("gap", 4, 0),
        ("request", None, 77),
    ]
    reopened = open_recorder(tmp_path / "usage", clock)
    assert reopened.next_connection_id() > events[-1]["seq"]
    reopened.close()


@pytest.mark.parametrize("left_bytes", [0, 200, segment_of(2)])
def test_segment_that_is_cut(tmp_path, caplog, left_bytes):
    """Somebody cuts the file under the recorder: it lives, what was in it is a `gap`, what comes after is there."""
    recorder = open_recorder(tmp_path)
    who = client()
    for index in range(5):
        record(recorder, who, START_MS, index)
    (path,) = segment_paths(spool_directory(tmp_path, 1), OPEN_SUFFIX)
    os.truncate(path, left_bytes)
    record(recorder, who, START_MS, 5)
    recorder.maybe_roll(START_MS)
    record(recorder, who, START_MS, 6)
    recorder.close()
    kept = left_bytes // segment_of(0) - 1 if left_bytes >= segment_of(1) else 0
    events = [(e["kind"], e["lost_events"], e["request_bytes"]) for e in closed_events(tmp_path)]
    assert events == [
        *[("request", None, index) for index in range(kept)],
        ("gap", 5 - kept, 0),
        ("request", None, 5),
        ("request", None, 6),
    ]
    assert sum("was truncated" in text for text in caplog.messages) == 1


def test_all_of_a_cut_segment_is_counted(tmp_path):
    """Rows that were cut off without any after them are a `gap` too: the closed file's size tells how many."""
    recorder = open_recorder(tmp_path)
    for index in range(5):
        record(recorder, client(), START_MS, index)
    (path,) = segment_paths(spool_directory(tmp_path, 1), OPEN_SUFFIX)
    os.truncate(path, 0)
    recorder.close()
    assert [(event["kind"], event["lost_events"]) for event in closed_events(tmp_path)] == [("gap", 5)]


def test_names_that_are_cut(tmp_path):
    """No row gets another's names: the next new name begins a new segment."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    record(recorder, client(), START_MS)
    (names,) = spool_directory(tmp_path, 1).glob("*.names")
    os.truncate(names, 0)
    record(recorder, client(user="bob"), START_MS)
    clock.advance(RETRY_MS)
    record(recorder, client(user="carol"), START_MS)
    recorder.close()
    events = [(event["kind"], event["user"], event["lost_events"]) for event in closed_events(tmp_path)]
    assert events == [("gap", "", 1), ("gap", "", 1), ("request", "carol", None)]


def test_rows_that_the_disk_takes_no_more_are_counted(tmp_path):
    """A write that fails costs the rows of its turn, whose numbers are not given away again."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    who = client()
    record(recorder, who, START_MS, 1)
    record_requests(recorder, who, Decided(frame_bytes=2))
    with file_size_limit(segment_of(1)):
        recorder.commit()
    assert recorder.lost_events == 1
    clock.advance(RETRY_MS)
    record(recorder, who, START_MS, 3)
    recorder.close()
    events = [(e["kind"], e["lost_events"], e["request_bytes"]) for e in closed_events(tmp_path)]
    assert events == [("request", None, 1), ("gap", 1, 0), ("request", None, 3)]
    seqs = [event["seq"] - START_MS * 1000 for event in closed_events(tmp_path)]
    assert seqs == [0, 2, 3]


def test_roll_without_descriptors_is_tried_again(tmp_path, caplog):
    """With all descriptors used up events are lost and counted; when there are some again the record goes on."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    recorder.maybe_roll(START_MS)
    with limited_descriptors() as descriptors:
        descriptors.limit(descriptors.lowest_free())
        recorder.expire(START_MS)
        clock.advance(RETRY_MS)
        recorder.expire(START_MS)
    assert "Too many open files" in caplog.text
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    recorder.close()
    events = [(event["kind"], event["lost_events"]) for event in closed_events(tmp_path)]
    assert events == [("gap", 2), ("expire", None)]
