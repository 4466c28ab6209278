"""Results: Parquet tables in a directory that is new, empty or has earlier results.

Each table is a directory with nothing but its files, so any reader reads it as one table:

    usage_by_client/part-0.parquet                    a table of the whole range: replaced as a whole
    usage_by_minute/date=2026-11-22/part-0.parquet    a table over time: each run replaces the dates that it has rows of
    tidegate-results.json                             the document of the latest run
    _runs/run-20261122T163012004711-5f1c09aa.json     the document of each run: what it read, and the files it made

A table, or a date of it, is one file, because one file can be replaced at once wherever files are (`results.store`).
The file of the latest run has no `_` before its name on purpose: it makes an error of an attempt to read the parent
directory as a table, which would mix the rows of its tables.

A run writes its files to `_runs/run-…/`, under names that end in `.tmp`. When all of them are complete, it writes
`moves.json` there and moves the files to their tables. If a run is killed, the next one removes its files, or moves the
rest of them if `moves.json` exists (decision 0130).
"""

import json
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyarrow import fs
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Location, Uri
from tidegate.errors import ConfigError, TidegateError
from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.read.filesystems import opened_parquet, place_of
from tidegate.pipeline.results.store import ANOTHER_HINT, RUNS, Store, store_of
from tidegate.pipeline.results.writing import (
    DAY_MS,
    TableParts,
    is_over_time,
    write_parts,
    written_schema,
)

__all__ = ["MARKER", "STATE_TABLE", "Results", "check_output", "opened_results", "saved_table"]

MARKER = "tidegate-results.json"
STATE_TABLE = "state"
"""The table with the state from which a replay of the next hour continues (`replay.carried`)."""
MOST_RUNS = 10_000
"""Documents of runs that are kept."""

_FORMAT = 2
_PART = "part-0.parquet"
_MOVES = "moves.json"
_FIRST_DATE = "date=1970-01-01"  # also that of a table over time without rows
_DATE = re.compile(r"date=(\d{4}-\d\d-\d\d)")
_RUN = re.compile(r"run-(\d{8}T\d{12})-[0-9a-f]{8}")
_RUN_TIME = "%Y%m%dT%H%M%S%f"
_OLD_LAYOUT = ".tidegate"
_ABANDONED = timedelta(days=7)
"""After this time, a run in an object store counts as killed, and the next run removes its unfinished files."""
_METADATA = b"tidegate"
_LONGEST_SHOWN = 4096  # characters of a path
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Range:
    """The times that a run read, in ms; None where it had no bound."""

    from_ms: int | None = None
    to_ms: int | None = None

    def covers(self, other: "_Range", day: int) -> bool:
        """Return whether a run over this range read all rows of a day that a run over `other` read."""
        (begin, end), (other_begin, other_end) = self._within(day), other._within(day)
        return begin <= other_begin and other_end <= end

    def _within(self, day: int) -> tuple[int, int]:
        begin, end = day * DAY_MS, (day + 1) * DAY_MS
        return (
            begin if self.from_ms is None else max(begin, self.from_ms),
            end if self.to_ms is None else min(end, self.to_ms),
        )


@contextmanager
def opened_results(
    directory: Location,
    *,
    command: str,
    overwrite: bool,
    from_ms: int | None = None,
    to_ms: int | None = None,
) -> "Iterator[Results]":
    """Open the results of `command` for writing. An unfinished run leaves no tables.

    from_ms, to_ms: the range of time that the command reads.
    Raises `OutputError` if `directory` is a file, cannot be created, has results of an earlier version, or contains
    other files without `overwrite`, or if another run writes to it.
    """
    check_output(directory, overwrite=overwrite)
    store = store_of(directory)
    with ExitStack() as stack:
        with _errors_of(directory):
            stack.enter_context(store.held())
            _tidy(store)
        read = _Range(from_ms=from_ms, to_ms=to_ms)
        results = Results(store, command, overwrite=overwrite, read=read)
        stack.callback(results.close)
        yield results


def check_output(directory: Location, *, overwrite: bool, records: Sequence[Location] = ()) -> None:
    """Raise `OutputError` if `directory` has results of an earlier version, or other files without `overwrite`.

    records: usage records; `directory` must not be where the rows of one of them are looked for.
    """
    try:
        str(directory).encode()
    except UnicodeEncodeError as error:
        raise OutputError(
            f"cannot write to {str(directory)!r}: its name is not UTF-8", hint=ANOTHER_HINT
        ) from error
    for record in records:
        if _is_among_rows(directory, record):
            raise OutputError(
                f"cannot write to {str(directory)!r}: it is in the usage record {str(record)!r}",
                hint=ANOTHER_HINT,
            )
    store = store_of(directory)
    with _errors_of(directory):
        names = store.names()
        is_old = _OLD_LAYOUT in names or (MARKER in names and _marked(store).get("format") == 1)
    if is_old:
        raise OutputError(
            f"{str(directory)!r} has results of Tidegate 0.2.0 or earlier, with another layout",
            hint="give another directory; --continue reads this one",
        )
    if names and not overwrite and not names & {MARKER, RUNS}:
        raise OutputError(
            f"{str(directory)!r} is not empty and does not contain results of tidegate (found {min(names)!r})",
            hint=f"{ANOTHER_HINT}, or --overwrite to write to this one",
        )


def _is_among_rows(directory: Location, record: Location) -> bool:
    """Return whether a job that reads a record would read tables in a directory as its rows."""
    if isinstance(record, Path) and record.name.startswith(("date=", "hour=")):
        return _is_among_rows(directory, record.parent)
    parquet = record / "parquet"
    if _is_in(directory, parquet) or not _is_in(directory, record):
        return _is_in(directory, parquet)
    if isinstance(parquet, Path):
        return not parquet.is_dir()
    return bool(place_of(parquet).info().type != fs.FileType.Directory)


def _is_in(directory: Location, other: Location) -> bool:
    """Return whether a directory is another one, or somewhere in it."""
    if isinstance(directory, Path) and isinstance(other, Path):
        return Path(os.path.realpath(directory)).is_relative_to(os.path.realpath(other))
    if isinstance(directory, Uri) and isinstance(other, Uri):
        path = other.path.rstrip("/") + "/"
        return directory.base == other.base and f"{directory.path}/".startswith(path)
    return False


def saved_table(directory: Location, name: str) -> pa.Table:
    """Return a table of complete results, also of an earlier version. Raises `ConfigError` if there is none."""
    store = store_of(directory)
    files = [f"{name}/{file}" for file in store.files(name) if _is_of_table(file, over_time=None)]
    place = directory
    if not files:
        marked = _marked(store)
        tables = marked.get("tables")
        if marked.get("format") == 1 and marked.get("complete") and isinstance(tables, dict):
            files = [str(file) for file in tables.get(name) or ()]
            # The tables of one run, even during another one.
            place = (
                directory if isinstance(directory, Uri) else Path(os.path.realpath(directory / MARKER)).parent
            )
    if not files:
        raise ConfigError(
            f"{str(directory)!r} has no complete table {name!r}",
            hint="give a directory that a command has written with --out",
        )
    tables = []
    for file in files:
        with opened_parquet(str(place / file)) as opened:
            tables.append(opened.read())
    return pa.concat_tables(tables)


class Results:
    """The tables of one run, while they are written. All methods raise `OutputError` if that fails."""

    def __init__(self, store: Store, command: str, *, overwrite: bool, read: _Range) -> None:
        self._store, self._command, self._overwrite, self._read = store, command, overwrite, read
        self._run = f"run-{datetime.now(UTC):{_RUN_TIME}}-{token_hex(4)}"
        self._staged = f"{RUNS}/{self._run}"
        self._schemas: dict[str, pa.Schema] = {}
        self._moves: dict[str, str] = {}  # staged files, and what they are to be
        self._is_finished = False

    @contextmanager
    def writer(self, name: str, table: StructType | pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
        """Begin a table, and yield the function that writes rows to it."""
        parts = self.parts(name, table)
        with self._errors():
            with parts.writer() as writer:
                yield writer.write
            self.keep_files(parts, writer.files)

    def put(self, table: pa.Table, name: str) -> None:
        """Write a table of this process."""
        with self.writer(name, table.schema) as write:
            write(table)

    def write(self, table: DataFrame, name: str) -> None:
        """Write a table with Spark: its tasks write files, which this process merges in the order of the partitions."""
        parts = self.parts(name, table.schema)
        with self._errors():
            written = table.mapInArrow(partial(write_parts, parts=parts), "file string")
            self.keep_files(parts, [row["file"] for row in written.collect()])

    def parts(self, name: str, table: StructType | pa.Schema) -> TableParts:
        """Return where Spark's tasks write the rows of a table."""
        schema = to_arrow_schema(table) if isinstance(table, StructType) else table
        made_by = {"run": self._run, "from_ms": self._read.from_ms, "to_ms": self._read.to_ms}
        schema = schema.with_metadata({_METADATA: json.dumps(made_by)})
        directory = self._store.directory
        if isinstance(directory, Path):
            directory = directory.absolute()
        return TableParts(name=name, directory=str(directory / self._staged / name), schema=schema)

    def keep_files(self, parts: TableParts, files: Sequence[str]) -> None:
        """Make `files` the table, and no other files of `parts`: those are of tasks that were repeated."""
        self._schemas[parts.name] = parts.schema
        of_directory: dict[str, list[str]] = defaultdict(list)
        for file in sorted(files):
            of_directory[file.rpartition("/")[0]].append(file)
        with self._errors():
            found = [parts.merged(some) for some in of_directory.values()]
            if not found and not (is_over_time(parts.schema) and self._store.files(parts.name)):
                found = [parts.empty()]
        for file in found:
            directory = "".join(file.rpartition("/")[:2])
            self._moves[f"{self._staged}/{parts.name}/{file}"] = f"{parts.name}/{directory}{_PART}"

    def finish(self, made_of: Mapping[str, Any], *, without: Sequence[str] = ()) -> None:
        """Replace tables, and dates of tables over time; write the sources of the results to the document of the run.

        without: tables of earlier runs to remove, because they do not fit the tables of this one.
        """
        with self._errors():
            removed = [file for name in without for file in self._files(name)]
            for name, schema in self._schemas.items():
                removed += self._check_table(name, schema)
            document = self._document(made_of)
            for name, target in (("marker", MARKER), ("run", f"{self._staged}.json")):
                self._store.write(f"{self._staged}/{name}", document)
                self._moves[f"{self._staged}/{name}"] = target
            self._store.settle(self._staged)
            moves = {"moves": self._moves, "removed": sorted({*removed} - {*self._moves.values()})}
            self._store.write(f"{self._staged}/{_MOVES}", json.dumps(moves).encode())
            # From here on the run is complete: if it is killed, the next one moves the rest.
            self._is_finished = True
            _move(self._store, self._run)

    def close(self) -> None:
        """Remove what the run has written, unless it is finished."""
        if not self._is_finished:
            with _warnings(self._store):
                self._store.remove(self._staged)

    def _document(self, made_of: Mapping[str, Any]) -> bytes:
        tables: dict[str, list[str]] = {name: [] for name in self._schemas}
        for target in sorted(self._moves.values()):
            tables[target.partition("/")[0]].append(target)
        marked = {"format": _FORMAT, "command": self._command, "complete": True, "run": self._run}
        return (json.dumps({**marked, "tables": tables, **made_of}, indent=2) + "\n").encode()

    def _files(self, name: str) -> list[str]:
        return [f"{name}/{file}".rstrip("/") for file in self._store.files(name)]

    def _check_table(self, name: str, schema: pa.Schema) -> list[str]:
        """Return the earlier files to remove with a table. Raises `OutputError` if they are not of such a table."""
        over_time = is_over_time(schema)
        files = self._files(name)
        foreign = [file for file in files if not _is_of_table(file.partition("/")[2], over_time=over_time)]
        if foreign and not self._overwrite:
            raise OutputError(
                f"{str(self._store.directory / name)!r} has a file that is not of this table (found {foreign[0]!r})",
                hint=f"{ANOTHER_HINT}, or --overwrite to remove it",
            )
        ours = [file for file in files if file not in foreign]
        if not over_time or not ours:
            return foreign
        targets = {*self._moves.values()}
        if self._has_other_columns(ours[-1], schema):
            if not self._overwrite:
                raise OutputError(
                    f"{str(self._store.directory / name)!r} has other columns than this run writes",
                    hint=f"{ANOTHER_HINT}, or --overwrite to replace all dates of the table",
                )
            return files
        if not self._overwrite:
            for file in ours:
                if file in targets:
                    self._check_date(file)
        return [*foreign, *(file for file in ours if file not in targets and self._is_without_rows(file))]

    def _check_date(self, file: str) -> None:
        """Raise `OutputError` if this run has read less of a date than the run that made its file."""
        match = _DATE.search(file)
        assert match is not None, "files of tables over time are in directories of dates"
        day = (date.fromisoformat(match[1]) - date(1970, 1, 1)).days
        with opened_parquet(str(self._store.directory / file)) as opened:
            made_by = (opened.schema_arrow.metadata or {}).get(_METADATA, b"{}")
        before: dict[str, Any] = json.loads(made_by)
        if not self._read.covers(_Range(from_ms=before.get("from_ms"), to_ms=before.get("to_ms")), day):
            next_day = date.fromisoformat(match[1]) + timedelta(days=1)
            raise OutputError(
                f"{str(self._store.directory / file)!r} contains more hours than this run has read",
                hint=f"read the date as a whole (--from {match[1]} --to {next_day}), {ANOTHER_HINT}, "
                "or --overwrite to replace the date",
            )

    def _has_other_columns(self, file: str, schema: pa.Schema) -> bool:
        with opened_parquet(str(self._store.directory / file)) as opened:
            return not opened.schema_arrow.equals(written_schema(schema))

    def _is_without_rows(self, file: str) -> bool:
        """Return whether a file is only there for its columns, because a table had no rows."""
        if f"/{_FIRST_DATE}/" not in file:
            return False
        with opened_parquet(str(self._store.directory / file)) as opened:
            return bool(opened.metadata.num_rows == 0)

    def _errors(self) -> AbstractContextManager[None]:
        return _errors_of(self._store.directory)


def _tidy(store: Store) -> None:
    """Finish a run that was killed while it moved its files, and remove the files of runs that were killed before."""
    found = store.names(RUNS)
    for match in filter(None, map(_RUN.fullmatch, sorted(found))):
        run = match[0]
        if f"{run}.json" not in found and store.read(f"{RUNS}/{run}/{_MOVES}") is not None:
            _move(store, run)
        began = datetime.strptime(match[1], _RUN_TIME).replace(tzinfo=UTC)
        if store.is_exclusive or datetime.now(UTC) - began > _ABANDONED:
            with _warnings(store):
                store.remove(f"{RUNS}/{run}")
    documents = sorted(name for name in found if _RUN.fullmatch(name.removesuffix(".json")) and "." in name)
    for name in documents[:-MOST_RUNS]:
        with _warnings(store):
            store.remove_file(f"{RUNS}/{name}")


def _move(store: Store, run: str) -> None:
    """Move the files of a complete run to their tables, again if it was done in part."""
    staged = f"{RUNS}/{run}"
    found = json.loads(store.read(f"{staged}/{_MOVES}") or b"{}")
    try:
        for name in found.get("removed", ()):
            store.remove_file(_checked(name))
        for source, target in found.get("moves", {}).items():
            store.move(_checked(source), _checked(target))
    except OSError:
        # In an object store, the run itself and the next one may move the same files.
        if store.read(f"{staged}.json") is None:
            raise
    with _warnings(store):
        store.remove(staged)


def _checked(name: str) -> str:
    """Return a name of `moves.json`. Raises `OutputError` if it leads out of the directory."""
    if name.startswith("/") or ".." in name.split("/") or not name:
        raise OutputError(f"{RUNS} has a run with the file name {name!r}", hint=ANOTHER_HINT)
    return name


def _is_of_table(file: str, *, over_time: bool | None) -> bool:
    """Return whether a file, relative to its table, is of the table. over_time: None if it is not known."""
    directory, _, part = file.rpartition("/")
    is_date = _DATE.fullmatch(directory) is not None
    return part == _PART and (is_date if over_time else not directory or (over_time is None and is_date))


def _marked(store: Store) -> dict[str, Any]:
    """Return the document of the latest run; empty if there is none that can be read."""
    with suppress(ValueError, RecursionError):
        found = json.loads(store.read(MARKER) or b"")
        if isinstance(found, dict):
            return found
    return {}


@contextmanager
def _errors_of(directory: Location) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        shown = str(directory)[:_LONGEST_SHOWN]
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OutputError(f"cannot write to {shown!r}: {reason}", hint=ANOTHER_HINT) from error


@contextmanager
def _warnings(store: Store) -> Iterator[None]:
    try:
        yield
    except (TidegateError, OSError, pa.ArrowException) as error:
        _log.warning("cannot remove files of earlier runs in %s: %s", store.directory, error)
