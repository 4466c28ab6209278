"""The usage record as Arrow tables and Parquet files. Only this module and `segment_table` need pyarrow.

Names are kept dictionary-encoded all the way: a client id of 32 KiB in a hundred thousand rows must not
become gigabytes in memory. Arrays are made from buffers, as `pyarrow.array` would import pandas into the writer.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.errors import TidegateError
from tidegate.usage.columns import (
    ADDED_COLUMNS,
    COLUMN_BY_NAME,
    COLUMNS,
    FORMAT_KEY,
    FORMAT_VERSION,
    Column,
    empty_event,
    empty_value,
    format_refusal,
)
from tidegate.usage.directory import make_private_directory, open_private, sync_directory
from tidegate.usage.events import Event, complete_event
from tidegate.usage.files import HOUR_MS, hour_directory, parquet_path, temporary_path
from tidegate.usage.segment import NAMES_BYTES_MAX

__all__ = [
    "ARROW_TYPES",
    "ROW_GROUP_ROWS",
    "Array",
    "ParquetError",
    "arrow_schema",
    "checked_names",
    "complete_table",
    "event_tables",
    "file_refusal",
    "gap_table",
    "merge_files",
    "names_array",
    "numbers_array",
    "read_parquet",
    "split_by_hour",
    "table_in_order",
    "table_schema",
    "texts_array",
    "write_parquet",
    "write_table",
]

ROW_GROUP_ROWS = 1 << 20
"""Most rows in a row group of a compacted file."""
EVENT_ROWS = 8192
"""Rows of a table of `event_tables`, where nobody asks for another number."""

ARROW_TYPES = {
    "string": pa.string(),
    "bool": pa.bool_(),
    "double": pa.float64(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
}
_STRINGS = [column.name for column in COLUMNS if column.type == "string"]
_REPEATED = [
    "api_key",
    "api_version",
    "request_bytes",
    "response_bytes",
    "produce_bytes",
    "fetch_bytes",
    "lag_bytes",
    "connection_id",
    "lag",
    "handler_ns",
    "network_ns",
]
"""Columns of repeated numbers, stored with a dictionary of their values (decisions 0136, 0156)."""
_ENCODINGS = dict.fromkeys(("seq", "ts_ms"), "DELTA_BINARY_PACKED")
"""Array whose differences are smaller than they are (decision 0136)."""
_MERGED_LEVEL = 12
"""Level of zstd in a merged file: 5 % smaller than level 1; above 12, some files become larger (decision 0143)."""
_PAGE = (
    {"max_rows_per_page": ROW_GROUP_ROWS}
    if "max_rows_per_page" in signature(pq.ParquetWriter).parameters
    else {}
)
"""Pages as large as those of an older pyarrow. This one ends them after 20,000 rows, each compressed by itself."""
_DICTIONARY_BYTES_MAX = 64 << 20  # room for the names of the segments in a row group

Array = np.ndarray[Any, np.dtype[Any]]


class ParquetError(TidegateError):
    """Raise when a file is no Parquet file of the usage record."""


def arrow_schema() -> pa.Schema:
    """Return the schema of the Parquet files."""
    return pa.schema([pa.field(column.name, ARROW_TYPES[column.type], column.nullable) for column in COLUMNS])


def table_schema() -> pa.Schema:
    """Return the schema of tables in memory: that of the files, with names dictionary-encoded."""
    fields = [field.with_type(pa.dictionary(pa.int32(), field.type)) if field.name in _STRINGS else field
              for field in arrow_schema()]  # fmt: skip
    return pa.schema(fields)


def file_refusal(file: pq.ParquetFile) -> str | None:
    """Return why a file of the record cannot be read because of its format version; None where it can."""
    metadata = file.metadata.metadata or {}
    return format_refusal(metadata.get(FORMAT_KEY.encode(), b"1"))


def complete_table(table: pa.Table, columns: Iterable[str] = tuple(ADDED_COLUMNS)) -> pa.Table:
    """Return a table with those of `columns` that earlier versions of the record lack, as if each row were empty."""
    for name in columns:
        if name in ADDED_COLUMNS and name not in table.column_names:
            field = arrow_schema().field(name)
            value = pa.scalar(empty_value(COLUMN_BY_NAME[name]), field.type)
            table = table.append_column(field, pa.repeat(value, len(table)))
    return table


def table_in_order(table: pa.Table) -> pa.Table:
    """Return the rows of a file of any version with all columns, in the order of this version."""
    return complete_table(table).select(arrow_schema().names)


def gap_table(*, node_id: int, seq: int, ts_ms: int, lost_events: int) -> pa.Table:
    """Return one `gap` row."""
    event = empty_event("gap") | {"node_id": node_id, "seq": seq, "ts_ms": ts_ms, "lost_events": lost_events}
    return _events_table([event])


def event_tables(events: Iterable[Mapping[str, Any]], *, rows: int = EVENT_ROWS) -> Iterator[pa.Table]:
    """Yield events from anywhere as tables like `segment_table`'s, in their order; no more is held than one table.

    A table has `rows` events, fewer where their names are long (`NAMES_BYTES_MAX`). An event is what `complete_event`
    takes. Raises `EventError` when it comes to an event that is none.
    """
    waiting: list[Event] = []
    names_bytes = 0
    for number, event in enumerate(events):
        waiting.append(complete_event(event, number))
        names_bytes += sum(len(waiting[-1][name] or "") for name in _STRINGS)
        if len(waiting) >= rows or names_bytes >= NAMES_BYTES_MAX:
            yield _events_table(waiting)
            waiting, names_bytes = [], 0
    if waiting:
        yield _events_table(waiting)


def split_by_hour(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield for each hour in `table` its first millisecond and its rows, in their order."""
    if len(table) == 0:
        return
    (ts_ms,) = table.column("ts_ms").chunks
    hours = np.frombuffer(ts_ms.buffers()[1], dtype=np.int64, count=len(table)) // HOUR_MS
    order = np.argsort(hours, kind="stable")
    starts = np.flatnonzero(np.diff(hours[order], prepend=-1))
    if len(starts) == 1:
        yield int(hours[0]) * HOUR_MS, table
        return
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        yield int(hours[order[start]]) * HOUR_MS, table.take(numbers_array(order[start:end], pa.int64()))


def write_table(table: pa.Table, parquet: Path, *, node_id: int) -> None:
    """Write rows of one node, in order of `seq`, to the directories of their hours: a file in each."""
    for hour_ms, part in split_by_hour(table):
        # Both files of a segment that spans two hours are named by its whole range. A watch counts their rows together
        # to see whether the range is complete.
        first_seq, last_seq = table.column("seq")[0].as_py(), table.column("seq")[-1].as_py()
        directory = hour_directory(parquet, hour_ms)
        write_parquet(parquet_path(directory, node_id=node_id, first_seq=first_seq, last_seq=last_seq), part)


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write `table` to `path`, which appears when it is complete and on disk."""
    with _parquet_writer(path) as writer:
        writer.write_table(table)


def merge_files(paths: Sequence[Path], path: Path, *, level: int = _MERGED_LEVEL) -> Iterator[None]:
    """Write the rows of `paths`, in that order, to `path`; yield now and then so that other work can be done.

    level: of zstd.
    """
    with _parquet_writer(path, level=level) as writer:
        waiting: list[pa.Table] = []
        for source in paths:
            for table in _row_groups(source):
                waiting.append(table)
                if sum(len(table) for table in waiting) >= ROW_GROUP_ROWS:
                    writer.write_table(_joined(waiting), row_group_size=ROW_GROUP_ROWS)
                    waiting = []
                yield
        if waiting:
            writer.write_table(_joined(waiting), row_group_size=ROW_GROUP_ROWS)


def read_parquet(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file, names as strings; None: all columns. Raises `ParquetError`."""
    with _map_errors(path), _checked_file(path) as file:
        return file.read(columns)


def checked_names(table: pa.Table) -> pa.Table:
    """Return rows as they were read. Raises `ArrowInvalid` if a name is not in its dictionary, as in a damaged file."""
    import pyarrow.compute as pc

    columns = [table[name] for name in table.column_names if name in _STRINGS]
    for piece in (piece for column in columns for piece in column.chunks):
        if isinstance(piece, pa.DictionaryArray):
            ends = pc.min_max(piece.indices).as_py()  # a tenth of the time of `validate`
            if ends["max"] is not None and not 0 <= ends["min"] <= ends["max"] < len(piece.dictionary):
                raise pa.ArrowInvalid(f"a name is at {ends}, expected less than {len(piece.dictionary)}")
    return table


def _checked_file(path: Path, **options: Any) -> pq.ParquetFile:
    """Open a file whose pages are compared with their checksums as they are read, if it has any."""
    return pq.ParquetFile(path, page_checksum_verification=True, **options)


def _row_groups(path: Path) -> Iterator[pa.Table]:
    with _map_errors(path), pq.ParquetFile(path) as file:
        _check_columns(path, file)
        strings = [name for name in _STRINGS if name in file.schema_arrow.names]
    # Opened again: `read_dictionary` is given on opening, and files of earlier versions lack some columns.
    with _map_errors(path), _checked_file(path, read_dictionary=strings) as file:
        for index in range(file.num_row_groups):
            yield table_in_order(checked_names(file.read_row_group(index))).cast(table_schema())


def _check_columns(path: Path, file: pq.ParquetFile) -> None:
    refusal = file_refusal(file)
    if refusal is not None:
        raise ParquetError(f"{path}: {refusal}")
    if {*complete_table(file.schema_arrow.empty_table()).column_names} != {*arrow_schema().names}:
        raise ParquetError(
            f"{path} has columns {file.schema_arrow.names}, expected those of the usage record"
        )


def _joined(tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables).unify_dictionaries()


@contextmanager
def _map_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the filesystem; Arrow's own, for a damaged file, have no number
        raise ParquetError(f"{path} cannot be read as Parquet: {error}") from error


@contextmanager
def _parquet_writer(path: Path, *, level: int | None = None) -> Iterator[pq.ParquetWriter]:
    make_private_directory(path.parent)
    temporary = temporary_path(path)
    fd = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(fd, "wb") as file:
        with pq.ParquetWriter(
            file,
            table_schema(),
            compression="zstd",
            compression_level=level,
            use_dictionary=[*_STRINGS, *_REPEATED],
            column_encoding=_ENCODINGS,
            dictionary_pagesize_limit=_DICTIONARY_BYTES_MAX,
            store_schema=False,
            write_page_checksum=True,
            **_PAGE,
        ) as writer:
            writer.add_key_value_metadata({FORMAT_KEY: str(FORMAT_VERSION)})
            yield writer
        file.flush()
        os.fsync(fd)
    temporary.rename(path)
    sync_directory(path.parent)


def _events_table(events: Sequence[Event]) -> pa.Table:
    columns = [_event_column(column, [event[column.name] for event in events]) for column in COLUMNS]
    return pa.Table.from_arrays(columns, schema=table_schema())


def _event_column(column: Column, values: list[Any]) -> pa.Array:
    null = np.array([value is None for value in values]) if column.nullable else None
    if column.type == "string":
        numbers: dict[str, int] = {"": 0}
        places = [numbers.setdefault(text or "", len(numbers)) for text in values]
        return names_array(np.array(places), list(numbers), null)
    type_ = ARROW_TYPES[column.type]
    given = [0 if value is None else value for value in values]
    return numbers_array(np.array(given, type_.to_pandas_dtype()), type_, null)


def numbers_array(values: Array, type_: pa.DataType, null: Array | None = None) -> pa.Array:
    """Return `values` as an array of `type_`, null where `null` says so."""
    if pa.types.is_boolean(type_):
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values, dtype=type_.to_pandas_dtype())
    valid = None if null is None else pa.py_buffer(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(type_, len(values), [valid, pa.py_buffer(data)])


def names_array(indices: Array, names: Sequence[str], null: Array | None = None) -> pa.Array:
    """Return the names at `indices` as a dictionary-encoded array, null where `null` says so."""
    return pa.DictionaryArray.from_arrays(numbers_array(indices, pa.int32(), null), texts_array(names))


def texts_array(texts: Sequence[str]) -> pa.Array:
    """Return `texts` as an array."""
    data = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(data), pa.py_buffer(ends), pa.py_buffer(b"".join(data)))
