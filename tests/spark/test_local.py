"""Jobs in this process give what Spark gives."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.replaying.plans import random_groups, random_smooth

from tidegate.api_keys import FETCH
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.jobs.on_spark import OnSpark
from tidegate.pipeline.page.findings import MOST_STEPS, wanted_entities
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.chunks import Chunk
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.read.timeline import timelines
from tidegate.pipeline.record import jobs_here, jobs_on_spark
from tidegate.pipeline.replay.limits import Tolerance, levels_of
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.rollup.history import definitions_over_time
from tidegate.quota import QuotaRecord
from tidegate.quota.admin.groups import Groups
from tidegate.usage.arrow import arrow_schema
from tidegate.usage.files import HOUR_MS


def _nodes(directory, *, observed, nodes=(1, 2, 7)):
    """Write random logs of some nodes; where that is wanted, a client is observed only from the middle on."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    for node_id in nodes:
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        now_ms = random_traffic(node, rng, events=600)
        if node_id == 7:  # its record begins in the middle
            node.events.clear()
            node.snapshot(now_ms)
        if observed:
            record = QuotaRecord(entity=(("user", "alice"),), key="tidegate.quota.observe", value=1.0)
            node.quota(record, now_ms)
        random_traffic(node, rng, events=300, now_ms=now_ms)
        _hurry(node.events, rng)
        write_events(directory, node.events, rows_per_file=150)
    return directory


def _written(directory, names):
    """Return tables as Spark reads them: in some order, types included."""
    tables = [pq.read_table(directory / name) for name in names]
    return [
        (table.schema.names, [field.type for field in table.schema], sorted(map(repr, table.to_pylist())))
        for table in tables
    ]


def _differing(rows, others):
    """Return which rows are on one side only."""
    return sorted({*map(repr, rows)} ^ {*map(repr, others)})


def _hurry(events, rng):
    """Let clients come back early, or not, and name their libraries and topics."""
    for event in events:
        if event["kind"] == "request":
            event["client_software"] = rng.choice(["", "librdkafka", "apache-kafka-java"])
            event["lag_bytes"] = None if event["fetch_bytes"] is None else rng.choice([None, 0, 900, 2**62])
            event["early_ms"] = rng.choice([None, 0, 1, 2, 3, rng.randrange(2**31)])
            if event["api_key"] <= FETCH:
                topics = [("orders", 0), ("clicks", 3), (None, 0), (None, None)]
                event["topic"], event["other_topics"] = rng.choice(topics)


def test_usage_is_the_same(spark, tmp_path):
    """Every client and minute, every column and type, and who is shown; who came back early."""
    found = {}
    with open_usage(_nodes(tmp_path / "usage", observed=True)) as files:
        for place, jobs in (("here", jobs_here(files)), ("spark", jobs_on_spark(spark, files))):
            found[place] = [
                jobs.usage(out=tmp_path / place, top=5),
                jobs.usage(out=tmp_path / place / "by", top=5, by=("listener",)),
                jobs.usage(out=tmp_path / place / "topic", top=5, by=("topic",)),
                jobs.obedience(out=tmp_path / place / "obedience"),
            ]
    assert found["here"] == found["spark"]
    assert found["here"][2].topics.multi_topic_requests > 0 < found["here"][2].topics.unknown_requests
    by_topic = (_written(tmp_path / place / "topic", ("usage_by_topic",)) for place in ("here", "spark"))
    assert next(by_topic) == next(by_topic)
    names = ("obedience_by_client", "obedience_by_software")
    obedience = (_written(tmp_path / place / "obedience", names) for place in ("here", "spark"))
    assert next(obedience) == next(obedience)
    names = ("usage_by_client", "usage_by_minute")
    assert _written(tmp_path / "here", names) == _written(tmp_path / "spark", names)


def test_replay_is_the_same(spark, tmp_path):
    """Every entity, client and decision, what state is left; of a forecast, which has no decisions, who waits.

    Of plans with groups and smooth mode, too.
    """
    rng = Random("a")
    records = random_records(rng, at_most=6)
    plans = [
        Plan(name=name, records=given, groups=groups, is_closed=is_closed)
        for name, given, groups in (
            ("a", records, Groups()),
            ("b", (*records, *random_smooth(rng)), random_groups(rng)),
        )
        for name, is_closed in ((name, False), (f"forecast {name}", True))
    ]
    plans.append(in_force_plan())
    with open_usage(_nodes(tmp_path / "usage", observed=False)) as files:
        on_spark = jobs_on_spark(spark, files).replay(plans, out=tmp_path / "spark", with_decisions=True)
        here = jobs_here(files).replay(plans, out=tmp_path / "here", with_decisions=True)
    assert _differing(here.entities, on_spark.entities) == []
    assert any(row["waited_ms"] for row in here.entities)
    names = ("replay_by_client", "replay_by_entity", "decisions", "state")
    assert _written(tmp_path / "here", names) == _written(tmp_path / "spark", names)


def _with_earlier(times, place):
    """Return the first time from a place on that has an earlier one in its hour."""
    return next(
        now for before, now in pairwise(times[place:]) if before // HOUR_MS == now // HOUR_MS and before < now
    )


def test_ranges_are_the_same(spark, tmp_path):
    """Cut rows to the millisecond in both, and replay the rows before the range without counting them."""
    plans = [Plan(name="a", records=random_records(Random("a"), at_most=6)), in_force_plan()]
    _nodes(tmp_path / "usage", observed=False)
    times = sorted(
        time
        for path in (tmp_path / "usage").rglob("*.parquet")
        for time in pq.read_table(path, partitioning=None)["ts_ms"].to_pylist()
    )
    ends = {"from_ms": _with_earlier(times, len(times) // 3), "to_ms": times[2 * len(times) // 3]}
    with open_usage(tmp_path / "usage", **ends) as files:
        assert files.before
        results = []
        for place, jobs in (("here", jobs_here(files)), ("spark", jobs_on_spark(spark, files))):
            usage = jobs.usage(out=tmp_path / place / "usage", top=1000, by=("api",))
            replayed = jobs.replay(plans, out=tmp_path / place / "replay", with_decisions=True)
            wanted = wanted_entities(replayed.entities, definitions_over_time(timelines(jobs.quota_events())))
            history = jobs.history(wanted, most=MOST_STEPS).rows
            results.append((usage, jobs.obedience(out=None), sorted(map(repr, history))))
    assert results[0] == results[1]
    assert sum(row["requests"] for row in results[0][0].top) > 0
    for table, names in (
        ("usage", ("usage_by_api", "usage_by_api_by_minute")),
        ("replay", ("replay_by_client", "decisions", "state")),
    ):
        assert _written(tmp_path / "here" / table, names) == _written(tmp_path / "spark" / table, names)


def _recommended(jobs):
    """Return the quotas, by user as there are several, and how far behind consumers read."""
    found = jobs.recommend(None, Wanted(force=True))
    assert found.by == "user"
    assert any(row["last_lag_bytes"] for row in found.backlogs)
    return found.quotas, sorted(map(repr, found.backlogs))


def test_limits_are_the_same(spark, tmp_path):
    """Every entity, every node, to the last bit; and what is recommended."""
    all_types, tolerance = levels_of("user"), Tolerance()
    levels = replace(
        all_types, records=all_types.records[:2]
    )  # mutations, which take most passes, are recommended
    with open_usage(_nodes(tmp_path / "usage", observed=False)) as files:
        found = {
            place: (
                jobs.limits(levels, tolerance, out=tmp_path / place),
                *_recommended(jobs),
            )
            for place, jobs in (("here", jobs_here(files)), ("spark", jobs_on_spark(spark, files)))
        }
    assert found["here"] == found["spark"]
    names = ("limits_by_entity", "limits_by_node")
    assert _written(tmp_path / "here", names) == _written(tmp_path / "spark", names)


def test_the_history_of_a_report_is_the_same(spark, tmp_path):
    """Changed quotas, and what entities used in each step of time."""
    with open_usage(_nodes(tmp_path / "usage", observed=False, nodes=(1,))) as files:
        on_spark, here = jobs_on_spark(spark, files), jobs_here(files)
        events = here.quota_events()
        found = timelines(events), timelines(on_spark.quota_events())
        steps = [[*timeline[1].steps] for timeline in found]
        assert repr(steps[0]) == repr(steps[1])  # a limit may be NaN
        rows = here.replay([in_force_plan()], out=None).entities
        wanted = wanted_entities(rows, definitions_over_time(found[0]))
        buckets, others = here.history(wanted, most=MOST_STEPS), on_spark.history(wanted, most=MOST_STEPS)
    assert buckets.rows
    assert buckets.step_ms == others.step_ms
    assert (
        _differing(
            [sorted(row.items()) for row in buckets.rows], [sorted(row.items()) for row in others.rows]
        )
        == []
    )


def test_nothing_gives_nothing(tmp_path):
    """A node that only started."""
    node = RecordingNode()
    node.start(START_MS)
    write_events(tmp_path, node.events)
    with open_usage(tmp_path) as files:
        assert jobs_here(files).usage(out=tmp_path / "out", top=5).groups == 0
    assert len(pq.read_table(tmp_path / "out" / "usage_by_minute")) == 0


def test_sums_without_room_are_refused(tmp_path):
    """Instead of coming out negative."""
    node = RecordingNode()
    node.start(START_MS)
    for _ in range(3):
        node.produce("alice", "c1", 10, START_MS)["request_bytes"] = 2**62
    (tmp_path / "x").mkdir()
    pq.write_table(pa.Table.from_pylist(node.events, schema=arrow_schema()), tmp_path / "x" / "rows.parquet")
    with open_usage(tmp_path) as files, pytest.raises(UsageFilesError, match="does not fit into 64 bits"):
        jobs_here(files).usage(out=None, top=5)


def test_tasks_are_as_many_as_bytes_or_cores_ask_for(spark, tmp_path):
    """However many nodes and files there are."""
    on_spark, cores = OnSpark(spark), spark.session.sparkContext.defaultParallelism
    with open_usage(_nodes(tmp_path / "usage", observed=False, nodes=range(1, 13))) as files:
        placed = on_spark.place(files, [Plan(name="a", records=())], repeats=False)
        assert len(files.chunks) > 4 * cores
        assert on_spark.slices_of(files.chunks) == 4 * cores
        assert (
            placed.blocks.rdd.getNumPartitions() == placed.layout.task.tasks == len(placed.members) == cores
        )
    large = [Chunk("x", place, size_bytes=1 << 26) for place in range(400)]
    assert on_spark.slices_of(large) == 100
    assert on_spark.slices_of(large[:3]) == 3
