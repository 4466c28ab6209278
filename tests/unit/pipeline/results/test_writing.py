"""Rows in a file for each date; points in time are TIMESTAMP, all other columns stay."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.results.writing import (
    DAY_MS,
    TIMESTAMP,
    TableWriter,
    as_written,
    written_name,
    written_schema,
)
from tidegate.pipeline.schemas import DECISIONS, REPLAY_BY_CLIENT, usage_by_minute_schema, usage_schema

SCHEMA = pa.schema([("seq", pa.int64()), ("ts_ms", pa.int64()), ("user", pa.string())])


def _batch(seq, days):
    columns = [range(seq, seq + len(days)), [day * DAY_MS + seq for day in days], ["alice"] * len(days)]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=SCHEMA)


def _files(sinks):
    def opened(name):
        sinks[name] = pa.BufferOutputStream()
        return sinks[name]

    return opened


def test_every_row_is_in_a_file_of_its_date():
    """Dates that come again, more of them than files are open at a time, in one batch or several."""
    sinks = {}
    with TableWriter(_files(sinks), SCHEMA) as writer:
        for seq in range(0, 400, 4):
            writer.write(_batch(seq, [seq % 40, seq % 40, 50, 51]))
        writer.write(_batch(400, []))
    assert sorted(sinks) == sorted(writer.files)
    seen = []
    for name, sink in sinks.items():
        table = pq.read_table(pa.BufferReader(sink.getvalue()))
        assert table.schema.equals(written_schema(SCHEMA))
        for seq, ts in zip(table["seq"].to_pylist(), table["ts"].to_pylist(), strict=True):
            assert name.startswith(f"date={ts:%Y-%m-%d}/")
            seen.append(seq)
    assert sorted(seen) == list(range(400))


def test_no_rows_are_no_file():
    """Whoever knows of all writers makes one that is empty."""
    sinks = {}
    with TableWriter(_files(sinks), SCHEMA) as writer:
        writer.write(_batch(0, []))
    assert sinks == {}
    assert writer.files == []


def test_dates_are_bounded():
    """Times are input: each may be another date."""
    with (
        pytest.raises(UsageFilesError, match="more than 20 dates"),
        TableWriter(_files({}), SCHEMA, most_files=20) as writer,
    ):
        writer.write(_batch(0, list(range(21))))


def test_points_in_time_become_timestamps():
    """A time keeps its milliseconds, and null stays null."""
    table = pa.table({"first_ts_ms": [1_795_253_206_724, None], "throttle_ms": [5, 6]})
    written = as_written(table)
    assert written.schema == pa.schema([("first_ts", TIMESTAMP), ("throttle_ms", pa.int64())])
    assert written["first_ts"].to_pylist() == [datetime(2026, 11, 21, 9, 26, 46, 724_000, UTC), None]


def test_all_points_in_time_of_the_tables_are_known():
    """A column in ms is a length of time, unless it is one of these."""
    found = set()
    for table in (DECISIONS, REPLAY_BY_CLIENT, usage_by_minute_schema(), usage_schema()):
        written = written_schema(table)
        found |= {
            name for name in table.names if written_name(name) in written.names and name not in written.names
        }
        assert all(written.field(written_name(name)).type == TIMESTAMP for name in found & set(table.names))
    assert found == {
        "ts_ms", "minute_ms", "first_ts_ms", "last_ts_ms", "first_throttled_ts_ms", "recorded_first_throttled_ts_ms",
        "recorded_last_ts_ms", "last_ts_ms_low", "last_ts_ms_high",
    }  # fmt: skip
