"""A watch as structured streaming says what a replay says, also when it goes on from its checkpoint."""

from random import Random

from tests.unit.pipeline.watch.test_here import (
    WINDOW_MS,
    by_name,
    cut,
    nodes_events,
    plans,
    replayed,
    settle,
    write_events,
)

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
    settle(record)
    run(spark, record, wanted, checkpoint)
    commits = sorted((checkpoint / "query" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)  # ended before the last batch was committed
    for _, part in parts[len(parts) // 2 :]:
        write_events(record, part)
    settle(record)
    totals = run(spark, record, wanted, checkpoint)
    entities, usage = replayed(record, wanted)
    assert by_name(totals.in_all().entities) == by_name(entities)
    assert by_name(totals.in_all().clients) == by_name(usage)


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
            show=lambda totals, done: None,
        )
