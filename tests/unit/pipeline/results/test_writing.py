"""Rows in a file for each date."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.results.writing import DAY_MS, TableWriter
from tidegate.pipeline.results.written import written_schema

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
