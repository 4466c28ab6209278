"""Read the usage files: every file is looked at before Spark is asked, so that a bad one is named.

Only names that the writer has finished are read (see `docs/usage-record.md`), with the schema given, never inferred.
"""

import logging
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from tidegate.config.locations import Location, Uri
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import DAMAGED_HINT, FilesystemError, UsageFilesError, VanishedFileError
from tidegate.pipeline.filesystems import opened_parquet, place_of
from tidegate.pipeline.read.chunks import Chunk, check_format
from tidegate.usage.arrow import arrow_schema
from tidegate.usage.columns import ADDED_COLUMNS
from tidegate.usage.files import IMPORT_MANIFEST, in_hours, listed
from tidegate.usage.readers import complete_files, list_files
from tidegate.usage.readers import is_imported as is_imported_directory

__all__ = ["UsageFiles", "find_all_files", "find_files", "is_imported", "list_chunks", "open_usage"]

_log = logging.getLogger(__name__)

_FILES_AT_ONCE = 16  # on a distant filesystem each opening waits
_FEW_FILES = 10_000  # of a directory, of which the names are looked at
_HINT = "give the usage directory of `tidegate serve`"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFiles:
    """Usage files that were looked at: all are Parquet with our columns.

    record: where they were looked for, in the hours from `from_ms` to `to_ms` (None: no end).
    """

    paths: Sequence[Location]
    chunks: Sequence[Chunk]
    record: Location | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    @property
    def rows(self) -> int:
        """Return how many rows they hold."""
        return sum(chunk.rows for chunk in self.chunks)


@contextmanager
def open_usage(
    directory: Location, *, from_ms: int | None = None, to_ms: int | None = None
) -> Iterator[UsageFiles]:
    """Find and check the usage files in `directory`, to be read meanwhile; its spool is in copies.

    from_ms, to_ms: only those of the hours in between; None: no end. Where a file has gone since it was listed, the
    files are listed once more.

    Needs no Spark. Raises `UsageFilesError`.
    """
    with ExitStack() as stack:
        for is_last in (False, True):
            paths = stack.enter_context(find_all_files(directory, from_ms=from_ms, to_ms=to_ms))
            try:
                chunks = list_chunks(paths)
                files = UsageFiles(paths=paths, chunks=chunks, record=directory, from_ms=from_ms, to_ms=to_ms)
                break
            except VanishedFileError:
                if is_last:
                    raise
        yield files


def find_files(directory: Path) -> list[Location]:
    """Return the finished usage files under `directory`.

    Raises `UsageFilesError` where there is no such directory or nothing in it.
    """
    try:
        files = list_files(directory)
    except ConfigError as error:
        raise UsageFilesError(str(error), hint=_HINT) from error
    return _not_none(files, directory)


@contextmanager
def find_all_files(
    directory: Location, *, from_ms: int | None = None, to_ms: int | None = None
) -> Iterator[list[Location]]:
    """Yield the usage files and copies of the files in the spool, and remove the copies afterwards.

    from_ms, to_ms: only the files of the hours in between; None: no limit. The spool of a remote directory is not read,
    and a warning says so. Raises `UsageFilesError` as `find_files` does.
    """
    which = "" if from_ms is None and to_ms is None else "in these hours"
    if isinstance(directory, Uri):
        yield _not_none(_found_elsewhere(directory, from_ms=from_ms, to_ms=to_ms), directory, which)
        return
    with ExitStack() as stack:
        try:
            files = stack.enter_context(complete_files(directory))
            if which:
                files = _in_hours(files, directory, from_ms=from_ms, to_ms=to_ms)
        except (ConfigError, OSError) as error:
            raise UsageFilesError(str(error), hint=getattr(error, "hint", None) or _HINT) from error
        yield _not_none(files, directory, which)


def is_imported(directory: Location) -> bool:
    """Return whether the record there, as for `find_all_files`, was made of logs of another broker."""
    if isinstance(directory, Path):
        return is_imported_directory(directory)
    place = place_of(directory)
    parts = place.path.split("/")
    levels_below = 4  # of a file: parquet, date, hour, its name
    above = ["/".join(parts[: len(parts) - levels]) for levels in range(min(levels_below + 1, len(parts)))]
    names = [f"{path}/{IMPORT_MANIFEST}" for path in above if path]
    return any(place.info(name).type == fs.FileType.File for name in names)


def list_chunks(paths: Sequence[Location]) -> list[Chunk]:
    """Read the footer of every file, several at a time, and return their chunks, in order.

    Raises `UsageFilesError` naming the first file that is no Parquet file or lacks a column.
    """
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [chunk for chunks in pool.map(_chunks_of, paths) for chunk in chunks]


def _found_elsewhere(directory: Uri, *, from_ms: int | None, to_ms: int | None) -> list[Uri]:
    """Return the files that together hold every row there once. Raises `UsageFilesError`, `FilesystemError`."""
    place = place_of(directory)
    match place.info().type:
        case fs.FileType.NotFound:
            reason = f"no usage record at {str(directory)!r}, expected a directory or a Parquet file"
            raise UsageFilesError(reason, hint=_HINT)
        case fs.FileType.File:
            return [directory]
    if any(info.is_file for info in place_of(directory / "spool").below(recursive=True)):
        _log.warning("skipped %s/spool: at a URI only Parquet files are read", directory)
    below = place_of(directory / "parquet")
    if below.info().type != fs.FileType.Directory:
        below = place
    found = listed(Path(info.path) for info in below.below(recursive=True) if info.is_file)
    if from_ms is not None or to_ms is not None:
        try:
            found = _in_hours(found, directory, from_ms=from_ms, to_ms=to_ms)
        except ConfigError as error:
            raise UsageFilesError(str(error), hint=error.hint) from error
    return [below.uri / path.as_posix().removeprefix(below.path).lstrip("/") for path in found]


def _in_hours(
    files: Sequence[Path], directory: Location, *, from_ms: int | None, to_ms: int | None
) -> list[Path]:
    """Return the files of the hours in between. Raises `ConfigError` where there are some, but of other hours."""
    found = in_hours(files, from_ms=from_ms, to_ms=to_ms)
    if files and not found:
        first, last = ("/".join(file.absolute().parts[-3:-1]) for file in (files[0], files[-1]))
        raise ConfigError(
            f"no usage files in {str(directory)!r} in these hours",
            hint=f"the record contains {first} to {last}, in UTC",
        )
    return found


def _not_none(files: Sequence[Location], directory: Location, of_what: str = "") -> list[Location]:
    inside = _usage_below(directory)
    if not files:
        hint = _HINT if inside is None else f"give {str(inside)!r}"
        if inside is None and _has_logs(directory):
            command = f"tidegate import {shlex.quote(str(directory))} --out ./usage"
            hint = f"import request logs of Apache Kafka first: {command}"
        raise UsageFilesError(f"no usage files in {str(directory)!r} {of_what}".rstrip(), hint=hint)
    if inside is not None:
        _log.warning("skipped the rows in %s: give %s to read them", inside / "spool", inside)
    return list(files)


def _has_logs(directory: Location) -> bool:
    """Return whether there are log files, as those of a Kafka, in a directory."""
    if not isinstance(directory, Path) or not directory.is_dir():
        return False
    return any(".log" in path.suffixes for path in islice(directory.iterdir(), _FEW_FILES))


def _usage_below(directory: Location) -> Path | None:
    """Return the usage directory of a server whose data directory was given instead; None: it was not."""
    if isinstance(directory, Uri) or (directory / "spool").is_dir():
        return None
    return directory / "usage" if (directory / "usage" / "spool").is_dir() else None


def _chunks_of(path: Location) -> list[Chunk]:
    name = str(path if isinstance(path, Uri) else path.absolute())
    try:
        with opened_parquet(name) as file:
            check_format(name, file)
            _check_columns(path, file.schema_arrow)
            groups = (file.metadata.row_group(place) for place in range(file.metadata.num_row_groups))
            return [
                Chunk(name, place, size_bytes=group.total_byte_size, rows=group.num_rows)
                for place, group in enumerate(groups)
            ]
    except FilesystemError:
        raise
    except FileNotFoundError as error:
        raise VanishedFileError(str(path)) from error
    except (pa.ArrowException, OSError) as error:
        raise UsageFilesError(
            f"{str(path)!r} is not a usable Parquet file: {_first_sentence(error)}",
            hint=DAMAGED_HINT,
        ) from error


def _check_columns(path: Location, found: pa.Schema) -> None:
    types = {field.name: field.type for field in found}
    for field in arrow_schema():
        if field.name not in types and field.name in ADDED_COLUMNS:
            continue
        if field.name not in types:
            raise UsageFilesError(
                f"{str(path)!r} has no column {field.name!r}, so it is not a usage file of this version",
                hint=_HINT,
            )
        if types[field.name] != field.type:
            raise UsageFilesError(
                f"column {field.name!r} of {str(path)!r} is {str(types[field.name])!r}, expected {str(field.type)!r}",
                hint=_HINT,
            )


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].partition(". ")[0].rstrip(".")
