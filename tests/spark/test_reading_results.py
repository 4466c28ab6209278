"""Results are read by the paths of their tables, with Spark, pyarrow and pandas, and so are copies of them."""

import subprocess
from datetime import UTC, datetime
from random import Random

import pandas as pd
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.jobs.where import jobs_here, jobs_on_spark
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.replay.plan import Plan

_TABLES = {
    "usage": ("usage_by_client", "usage_by_minute"),
    "replay": ("replay_by_client", "replay_by_entity", "decisions", "state"),
}


@pytest.fixture
def usage(tmp_path):
    """The record of a node that throttles, over days."""
    rng = Random(3)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=8))
    now_ms = random_traffic(node, rng, events=300)
    random_traffic(node, rng, events=300, now_ms=now_ms + 86_400_000)
    write_events(tmp_path / "usage" / "parquet", node.events)
    return tmp_path / "usage"


def _rows(found):
    """Return rows in some order, without what their directories add to them."""
    return sorted(
        repr({name: _text(value) for name, value in row.items() if name != "date"}) for row in found
    )


def _text(value):
    """Return a value; a time as its time in UTC, which is what Spark returns without saying so."""
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else value


def _check_readable(spark, path):
    """Every reader finds the same rows and columns; return them."""
    on_spark = spark.session.read.parquet(str(path))
    table, dataset, frame = pq.read_table(path), ds.dataset(path, partitioning="hive"), pd.read_parquet(path)
    assert on_spark.columns == table.column_names == dataset.schema.names == list(frame.columns)
    rows = _rows(table.to_pylist())
    assert rows == _rows(row.asDict() for row in on_spark.collect())
    assert rows == _rows(dataset.to_table().to_pylist())
    assert len(frame) == len(rows)
    return rows


@pytest.mark.parametrize(
    "place", [pytest.param(jobs_here, id="here"), pytest.param(jobs_on_spark, id="spark")]
)
def test_tables_are_read_by_their_paths(spark, usage, tmp_path, place):
    """As they were written first, in the place of others, copied with their links, and without."""
    plans = [Plan(name="p", records=random_records(Random(1), at_most=6))]
    found = {}
    with open_usage(usage) as files:
        jobs = place(files) if place is jobs_here else place(spark, files)
        for number in range(2):
            jobs.usage(out=tmp_path / "usage-out", top=1)
            jobs.replay(plans, out=tmp_path / "replay-out", with_decisions=True)
            for command, names in _TABLES.items():
                out = tmp_path / f"{command}-out"
                found[number, command] = [_check_readable(spark, out / f"{name}.parquet") for name in names]
                assert all(found[number, command])
    for command, names in _TABLES.items():
        assert found[0, command] == found[1, command]
        for options in ("-r", "-rL"):
            copy = tmp_path / f"{command}{options}"
            subprocess.run(["cp", options, tmp_path / f"{command}-out", copy], check=True)
            assert [_check_readable(spark, copy / f"{name}.parquet") for name in names] == found[0, command]
