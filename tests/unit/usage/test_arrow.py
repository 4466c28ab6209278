"""The record as Arrow tables and Parquet files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.unit.usage.reading import read_batches, read_events
from tests.unit.usage.recording import START_MS, recorded_segment

from tidegate.usage.arrow import (
    ParquetError,
    arrow_schema,
    event_tables,
    gap_table,
    merge_files,
    read_parquet,
    split_by_hour,
    write_parquet,
    write_table,
)
from tidegate.usage.columns import ADDED_COLUMNS, empty_event
from tidegate.usage.events import EventError, segment_events
from tidegate.usage.segment import load_segment
from tidegate.usage.segment_table import segment_table

HOUR_MS = 3_600_000


def test_split_by_hour(tmp_path):
    """Each row goes to the hour of its own time, in order within it."""
    table = segment_table(load_segment(recorded_segment(tmp_path, rows=8, step_ms=HOUR_MS // 3, start_ms=0)))
    parts = {hour_ms: part.column("request_bytes").to_pylist() for hour_ms, part in split_by_hour(table)}
    assert parts == {0: [0, 1, 2], HOUR_MS: [3, 4, 5], 2 * HOUR_MS: [6, 7]}


def test_files_have_the_plain_schema(tmp_path):
    """In the file strings are strings, and types and nullability are those of the document."""
    path = tmp_path / "out.parquet"
    write_parquet(path, segment_table(load_segment(recorded_segment(tmp_path))))
    assert pq.read_schema(path) == arrow_schema()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [table.num_rows for table in read_batches(path)] == [10]


def test_a_changed_bit_of_a_page_is_noticed(tmp_path):
    """Each page has a checksum, which is compared as the page is read."""
    write_parquet(tmp_path / "a", segment_table(load_segment(recorded_segment(tmp_path, rows=100))))
    assert list(merge_files([tmp_path / "a"], tmp_path / "b")) == [None]
    for path in (tmp_path / "a", tmp_path / "b"):
        data, group = path.read_bytes(), pq.read_metadata(path).row_group(0)
        for place in range(group.num_columns):
            column = group.column(place)
            begin = column.dictionary_page_offset or column.data_page_offset
            for end in {column.data_page_offset, begin + column.total_compressed_size} - {begin}:
                path.write_bytes(data[: end - 1] + bytes([data[end - 1] ^ 4]) + data[end:])
                with pytest.raises(ParquetError, match="cannot be read as Parquet: "):
                    read_parquet(path)
        path.write_bytes(data)
        assert len(read_parquet(path)) == 100


def test_errors_of_the_filesystem_are_no_damage(tmp_path):
    """A file that is gone is not a damaged one."""
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "gone")


def test_huge_names_stay_small(tmp_path):
    """A name of 32 KiB in every row is kept once, in memory and in the file."""
    path = recorded_segment(tmp_path, rows=20_000, client_id="x" * 40_000)
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
    tables = [segment_table(load_segment(recorded_segment(tmp_path / name))) for name in "ab"]
    for name, table in zip("ab", tables, strict=True):
        write_parquet(tmp_path / f"{name}.parquet", table)
    list(merge_files([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "c.parquet"))
    rows = [row for batch in read_batches(tmp_path / "c.parquet") for row in batch.to_pylist()]
    assert rows == tables[0].to_pylist() + tables[1].to_pylist()
    assert list(tmp_path.glob(".*")) == []


def test_a_merged_file_is_compressed_more(tmp_path):
    """The same rows take less room than in the file that was merged, and are equal."""
    rng = np.random.default_rng(1)
    table = segment_table(load_segment(recorded_segment(tmp_path, rows=20_000)))
    sequences = rng.integers(0, 1 << 30, (3000, 6))
    times = np.concatenate(sequences[rng.integers(0, len(sequences), 3400)])[: len(table)]
    place, field = table.column_names.index("handler_ns"), table.schema.field("handler_ns")
    table = table.set_column(place, field, pa.array(times).cast(field.type))
    write_parquet(tmp_path / "a", table)
    list(merge_files([tmp_path / "a"], tmp_path / "merged"))
    assert (tmp_path / "merged").stat().st_size < 0.99 * (tmp_path / "a").stat().st_size
    assert pq.read_table(tmp_path / "merged").equals(pq.read_table(tmp_path / "a"))


def test_rows_of_a_row_group_are_compressed_together(tmp_path):
    """A page holds all 50,000 rows, so a value that repeats after 25,000 rows is compressed once."""
    rng = np.random.default_rng(1)
    times = np.tile(rng.integers(0, 1 << 10, 25_000) * 1000, 2)
    table = pa.concat_tables([segment_table(load_segment(recorded_segment(tmp_path, rows=25_000)))] * 2)
    place, field = table.column_names.index("handler_ns"), table.schema.field("handler_ns")
    table = table.set_column(place, field, pa.array(times).cast(field.type)).unify_dictionaries()
    write_parquet(tmp_path / "a", table)
    list(merge_files([tmp_path / "a"], tmp_path / "merged"))
    column = pq.read_metadata(tmp_path / "merged").row_group(0).column(place)
    assert column.total_compressed_size < 25_000 * 1.5
    assert pq.read_table(tmp_path / "merged").equals(pq.read_table(tmp_path / "a"))


def test_files_from_before_are_read(tmp_path):
    """A file without the columns that were added later is read and merged as if they were null."""
    table = segment_table(load_segment(recorded_segment(tmp_path)))
    pq.write_table(table.drop_columns([*ADDED_COLUMNS]), tmp_path / "a.parquet")
    write_parquet(tmp_path / "b.parquet", table)
    rows = table.to_pylist()
    rows_before = [row | {"other_topics": None} for row in rows]
    assert [row for batch in read_batches(tmp_path / "a.parquet") for row in batch.to_pylist()] == rows_before
    list(merge_files([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "c.parquet"))
    assert pq.read_table(tmp_path / "c.parquet").to_pylist() == rows_before + rows


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


def test_events_from_anywhere_are_tables_like_a_segments(tmp_path):
    """The events that a segment holds, given one by one, make the rows that the segment makes."""
    segment = load_segment(recorded_segment(tmp_path, rows=7))
    tables = list(event_tables(segment_events(segment), rows=3))
    assert [len(table) for table in tables] == [3, 3, 1]
    assert pa.concat_tables(tables).to_pylist() == segment_table(segment).to_pylist()
    assert {table.schema for table in tables} == {segment_table(segment).schema}


def test_events_are_read_again_as_they_were_written(tmp_path):
    """Every kind, nulls and the largest numbers: through Parquet and back."""
    base = {"node_id": 2**31 - 1, "ts_ms": START_MS}
    client_of = {"user": "a:é", "client_id": "", "api_key": -(2**15), "connection_id": 2**63 - 1}
    events = [
        {"kind": "start"},
        {"kind": "quota", "quota_user": "<default>", "quota_key": "producer_byte_rate", "quota_value": 0.5},
        {"kind": "quota", "quota_user": "", "quota_key": "producer_byte_rate", "quota_value": None},
        {"kind": "request", "produce_bytes": 0, "network_ns": None, "produce_throttle_ms": -(2**31), **client_of},
        {"kind": "mutation", "mutations": 3, "strict": True, "rejected": True, **client_of},
        {"kind": "network", "network_ns": 5, "exempt": True, **client_of},
        {"kind": "expire"}, {"kind": "clock", "wall_offset_ms": -5}, {"kind": "gap", "lost_events": 9},
    ]  # fmt: skip
    events = [base | {"seq": number} | event for number, event in enumerate(events)]
    for table in event_tables(iter(events)):
        write_table(table, tmp_path, node_id=2**31 - 1)
    assert list(read_events(tmp_path)) == [empty_event(event["kind"]) | event for event in events]


def test_long_names_make_small_tables():
    """What is held at once is bounded in bytes, not only in rows."""
    events = (
        {"kind": "request", "ts_ms": 1, "seq": seq, "node_id": 1, "user": "u" * 32_767} for seq in range(600)
    )
    assert max(len(table) for table in event_tables(events)) == 256


def test_an_event_that_is_none_is_named(tmp_path):
    """The tables before it are given; then it is said which event, which column, what was found."""
    good = {"kind": "expire", "ts_ms": START_MS, "seq": 1, "node_id": 1}
    tables = event_tables([good, good, good | {"seq": "2"}], rows=2)
    assert len(next(tables)) == 2
    with pytest.raises(
        EventError, match=f"event 2: seq is '2', expected a whole number from 0 to {2**63 - 1}"
    ):
        next(tables)


def test_numbers_are_stored_as_small_as_they_are(tmp_path):
    """Differences of what rises, and each size once: not the eight bytes of each number. Values stay as they are."""
    rows = 20_000
    events = [
        empty_event("request")
        | {"seq": 10**15 + place, "ts_ms": START_MS + place // 7, "node_id": 1, "request_bytes": 100 + place % 300,
           "handler_ns": place * 7919 % 100 * 1000, "network_ns": place * 104_729 % 60 * 1000}
        for place in range(rows)
    ]  # fmt: skip
    path = tmp_path / "rows.parquet"
    write_parquet(path, pa.concat_tables(event_tables(events)))
    group = pq.read_metadata(path).row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    for name in ("seq", "ts_ms"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
    for name in ("request_bytes", "handler_ns", "network_ns"):
        assert "RLE_DICTIONARY" in columns[name].encodings
        assert columns[name].total_compressed_size < 2 * rows
    assert columns["seq"].total_compressed_size < rows / 10
    assert pq.read_table(path, columns=["seq", "handler_ns", "network_ns"]).to_pylist() == [
        {name: event[name] for name in ("seq", "handler_ns", "network_ns")} for event in events
    ]
