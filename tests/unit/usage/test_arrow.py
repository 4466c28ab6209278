"""The record as Arrow tables and Parquet files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.usage.recording import START_MS, client, erase, open_recorder, patch, record, spool_directory

from tidegate.usage.arrow import (
    ParquetError,
    arrow_schema,
    gap_table,
    merge_files,
    read_batches,
    segment_table,
    split_by_hour,
    write_parquet,
)
from tidegate.usage.events import read_segment
from tidegate.usage.segment import CLOSED_SUFFIX, NAMES_SUFFIX, SpoolError, load_segment, segment_paths

HOUR_MS = 3_600_000


def write_segment(tmp_path, *, rows=10, step_ms=1, client_id="app", start_ms=START_MS):
    recorder = open_recorder(tmp_path)
    for index in range(rows):
        record(recorder, client(recorder, client_id), start_ms + index * step_ms, index)
    recorder.close()
    (path,) = segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)
    return path


def test_table_equals_the_plain_reading(tmp_path):
    """Whole columns and row by row give the same events."""
    path = write_segment(tmp_path)
    assert segment_table(load_segment(path)).to_pylist() == list(read_segment(path))


def test_lost_rows_become_the_same_gaps(tmp_path):
    """So do rows that a crash lost, names that it lost included."""
    path = write_segment(tmp_path)
    erase(path, 0, 1, 5, 8)
    assert segment_table(load_segment(path)).to_pylist() == list(read_segment(path))
    path.with_suffix(NAMES_SUFFIX).write_bytes(b"")
    assert segment_table(load_segment(path)).to_pylist() == list(read_segment(path))
    assert segment_table(load_segment(path)).column("lost_events").to_pylist() == [10]


@pytest.mark.parametrize(
    "fields",
    [{"marker": 3, "names": 99}, {"kind": 9}, {"marker": 3}, {"ts_ms": -5}, {"flags": 64}, {"names": 0}],
)
def test_bad_rows_are_the_plain_readers_error(tmp_path, fields):
    """What is wrong is said once, by the plain reader."""
    path = write_segment(tmp_path)
    patch(path, 3, **fields)
    with pytest.raises(SpoolError, match=f"at byte 512: found '{next(iter(fields))} "):
        segment_table(load_segment(path))


def test_split_by_hour(tmp_path):
    """Each row goes to the hour of its own time, in order within it."""
    table = segment_table(load_segment(write_segment(tmp_path, rows=8, step_ms=HOUR_MS // 3, start_ms=0)))
    parts = {hour_ms: part.column("request_bytes").to_pylist() for hour_ms, part in split_by_hour(table)}
    assert parts == {0: [0, 1, 2], HOUR_MS: [3, 4, 5], 2 * HOUR_MS: [6, 7]}


def test_files_have_the_plain_schema(tmp_path):
    """In the file strings are strings, and types and nullability are those of the document."""
    path = tmp_path / "out.parquet"
    write_parquet(path, segment_table(load_segment(write_segment(tmp_path))))
    assert pq.read_schema(path) == arrow_schema()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [table.num_rows for table in read_batches(path)] == [10]


def test_huge_names_stay_small(tmp_path):
    """A name of 32 KiB in every row is kept once, in memory and in the file."""
    path = write_segment(tmp_path, rows=20_000, client_id="x" * 40_000)
    before = pa.total_allocated_bytes()
    table = segment_table(load_segment(path))
    assert table.nbytes < 20_000 * 400
    for name in ("a", "b"):
        write_parquet(tmp_path / name, table)
    assert list(merge_files([tmp_path / "a", tmp_path / "b"], tmp_path / "both")) == [None, None]
    assert (tmp_path / "both").stat().st_size < 1_000_000
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_merged_file_keeps_the_order(tmp_path):
    """Files merge one after the other into row groups, and the temporary name is gone."""
    tables = [segment_table(load_segment(write_segment(tmp_path / name))) for name in "ab"]
    for name, table in zip("ab", tables, strict=True):
        write_parquet(tmp_path / f"{name}.parquet", table)
    list(merge_files([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "c.parquet"))
    rows = [row for batch in read_batches(tmp_path / "c.parquet") for row in batch.to_pylist()]
    assert rows == tables[0].to_pylist() + tables[1].to_pylist()
    assert list(tmp_path.glob(".*")) == []


def test_merge_given_up_leaves_nothing_under_the_name(tmp_path):
    """A merge that is stopped half-way has no effect for readers."""
    write_parquet(tmp_path / "a", gap_table(node_id=1, seq=1, ts_ms=0, lost_events=1))
    merging = merge_files([tmp_path / "a", tmp_path / "a"], tmp_path / "both")
    next(merging)
    merging.close()
    assert not (tmp_path / "both").exists()


@pytest.mark.parametrize("data", [b"", b"PAR1", b"x" * 5000])
def test_unreadable_file(tmp_path, data):
    """A file that is no Parquet is an error with its name."""
    path = tmp_path / "bad.parquet"
    path.write_bytes(data)
    with pytest.raises(ParquetError, match=r"bad.parquet cannot be read as Parquet"):
        list(read_batches(path))


def test_foreign_parquet_file(tmp_path):
    """Parquet with other columns is an error with its name."""
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(
        ParquetError, match=r"x.parquet has columns \['x'\], expected those of the usage record"
    ):
        list(read_batches(tmp_path / "x.parquet"))
