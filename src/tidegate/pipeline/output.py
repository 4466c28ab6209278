"""Where results are written: Parquet tables in a directory that is new, empty or ours.

A directory that holds our results has a marker file. It may be written again; a directory with anything else
in it may not, unless the user says so, and even then only our own tables in it are replaced.

On this machine a table is made beside the one that is there and takes its place when it is complete; the marker says
`complete` when all have. Directories and files are their owner's alone, for names of clients are in them. Elsewhere
nothing can be relied on to rename a directory: each run writes into one of its own, and the marker, written last and at
once, names that and every file in it (decision 0072). What it does not name counts for nothing, and is removed by the
next run that completes.

The marker is also the manifest: it names the files of each table, and says what they were made of (`manifest`).
"""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.locations import Location, Uri, location
from tidegate.errors import ConfigError
from tidegate.pipeline.by_date import DAY_MS, DatedWriter
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.filesystems import opened_parquet, place_of
from tidegate.usage.directory import make_private_directory, write_private_file

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

_FORMAT = 1
_TABLE = re.compile(r"[a-z_]+")
_RUN = re.compile(r"run-\d{8}T\d{6}-[0-9a-f]{8}")
_PART_FILES = "file string"
_DATE = f"date_add(DATE'1970-01-01', CAST(ts_ms DIV {DAY_MS} AS INT))"  # whatever the session's time zone is
_log = logging.getLogger(__name__)

Batches = Iterator[pa.RecordBatch]


class Results(Protocol):
    """The tables of one run, while they are written. All raise `OutputError` where they cannot be."""

    def replaced(self, name: str) -> AbstractContextManager[Any]:
        """Give what Arrow writes the Parquet file of a table to, which is then in place of what stood there."""

    def dated(self, name: str, schema: pa.Schema) -> AbstractContextManager[DatedWriter]:
        """Give what takes the rows of a table with a file for each date, which is then in place likewise."""

    def write(self, table: DataFrame, name: str, *, by_date: bool = False) -> None:
        """Have Spark write a table, in place of what stood there; by_date: with files for each date."""

    def finish(self, made_of: Mapping[str, Any]) -> None:
        """Say that all tables are there, and what they were `made_of`; remove those of an earlier run."""


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
    marked = _marked_elsewhere(directory) if isinstance(directory, Uri) else _marked(directory)
    files = [str(directory / file) for file in _tables(marked).get(name, ())]
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


def _tables(marked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tables that a marker names, with their files."""
    tables = marked.get("tables")
    return (
        {name: tables[name] for name in tables if _TABLE.fullmatch(name)} if isinstance(tables, dict) else {}
    )


def _stale(marked: Mapping[str, Any]) -> list[str]:
    """Return the tables that runs before one that was not completed may have left."""
    stale = marked.get("stale")
    names = stale if isinstance(stale, list) else []
    return [name for name in names if isinstance(name, str) and _TABLE.fullmatch(name)]


def _manifest(command: str, run: str, files: Mapping[str, Any], made_of: Mapping[str, Any]) -> bytes:
    """Return what the marker of complete results says."""
    marked = {"format": _FORMAT, "command": command, "complete": True, "run": run, "tables": files}
    return _json({**marked, **made_of})


def _json(marked: Mapping[str, Any]) -> bytes:
    return (json.dumps(marked, indent=2) + "\n").encode()


def _new_run() -> str:
    return f"run-{datetime.now(UTC):%Y%m%dT%H%M%S}-{token_hex(4)}"


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
        self._directory, self._command, self._run = directory, command, _new_run()
        self._files: dict[str, list[str]] = {}
        with self._errors():
            make_private_directory(directory)
            before = _marked(directory)
            self._stale = sorted({*_tables(before), *_stale(before)} - set(tables))
            marked = {
                "format": _FORMAT,
                "command": command,
                "complete": False,
                "run": self._run,
                "tables": {name: [] for name in tables},
                "stale": self._stale,
            }
            write_private_file(directory / MARKER, _json(marked))

    @contextmanager
    def replaced(self, name: str) -> Iterator[Path]:
        with self._errors():
            made = self._staging(name)
            yield made / "part-00000.parquet"
            self._put(name, made)

    @contextmanager
    def dated(self, name: str, schema: pa.Schema) -> Iterator[DatedWriter]:
        with self._errors():
            made = self._staging(name)
            with DatedWriter(partial(_file_below, made), schema) as writer:
                yield writer
            self._put(name, made)

    def write(self, table: DataFrame, name: str, *, by_date: bool = False) -> None:
        with self._errors():
            staging = self._staging(name)
            made = staging / "table"  # below what is ours alone, for Spark makes it with modes of its own
            writer = (
                table.withColumn("date", F.expr(_DATE)).write.partitionBy("date") if by_date else table.write
            )
            writer.parquet(f"file:{made.absolute()}")
            if next(made.rglob("*.parquet"), None) is None:  # of no rows there are no dates
                pq.write_table(to_arrow_schema(table.schema).empty_table(), made / "part-00000.parquet")
            self._put(name, made)
            staging.rmdir()

    def finish(self, made_of: Mapping[str, Any]) -> None:
        with self._errors():
            self._check_alone()
            for name in self._stale:
                for left in (f"{name}.parquet", f".{name}.parquet.new", f".{name}.parquet.old"):
                    shutil.rmtree(self._directory / left, ignore_errors=True)
            marked = _manifest(self._command, self._run, self._files, made_of)
            write_private_file(self._directory / MARKER, marked)

    def _staging(self, name: str) -> Path:
        """Return an empty directory, the owner's alone, that a table is made in."""
        made = self._directory / f".{name}.parquet.new"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir(mode=0o700)
        return made

    def _put(self, name: str, made: Path) -> None:
        """Put a complete table in its place."""
        for path in (made, *made.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
        self._check_alone()
        files = sorted(path.relative_to(made).as_posix() for path in made.rglob("*.parquet"))
        _replace(made, self._directory / f"{name}.parquet")
        self._files[name] = [f"{name}.parquet/{file}" for file in files]

    def _check_alone(self) -> None:
        """Raise `OutputError` where another run has begun since: tables would be of both."""
        if _marked(self._directory).get("run") != self._run:
            raise OutputError(
                f"another run has begun to write to {str(self._directory)!r}",
                hint="give each run a directory of its own",
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _cannot_write(self._directory, error) from error


@contextmanager
def _file_below(directory: Path, name: str) -> Iterator[Path]:
    path = directory / name
    path.parent.mkdir(mode=0o700, exist_ok=True)
    yield path


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


# --- elsewhere --------------------------------------------------------------------------------------------------------


class _ElsewhereResults:
    def __init__(self, directory: Uri, command: str) -> None:
        self._directory, self._command = directory, command
        self._run = _new_run()
        self._files: dict[str, list[str]] = {}

    @contextmanager
    def replaced(self, name: str) -> Iterator[Any]:
        file = f"{self._run}/{name}.parquet/part-00000.parquet"
        with place_of(self._directory / file).written() as stream:
            yield stream
        self._files[name] = [file]

    @contextmanager
    def dated(self, name: str, schema: pa.Schema) -> Iterator[DatedWriter]:
        below = self._directory / f"{self._run}/{name}.parquet"
        with DatedWriter(lambda file: place_of(below / file).written(), schema) as writer:
            yield writer
        self._files[name] = [f"{self._run}/{name}.parquet/{file}" for file in writer.files]

    def write(self, table: DataFrame, name: str, *, by_date: bool = False) -> None:
        below = f"{self._run}/{name}.parquet"
        schema = to_arrow_schema(table.schema)
        write_part = partial(
            _write_part, directory=str(self._directory / below), schema=schema, by_date=by_date
        )
        parts = table.mapInArrow(write_part, _PART_FILES)
        self._files[name] = sorted(f"{below}/{row['file']}" for row in parts.collect())
        if not self._files[name]:
            with self.replaced(name) as stream:
                pq.write_table(schema.empty_table(), stream)

    def finish(self, made_of: Mapping[str, Any]) -> None:
        place = place_of(self._directory)
        marked = _manifest(self._command, self._run, self._files, made_of)
        place_of(self._directory / MARKER).write(marked)
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


def _write_part(batches: Batches, *, directory: str, schema: pa.Schema, by_date: bool) -> Batches:
    """Write the rows of a task to files of its own, unless there are none, and yield their names."""
    context = TaskContext.get()
    assert context is not None, "this runs in tasks"
    part = f"part-{context.partitionId():05d}-{context.taskAttemptId()}"
    parent = location(directory)
    assert isinstance(parent, Uri), "on this machine Spark writes"
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    rows = (of_schema for batch in chain((first,), batches) for of_schema in _cast(batch, schema))
    if by_date:
        with DatedWriter(lambda file: place_of(parent / file).written(), schema, part=part) as dated:
            for batch in rows:
                dated.write(batch)
        files = dated.files
    else:
        files = [f"{part}.parquet"]
        with place_of(parent / files[0]).written() as stream, pq.ParquetWriter(stream, schema) as writer:
            for batch in rows:
                writer.write_batch(batch)
    yield pa.RecordBatch.from_pydict({"file": files})


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = pa.Table.from_batches([batch]).cast(schema).to_batches()
    return found


def _marked_elsewhere(directory: Uri) -> dict[str, Any]:
    data = place_of(directory / MARKER).read()
    with contextlib.suppress(ValueError):
        found = json.loads(data or b"")
        if isinstance(found, dict):
            return found
    return {}
