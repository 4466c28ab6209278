"""Rows in a file for each date that they are of: `date=2026-11-22/part-00000.parquet`, in UTC, by `ts_ms`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from tidegate.config.locations import Location, Uri, location
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.filesystems import place_of
from tidegate.pipeline.results.written import as_written, written_schema

__all__ = ["DAY_MS", "MOST_FILES", "DatedParts", "DatedWriter", "name_of_task", "opened_below"]

DAY_MS = 86_400_000
MOST_FILES = 10_000
"""Files of one writer: a date has one, or several where rows go to and fro between many dates."""

_MOST_OPEN = 16
_GROUP_ROWS = 1 << 17  # some 8 MB of decisions
_RISING = ("seq", "ts")

Opened = Callable[[str], AbstractContextManager[Any]]


class DatedWriter:
    """Writes rows with a column `ts_ms`; `files` are the names of what it wrote, complete after the `with` block.

    opened: gives what Arrow writes the file of a name to. part: how names begin. Without rows there is no file.
    """

    def __init__(
        self, opened: Opened, schema: pa.Schema, *, part: str = "part", most_files: int = MOST_FILES
    ) -> None:
        self.files: list[str] = []
        self._opened, self._schema, self._part, self._most_files = opened, schema, part, most_files
        self._writers: dict[int, _File] = {}  # by day; the one that was used last comes last

    def __enter__(self) -> "DatedWriter":
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """Complete the files."""
        with ExitStack() as stack:
            for writer in self._writers.values():
                stack.callback(writer.close)

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows to the files of their dates. Raises `UsageFilesError` if there are too many dates."""
        if not batch.num_rows:
            return
        days = batch.column("ts_ms").to_numpy() // DAY_MS
        if days.min() == days.max():
            self._file(int(days[0])).write(batch)
            return
        for day in np.unique(days).tolist():
            self._file(day).write(batch.filter(pa.array(days == day)))

    def _file(self, day: int) -> "_File":
        file = self._writers.pop(day, None)
        if file is None:
            if len(self._writers) == _MOST_OPEN:
                self._writers.pop(next(iter(self._writers))).close()
            file = self._begin(f"date={np.datetime64(day, 'D')}")
        self._writers[day] = file
        return file

    def _begin(self, directory: str) -> "_File":
        if len(self.files) == self._most_files:
            raise UsageFilesError(
                f"the rows have more than {self._most_files} dates, or switch between dates too often",
                hint="read fewer hours",
            )
        self.files.append(f"{directory}/{self._part}-{len(self.files):05d}.parquet")
        return _File(self._opened(self.files[-1]), self._schema)


class _File:
    """A file that is written, and the rows of its next row group."""

    def __init__(self, opened: AbstractContextManager[Any], schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        with ExitStack() as stack:
            sink = stack.enter_context(opened)
            written = written_schema(schema)
            rising = [name for name in _RISING if name in written.names]
            writer = pq.ParquetWriter(
                sink,
                written,
                use_dictionary=[name for name in written.names if name not in rising],
                column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            )
            self._writer = stack.enter_context(writer)
            self._stack = stack.pop_all()

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows
        if self._rows >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        with self._stack:
            self._flush()

    def _flush(self) -> None:
        if self._rows:
            self._writer.write_table(as_written(pa.Table.from_batches(self._batches, self._schema)))
        self._batches, self._rows = [], 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DatedParts:
    """A table with files for each date that Spark's tasks write, each task files of its own, below `directory`."""

    name: str
    directory: str
    schema: pa.Schema

    def writer(self) -> DatedWriter:
        """Return what takes the rows of this task."""
        opened = partial(opened_below, location(self.directory))
        return DatedWriter(opened, self.schema, part=name_of_task())


def name_of_task() -> str:
    """Return how the files of this task begin, and of no other task nor of another attempt at it."""
    context = TaskContext.get()
    assert context is not None, "this runs in tasks"
    return f"part-{context.partitionId():05d}-{context.taskAttemptId()}"


@contextmanager
def opened_below(directory: Location, name: str) -> Iterator[Any]:
    """Open the file `name` below `directory` for Arrow to write to; create missing directories."""
    if isinstance(directory, Uri):
        with place_of(directory / name).written() as stream:
            yield stream
        return
    path = directory / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    yield path
