"""A watch decides what a replay of the same rows decides, however they arrive and however often it ends."""

import os
import pickle
import shutil
from pathlib import PurePath
from random import Random

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.replaying.plans import random_groups, random_smooth

from tidegate.errors import ConfigError
from tidegate.in_slices import run_at_once
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.kernel.open_loop import replay_kernel
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.report.notes import late_notes
from tidegate.pipeline.schemas import CLIENT, USAGE_SUMS
from tidegate.pipeline.warm_up import compile_replay_kernel
from tidegate.pipeline.watch.checkpoint import Checkpoint, WatchState
from tidegate.pipeline.watch.totals import Totals
from tidegate.pipeline.watching import WatchHere
from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.usage.convert import compact

WINDOW_MS = 300_000
USED = (*CLIENT, "first_ts_ms", "last_ts_ms", *USAGE_SUMS)


@pytest.fixture
def seed():
    """A seed, which is printed."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    return seed


def nodes_events(rng, nodes=(1, 2)):
    """Return random events of some nodes, of which one begins in the middle, and one starts anew and has a gap."""
    found = {}
    for node_id in nodes:
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        now_ms = random_traffic(node, rng, events=100, snapshots=True)
        if node_id == 2:
            node.events.clear()
            node.snapshot(now_ms)
        now_ms = random_traffic(node, rng, events=100, now_ms=now_ms, snapshots=True)
        node.gap(now_ms, lost_events=7)
        now_ms = random_traffic(node, rng, events=100, now_ms=now_ms, snapshots=True)
        node.start(now_ms, records=random_records(rng, at_most=3))
        random_traffic(node, rng, events=100, now_ms=now_ms)
        node.events[0]["ts_ms"] = min(
            event["ts_ms"] for event in node.events
        )  # a run begins with its least time
        found[node_id] = node.events
    return found


def cut(events, rng):
    """Return the events in parts as they may arrive."""
    parts = []
    while events:
        rows = rng.choice([1, 2, 30, 100, 200])
        parts.append(events[:rows])
        events = events[rows:]
    return parts


def plans(rng):
    """Return a plan, which may have groups and smooth mode, and the quotas in force."""
    records = random_records(rng, at_most=6)
    if rng.random() < 0.5:
        return [Plan(name="a", records=records), in_force_plan()]
    beyond = Plan(name="a", records=(*records, *random_smooth(rng)), groups=random_groups(rng))
    return [beyond, in_force_plan()]


def by_name(rows):
    """Return rows in some order of theirs, as text: NaN is equal to itself there."""
    return sorted(repr(sorted(row.items())) for row in rows)


def replayed(directory, wanted, from_ms=None):
    """Return what a replay and `usage` say of the whole, or from a time on."""
    with open_usage(directory, from_ms=from_ms) as files:
        usage = jobs_here(files).usage(out=None, top=1000)
        entities = jobs_here(files).replay(wanted, out=None).entities
    summed = (*CLIENT, "first_ts_ms", "last_ts_ms", *USAGE_SUMS)
    return entities, [{name: row[name] for name in summed} for row in usage.top]


def test_batch_is_streaming(tmp_path, seed):
    """The sums of a watch are those of `replay` and `usage`, to the row: parts of any size, two nodes, snapshots."""
    rng = Random(seed)
    wanted, events = plans(rng), nodes_events(rng)
    record = tmp_path / "usage"
    watch = None
    parts = [(node_id, part) for node_id in events for part in cut(events[node_id], rng)]
    for _, part in parts:
        write_events(record, part)
        watch = watch or WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0, lateness_s=0)
        if rng.random() < 0.7:
            watch.step()
    while watch.step():
        pass
    entities, usage = replayed(record, wanted)
    assert watch.totals.events == sum(map(len, events.values())) - sum(watch.totals.waiting.values())
    assert by_name(watch.totals.in_all().entities) == by_name(entities)
    assert by_name(watch.totals.in_all().clients) == by_name(usage)


def test_a_gap_before_a_snapshot_that_has_not_ended_waits_for_it(tmp_path):
    """A gap ends at the next row, even where that is held: requests behind it are exact as late as in a replay."""
    limit = QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=1.0)
    wanted = [Plan(name="a", records=(limit,)), in_force_plan()]
    node = RecordingNode()
    node.start(START_MS, records=(limit,))
    node.gap(START_MS, lost_events=7)
    behind = len(node.events)
    for second in range(5, 30):
        if second == 5:
            node.snapshot(START_MS + 5000)
        node.produce("alice", "c1", 10, START_MS + second * 1000)
    record, watch = tmp_path / "usage", None
    for part in (node.events[: behind + 1], node.events[behind + 1 :]):
        write_events(record, part)
        watch = watch or WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0, lateness_s=0)
        watch.step()
    entities, _ = replayed(record, wanted)
    (found,) = (row for row in entities if row["plan"] == "a" and row["quota_type"] == "Produce")
    assert 0 < found["approximate_after_gap"] < found["requests"]
    assert by_name(watch.totals.in_all().entities) == by_name(entities)


def test_it_goes_on_where_it_ended(tmp_path, seed):
    """Ended after any step, and before what the step found was written down: nothing is lost, nothing counted twice."""
    rng = Random(seed)
    wanted, events = plans(rng), nodes_events(rng, nodes=(2,))[2]
    record, checkpoint = tmp_path / "usage", tmp_path / "watched"
    for part in cut(events, rng):
        write_events(record, part)
        with Checkpoint(checkpoint) as held:
            watch = WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0, checkpoint=held, lateness_s=0)
            written = checkpoint / "watch"
            before = written.read_bytes() if written.exists() else None
            watch.step()
            if before is not None and rng.random() < 0.3:
                written.write_bytes(before)  # killed before it was written
    with Checkpoint(checkpoint) as held:
        watch = WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0, checkpoint=held, lateness_s=0)
        while watch.step():
            pass
    entities, usage = replayed(record, wanted)
    assert by_name(watch.totals.in_all().entities) == by_name(entities)
    assert by_name(watch.totals.in_all().clients) == by_name(usage)


def test_a_range_counts_as_in_a_replay(tmp_path, seed):
    """From any time on: the earlier rows of the hour leave their state and are not counted, as in `replay --from`."""
    rng = Random(seed)
    wanted, events = plans(rng), nodes_events(rng)
    record = tmp_path / "usage"
    for node_id in events:
        write_events(record, events[node_id], rows_per_file=rng.choice([50, 1000]))
    times = sorted(event["ts_ms"] for of_node in events.values() for event in of_node)
    from_ms = rng.choice(times) + rng.choice([0, 1])
    with Checkpoint(tmp_path / "watched") as held:
        watch = WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=from_ms, checkpoint=held, lateness_s=0)
        watch.step()
    with Checkpoint(tmp_path / "watched") as held:  # the start of the first run is kept
        watch = WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0, checkpoint=held, lateness_s=0)
        while watch.step():
            pass
    waiting = sum(watch.totals.waiting.values())
    counted = sum(time >= from_ms for time in times)
    assert counted - waiting <= watch.totals.events <= counted
    if not counted:
        return
    entities, usage = replayed(record, wanted, from_ms=from_ms)
    assert by_name(watch.totals.in_all().entities) == by_name(entities)
    assert by_name(watch.totals.in_all().clients) == by_name(usage)


def test_a_compacted_copy_is_not_read_again(tmp_path):
    """A file that has the rows of others adds nothing, whenever it comes; the next rows do."""
    node = RecordingNode()
    node.start(START_MS)
    now_ms = random_traffic(node, Random(7), events=50, quotas_change=False)
    record = tmp_path / "usage"
    write_events(record / "parquet", node.events, rows_per_file=20)
    watch = WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS, from_ms=0)
    while watch.step():
        pass
    events = watch.totals.events
    for _ in range(2):
        run_at_once(compact(record / "parquet", node_id=1, now_ms=2**62))
    assert watch.step() == []
    assert watch.totals.events == events == len(node.events)
    rest = len(node.events)
    node.produce("alice", "c1", 10, now_ms)
    write_events(record / "parquet", node.events[rest:])
    assert [advance.events for advance in watch.step()] == [1]


def test_rows_of_a_segment_in_two_hours_are_waited_for(tmp_path):
    """While one of its two files is not there yet, nothing of it counts, and nothing is lost."""
    node = RecordingNode()
    node.start(START_MS)
    for at_ms in range(START_MS, START_MS + 7_200_000, 600_000):
        node.produce("alice", "c1", 10, at_ms)
    record = tmp_path / "usage"
    write_events(record, node.events)
    first, *others = sorted(record.rglob("*.parquet"))
    assert others
    hidden = first.with_suffix(".later")
    first.rename(hidden)
    watch = WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS, from_ms=0)
    assert watch.step() == []
    hidden.rename(first)
    assert sum(advance.events for advance in watch.step()) == len(node.events)


def files_of(tmp_path, events, *, rows_per_file=40):
    """Return a record's files in order, in a directory of their own."""
    source = tmp_path / "source"
    write_events(source, events, rows_per_file=rows_per_file)
    return sorted(
        (path.relative_to(source) for path in source.rglob("*.parquet")), key=lambda path: path.name
    )


def arrive(tmp_path, record, path):
    """Bring a file to a record."""
    (record / path).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(tmp_path / "source" / path, record / path)


def test_files_may_arrive_in_any_order(tmp_path, seed):
    """Rows behind a missing range wait for it: the sums are those of a replay, whatever order the files come in."""
    rng = Random(seed)
    wanted, record = plans(rng), tmp_path / "usage"
    events = nodes_events(rng, nodes=(1,))[1]
    files = files_of(tmp_path, events)
    record.mkdir()
    watch = WatchHere(record, wanted, window_ms=WINDOW_MS, from_ms=0)
    for path in rng.sample(files, len(files)):
        arrive(tmp_path, record, path)
        watch.step()
    while watch.step():
        pass
    entities, usage = replayed(record, wanted)
    assert (watch.totals.late_events, watch.totals.events + sum(watch.totals.waiting.values())) == (
        0,
        len(events),
    )
    assert by_name(watch.totals.in_all().entities) == by_name(entities)
    assert by_name(watch.totals.in_all().clients) == by_name(usage)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_what_comes_too_late_is_counted_and_named(tmp_path, is_resumed):
    """Past the lateness a range counts as lost; its rows are counted once when they come, also as a compacted copy."""
    node = RecordingNode()
    node.start(START_MS)
    for number in range(200):
        node.produce("alice", "c1", 10, START_MS + number)
    files, record = files_of(tmp_path, node.events), tmp_path / "usage"
    seqs = [int(path.name.split("-")[2]) for path in files] + [node.events[-1]["seq"] + 1]
    late = [files[0], files[2]]
    late_rows = seqs[1] - seqs[0] + seqs[3] - seqs[2]
    for path in files:
        if path not in late:
            arrive(tmp_path, record / "parquet", path)
    options = {"window_ms": WINDOW_MS, "from_ms": 0, "lateness_s": 0}
    with Checkpoint(tmp_path / "watched") as held:
        watch = WatchHere(record, [in_force_plan()], checkpoint=held, **options)
        while watch.step():
            pass
        assert (watch.totals.events, watch.totals.late_events) == (len(node.events) - late_rows, 0)
        for path in late:
            arrive(tmp_path, record / "parquet", path)
        if is_resumed:
            watch = WatchHere(record, [in_force_plan()], checkpoint=held, **options)
        assert watch.step() == []
        run_at_once(compact(record / "parquet", node_id=1, now_ms=2**62))
        watch = WatchHere(record, [in_force_plan()], checkpoint=held, **options)
        assert watch.step() == []
    assert (watch.totals.events, watch.totals.late_events) == (len(node.events) - late_rows, late_rows)
    assert [PurePath(path).name for path in watch.totals.late_files] == [path.name for path in late]
    (note,) = late_notes(watch.totals.late_events, watch.totals.late_files)
    assert note.startswith(f"skipped {late_rows} events that arrived after later events")
    assert files[0].name in note


def test_lost_rows_are_not_waited_for_longer_than_the_lateness(tmp_path):
    """Rows behind a range that never comes are taken once they have been there for the lateness."""
    node = RecordingNode()
    node.start(START_MS)
    for number in range(100):
        node.produce("alice", "c1", 10, START_MS + number)
    first, *others = files_of(tmp_path, node.events)
    record = tmp_path / "usage"
    for path in others:
        arrive(tmp_path, record, path)
    patient = WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS, from_ms=0)
    assert patient.step() == []
    hasty = WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS, from_ms=0, lateness_s=1e-6)
    assert hasty.step()
    arrive(tmp_path, record, first)
    while patient.step():
        pass
    assert patient.totals.events == len(node.events)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_run_of_the_broker_follows_the_one_before(tmp_path, is_here):
    """Where the spool lies, the first rows of a run are taken at once; among copies they wait for earlier runs."""
    record = tmp_path / "usage"
    if is_here:
        (record / "spool" / "node-1").mkdir(parents=True)
    watch = WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS, from_ms=0)
    for first_seq in (2**40, 2**41):
        node = RecordingNode(first_seq=first_seq)
        node.start(START_MS)
        node.produce("alice", "c1", 10, START_MS)
        write_events(record / "parquet", node.events)
        assert sum(advance.events for advance in watch.step()) == (len(node.events) if is_here else 0)


def test_it_begins_with_the_newest_hour(tmp_path):
    """Earlier rows are left out; an empty directory is waited in; a directory that is not there is an error."""
    record = tmp_path / "usage"
    with pytest.raises(UsageFilesError, match="no usage record"):
        WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS).step()
    record.mkdir()
    watch = WatchHere(record, [in_force_plan()], window_ms=WINDOW_MS)
    assert watch.step() == []
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS)
    write_events(record, node.events)
    later = len(node.events)
    node.produce("alice", "c1", 10, START_MS + 3_600_000)
    write_events(record, node.events[later:])
    assert [advance.events for advance in watch.step()] == [1]


def test_a_checkpoint_is_of_one_watch(tmp_path):
    """Of the same record and plans, one process at a time; garbage and foreign code are refused."""
    record, other = tmp_path / "usage", tmp_path / "other"
    record.mkdir(), other.mkdir()
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS)
    write_events(record, node.events)
    path = tmp_path / "watched"
    wanted = [in_force_plan()]
    with Checkpoint(path) as held:
        WatchHere(record, wanted, window_ms=WINDOW_MS, checkpoint=held).step()
        with pytest.raises(ConfigError, match="is in use by another watch"):
            Checkpoint(path)
        with pytest.raises(ConfigError, match="belongs to the record"):
            held.read(directory=other, plans=wanted)
        with pytest.raises(ConfigError, match=r"belongs to other plans: 'in force'"):
            held.read(directory=record, plans=[Plan(name="a", records=())])
        for data in (b"", b"garbage", pickle.dumps(os.system), pickle.dumps({"a": 1})):
            (path / "watch").write_bytes(data)
            with pytest.raises(ConfigError, match="version of Tidegate"):
                held.read(directory=record, plans=wanted)


def test_the_kernel_is_compiled_once(tmp_path):
    """What a watch hands it is what it is compiled for ahead."""
    compile_replay_kernel()
    forms = len(replay_kernel().signatures)
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "c1", 10, START_MS)
    write_events(tmp_path, node.events)
    watch = WatchHere(tmp_path, [in_force_plan()], window_ms=WINDOW_MS)
    assert watch.step()
    assert len(replay_kernel().signatures) == forms


def test_a_plan_whose_limit_is_no_number_is_itself(tmp_path):
    """A checkpoint of it is gone on from, though NaN is not equal to NaN."""
    record = tmp_path / "usage"
    record.mkdir()
    limit = QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=float("nan"))
    wanted = [Plan(name="a", records=(limit,))]
    with Checkpoint(tmp_path / "watched") as held:
        held.write(WatchState(directory=str(record), plans=wanted, totals=Totals(window_ms=WINDOW_MS)))
        assert held.read(directory=record, plans=wanted) is not None
