"""Snapshots of the engine's state: what is in them, when they are due, and what cuts them short."""

import json
import shutil

from tests.server.memory_network import ManualLoop, MemoryNode
from tests.unit.usage.recording import (
    START_MS,
    Decided,
    client,
    closed_events,
    no_room,
    open_recorder,
    record_requests,
    spool_directory,
)

from tidegate.in_slices import run_at_once
from tidegate.pipeline.read.control_events import CONTROL_KINDS, control_events
from tidegate.pipeline.read.snapshots import with_snapshots
from tidegate.pipeline.read.timeline import timelines
from tidegate.quota import QuotaManagers, QuotaRecord
from tidegate.server.settings.config import ServerConfig
from tidegate.testing import ManualClock
from tidegate.usage.readers import read_segment
from tidegate.usage.segment import CLOSED_SUFFIX, OPEN_SUFFIX, segment_paths

USER = (("user", "alice"),)
HOUR_MS = 3_600_000
ALICE = QuotaRecord(entity=USER, key="producer_byte_rate", value=100.0)


class SnapshotLog:
    """The recorder of an engine with one quota, on a clock that stands still."""

    def __init__(self, directory, **settings):
        self.directory = directory
        self.clock = ManualClock(start_ms=START_MS)
        self.recorder = open_recorder(directory, self.clock, **settings)
        self.managers = QuotaManagers()
        self.recorder.start(START_MS, ServerConfig.load({}).window_records())
        self.quota(ALICE)

    def quota(self, record):
        """Put a definition in force."""
        self.managers.apply(record)
        self.recorder.quota(record, self.clock.now_ms())

    def snapshot(self):
        """Return a snapshot that is about to be written."""
        return self.recorder.snapshot_in_slices(self.managers, self.clock.now_ms)

    def close(self):
        """Return the events since the first snapshot."""
        self.recorder.close()
        events = closed_events(self.directory)
        first = next((place for place, event in enumerate(events) if event["snapshot"]), len(events))
        return events[first:]


def said(events):
    """Return kind, quota and state of events, times and other numbers apart."""
    texts = [(event["snapshot"] or "").split(",")[0] for event in events]
    return [(e["kind"], e["quota_user"], e["quota_key"], text) for e, text in zip(events, texts, strict=True)]


def test_a_snapshot_has_the_quotas_in_force_and_every_sensor(tmp_path):
    """Between its beginning and its end; the window settings are among the quotas."""
    log = SnapshotLog(tmp_path)
    log.managers.produce.record("alice", "app", 5.0, START_MS)
    log.quota(QuotaRecord(entity=USER, key="controller_mutation_rate", value=2.0))
    log.managers.controller_mutation.new_quota("alice", "app", 19, 7, START_MS).record(3.0, START_MS)
    run_at_once(log.snapshot())
    events = log.close()
    assert said(events) == [
        ("snapshot", None, None, "begins"),
        ("quota", None, "quota.window.num", ""),
        ("quota", None, "quota.window.size.seconds", ""),
        ("quota", None, "controller.quota.window.num", ""),
        ("quota", None, "controller.quota.window.size.seconds", ""),
        ("quota", "alice", "producer_byte_rate", ""),
        ("quota", "alice", "controller_mutation_rate", ""),
        ("snapshot", "alice", None, '{"quota_key":"controller_mutation_rate"'),
        ("snapshot", "alice", None, '{"quota_key":"producer_byte_rate"'),
        ("snapshot", None, None, "ends 2"),
    ]
    assert json.loads(events[8]["snapshot"]) == {
        "quota_key": "producer_byte_rate", "recorded_ms": 0, "samples": [[5.0, 0, 0]], "current": 0,
    }  # fmt: skip
    assert json.loads(events[7]["snapshot"])["tokens"] == 2.0 * 11 - 3.0


def test_requests_between_two_slices_are_between_the_rows(tmp_path):
    """Each sensor's row stands where its state was so; a quota that changes meanwhile is stated as it is then."""
    log = SnapshotLog(tmp_path)
    snapshot = log.snapshot()
    log.managers.produce.record("alice", "app", 5.0, START_MS)
    for _ in range(3):
        next(snapshot)
    log.quota(QuotaRecord(entity=USER, key="producer_byte_rate", value=7.0))
    record_requests(log.recorder, client(), Decided())
    for _ in range(3):
        next(snapshot)
    log.managers.produce.record("alice", "app", 6.0, START_MS)
    record_requests(log.recorder, client(), Decided())
    run_at_once(snapshot)
    events = log.close()
    assert [event["kind"] for event in events] == [
        "snapshot", "quota", "quota", "quota", "request", "quota", "quota", "quota", "snapshot", "request", "snapshot",
    ]  # fmt: skip
    assert json.loads(events[-3]["snapshot"])["samples"] == [[5.0, 0, 0]]
    assert [e["quota_value"] for e in events if e["quota_key"] == "producer_byte_rate"] == [7.0, 7.0]


def test_a_snapshot_is_due_in_each_hour(tmp_path):
    """Once: not in that of the start, and not while one is being written."""
    log = SnapshotLog(tmp_path)
    in_hour = [START_MS, START_MS // HOUR_MS * HOUR_MS + HOUR_MS]
    assert [log.recorder.snapshot_due(now_ms) for now_ms in in_hour] == [False, True]
    log.clock.advance(HOUR_MS)
    snapshot = log.snapshot()
    next(snapshot)
    assert not log.recorder.snapshot_due(START_MS + 2 * HOUR_MS)
    run_at_once(snapshot)
    assert [log.recorder.snapshot_due(START_MS + hours * HOUR_MS) for hours in (1, 2)] == [False, True]
    log.close()


def test_a_snapshot_is_due_after_a_gap_and_not_while_rows_find_no_room(tmp_path):
    """Ten seconds after the last one at the soonest."""
    log = SnapshotLog(tmp_path)
    with no_room(log.recorder, tmp_path):
        log.recorder.expire(START_MS)
        assert not log.recorder.snapshot_due(START_MS + 2 * HOUR_MS)
    log.clock.advance(1000)
    log.recorder.maybe_roll(START_MS)
    assert not log.recorder.snapshot_due(START_MS + 9_999)
    assert log.recorder.snapshot_due(START_MS + 10_000)
    log.clock.advance(10_000)
    run_at_once(log.snapshot())
    assert not log.recorder.snapshot_due(START_MS + 30_000)
    log.close()


def test_a_snapshot_that_loses_rows_has_no_end(tmp_path):
    """What it lost may have been the state of a sensor."""
    log = SnapshotLog(tmp_path)
    for client_id in "ab":
        log.managers.apply(QuotaRecord(entity=(("client-id", None),), key="consumer_byte_rate", value=5.0))
        log.managers.fetch.record("alice", client_id, 5.0, START_MS)
    snapshot = log.snapshot()
    for _ in range(6):  # up to the first sensor
        next(snapshot)
    with no_room(log.recorder, tmp_path):
        next(snapshot)
    log.clock.advance(1000)
    log.recorder.maybe_roll(START_MS)
    run_at_once(snapshot)
    assert [event for event in log.close() if (event["snapshot"] or "").startswith("ends")] == []


def test_there_is_no_snapshot_where_a_replay_would_not_know_what_to_do(tmp_path):
    """Under a quota callback, and in smooth mode."""
    log = SnapshotLog(tmp_path)
    log.managers.extensions.apply(QuotaRecord(entity=(), key="tidegate.quota.smooth", value=1.0))
    run_at_once(log.snapshot())
    assert log.close() == []


def test_a_snapshot_of_many_sensors_is_written_in_short_steps(tmp_path):
    """Each is a row or few: whoever takes turns with it waits for no more than that and a slice."""
    log = SnapshotLog(tmp_path)
    log.quota(QuotaRecord(entity=(("client-id", None),), key="consumer_byte_rate", value=5.0))
    sensors = 3000
    for number in range(sensors):
        log.managers.fetch.record("alice", f"client-{number}", 5.0, START_MS)
    steps = sum(1 for _ in log.snapshot())
    assert steps >= sensors
    assert sum(event["kind"] == "snapshot" for event in log.close()) == sensors + 2


def test_a_snapshot_that_a_kill_cut_short_has_no_end(tmp_path):
    """What lay on the disk at that moment is read after the next start: the snapshot begins, and the node starts."""
    log = SnapshotLog(tmp_path / "killed")
    log.quota(QuotaRecord(entity=(("client-id", None),), key="consumer_byte_rate", value=5.0))
    for number in range(100):
        log.managers.fetch.record("alice", f"client-{number}", 5.0, START_MS)
    snapshot = log.snapshot()
    for _ in range(50):
        next(snapshot)
    log.recorder.commit()
    shutil.copytree(tmp_path / "killed", tmp_path / "left")
    log.close()
    after = SnapshotLog(tmp_path / "left")
    run_at_once(after.snapshot())
    events = after.close()
    ends = [event["snapshot"] for event in events if (event["snapshot"] or "").startswith("ends")]
    assert ends == ["ends 0"], "that of the node that started"
    control = [
        e
        for e in events
        if e["kind"] in CONTROL_KINDS or (e["kind"] == "snapshot" and e["quota_user"] is None)
    ]
    found = with_snapshots(timelines(control_events(control))[1], lambda after_seq, before_seq: [])
    assert [step.kind for step in found.steps if step.kind not in ("quota", "break")] == ["start"]


def test_a_node_states_what_it_knows_in_each_hour(tmp_path):
    """By its timer, in slices of its loop: nothing in the hour of its start, then once an hour."""
    loop = ManualLoop(ManualClock(start_ms=START_MS))
    recorder = open_recorder(tmp_path / "usage", loop.clock)
    world = MemoryNode(tmp_path / "data", recorder=recorder, loop=loop)
    world.node.on_quota(ALICE)
    world.node.managers.produce.record("alice", "app", 5.0, loop.clock.now_ms())
    ends_after = []
    for _ in range(3):
        loop.advance(1000)
        recorder.commit()
        ends_after.append(sum(event["snapshot"] == "ends 1" for event in recorded_events(tmp_path / "usage")))
        loop.clock.advance(HOUR_MS - 2000)
    world.close()
    assert ends_after == [0, 1, 2]


def recorded_events(directory):
    """Return all events in the spool."""
    spool = spool_directory(directory, 1)
    paths = [*segment_paths(spool, CLOSED_SUFFIX), *segment_paths(spool, OPEN_SUFFIX)]
    return [event for path in paths for event in read_segment(path)]
