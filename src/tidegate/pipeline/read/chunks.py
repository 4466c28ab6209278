"""Chunks of usage files: what one task reads at once, and their columns, read with Arrow.

A chunk is one row group of one file; those with few rows are read several at a time, as a bundle. Names stay
dictionary-encoded and are never handled row by row.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidegate.config.locations import Uri, location
from tidegate.pipeline.errors import DAMAGED_HINT, FilesystemError, UsageFilesError, VanishedFileError
from tidegate.pipeline.read.columns import PROCESS_COLUMNS, merged
from tidegate.pipeline.read.filesystems import DAMAGE, opened_parquet, reason_of
from tidegate.usage.arrow import checked_names, complete_table, file_refusal

__all__ = [
    "RUN_COLUMNS",
    "Arrived",
    "Bundle",
    "Chunk",
    "OpenChunk",
    "bundled",
    "check_format",
    "looked_at",
    "opened_chunk",
    "read_batches",
    "read_chunk",
    "read_tables",
    "rows_between",
    "statistics_of",
]

RUN_COLUMNS = ("node_id", "seq", "ts_ms")
"""Columns that identify a row; never null."""

_TIME = "ts_ms"
_NAMES = ("kind", "user", "client_id", "client_software")

_CHECKSUM_FAILED = "CRC checksum verification failed"  # Arrow's text, in an `OSError` without a number
_BATCH_ROWS = 6 << 14
_FEW_ROWS = 1 << 14  # a chunk of so few rows is read in one bundle with others: each read has its cost
_MOST_CHUNKS = 64  # most chunks of a bundle: on a distant filesystem each opening waits
_UNCUT_CHARACTERS = 32  # of a name in the statistics: some writers cut longer ones
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Chunk:
    """One row group of a file."""

    path: str
    row_group: int
    size_bytes: int = 0
    """Uncompressed size."""
    rows: int = 0
    """Return the number of rows between `from_ms` and `to_ms`."""
    from_ms: int | None = None
    """Rows before this time are left out; None: no limit."""
    to_ms: int | None = None
    """Rows from this time on are left out; None: no limit."""
    is_of_process: bool = False
    """Rows of one of several processes of a broker, which are read as those of the broker (`columns.merged`)."""

    @property
    def is_cut(self) -> bool:
        """Return whether some rows may be left out."""
        return self.from_ms is not None or self.to_ms is not None


@dataclass(frozen=True, slots=True)
class Bundle:
    """Chunks that are read as one, because the work for each chunk takes longer than the work for its few rows."""

    chunks: tuple[Chunk, ...]

    @property
    def path(self) -> str:
        """Return the first file, and the number of others, for errors that concern one of them."""
        more = len(self.chunks) - 1
        return self.chunks[0].path + (f" or one of {more} after it" if more else "")

    @property
    def size_bytes(self) -> int:
        """Return what they take uncompressed."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def rows(self) -> int:
        """Return how many rows they have."""
        return sum(chunk.rows for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class OpenChunk:
    """A chunk whose file is open, so that several reads need only one opening.

    group: the footer's metadata, also of rows that are left out. schema: of the file. places: places of its columns,
    by name.
    """

    path: str
    row_group: int
    file: pq.ParquetFile
    group: pq.RowGroupMetaData
    schema: pa.Schema
    places: Mapping[str, int]
    chunk: Chunk

    def statistics(self, name: str) -> pq.Statistics | None:
        """Return what the footer says of the values of a column; None: it says nothing."""
        place = self.places.get(name, self.group.num_columns)
        if place >= self.group.num_columns or self.group.column(place).path_in_schema != name:
            return None
        return statistics_of(self.file.metadata, self.group, place)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows in memory that are read as a chunk is: whole rows of the usage record; `path` names them in errors.

    ends: of a bundle, where the rows of each chunk end.
    """

    table: pa.Table
    path: str
    ends: tuple[int, ...] = ()


def check_format(path: str, file: pq.ParquetFile) -> None:
    """Raise `UsageFilesError` for a file of the record that a newer version of Tidegate has written."""
    refusal = file_refusal(file)
    if refusal is not None:
        raise UsageFilesError(f"{path!r}: {refusal}", hint="use that version of Tidegate")


def statistics_of(footer: pq.FileMetaData, group: pq.RowGroupMetaData, place: int) -> pq.Statistics | None:
    """Return what the footer says of the values of a column; None: it says nothing.

    Raises `ArrowInvalid` for a damaged type, whose statistics would make Arrow end the process.
    """
    column, physical_type = group.column(place), footer.schema.column(place).physical_type
    if column.physical_type != physical_type:
        raise pa.ArrowInvalid(
            f"column {column.path_in_schema!r} is {column.physical_type}, not {physical_type}"
        )
    return column.statistics


def bundled(chunks: Iterable[Chunk]) -> list[Bundle]:
    """Return all chunks, in order: in bundles while few rows come together, a larger one by itself."""
    found: list[Bundle] = []
    waiting: list[Chunk] = []
    rows = 0
    for chunk in chunks:
        if waiting and (rows + chunk.rows > _FEW_ROWS or len(waiting) == _MOST_CHUNKS):
            found.append(Bundle(tuple(waiting)))
            waiting, rows = [], 0
        waiting.append(chunk)
        rows += chunk.rows
    return [*found, Bundle(tuple(waiting))] if waiting else found


def looked_at(chunk: Chunk | Bundle | Arrived, look: Callable[[Any], _T]) -> _T:
    """Return the result of `look` for a chunk. If it refuses a bundle, the error names the file in question."""
    try:
        return look(chunk)
    except UsageFilesError:
        if isinstance(chunk, Bundle):
            for one in chunk.chunks:
                look(one)
        raise


@contextmanager
def opened_chunk(chunk: Chunk | Bundle | Arrived, columns: Iterable[str]) -> Iterator[OpenChunk | Arrived]:
    """Open a chunk to read these columns from; a chunk of few rows is read at once. Raises `UsageFilesError`."""
    if isinstance(chunk, Arrived):
        yield chunk
        return
    if isinstance(chunk, Bundle):
        if len(chunk.chunks) > 1:
            yield _arrived(chunk, [*dict.fromkeys(columns)])
            return
        (chunk,) = chunk.chunks
    with _opened(chunk) as opened:
        is_small = opened.group.num_rows <= _FEW_ROWS
        yield Arrived(read_chunk(opened, [*dict.fromkeys(columns)]), chunk.path) if is_small else opened


def read_chunk(chunk: Chunk | Bundle | OpenChunk | Arrived, columns: Sequence[str]) -> pa.Table:
    """Return columns of a chunk, names dictionary-encoded. Raises `UsageFilesError` where it cannot be read."""
    if isinstance(chunk, Chunk | Bundle):
        with opened_chunk(chunk, columns) as opened:
            return read_chunk(opened, columns)
    table = chunk.table.select(list(columns)) if isinstance(chunk, Arrived) else _read_columns(chunk, columns)
    return table.unify_dictionaries().combine_chunks()


def read_batches(chunk: OpenChunk | Arrived, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of numbers, a part at a time that the processor's cache can hold."""
    if isinstance(chunk, Arrived):
        yield read_chunk(chunk, columns)
        return
    read = [*dict.fromkeys((*columns, *_needed(chunk.chunk)))]
    options = {"row_groups": [chunk.row_group], "columns": read, "use_threads": False}
    for batch in chunk.file.iter_batches(_BATCH_ROWS, **options):
        table = _cut(pa.Table.from_batches([batch]), chunk.chunk)
        if len(table):
            yield _checked(table.select(list(columns)), chunk.path)


def read_tables(chunk: Chunk | Bundle | OpenChunk | Arrived, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield columns of a chunk as `read_chunk` returns them, a part at a time that the processor's cache can hold.

    That takes a quarter of the time: memory that was used before is used again. Raises `UsageFilesError`.
    """
    if isinstance(chunk, Chunk | Bundle):
        with opened_chunk(chunk, columns) as opened:
            yield from read_tables(opened, columns)
        return
    if isinstance(chunk, Arrived):
        yield read_chunk(chunk, columns)
        return
    read, alike = _read_of(chunk, columns, rows=min(_BATCH_ROWS, chunk.group.num_rows))
    # Without any column, a table has no number of rows.
    read = read or chunk.schema.names[:1]
    options = {"row_groups": [chunk.row_group], "columns": read, "use_threads": False}
    for batch in chunk.file.iter_batches(_BATCH_ROWS, **options):
        read_rows = checked_names(pa.Table.from_batches([batch]))
        table = _whole(_cut(read_rows, chunk.chunk), alike, chunk.path, columns)
        if len(table):
            yield table.unify_dictionaries().combine_chunks()


def rows_between(table: pa.Table, *, from_ms: int | None, to_ms: int | None) -> pa.Table:
    """Return the rows whose `ts_ms` lies from `from_ms` on and before `to_ms`; None: no limit."""
    wanted = None
    for limit_ms, compare in ((from_ms, pc.greater_equal), (to_ms, pc.less)):
        if limit_ms is not None:
            inside = compare(table[_TIME], limit_ms)
            wanted = inside if wanted is None else pc.and_(wanted, inside)
    return table if wanted is None else table.filter(wanted)


def _needed(chunk: Chunk) -> Sequence[str]:
    """Return the columns that `_cut` needs."""
    return PROCESS_COLUMNS if chunk.is_of_process else (_TIME,) if chunk.is_cut else ()


def _cut(table: pa.Table, chunk: Chunk) -> pa.Table:
    table = rows_between(table, from_ms=chunk.from_ms, to_ms=chunk.to_ms)
    return merged(table) if chunk.is_of_process else table


def _arrived(bundle: Bundle, columns: Sequence[str]) -> Arrived:
    """Read the chunks of a bundle, one after another."""
    tables = []
    for chunk in bundle.chunks:
        with _opened(chunk) as opened:
            tables.append(_read_columns(opened, columns))
    together = {
        name: pa.chunked_array([piece for table in tables for piece in table[name].chunks])
        for name in columns
    }
    table = pa.table(together).unify_dictionaries().combine_chunks()
    return Arrived(table, bundle.path, tuple(accumulate(map(len, tables))))


def _checked(table: pa.Table, path: str) -> pa.Table:
    """Return the table. Raises `UsageFilesError` where it has nulls in columns that say which row it is."""
    for name in RUN_COLUMNS:
        if name in table.column_names and table[name].null_count:
            raise UsageFilesError(
                f"{table[name].null_count} rows of {path!r} have no {name}", hint=DAMAGED_HINT
            )
    return table


def _read_columns(chunk: OpenChunk, columns: Sequence[str]) -> pa.Table:
    """Return columns of a chunk. A column whose values are all equal by the footer, as most are, is not read.

    All columns have nullable types, whatever the file's types are, so that tables can be concatenated.
    """
    read, alike = _read_of(chunk, columns, rows=chunk.group.num_rows)
    if alike and not read:
        return _whole(pa.table(alike), alike, chunk.path, columns)
    read = read or chunk.schema.names[:1]
    table = chunk.file.read_row_group(chunk.row_group, columns=read, use_threads=False)
    return _whole(_cut(checked_names(table), chunk.chunk), alike, chunk.path, columns)


def _read_of(chunk: OpenChunk, columns: Sequence[str], *, rows: int) -> tuple[list[str], dict[str, pa.Array]]:
    """Return which columns have to be read for these ones, and so many rows of the others."""
    needed = _needed(chunk.chunk)
    there = [name for name in columns if name in chunk.places]
    values = {
        name: value
        for name in there
        if name not in needed and (value := _value_of_all(chunk, name)) is not None
    }
    read = [name for name in there if name not in values]
    alike = {name: _repeated(value, rows) for name, value in values.items()}
    return [*dict.fromkeys((*read, *needed))], alike


def _whole(table: pa.Table, alike: Mapping[str, pa.Array], path: str, columns: Sequence[str]) -> pa.Table:
    """Return the table with the columns that were not read, because all their values are equal."""
    found = dict(zip(table.column_names, table.columns, strict=True))
    for name in alike:
        found[name] = alike[name].slice(0, len(table))
    whole = complete_table(pa.table(found), columns)
    return _checked(pa.table({name: whole[name] for name in columns}), path)


def _repeated(value: pa.Array, rows: int) -> pa.Array:
    """Return an array with one value, null too, in all rows."""
    if value.null_count:
        return pa.nulls(rows, value.type)
    if pa.types.is_dictionary(value.type):
        # The system fills such an array where it is read, and for kinds it is not.
        return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), value.dictionary, safe=False)
    return pa.repeat(value[0], rows)


def _value_of_all(chunk: OpenChunk, name: str) -> pa.Array | None:
    """Return the value that all rows have, null too, as the footer says; None: there may be several."""
    found = chunk.statistics(name)
    if found is None or not found.has_null_count:
        return None
    type_ = chunk.schema.field(name).type
    if found.null_count == chunk.group.num_rows:
        return pa.nulls(1, type_)
    # `merged` changes numbers of what it reads.
    if found.null_count or not found.has_min_max or chunk.chunk.is_of_process or found.min != found.max:
        return None
    is_number = pa.types.is_integer(type_) or pa.types.is_boolean(type_)
    is_short_name = pa.types.is_dictionary(type_) and len(found.min) <= _UNCUT_CHARACTERS
    return pa.array([found.min], type_) if is_number or is_short_name else None


@contextmanager
def _opened(chunk: Chunk) -> Iterator[OpenChunk]:
    path = chunk.path
    try:
        with opened_parquet(path, read_dictionary=_NAMES) as file:
            schema, group = file.schema_arrow, file.metadata.row_group(chunk.row_group)
            places = {name: place for place, name in enumerate(schema.names)}
            yield OpenChunk(path, chunk.row_group, file, group, schema, places, chunk)
    except FilesystemError:
        raise
    except FileNotFoundError as error:
        raise VanishedFileError(path) from error
    except DAMAGE as error:
        is_damaged = not isinstance(error, OSError) or _CHECKSUM_FAILED in str(error)
        if isinstance(location(path), Uri) and not is_damaged:
            raise UsageFilesError(
                f"cannot read {path!r}: {reason_of(error)}",
                hint="run the command again when the file can be read",
            ) from error
        raise UsageFilesError(f"cannot read {path!r}: its data is damaged", hint=DAMAGED_HINT) from error
