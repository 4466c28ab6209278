"""The recorder: what each call writes, when segments roll, and what happens without room."""

import os
import shutil

import pytest
from tests.unit.usage.recording import (
    START_MS,
    client,
    closed_events,
    open_recorder,
    record,
    segment_of,
    spool_directory,
)

from tidegate.errors import ConfigError
from tidegate.testing import ManualClock
from tidegate.usage.columns import empty_event
from tidegate.usage.events import read_segment
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    NAMES_BYTES_MAX,
    OPEN_SUFFIX,
    SEGMENT_BYTES_MAX,
    segment_paths,
)
from tidegate.usage.spool import EXEMPT, NONE, OBSERVED_ONLY, REJECTED, RETRY_MS, STRICT, Recorder

CLIENT = {
    "listener": "PLAINTEXT",
    "user": "alice",
    "client_id": "app",
    "client_host": "127.0.0.1",
    "client_software": "librdkafka",
    "client_software_version": "2.8",
}
FIRST_SEQ = START_MS * 1000


def events_of(tmp_path, *calls):
    """Record `calls` and return the events without what is the same in all."""
    recorder = open_recorder(tmp_path)
    for call in calls:
        call(recorder)
    recorder.close()
    return closed_events(tmp_path)


def expected(kind, seq=FIRST_SEQ, **columns):
    return empty_event(kind) | {"ts_ms": START_MS, "seq": seq, "node_id": 1} | columns


def test_request_row(tmp_path):
    """A request fills the columns of the client and of the decision, each with its own argument."""
    (event,) = events_of(
        tmp_path,
        lambda r: r.request(
            client(r),
            START_MS,
            7,
            1,
            12,
            100,
            200,
            300,
            400,
            500,
            600,
            11,
            12,
            13,
            14,
            15,
            EXEMPT | OBSERVED_ONLY,
        ),
    )
    decided = {
        "connection_id": 7,
        "api_key": 1,
        "api_version": 12,
        "request_bytes": 100,
        "response_bytes": 200,
        "produce_bytes": 300,
        "fetch_bytes": 400,
        "handler_ns": 500,
        "network_ns": 600,
        "produce_throttle_ms": 11,
        "fetch_throttle_ms": 12,
        "request_throttle_ms": 13,
        "mutation_throttle_ms": 14,
        "early_ms": 15,
        "exempt": True,
        "observed_only": True,
    }
    assert event == expected("request", **CLIENT, **decided)


def test_request_row_with_nulls(tmp_path):
    """`NONE` is null, and zero is zero."""
    (event,) = events_of(
        tmp_path,
        lambda r: r.request(client(r), START_MS, 7, 3, 9, 1, 0, NONE, 0, 0, 0, 0, 0, 0, 0, NONE, 0),
    )
    assert (event["produce_bytes"], event["fetch_bytes"], event["early_ms"]) == (None, 0, None)
    assert (event["exempt"], event["observed_only"]) == (False, False)


def test_network_row(tmp_path):
    """Network time that became known later carries the identity of its request."""
    (event,) = events_of(tmp_path, lambda r: r.network(client(r), START_MS, 7, 1, 12, 600, EXEMPT))
    columns = {"connection_id": 7, "api_key": 1, "api_version": 12, "network_ns": 600, "exempt": True}
    assert event == expected("network", **CLIENT, **columns)


@pytest.mark.parametrize("flags", [0, STRICT, REJECTED | STRICT])
def test_mutation_row(tmp_path, flags):
    """Permits asked for, of which kind of quota object, and whether they were refused."""
    (event,) = events_of(tmp_path, lambda r: r.mutation(client(r), START_MS, 7, 19, 6, 30, flags))
    columns = {"connection_id": 7, "api_key": 19, "api_version": 6, "mutations": 30}
    decided = {"strict": bool(flags & STRICT), "rejected": bool(flags & REJECTED)}
    assert event == expected("mutation", **CLIENT, **columns, **decided)


@pytest.mark.parametrize("value", [1048576.0, 0.1, 0.0, -0.0, float("inf"), None])
def test_quota_row(tmp_path, value):
    """A definition keeps every bit of its value; removed is null."""
    (event,) = events_of(
        tmp_path,
        lambda r: r.quota(
            START_MS, user="a%20b", client_id="<default>", ip=None, key="producer_byte_rate", value=value
        ),
    )
    entity = {"quota_user": "a%20b", "quota_client_id": "<default>", "quota_key": "producer_byte_rate"}
    assert event == expected("quota", **entity, quota_value=value)
    assert repr(event["quota_value"]) == repr(value)


def test_quota_row_with_nan(tmp_path):
    """Kafka takes NaN for a quota, so the record does."""
    (event,) = events_of(
        tmp_path,
        lambda r: r.quota(
            START_MS, user=None, client_id="", ip=None, key="consumer_byte_rate", value=float("nan")
        ),
    )
    assert event["quota_client_id"] == ""
    assert event["quota_value"] != event["quota_value"]


def test_start_and_expire_rows(tmp_path):
    """Both have a time and a place in the sequence, and nothing else."""
    events = events_of(tmp_path, lambda r: r.start(START_MS), lambda r: r.expire(START_MS))
    assert events == [expected("start"), expected("expire", seq=FIRST_SEQ + 1)]


def test_events_keep_their_order(tmp_path):
    """Sequence numbers follow the calls, over segments too."""
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10))
    alice, bob = client(recorder), client(recorder, user="bob")
    for index in range(33):
        record(recorder, (alice, bob)[index % 2], START_MS, index)
    recorder.close()
    events = closed_events(tmp_path)
    assert [event["seq"] - FIRST_SEQ for event in events] == list(range(33))
    assert [event["request_bytes"] for event in events] == list(range(33))
    assert [event["user"] for event in events[:3]] == ["alice", "bob", "alice"]
    assert len(segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)) == 4


def test_rows_can_be_read_at_once(tmp_path):
    """A row is in the file when the call returns, nothing is kept back in the process."""
    recorder = open_recorder(tmp_path)
    who = client(recorder)
    for index in range(3):
        record(recorder, who, START_MS, index)
        (path,) = segment_paths(spool_directory(tmp_path, 1), OPEN_SUFFIX)
        assert [event["request_bytes"] for event in read_segment(path)] == list(range(index + 1))
    recorder.close()


def test_a_client_of_another_recorder_is_numbered_anew(tmp_path):
    """Names follow a client into whatever segment its rows go to."""
    first, second = open_recorder(tmp_path / "1"), open_recorder(tmp_path / "2")
    bob = client(second, user="bob")
    record(second, client(second, user="carol"), START_MS)
    record(second, bob, START_MS)
    record(first, bob, START_MS)
    first.close()
    second.close()
    assert [event["user"] for event in closed_events(tmp_path / "1")] == ["bob"]


def test_age_rolls(tmp_path):
    """A segment with rows is handed over when it is old enough, and none is opened while nothing happens."""
    recorder = open_recorder(tmp_path, segment_age_ms=1000)
    spool = spool_directory(tmp_path, 1)
    record(recorder, client(recorder), START_MS)
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
    record(recorder, client(recorder), START_MS)
    recorder.maybe_roll(START_MS - 3_600_000)
    assert len(segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)) == 1
    recorder.close()


def test_full_table_of_names_rolls(tmp_path):
    """Client ids that never repeat fill the table of names; the next segment has an empty one."""
    recorder = open_recorder(tmp_path)
    ids = [f"{index:05d}" + "x" * 30_000 for index in range(NAMES_BYTES_MAX // 30_000 + 3)]
    for client_id in ids:
        record(recorder, client(recorder, client_id), START_MS)
    recorder.close()
    assert [event["client_id"] for event in closed_events(tmp_path)] == ids
    sizes = [path.stat().st_size for path in spool_directory(tmp_path, 1).glob("*.names")]
    assert len(sizes) == 2
    assert max(sizes) <= NAMES_BYTES_MAX


def test_no_room_drops_and_counts(tmp_path):
    """Past the bound of the spool, events are dropped and counted, and nothing is raised."""
    bound = 2 * (segment_of(10_000) + NAMES_BYTES_MAX)
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10_000), max_spool_bytes=bound)
    who = client(recorder)
    while not recorder.lost_events:
        record(recorder, who, START_MS)
    record(recorder, who, START_MS)
    statistics = recorder.statistics()
    assert (statistics.lost_events, statistics.dropping, statistics.gaps) == (2, True, 0)
    assert statistics.rows % 10_000 == 0
    assert bound - 2 * segment_of(10_000) - NAMES_BYTES_MAX < statistics.spool_bytes <= bound
    assert "another segment would pass" in statistics.last_error
    recorder.close()


def test_room_again_ends_the_gap(tmp_path):
    """When the writer has taken segments away, a gap row says how many events are missing, before the next event."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(
        tmp_path, clock, segment_bytes=segment_of(10), max_spool_bytes=2 * (segment_of(10) + NAMES_BYTES_MAX)
    )
    ids = iter(range(10**6))
    while not recorder.lost_events:
        record(recorder, client(recorder, f"{next(ids)}" + "x" * 30_000), START_MS)
    empty_spool(tmp_path)
    record(recorder, client(recorder), START_MS)
    clock.advance(RETRY_MS)
    record(recorder, client(recorder), START_MS + 9)
    recorder.close()
    gap, event = closed_events(tmp_path)
    assert (gap["kind"], gap["lost_events"], gap["ts_ms"]) == ("gap", 2, START_MS + 9)
    assert (event["kind"], event["seq"]) == ("request", gap["seq"] + 1)
    assert recorder.lost_events == 2


def empty_spool(tmp_path):
    for path in spool_directory(tmp_path, 1).iterdir():
        if path.suffix in (".closed", ".names"):
            path.unlink()


def test_definitions_follow_a_gap(tmp_path):
    """After a gap the definitions in force are written again: what changed them may be lost."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock, segment_bytes=segment_of(8))
    recorder.start(START_MS)
    for index in range(20):
        recorder.quota(
            START_MS, user=f"u{index}", client_id=None, ip=None, key="producer_byte_rate", value=1.0
        )
    recorder.quota(START_MS, user="u7", client_id=None, ip=None, key="producer_byte_rate", value=None)
    lose_events(recorder, tmp_path, 3)
    clock.advance(RETRY_MS)
    recorder.expire(START_MS)
    recorder.close()
    gap, *definitions, last = closed_events(tmp_path)
    assert (gap["kind"], gap["lost_events"], last["kind"]) == ("gap", 3, "expire")
    assert [event["quota_user"] for event in definitions] == [
        f"u{index}" for index in range(20) if index != 7
    ]


def lose_events(recorder, tmp_path, count):
    """Take the directory away under the recorder, so that the next `count` events find no room."""
    spool = spool_directory(tmp_path, 1)
    recorder.maybe_roll(START_MS + 10**9)
    shutil.rmtree(spool)
    for _ in range(count):
        recorder.expire(START_MS)
    spool.mkdir()


def test_failing_disk_drops_and_counts(tmp_path):
    """When no file can be made, for whatever reason, the broker goes on and the loss is in the record."""
    clock = ManualClock(start_ms=START_MS)
    recorder = open_recorder(tmp_path, clock)
    lose_events(recorder, tmp_path, 5)
    assert "No such file or directory" in recorder.statistics().last_error
    clock.advance(RETRY_MS)
    recorder.maybe_roll(START_MS)
    assert not recorder.statistics().dropping
    recorder.close()
    assert [(event["kind"], event["lost_events"]) for event in closed_events(tmp_path)] == [("gap", 5)]


def test_close_tries_to_record_the_gap(tmp_path):
    """What was lost just before the end is in the record when there is room again, without waiting."""
    recorder = open_recorder(tmp_path)
    lose_events(recorder, tmp_path, 4)
    recorder.close()
    assert [event["lost_events"] for event in closed_events(tmp_path)] == [4]


def test_restart_continues_the_sequence(tmp_path):
    """Sequence numbers and connection ids of a later run are above all earlier ones, though the clock fell."""
    seqs, connections = [], []
    for now_ms in (START_MS, 0, START_MS + 5):
        recorder = open_recorder(tmp_path, ManualClock(start_ms=now_ms))
        connections += [recorder.next_connection_id() for _ in range(3)]
        record(recorder, client(recorder), START_MS)
        recorder.close()
        seqs = [event["seq"] for event in closed_events(tmp_path)]
    assert seqs == sorted(set(seqs))
    assert connections == sorted(set(connections))
    assert len(seqs) == 3


def test_files_are_private(tmp_path):
    """Names are personal data: nobody but the owner reads them."""
    recorder = open_recorder(tmp_path / "usage")
    record(recorder, client(recorder), START_MS)
    paths = list((tmp_path / "usage").rglob("*"))
    assert {os.stat(path).st_mode & 0o777 for path in paths if path.is_file()} == {0o600}
    assert {os.stat(path).st_mode & 0o777 for path in paths if path.is_dir()} == {0o700}
    recorder.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"segment_bytes": 1000}, "segment_bytes must be 1152 to 268435456, got 1000"),
        ({"segment_bytes": SEGMENT_BYTES_MAX + 1}, "got 268435457"),
        ({"max_spool_bytes": 1 << 20}, "max_spool_bytes must be 50331648 to .*, got 1048576"),
        ({"segment_age_ms": 0}, "segment_age_ms must be 1 to .*, got 0"),
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
    with pytest.raises(ConfigError, match=f"node_id must be 0 to 2147483647, got {node_id}"):
        Recorder(tmp_path, node_id=node_id, clock=ManualClock())


def test_statistics(tmp_path):
    """Counts of rows and segments, and what waits on disk."""
    recorder = open_recorder(tmp_path, segment_bytes=segment_of(10))
    for index in range(25):
        record(recorder, client(recorder), START_MS, index)
    statistics = recorder.statistics()
    assert (statistics.rows, statistics.segments, statistics.lost_events) == (25, 3, 0)
    assert statistics.spool_bytes > 3 * segment_of(10)
    assert (statistics.dropping, statistics.last_error, statistics.recovered_segments) == (False, None, 0)
    recorder.close()
