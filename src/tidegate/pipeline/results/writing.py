"""Rows of a table as Parquet files: one file, or one for each date in UTC (`date=2026-11-22/part-00000.tmp`).

A table with a column `ts_ms` or `minute_ms` is a table over time, and has files by date. Files are written next to
their table under names that no reader takes for data; `results.output` moves them.

In the form in which tables are written and returned, a point in time is a TIMESTAMP in UTC, with µs. The jobs compute
with ms since 1970 (`ts_ms`, `minute_ms`). A written column has the same name without `_ms`.

>>> written_name("first_throttled_ts_ms"), written_name("last_ts_ms_low"), written_name("throttle_ms")
('first_throttled_ts', 'last_ts_low', 'throttle_ms')
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Location, Uri, location
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.filesystems import opened_parquet, place_of

__all__ = [
    "DAY_MS",
    "MOST_FILES",
    "STAGED",
    "TIMESTAMP",
    "TableParts",
    "TableWriter",
    "as_written",
    "frame_as_written",
    "is_over_time",
    "write_parts",
    "written_name",
    "written_schema",
]

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""The type of points in time. Spark, DuckDB, polars and pandas read it as their own."""

_MS = pa.timestamp("ms", tz="UTC")
_POINT_IN_TIME = re.compile(r"((?:.*_)?(?:ts|minute))_ms(_low|_high)?")
DAY_MS = 86_400_000
MOST_FILES = 10_000
"""Files of one writer: a date has one, or several where rows go to and fro between many dates."""
STAGED = ".tmp"
"""Ending of the names of files that readers do not take for data."""

_OVER_TIME = ("ts_ms", "minute_ms")
_MOST_OPEN = 16
_GROUP_ROWS = 1 << 17  # some 8 MB of decisions
_RISING = ("seq", "ts", "minute")

Opened = Callable[[str], AbstractContextManager[Any]]
Batches = Iterator[pa.RecordBatch]


def written_name(name: str) -> str:
    """Return the name of a written column."""
    match = _POINT_IN_TIME.fullmatch(name)
    return name if match is None else match[1] + (match[2] or "")


def written_schema(table: StructType | pa.Schema) -> pa.Schema:
    """Return the columns of a written table.

    >>> written_schema(pa.schema([("minute_ms", pa.int64()), ("requests", pa.int64())]))
    minute: timestamp[us, tz=UTC]
    requests: int64
    """
    schema = to_arrow_schema(table) if isinstance(table, StructType) else table
    return pa.schema(
        [
            pa.field(written_name(field.name), TIMESTAMP, field.nullable) if _is_time(field) else field
            for field in schema
        ]
    )


def as_written(table: pa.Table) -> pa.Table:
    """Return the rows of a table as they are written. The times of a record are in range: `read.rows` checks them."""
    columns = {}
    for name in table.column_names:
        column = table[name]
        if _is_time(table.schema.field(name)):
            column = column.cast(pa.int64()).cast(_MS).cast(TIMESTAMP)
        columns[written_name(name)] = column
    return pa.table(columns, schema=written_schema(table.schema))


def frame_as_written(frame: DataFrame) -> DataFrame:
    """Return the rows of a data frame as they are written."""
    fields = zip(frame.columns, to_arrow_schema(frame.schema), strict=True)
    return frame.selectExpr(
        *(
            f"timestamp_millis({name}) as {written_name(name)}" if _is_time(field) else name
            for name, field in fields
        )
    )


def _is_time(field: pa.Field) -> bool:
    is_number = pa.types.is_integer(field.type) or pa.types.is_null(field.type)
    return is_number and _POINT_IN_TIME.fullmatch(field.name) is not None


def is_over_time(schema: pa.Schema) -> bool:
    """Return whether a table has files by date."""
    return _time_of(schema) is not None


class TableWriter:
    """Writes rows as the jobs compute them; `files` are the names of what it wrote, complete after the `with` block.

    opened: opens a file by its name for Arrow to write to. part: beginning of names. Without rows there is no file.
    """

    def __init__(
        self, opened: Opened, schema: pa.Schema, *, part: str = "part", most_files: int = MOST_FILES
    ) -> None:
        self.files: list[str] = []
        self._opened, self._schema, self._part, self._most_files = opened, schema, part, most_files
        self._time = _time_of(schema)
        self._writers: dict[str, _File] = {}  # by directory; the one that was used last comes last

    def __enter__(self) -> "TableWriter":
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Complete the files."""
        with ExitStack() as stack:
            for writer in self._writers.values():
                stack.callback(writer.close)

    def write(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Write rows to the files of their dates. Raises `UsageFilesError` if there are too many dates."""
        if not rows.num_rows:
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        table = table.select(self._schema.names).cast(self._schema)
        for directory, some in self._by_date(table):
            self._file(directory).write(as_written(some))

    def _by_date(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        if self._time is None:
            yield "", table
            return
        days = table[self._time].to_numpy() // DAY_MS
        if days.min() == days.max():
            yield _directory(int(days[0])), table
            return
        for day in np.unique(days).tolist():
            yield _directory(day), table.filter(pa.array(days == day))

    def _file(self, directory: str) -> "_File":
        file = self._writers.pop(directory, None)
        if file is None:
            if len(self._writers) == _MOST_OPEN:
                self._writers.pop(next(iter(self._writers))).close()
            file = self._begin(directory)
        self._writers[directory] = file
        return file

    def _begin(self, directory: str) -> "_File":
        if len(self.files) == self._most_files:
            raise UsageFilesError(
                f"the rows have more than {self._most_files} dates, or switch between dates too often",
                hint="read fewer hours",
            )
        self.files.append(f"{directory}{self._part}-{len(self.files):05d}{STAGED}")
        return _File(self._opened(self.files[-1]), _schema_of_files(self._schema))


class _File:
    """A file that is written, and the rows of its next row group."""

    def __init__(self, opened: AbstractContextManager[Any], schema: pa.Schema) -> None:
        self._tables: list[pa.Table] = []
        self._rows = 0
        with ExitStack() as stack:
            sink = stack.enter_context(opened)
            rising = [name for name in _RISING if name in schema.names]
            writer = pq.ParquetWriter(
                sink,
                schema,
                use_dictionary=[name for name in schema.names if name not in rising],
                column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            )
            self._writer = stack.enter_context(writer)
            self._stack = stack.pop_all()

    def write(self, table: pa.Table) -> None:
        self._tables.append(table)
        self._rows += len(table)
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        with self._stack:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(pa.concat_tables(self._tables))
        self._tables, self._rows = [], 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableParts:
    """A table while it is written below `directory`, by this process or by Spark's tasks, each to files of its own.

    schema: of the rows as the jobs compute them; its metadata goes to the files.
    """

    name: str
    directory: str
    schema: pa.Schema

    def writer(self) -> TableWriter:
        """Return a writer for the rows of this process, or of this task of Spark."""
        return TableWriter(self._opened, self.schema, part=_name_of_task())

    def empty(self) -> str:
        """Write a file without rows and return its name; of a table over time, it is in the first of all dates."""
        name = f"{_directory(0) if is_over_time(self.schema) else ''}empty{STAGED}"
        _File(self._opened(name), _schema_of_files(self.schema)).close()
        return name

    def merged(self, files: Sequence[str]) -> str:
        """Write the rows of files of one directory to one file, and return its name."""
        if len(files) == 1:
            return files[0]
        name = f"{files[0].rpartition('/')[0]}/merged{STAGED}".removeprefix("/")
        file = _File(self._opened(name), _schema_of_files(self.schema))
        try:
            for part in files:
                with opened_parquet(str(location(self.directory) / part)) as opened:
                    for batch in opened.iter_batches(_GROUP_ROWS):
                        file.write(pa.Table.from_batches([batch]))
        finally:
            file.close()
        return name

    def _opened(self, name: str) -> AbstractContextManager[Any]:
        return _opened_below(location(self.directory), name)


def write_parts(batches: Batches, *, parts: TableParts) -> Batches:
    """Write the rows of a task of Spark, and yield the names of the files, column `file`."""
    with parts.writer() as writer:
        for batch in batches:
            writer.write(batch)
    yield pa.RecordBatch.from_pydict({"file": pa.array(writer.files, pa.string())})


def _time_of(schema: pa.Schema) -> str | None:
    return next((name for name in _OVER_TIME if name in schema.names), None)


def _directory(day: int) -> str:
    return f"date={np.datetime64(day, 'D')}/"


def _schema_of_files(schema: pa.Schema) -> pa.Schema:
    return written_schema(schema).with_metadata(schema.metadata)


def _name_of_task() -> str:
    """Return how the files of this task begin, and of no other task nor of another attempt at it."""
    context = TaskContext.get()
    return "part" if context is None else f"part-{context.partitionId():05d}-{context.taskAttemptId()}"


@contextmanager
def _opened_below(directory: Location, name: str) -> Iterator[Any]:
    """Open the file `name` below `directory` for Arrow to write to; create missing directories."""
    if isinstance(directory, Uri):
        with place_of(directory / name).written() as stream:
            yield stream
        return
    path = directory / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    yield path
