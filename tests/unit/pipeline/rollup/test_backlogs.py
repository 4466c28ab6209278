"""How far behind consumers read, out of Fetch rows."""

import pyarrow as pa
import pytest
from tests.replaying.files import write_events

from tidegate.pipeline.read.ingest import list_chunks
from tidegate.pipeline.rollup.backlogs import backlogs_table, chunk_backlogs
from tidegate.pipeline.schemas import BACKLOGS
from tidegate.usage.files import list_files


def _fetch(second, connection_id, lag_bytes, fetched, *, user="etl", throttle_ms=0):
    return {
        "kind": "request", "ts_ms": second * 1000, "seq": second * 10 + connection_id, "node_id": 1, "user": user,
        "client_id": f"c{connection_id}", "connection_id": connection_id, "api_key": 1, "fetch_bytes": fetched,
        "lag": lag_bytes, "lag_bytes": lag_bytes, "fetch_throttle_ms": throttle_ms,
    }  # fmt: skip


@pytest.mark.parametrize("rows_per_file", [1000, 2])
def test_connections_of_a_step_are_added_up(tmp_path, rows_per_file):
    """The largest of each in ten seconds; what a throttled fetch would have brought was not fetched."""
    events = [
        _fetch(1, 1, 500, 10),
        _fetch(2, 1, 300, 10),
        _fetch(3, 2, 70, 10),
        _fetch(4, 3, None, 10, user="new"),
        _fetch(11, 1, 900, 10, throttle_ms=5),
        _fetch(12, 2, 100, 10),
        _fetch(21, 2, 40, 10),
        _fetch(31, 2, None, 10),
        {"kind": "request", "ts_ms": 99_000, "seq": 1000, "node_id": 1, "user": "etl", "produce_bytes": 9},
    ]
    write_events(tmp_path, events, rows_per_file=rows_per_file)
    chunks = list_chunks(list_files(tmp_path))
    by_user, by_both = (
        backlogs_table(pa.concat_tables([chunk_backlogs(chunk, by) for chunk in chunks]))
        for by in ("user", "both")
    )
    assert by_user.column_names == BACKLOGS.names
    etl, new = sorted(by_user.to_pylist(), key=lambda row: row["entity_user"])
    assert list(etl.values()) == [1, "etl", None, 0, 30_000, 60, 570, 40, 1000]
    assert list(new.values()) == [1, "new", None, 0, 0, 10, None, None, None]
    assert {(row["entity_user"], row["entity_client_id"]) for row in by_both.to_pylist()} == {
        ("etl", "c1"), ("etl", "c2"), ("new", "c3"),
    }  # fmt: skip
