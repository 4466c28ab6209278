"""Where results are written: Parquet tables in a directory that is new, empty or ours.

A directory that holds our results has a marker file. It may be written again; a directory with anything else
in it may not, unless the user says so, and even then only our own tables in it are replaced.

On this machine a table is made beside the one that is there and takes its place when it is complete; the marker says
`complete` when all have. Elsewhere nothing can be relied on to rename a directory: each run writes into one of its own,
and the marker, written last and at once, names that and every file in it (decision 0072). What it does not name counts
for nothing, and is removed by the next run that completes.
"""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.locations import Location, Uri, location
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.filesystems import opened_parquet, place_of

__all__ = [
    "MARKER",
    "STATE_TABLE",
    "Results",
    "check_output",
    "prepare_output",
    "saved_table",
]

MARKER = "tidegate-results.json"
STATE_TABLE = "state"
"""What a replay leaves for one of the hours after (`replay.carried`)."""

_RUN = re.compile(r"run-\d{8}T\d{6}-[0-9a-f]{8}")
_PART_FILES = "file string"
_log = logging.getLogger(__name__)

Batches = Iterator[pa.RecordBatch]


class Results(Protocol):
    """The tables of one run, while they are written. All raise `OutputError` where they cannot be."""

    def replaced(self, name: str) -> AbstractContextManager[Any]:
        """Give what Arrow writes the Parquet file of a table to, which is then in place of what stood there."""

    def write(self, table: DataFrame, name: str) -> None:
        """Have Spark write a table, in place of what stood there."""

    def finish(self) -> None:
        """Say that all tables are there; remove those of an earlier run that are not of this one."""


def prepare_output(
    directory: Location | None, *, command: str, tables: Iterable[str], overwrite: bool
) -> Results | None:
    """Make `directory` ready for the tables of `command`, and return what writes them; None: nothing is written.

    Raises `OutputError` where it is a file, cannot be made, or holds what is not ours and `overwrite` is not given.
    """
    if directory is None:
        return None
    check_output(directory, overwrite=overwrite)
    if isinstance(directory, Uri):
        return _ElsewhereResults(directory, command)
    return _LocalResults(directory, command, sorted(tables))


def check_output(directory: Location, *, overwrite: bool) -> None:
    """Raise `OutputError` where `directory` holds what is not ours and `overwrite` is not given."""
    if overwrite:
        return
    other = _foreign_elsewhere(directory) if isinstance(directory, Uri) else _foreign_here(directory)
    if other is not None:
        raise OutputError(
            f"{str(directory)!r} is not empty and does not hold results of tidegate (found {other!r})",
            hint="give another directory, or --overwrite to write among what is there",
        )


def saved_table(directory: Location, name: str) -> pa.Table:
    """Return a table of complete results. Raises `ConfigError` where there are none, or it is none of theirs."""
    if isinstance(directory, Uri):
        marked = _marked_elsewhere(directory)
        files = [str(directory / file) for file in marked.get("tables", {}).get(name, ())]
    else:
        marked = _marked(directory)
        files = sorted(map(str, (directory / f"{name}.parquet").glob("*.parquet")))
        files = files if name in marked.get("tables", ()) else []
    if not marked.get("complete") or not files:
        raise ConfigError(
            f"{str(directory)!r} has no complete table {name!r}",
            hint="give what --out of such a command has written",
        )
    tables = []
    for file in files:
        with opened_parquet(file) as opened:
            tables.append(opened.read())
    return pa.concat_tables(tables)


def _foreign_here(directory: Path) -> str | None:
    """Return the name of something that is not ours; None: there is nothing."""
    if not directory.is_dir() or (directory / MARKER).is_file():
        return None
    return next((path.name for path in directory.iterdir()), None)


def _foreign_elsewhere(directory: Uri) -> str | None:
    place = place_of(directory)
    if place.info().type == fs.FileType.File:
        raise OutputError(f"{str(directory)!r} is a file, expected a directory")
    names = {info.base_name for info in place.below(recursive=False)} - {""}
    if MARKER in names:
        return None
    return next((name for name in sorted(names) if not _RUN.fullmatch(name)), None)


# --- on this machine --------------------------------------------------------------------------------------------------


class _LocalResults:
    def __init__(self, directory: Path, command: str, tables: list[str]) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            before = _marked(directory)
            stale = sorted({*before.get("tables", ()), *before.get("stale", ())} - set(tables))
            _mark(directory, {"command": command, "tables": tables, "stale": stale, "complete": False})
        except OSError as error:
            raise _cannot_write(directory, error) from error

    @contextmanager
    def replaced(self, name: str) -> Iterator[Path]:
        made = self._directory / f".{name}.parquet.new"
        shutil.rmtree(made, ignore_errors=True)
        try:
            made.mkdir(mode=0o700)
            yield made / "part-00000.parquet"
            _replace(made, self._directory / f"{name}.parquet")
        except OSError as error:
            raise _cannot_write(self._directory, error) from error

    def write(self, table: DataFrame, name: str) -> None:
        made = self._directory / f".{name}.parquet.new"
        table.write.mode("overwrite").parquet(f"file:{made.absolute()}")
        _replace(made, self._directory / f"{name}.parquet")

    def finish(self) -> None:
        marked = _marked(self._directory)
        for name in marked.pop("stale"):
            shutil.rmtree(self._directory / f"{name}.parquet", ignore_errors=True)
        _mark(self._directory, {**marked, "complete": True})


def _cannot_write(directory: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write to {str(directory)!r}: {error.strerror or error}")


def _replace(made: Path, path: Path) -> None:
    """Put a complete table in its place; what stood there is gone then."""
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if path.is_dir():
        path.rename(old)
    elif path.exists():
        path.unlink()
    made.rename(path)
    shutil.rmtree(old, ignore_errors=True)


def _marked(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / MARKER).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _mark(directory: Path, content: dict[str, Any]) -> None:
    new = directory / f".{MARKER}.new"
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    new.replace(directory / MARKER)


# --- elsewhere --------------------------------------------------------------------------------------------------------


class _ElsewhereResults:
    def __init__(self, directory: Uri, command: str) -> None:
        self._directory, self._command = directory, command
        self._run = f"run-{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(4)}"
        self._files: dict[str, list[str]] = {}

    @contextmanager
    def replaced(self, name: str) -> Iterator[Any]:
        file = f"{self._run}/{name}.parquet/part-00000.parquet"
        with place_of(self._directory / file).written() as stream:
            yield stream
        self._files[name] = [file]

    def write(self, table: DataFrame, name: str) -> None:
        below = f"{self._run}/{name}.parquet"
        schema = to_arrow_schema(table.schema)
        parts = table.mapInArrow(
            partial(_write_part, directory=str(self._directory / below), schema=schema), _PART_FILES
        )
        self._files[name] = sorted(f"{below}/{row['file']}" for row in parts.collect())
        if not self._files[name]:
            with self.replaced(name) as stream:
                pq.write_table(schema.empty_table(), stream)

    def finish(self) -> None:
        marked = {"command": self._command, "complete": True, "run": self._run, "tables": self._files}
        place = place_of(self._directory)
        (place_of(self._directory / MARKER)).write((json.dumps(marked, indent=2) + "\n").encode())
        named = {f"{place.path}/{file}" for files in self._files.values() for file in files}
        try:
            for info in place.below(recursive=False):
                if _RUN.fullmatch(info.base_name) and info.base_name != self._run:
                    place.filesystem.delete_dir(info.path)
            for info in place_of(self._directory / self._run).below(recursive=True):
                if info.is_file and info.path not in named:  # of a task that was tried again
                    place.filesystem.delete_file(info.path)
        except (ConfigError, OSError, pa.ArrowException) as error:
            _log.warning("what earlier runs have left in %s is still there: %s", self._directory, error)


def _write_part(batches: Batches, *, directory: str, schema: pa.Schema) -> Batches:
    """Write the rows of a task to a file of its own, unless there are none, and yield its name."""
    context = TaskContext.get()
    assert context is not None, "this runs in tasks"
    name = f"part-{context.partitionId():05d}-{context.taskAttemptId()}.parquet"
    parent = location(directory)
    assert isinstance(parent, Uri), "on this machine Spark writes"
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    with place_of(parent / name).written() as stream, pq.ParquetWriter(stream, schema) as writer:
        writer.write_table(pa.Table.from_batches([first]).cast(schema))
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).cast(schema))
    yield pa.RecordBatch.from_pydict({"file": [name]})


def _marked_elsewhere(directory: Uri) -> dict[str, Any]:
    data = place_of(directory / MARKER).read()
    with contextlib.suppress(ValueError):
        found = json.loads(data or b"")
        if isinstance(found, dict):
            return found
    return {}
