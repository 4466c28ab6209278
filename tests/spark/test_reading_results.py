"""Each table is read by its path with Spark, DuckDB, polars, pandas and pyarrow, and so is a copy of it."""

import shutil
from datetime import UTC, datetime
from random import Random

import duckdb
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode

from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here, jobs_on_spark
from tidegate.pipeline.replay.plan import Plan

_TABLES = {
    "usage": ("usage_by_client", "usage_by_minute"),
    "replay": ("replay_by_client", "replay_by_entity", "decisions", "state"),
}
_DAY_MS = 86_400_000


@pytest.fixture
def usage(tmp_path):
    """The record of a node that throttles, over days."""
    rng = Random(3)
    node = RecordingNode()
    node.start(START_MS, records=random_records(rng, at_most=8))
    now_ms = random_traffic(node, rng, events=300)
    random_traffic(node, rng, events=300, now_ms=now_ms + _DAY_MS)
    write_events(tmp_path / "usage" / "parquet", node.events)
    return tmp_path / "usage"


def _readers(spark):
    """Return functions that read a path with each library, and return rows as dicts."""
    return {
        "spark": lambda path: [row.asDict() for row in spark.session.read.parquet(path).collect()],
        "duckdb": lambda path: (
            duckdb.sql(f"from read_parquet('{path}/**/*.parquet')").to_arrow_table().to_pylist()
        ),
        "duckdb directory": lambda path: (
            duckdb.sql(f"from read_parquet('{path}')").to_arrow_table().to_pylist()
        ),
        "polars": lambda path: pl.scan_parquet(path).collect().to_dicts(),
        "pandas": lambda path: pd.read_parquet(path).to_dict("records"),
        "pyarrow": lambda path: pq.read_table(path).to_pylist(),
        "pyarrow.dataset": lambda path: ds.dataset(path, partitioning="hive").to_table().to_pylist(),
    }


def _value(value):
    """Return a value in a form that all libraries share; Spark's times are of the local zone, without saying so."""
    if isinstance(value, datetime) and not pd.isna(value):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return None if pd.isna(value) else value


def _rows(found):
    return sorted(
        repr({name: float(value) if isinstance(value, int) else value for name, value in sorted(row.items())})
        for row in ({name: _value(value) for name, value in row.items() if name != "date"} for row in found)
    )


def _sums(found):
    return {
        name: sum(row[name] for row in found)
        for name in ("requests", "produce_bytes", "throttle_ms", "amount")
        if name in found[0]
    }


def _check_readable(spark, path):
    """Every reader finds the same rows, columns and sums; return the rows."""
    found = {name: read(str(path)) for name, read in _readers(spark).items()}
    expected = found.pop("pyarrow")
    assert expected
    for name, rows in found.items():
        assert _sums(rows) == _sums(expected), name
        assert _rows(rows) == _rows(expected), name
    return _rows(expected)


@pytest.mark.parametrize(
    "place", [pytest.param(jobs_here, id="here"), pytest.param(jobs_on_spark, id="spark")]
)
def test_tables_are_read_by_their_paths(spark, usage, tmp_path, place):
    """A first time, after they were replaced, and copied; the parent directory is an error for every reader."""
    plans = [Plan(name="p", records=random_records(Random(1), at_most=6))]
    found = {}
    with open_usage(usage) as files:
        jobs = place(files) if place is jobs_here else place(spark, files)
        for number in range(2):
            jobs.usage(out=tmp_path / "out", top=1)
            jobs.replay(plans, out=tmp_path / "out", with_decisions=True)
            for name in (name for names in _TABLES.values() for name in names):
                found[number, name] = _check_readable(spark, tmp_path / "out" / name)
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    for name in (name for names in _TABLES.values() for name in names):
        assert found[0, name] == found[1, name] == _check_readable(spark, tmp_path / "copy" / name)
    for name, read in _readers(spark).items():
        with pytest.raises(Exception, match=r"(?i)parquet|schema|conflicting|extension"):
            print(name, read(str(tmp_path / "out")))


def test_a_rerun_of_a_day_replaces_that_day(spark, usage, tmp_path):
    """Days are appended; a day that is run again has its new rows, and the other days stay as they are."""
    out = tmp_path / "out"
    table = out / "usage_by_minute"
    with open_usage(usage) as files:
        jobs_here(files).usage(out=tmp_path / "all", top=1)
    expected = _check_readable(spark, tmp_path / "all" / "usage_by_minute")
    first_ms = START_MS - START_MS % _DAY_MS
    days = [first_ms + number * _DAY_MS for number in range(3)]
    for day in days:
        with open_usage(usage, from_ms=day, to_ms=day + _DAY_MS) as files:
            if files.rows:
                jobs_here(files).usage(out=out, top=1)
    assert _check_readable(spark, table) == expected
    dates = sorted(path.name for path in table.iterdir())
    assert len(dates) >= 2
    before = {path: path.stat().st_mtime_ns for path in table.rglob("*.parquet")}
    with open_usage(usage, from_ms=days[0], to_ms=days[0] + _DAY_MS) as files:
        jobs_on_spark(spark, files).usage(out=out, top=1)
    changed = [path.parent.name for path, time in before.items() if path.stat().st_mtime_ns != time]
    assert changed == dates[:1]
    assert _check_readable(spark, table) == expected
