"""The form of written tables: points in time are TIMESTAMP, all other columns stay."""

from datetime import UTC, datetime

import pyarrow as pa

from tidegate.pipeline.results.written import TIMESTAMP, as_written, written_name, written_schema
from tidegate.pipeline.schemas import DECISIONS, REPLAY_BY_CLIENT, usage_by_minute_schema, usage_schema


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
