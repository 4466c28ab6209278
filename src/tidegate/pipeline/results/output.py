"""Results on disk: Parquet tables in a directory that is new, empty or has earlier results.

A directory with results has a marker file, and results may be written to it again. A directory with other files is
written only with `overwrite`, and even then only the tables of results in it are replaced.

Each run writes to a directory of its own. When the run is complete, its tables replace those of the earlier run in one
step (decision 0081). On this machine the directories of runs are below `.tidegate`, where one link names the latest
complete run; tables and marker are links through that link:

    usage_by_client.parquet  ->  .tidegate/latest/usage_by_client.parquet
    tidegate-results.json    ->  .tidegate/latest/tidegate-results.json
    .tidegate/latest         ->  run-20261122T163012004711-5f1c09aa
    .tidegate/lock               held by the run that writes

Only its owner can read `.tidegate`, because it contains names of clients. Object stores have no links: there the
marker, written last and in one piece, names the directory of the run and every file in it (decision 0072).

The marker is also the manifest: it names the files of each table and the sources of the results (`report.manifest`).
"""

import contextlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
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
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.locations import Location, Uri
from tidegate.errors import ConfigError, TidegateError
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.read.filesystems import opened_parquet, place_of
from tidegate.pipeline.results.by_date import DatedParts, DatedWriter, name_of_task, opened_below
from tidegate.pipeline.results.written import as_written, frame_as_written, written_schema
from tidegate.usage.directory import lock_file, make_private_directory, sync_directory

__all__ = [
    "MARKER",
    "STATE_TABLE",
    "Results",
    "check_output",
    "opened_results",
    "saved_table",
]

MARKER = "tidegate-results.json"
STATE_TABLE = "state"
"""The table with the state from which a replay of the next hour continues (`replay.carried`)."""

_FORMAT = 1
_TABLE = re.compile(r"[a-z_]+")
_RUN = re.compile(r"run-\d{8}T\d{12}-[0-9a-f]{8}")
_OURS, _LATEST, _LOCK = ".tidegate", "latest", "lock"
_PART = "part-00000.parquet"
_PART_FILES = "file string"
_LONGEST_SHOWN = 4096  # characters of a path
_ANOTHER_HINT = "give another directory"
_log = logging.getLogger(__name__)

Batches = Iterator[pa.RecordBatch]


class Results(Protocol):
    """The tables of one run, while they are written. All methods raise `OutputError` if that fails."""

    def replaced(self, name: str) -> AbstractContextManager[Any]:
        """Open the Parquet file of a table for Arrow to write to."""

    def dated(self, name: str, schema: pa.Schema) -> AbstractContextManager[DatedWriter]:
        """Open a writer for the rows of a table with one file for each date."""

    def put(self, table: pa.Table, name: str) -> None:
        """Write a table of this process."""

    def write(self, table: DataFrame, name: str) -> None:
        """Write a table with Spark."""

    def parts(self, name: str, schema: pa.Schema) -> DatedParts:
        """Return where Spark's tasks write the rows of a table with files for each date."""

    def keep_files(self, parts: DatedParts, files: Sequence[str]) -> None:
        """Add `files` to the table, and no other files of `parts`: those are of tasks that were repeated."""

    def finish(self, made_of: Mapping[str, Any]) -> None:
        """Replace the tables of an earlier run in one step, and write the sources, `made_of`, to the manifest."""


@contextmanager
def opened_results(directory: Location | None, *, command: str, overwrite: bool) -> Iterator[Results | None]:
    """Open the results of `command` for writing; yield None without a directory. An unfinished run leaves no tables.

    Raises `OutputError` if `directory` is a file, cannot be created, or contains other files without `overwrite`, or
    if another run writes to it.
    """
    if directory is None:
        yield None
        return
    check_output(directory, overwrite=overwrite)
    kind = _ElsewhereResults if isinstance(directory, Uri) else _LocalResults
    with kind(directory, command) as results:  # type: ignore[arg-type]  # each has its own kind of directory
        yield results


def check_output(directory: Location, *, overwrite: bool) -> None:
    """Raise `OutputError` if `directory` contains files other than results, without `overwrite`."""
    try:
        str(directory).encode()
    except UnicodeEncodeError as error:
        raise OutputError(
            f"cannot write to {str(directory)!r}: its name is not UTF-8", hint=_ANOTHER_HINT
        ) from error
    if overwrite:
        return
    with _errors_of(directory):
        other = _foreign_elsewhere(directory) if isinstance(directory, Uri) else _foreign_here(directory)
    if other is not None:
        raise OutputError(
            f"{str(directory)!r} is not empty and does not contain results of tidegate (found {other!r})",
            hint=f"{_ANOTHER_HINT}, or --overwrite to write to this one",
        )


def saved_table(directory: Location, name: str) -> pa.Table:
    """Return a table of complete results. Raises `ConfigError` if `directory` has no such table."""
    marked, place = _marked(directory)
    files = _tables(marked).get(name)
    if not marked.get("complete") or not isinstance(files, list) or not files:
        raise ConfigError(
            f"{str(directory)!r} has no complete table {name!r}",
            hint="give a directory that a command has written with --out",
        )
    tables = []
    for file in files:
        with opened_parquet(str(place / str(file))) as opened:
            tables.append(opened.read())
    return pa.concat_tables(tables)


def _marked(directory: Location) -> tuple[dict[str, Any], Location]:
    """Return the contents of the marker and the directory of its files, both of one run, even during another run."""
    data, place = b"", directory
    if isinstance(directory, Uri):
        data = place_of(directory / MARKER).read() or b""
    else:
        marker = Path(os.path.realpath(directory / MARKER))
        place = marker.parent
        with contextlib.suppress(OSError):
            data = marker.read_bytes()
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(data)
        if isinstance(found, dict):
            return found, place
    return {}, place


def _tables(marked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables that a marker names, with their files."""
    tables = marked.get("tables")
    return (
        {name: tables[name] for name in tables if _TABLE.fullmatch(name)} if isinstance(tables, dict) else {}
    )


def _foreign_here(directory: Path) -> str | None:
    """Return the name of a file that is not a result, or None. Raises `OutputError` if `directory` is a file."""
    if os.path.isfile(directory):
        raise OutputError(f"{str(directory)!r} is a file, expected a directory", hint=_ANOTHER_HINT)
    if not directory.is_dir() or os.path.lexists(directory / MARKER):
        return None
    return next((path.name for path in directory.iterdir() if path.name != _OURS), None)


def _foreign_elsewhere(directory: Uri) -> str | None:
    place = place_of(directory)
    if place.info().type == fs.FileType.File:
        raise OutputError(f"{str(directory)!r} is a file, expected a directory", hint=_ANOTHER_HINT)
    names = {info.base_name for info in place.below(recursive=False)} - {""}
    if MARKER in names:
        return None
    return next((name for name in sorted(names) if not _RUN.fullmatch(name)), None)


class _RunResults:
    """The common part of local and remote results: the tables of a run are in a directory of its own."""

    def __init__(self, directory: Location, made_in: Location, command: str) -> None:
        self._directory, self._command = directory, command
        self._run = f"run-{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{token_hex(4)}"
        self._made = made_in / self._run
        self._files: dict[str, list[str]] = {}
        self._is_finished = False

    @contextmanager
    def replaced(self, name: str) -> Iterator[Any]:
        table = f"{name}.parquet"
        with self._errors(), opened_below(self._made / table, _PART) as sink:
            yield sink
        self._files[name] = [f"{table}/{_PART}"]

    def put(self, table: pa.Table, name: str) -> None:
        with self.replaced(name) as sink:
            pq.write_table(as_written(table), sink)

    @contextmanager
    def dated(self, name: str, schema: pa.Schema) -> Iterator[DatedWriter]:
        table = f"{name}.parquet"
        with self._errors(), DatedWriter(partial(opened_below, self._made / table), schema) as writer:
            yield writer
        self._count(name, schema, writer.files)

    def _count(self, name: str, schema: pa.Schema, files: Sequence[str]) -> None:
        """Record the files of a table; write an empty file for a table without rows."""
        self._files[name] = sorted(f"{name}.parquet/{file}" for file in files)
        if not files:
            self.put(schema.empty_table(), name)

    def _manifest(self, made_of: Mapping[str, Any], *, below: str = "") -> bytes:
        """Return the contents of the marker. below: the prefix of the names of files."""
        tables = {name: [below + file for file in files] for name, files in self._files.items()}
        marked = {"format": _FORMAT, "command": self._command, "complete": True, "run": self._run}
        return (json.dumps({**marked, "tables": tables, **made_of}, indent=2) + "\n").encode()

    def _errors(self) -> AbstractContextManager[None]:
        return _errors_of(self._directory)


@contextmanager
def _errors_of(directory: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        shown = str(directory)[:_LONGEST_SHOWN]
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OutputError(f"cannot write to {shown!r}: {reason}", hint=_ANOTHER_HINT) from error


# --- on this machine --------------------------------------------------------------------------------------------------


class _LocalResults(_RunResults):
    _directory: Path
    _made: Path

    def __init__(self, directory: Path, command: str) -> None:
        self._ours = directory / _OURS
        super().__init__(directory, self._ours, command)

    def __enter__(self) -> "_LocalResults":
        with self._errors():
            make_private_directory(self._directory)
            if self._ours.is_symlink():
                raise OutputError(f"{str(self._ours)!r} is a link, expected a directory", hint=_ANOTHER_HINT)
            make_private_directory(self._ours)
            self._ours.chmod(0o700)
            lock = lock_file(self._ours / _LOCK)
        if lock is None:
            raise OutputError(
                f"another run is writing to {str(self._directory)!r}",
                hint="wait for it, or give each run a directory of its own",
            )
        self._lock = lock
        try:
            self._clean()
            with self._errors():
                self._made.mkdir(mode=0o700)
        except BaseException:
            os.close(lock)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if not self._is_finished:
            shutil.rmtree(self._made, ignore_errors=True)
        os.close(self._lock)

    def write(self, table: DataFrame, name: str) -> None:
        with self._errors():
            made = self._made / f"{name}.parquet"
            frame_as_written(table).write.parquet(f"file:{made.absolute()}")
            files = [path.relative_to(made).as_posix() for path in made.rglob("*.parquet")]
        self._count(name, to_arrow_schema(table.schema), files)

    def parts(self, name: str, schema: pa.Schema) -> DatedParts:
        directory = self._made / f".{name}"
        with self._errors():
            directory.mkdir(mode=0o700)
        return DatedParts(name=name, directory=str(directory.absolute()), schema=schema)

    def keep_files(self, parts: DatedParts, files: Sequence[str]) -> None:
        tried, kept = self._made / f".{parts.name}", self._made / f"{parts.name}.parquet"
        with self._errors():
            for file in files:
                (kept / file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                (tried / file).rename(kept / file)
            shutil.rmtree(tried, ignore_errors=True)
        self._count(parts.name, parts.schema, files)

    def finish(self, made_of: Mapping[str, Any]) -> None:
        with self._errors():
            (self._made / MARKER).write_bytes(self._manifest(made_of))
            # All files are on disk before a link leads to them.
            _settle(self._made)
            was_link = (self._directory / MARKER).is_symlink()
            before = [] if was_link else [*_tables(_marked(self._directory)[0])]  # of a copied directory
            self._link(MARKER)
            for name in before:
                _remove(self._directory / f"{name}.parquet")
            for name in self._files:
                self._link(f"{name}.parquet")
            # Last: this one rename makes all names lead to the new run at once (decision 0081).
            self._put_link(self._ours / _LATEST, self._run)
            self._is_finished = True
        self._clean()

    def _link(self, name: str) -> None:
        """Link a name to the same name in the latest complete run. The link dangles while that run has no such file."""
        path = self._directory / name
        if not _is_link_to(path, _through_latest(name)):
            self._put_link(path, _through_latest(name))

    def _put_link(self, path: Path, target: str) -> None:
        """Replace a file or a link with a link, atomically. Remove a directory at `path` first."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        link = self._made / ".link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        # `symlink_to` cannot replace a name; a rename does so in one step.
        link.replace(path)
        sync_directory(path.parent)

    def _clean(self) -> None:
        """Remove files of earlier runs. None of them is active, because this run has the lock."""
        latest = self._ours / _LATEST
        try:
            counts = latest.readlink().name if latest.is_symlink() else None
            for path in self._ours.iterdir():
                if _RUN.fullmatch(path.name) and path.name != counts:
                    _remove(path)
            for path in self._directory.glob("*.parquet"):
                if _is_link_to(path, _through_latest(path.name)) and not path.exists():
                    path.unlink()
        except OSError as error:
            _log.warning("cannot remove files of earlier runs in %s: %s", self._directory, error)


def _through_latest(name: str) -> str:
    return f"{_OURS}/{_LATEST}/{name}"


def _is_link_to(path: Path, target: str) -> bool:
    return path.is_symlink() and str(path.readlink()) == target


def _remove(path: Path) -> None:
    """Remove a file, a link or a directory, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _settle(directory: Path) -> None:
    """Restrict a directory and all files below it to its owner, and wait until they are on disk."""
    for path in (directory, *directory.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
        sync_directory(path)  # of a file: its contents


# --- elsewhere --------------------------------------------------------------------------------------------------------


class _ElsewhereResults(_RunResults):
    _directory: Uri
    _made: Uri

    def __init__(self, directory: Uri, command: str) -> None:
        super().__init__(directory, directory, command)

    def __enter__(self) -> "_ElsewhereResults":
        self._before = self._counts()
        return self

    def __exit__(self, *error: object) -> None:
        if not self._is_finished:
            with self._warnings():
                self._remove_run(self._run)

    def write(self, table: DataFrame, name: str) -> None:
        below = self._made / f"{name}.parquet"
        schema = to_arrow_schema(table.schema)
        parts = table.mapInArrow(partial(_write_part, directory=below, schema=schema), _PART_FILES)
        self._count(name, schema, [row["file"] for row in parts.collect()])

    def parts(self, name: str, schema: pa.Schema) -> DatedParts:
        return DatedParts(name=name, directory=str(self._made / f"{name}.parquet"), schema=schema)

    def keep_files(self, parts: DatedParts, files: Sequence[str]) -> None:
        self._count(parts.name, parts.schema, files)

    def finish(self, made_of: Mapping[str, Any]) -> None:
        run = place_of(self._made)
        found = {
            info.path.rpartition(f"{self._run}/")[2]: info.path
            for info in run.below(recursive=True)
            if info.is_file
        }
        named = {file for files in self._files.values() for file in files}
        counts = self._counts()
        # The name of a run begins with its time, so a later name began later. Of two runs at once, the later one
        # counts, and it may have removed the files of this one (decision 0081).
        if (counts != self._before and counts > self._run) or not named <= found.keys():
            raise OutputError(
                f"a run that began later has written to {str(self._directory)!r}",
                hint="give each run a directory of its own",
            )
        place_of(self._directory / MARKER).write(self._manifest(made_of, below=f"{self._run}/"))
        self._is_finished = True
        with self._warnings():
            for file in found.keys() - named:  # of tasks that were repeated
                run.filesystem.delete_file(found[file])
            for info in place_of(self._directory).below(recursive=False):
                run_name = info.base_name
                # A run that began later may still be writing, so its files stay.
                if _RUN.fullmatch(run_name) and (run_name < self._run or run_name == self._before):
                    self._remove_run(run_name)

    def _counts(self) -> str:
        """Return the latest complete run, or an empty text."""
        return str(_marked(self._directory)[0].get("run", ""))

    def _remove_run(self, run: str) -> None:
        place = place_of(self._directory / run)
        if place.below(recursive=False):
            place.filesystem.delete_dir(place.path)

    @contextmanager
    def _warnings(self) -> Iterator[None]:
        try:
            yield
        except (TidegateError, OSError, pa.ArrowException) as error:
            _log.warning("cannot remove files of earlier runs in %s: %s", self._directory, error)


def _write_part(batches: Batches, *, directory: Uri, schema: pa.Schema) -> Batches:
    """Write the rows of a task to a file of its own, if it has rows, and yield the name of the file."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    file = f"{name_of_task()}.parquet"
    with (
        place_of(directory / file).written() as stream,
        pq.ParquetWriter(stream, written_schema(schema)) as writer,
    ):
        for batch in chain((first,), batches):
            writer.write_table(as_written(pa.Table.from_batches([batch]).cast(schema)))
    yield pa.RecordBatch.from_pydict({"file": [file]})
