"""The jobs on Spark over an object store: what comes out is what one process finds in a directory."""

from pathlib import Path
from random import Random

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.spark.object_store import object_store

from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here, jobs_on_spark
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.results.output import saved_table
from tidegate.pipeline.spark.session import running_spark


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    """Write the record of two nodes."""
    rng = Random(3)
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        random_traffic(node, rng, events=100)
        write_events(tmp_path / "usage" / "parquet", node.events)
    return tmp_path / "usage"


def test_jobs_read_by_uri(usage: Path) -> None:
    """By Arrow in its tasks: Spark needs no jars of the store's."""
    with object_store() as store, running_spark(app_name="tests", master="local[2]", rows=0) as spark:
        store.put(usage, "usage")
        with open_usage(store.uri("usage")) as there, open_usage(usage) as here:
            assert jobs_on_spark(spark, there).usage(out=None, top=9) == jobs_here(here).usage(
                out=None, top=9
            )
            plans = [in_force_plan(), Plan(name="a", records=random_records(Random("a"), at_most=6))]
            outs = store.uri("spark"), store.uri("here")
            on_spark = jobs_on_spark(spark, there).replay(plans, out=outs[0], with_decisions=True)
            expected = jobs_here(here).replay(plans, out=outs[1], with_decisions=True)
            assert sorted(map(repr, on_spark.entities)) == sorted(map(repr, expected.entities))
            for name in ("replay_by_client", "replay_by_entity", "decisions", "state"):
                written, wanted = (saved_table(out, name) for out in outs)
                assert written.schema == wanted.schema
                assert sorted(map(repr, written.to_pylist())) == sorted(map(repr, wanted.to_pylist()))
