"""Which snapshots a replay uses, and which of their rows it refuses."""

import json
from random import Random

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.control_events import control_events
from tidegate.pipeline.read.ingest import UsageFiles, list_chunks
from tidegate.pipeline.read.snapshots import with_snapshots
from tidegate.pipeline.read.survey import read_sensors, survey_chunk
from tidegate.pipeline.read.timeline import timelines
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import QuotaRecord, QuotaWindow
from tidegate.usage.readers import list_files

USER = (("user", "alice"),)
PRODUCE = QuotaRecord(entity=USER, key="producer_byte_rate", value=100.0)


def recorded(*, windows=None):
    """Return a node that has charged a client, and whose record then begins."""
    node = RecordingNode()
    node.start(START_MS, records=(PRODUCE,), **(windows or {}))
    node.produce("alice", "app", 5000, START_MS)
    node.events.clear()
    return node


def kinds(events):
    """Return the steps of the timeline but those of quotas, with how many sensors they state."""
    control = [e for e in events if e["kind"] in ("start", "gap", "quota", "callback", "snapshot")]
    whole = [e for e in control if e["kind"] != "snapshot" or e["quota_user"] is None]

    def read(after_seq, before_seq):
        return [e for e in events if e["kind"] == "snapshot" and after_seq < e["seq"] < before_seq]

    timeline = with_snapshots(timelines(control_events(whole))[1], read)
    return [(step.kind, len(step.states)) for step in timeline.steps if step.kind not in ("quota", "break")]


def test_the_first_complete_one_is_used():
    """Later ones say what is known by then; so do all after a start of the node."""
    node = recorded()
    node.snapshot(START_MS)
    node.snapshot(START_MS)
    assert kinds(node.events) == [("begins", 0), ("sensors", 1), ("ends", 0)]
    node.start(START_MS)
    node.snapshot(START_MS)
    assert kinds(node.events)[3:] == [("start", 0)]


def test_after_a_gap_the_next_one_is_used():
    """What was lost is in it."""
    node = RecordingNode()
    node.start(START_MS, records=(PRODUCE,))
    node.snapshot(START_MS)
    node.gap(START_MS)
    node.produce("alice", "app", 5000, START_MS)
    node.snapshot(START_MS)
    assert kinds(node.events) == [("start", 0), ("gap", 0), ("begins", 0), ("sensors", 1), ("ends", 0)]


@pytest.mark.parametrize("after", ["start", "gap", "nothing"])
def test_one_that_was_cut_short_is_not_used(after):
    """By a kill of the node, by lost rows, or by the end of the record."""
    node = recorded()
    node.snapshot(START_MS, steps=2)
    if after == "start":
        node.start(START_MS)
    elif after == "gap":
        node.gap(START_MS)
        node.snapshot(START_MS)
    assert [kind for kind, _ in kinds(node.events)] == [after] * (after != "nothing")


def test_one_of_which_a_row_is_missing_is_not_used():
    """Its last row says how many there are."""
    node = recorded()
    node.snapshot(START_MS)
    events = [event for event in node.events if not (event["snapshot"] or "").startswith("{")]
    assert kinds(events) == []


def test_a_state_in_several_rows_is_put_together():
    """Longer than a name may be."""
    node = recorded(windows={"window": QuotaWindow(samples=3600, window_ms=1000)})
    for second in range(3000):
        node.managers.produce.record("alice", "app", second / 7, START_MS + second * 1000)
    node.snapshot(START_MS + 3_000_000)
    assert sum((event["snapshot"] or "").startswith("{") for event in node.events) == 1
    assert sum(event["kind"] == "snapshot" for event in node.events) > 3
    assert kinds(node.events) == [("begins", 0), ("sensors", 1), ("ends", 0)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "{}",
        '{"quota_key":"producer_byte_rate"',
        '{"quota_key":"other","recorded_ms":0,"samples":[],"current":0}',
        '{"quota_key":"producer_byte_rate","recorded_ms":0,"samples":[[1.0,0]],"current":0}',
        '{"quota_key":"producer_byte_rate","recorded_ms":0,"samples":[[1,0,0]],"current":0}',
        '{"quota_key":"producer_byte_rate","recorded_ms":0,"samples":[[1.0,0,0]],"current":1}',
        '{"quota_key":"producer_byte_rate","recorded_ms":0,"samples":[[1.0,0,0]],"current":-1}',
        '{"quota_key":"producer_byte_rate","recorded_ms":99999999999999999999,"samples":[],"current":0}',
        '{"quota_key":"producer_byte_rate","recorded_ms":0,"samples":[],"current":0,"emptied_ms":null}',
        '{"quota_key":"controller_mutation_rate","recorded_ms":0,"tokens":null,"updated_ms":0}',
        "[" * 30_000,
    ],
)
def test_a_state_that_makes_no_sense_is_refused(text):
    """By the row that it is in, whatever it is."""
    node = recorded()
    node.snapshot(START_MS)
    (row,) = [event for event in node.events if (event["snapshot"] or "").startswith("{")]
    row["snapshot"] = text
    with pytest.raises(UsageFilesError, match=f"seq={row['seq']}"):
        kinds(node.events)


def test_more_samples_than_there_are_windows_are_refused(tmp_path):
    """They would not fit into the kernel's arrays."""
    node = recorded()
    node.snapshot(START_MS)
    (row,) = [event for event in node.events if (event["snapshot"] or "").startswith("{")]
    row["snapshot"] = json.dumps(json.loads(row["snapshot"]) | {"samples": [[1.0, 0, 0]] * 13})
    node.produce("alice", "app", 5000, START_MS)
    write_events(tmp_path, node.events)
    with pytest.raises(UsageFilesError, match="13 samples of a rate, expected 12 at most"):
        jobs_here(_files(tmp_path)).replay([in_force_plan()], out=None)


def test_the_rows_of_a_snapshot_are_found_in_their_files(tmp_path):
    """Of one node, in order, and in no more files than they are in."""
    node = recorded()
    for number in range(30):
        node.produce("alice", f"app-{number}", 5, START_MS)
        node.snapshot(START_MS)
    other = RecordingNode(2)
    other.start(START_MS, records=(PRODUCE,))
    other.snapshot(START_MS)
    write_events(tmp_path, node.events, rows_per_file=10)
    write_events(tmp_path, other.events)
    chunks = [(chunk, survey_chunk(chunk)) for chunk in list_chunks(list_files(tmp_path))]
    first, last = node.events[40]["seq"], node.events[80]["seq"]
    expected = [e["seq"] for e in node.events[41:80] if e["kind"] == "snapshot"]
    found = read_sensors(chunks, node_id=1, after_seq=first, before_seq=last)
    assert [row["seq"] for row in found] == expected


def test_a_replay_of_files_begins_from_a_snapshot_in_them(tmp_path):
    """Without the rows from before it all that follows is decided as recorded, and counted."""
    node = RecordingNode()
    records = [PRODUCE, QuotaRecord(entity=(("client-id", None),), key="consumer_byte_rate", value=900.0)]
    node.start(START_MS, records=tuple(records))
    now_ms = random_traffic(node, Random(5), events=500, quotas_change=False)
    before = len(node.events)
    node.snapshot(now_ms)
    random_traffic(node, Random(6), events=500, quotas_change=False, now_ms=now_ms)
    write_events(tmp_path, node.events[before:], rows_per_file=100)
    rows = jobs_here(_files(tmp_path)).replay([in_force_plan()], out=None).entities
    assert sum(row["requests"] for row in rows) > 500
    assert sum(row["throttled_requests"] for row in rows) > 30
    assert sum(row["different_decisions"] for row in rows) == 0


def _files(directory):
    paths = list_files(directory)
    return UsageFiles(paths=paths, chunks=list_chunks(paths))
