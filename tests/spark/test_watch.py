"""A watch as structured streaming says what a replay says, also when it goes on from its checkpoint."""

from pathlib import PurePath
from random import Random

from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode
from tests.unit.pipeline.watch.test_here import (
    WINDOW_MS,
    arrive,
    by_name,
    cut,
    files_of,
    nodes_events,
    plans,
    replayed,
    write_events,
)

from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.watch.checkpoint import Checkpoint
from tidegate.pipeline.watch.on_spark import watch_on_spark


def test_streaming_is_batch(spark, tmp_path):
    """Two runs over one checkpoint; a batch that was not committed is run again, and not added twice."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    wanted, events = plans(rng), nodes_events(rng, nodes=(2,))
    record, checkpoint = tmp_path / "usage", tmp_path / "watched"
    parts = [(node_id, part) for node_id in events for part in cut(events[node_id], rng)]
    for _, part in parts[: len(parts) // 2]:
        write_events(record, part)
    run(spark, record, wanted, checkpoint)
    commits = sorted((checkpoint / "query" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)  # ended before the last batch was committed
    for _, part in parts[len(parts) // 2 :]:
        write_events(record, part)
    totals = run(spark, record, wanted, checkpoint)
    entities, usage = replayed(record, wanted)
    assert by_name(totals.in_all().entities) == by_name(entities)
    assert by_name(totals.in_all().clients) == by_name(usage)


def test_late_rows_are_counted_on_spark(spark, tmp_path):
    """Rows that arrive after later ones of their node were taken are counted and named, once."""
    node = RecordingNode()
    node.start(START_MS)
    for number in range(100):
        node.produce("alice", "c1", 10, START_MS + number)
    first, *others = files_of(tmp_path, node.events)
    record, checkpoint = tmp_path / "usage", tmp_path / "watched"
    for path in others:
        arrive(tmp_path, record, path)
    run(spark, record, [in_force_plan()], checkpoint)
    arrive(tmp_path, record, first)
    for _ in range(2):
        totals = run(spark, record, [in_force_plan()], checkpoint)
        assert totals.late_events == len(node.events) - totals.events > 0
        assert [PurePath(path).name for path in totals.late_files] == [first.name]


def run(spark, record, wanted, checkpoint):
    """Take in what is there."""
    with Checkpoint(checkpoint) as held:
        return watch_on_spark(
            spark,
            record,
            wanted,
            window_ms=WINDOW_MS,
            from_ms=3_600_000,
            checkpoint=held,
            every_s=0.1,
            is_once=True,
            show=lambda totals, done: False,
            lateness_s=0,
        )
