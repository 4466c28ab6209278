"""Read the usage files: every file is looked at before Spark is asked, so that a bad one is named.

Only names that the writer has finished are read (see `docs/usage-record.md`), with the schema given, never inferred.
"""

import logging
import shlex
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from tidegate.config.locations import Location, Uri
from tidegate.errors import ConfigError
from tidegate.pipeline.errors import (
    DAMAGED_HINT,
    FilesystemError,
    OutsideRangeError,
    UsageFilesError,
    VanishedFileError,
)
from tidegate.pipeline.read.chunks import Chunk, check_format, rows_between, statistics_of
from tidegate.pipeline.read.filesystems import DAMAGE, Place, opened_parquet, place_of, table_format_of
from tidegate.usage.arrow import arrow_schema
from tidegate.usage.columns import ADDED_COLUMNS
from tidegate.usage.files import HOUR_MS, IMPORT_MANIFEST, has_imported, hour_of, in_hours, listed
from tidegate.usage.process_nodes import process_of_node
from tidegate.usage.readers import complete_files
from tidegate.usage.segment import SpoolError

__all__ = [
    "UsageFiles",
    "find_all_files",
    "is_imported",
    "list_chunks",
    "newest_ms",
    "open_usage",
]

_log = logging.getLogger(__name__)

_FILES_AT_ONCE = 16  # on a distant filesystem each opening waits
_FEW_FILES = 10_000  # of a directory, of which the names are looked at
_TIME = "ts_ms"
_HINT = "give the usage directory of `tidegate serve` or `tidegate gateway`"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFiles:
    """Usage files that were looked at: all are Parquet with our columns.

    record: where they were looked for. from_ms, to_ms: the range of their rows (None: no limit).
    before: row groups, or parts of some, with the rows of the first hour that are earlier than `from_ms`. A replay
    needs them for the state at `from_ms`, and does not count them.
    """

    paths: Sequence[Location]
    chunks: Sequence[Chunk]
    record: Location | None = None
    from_ms: int | None = None
    to_ms: int | None = None
    before: Sequence[Chunk] = ()

    @property
    def rows(self) -> int:
        """Return how many rows of the range they hold."""
        return sum(chunk.rows for chunk in self.chunks)

    @property
    def replayed(self) -> Sequence[Chunk]:
        """Return the chunks that a replay reads: also the rows before the range, as far as they are needed."""
        return [*self.before, *self.chunks] if self.before else self.chunks

    @property
    def counted_from_ms(self) -> int | None:
        """Return the time before which a replay counts nothing; None: it reads no earlier row."""
        return self.from_ms if self.before else None


@contextmanager
def open_usage(
    directory: Location,
    *,
    from_ms: int | None = None,
    to_ms: int | None = None,
    last_ms: int | None = None,
    with_before: bool = True,
) -> Iterator[UsageFiles]:
    """Find and check the usage files in `directory`, to be read meanwhile; its spool is in copies.

    from_ms, to_ms: only rows from the first on and before the second; None: no limit. last_ms: only the last so many ms
    of the record, up to its newest row; excludes the other two. with_before: a replay also reads the rows of the first
    hour before `from_ms`. Where a file has gone since it was listed, the files are listed once more.

    Needs no Spark. Raises `UsageFilesError`.
    """
    with ExitStack() as stack:
        for is_last in (False, True):
            try:
                if last_ms is not None:
                    with find_all_files(directory) as all_paths:
                        end_ms = newest_ms(all_paths) + 1
                    from_ms, to_ms = max(0, end_ms - last_ms), end_ms
                paths = stack.enter_context(find_all_files(directory, from_ms=_hour_of(from_ms), to_ms=to_ms))
                files = _in_range(paths, directory, from_ms=from_ms, to_ms=to_ms, with_before=with_before)
                break
            except VanishedFileError:
                if is_last:
                    raise
        yield files


@contextmanager
def find_all_files(
    directory: Location, *, from_ms: int | None = None, to_ms: int | None = None
) -> Iterator[list[Location]]:
    """Yield the usage files and copies of the files in the spool, and remove the copies afterwards.

    from_ms, to_ms: only the files of the hours in between; None: no limit. The spool of a remote directory is not read,
    and a warning says so. Raises `UsageFilesError` where there is no such directory or nothing in it.
    """
    which = "" if from_ms is None and to_ms is None else "in these hours"
    if (table_format := table_format_of(directory)) is not None:
        raise UsageFilesError(
            f"{str(directory)!r} is a table of {table_format}, expected a directory of Parquet files",
            hint="copy its rows with a Spark that has this format, and spark.write.parquet, to another directory",
        )
    if isinstance(directory, Uri):
        yield _not_none(_found_elsewhere(directory, from_ms=from_ms, to_ms=to_ms), directory, which)
        return
    with ExitStack() as stack:
        try:
            files = stack.enter_context(complete_files(directory))
            if which:
                files = _in_hours(files, directory, from_ms=from_ms, to_ms=to_ms)
        except UsageFilesError:
            raise
        except SpoolError as error:
            reason = f"no usage files in {str(directory)!r} except damaged segments: {error}"
            raise UsageFilesError(reason, hint=DAMAGED_HINT) from error
        except (ConfigError, OSError) as error:
            raise UsageFilesError(str(error), hint=getattr(error, "hint", None) or _HINT) from error
        yield _not_none(files, directory, which)


def is_imported(directory: Location) -> bool:
    """Return whether the record there, as for `find_all_files`, or one of several, was imported."""
    if isinstance(directory, Path):
        return has_imported(directory)
    place = place_of(directory)
    parts = place.path.split("/")
    levels_below = 4  # of a file: parquet, date, hour, its name
    above = ["/".join(parts[: len(parts) - levels]) for levels in range(min(levels_below + 1, len(parts)))]
    names = [f"{path}/{IMPORT_MANIFEST}" for path in above if path]
    return any(place.info(name).type == fs.FileType.File for name in names) or _has_imported_below(place)


def _has_imported_below(place: Place) -> bool:
    infos = [info for info in place.below(recursive=False) if not info.base_name.startswith("date=")]
    return any(info.base_name == IMPORT_MANIFEST for info in infos) or any(
        _has_imported_below(place_of(place.uri / info.base_name)) for info in infos if not info.is_file
    )


def list_chunks(
    paths: Sequence[Location], *, from_ms: int | None = None, to_ms: int | None = None
) -> list[Chunk]:
    """Read the footer of every file, several at a time, and return their chunks, in order.

    from_ms, to_ms: the range of the rows that are wanted; chunks without any are left out. None: no limit.
    Raises `UsageFilesError` naming the first file that is no Parquet file or lacks a column.
    """
    look = partial(_chunks_of, from_ms=from_ms, to_ms=to_ms)
    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        return [chunk for chunks in pool.map(look, paths) for chunk in chunks]


def newest_ms(paths: Sequence[Location]) -> int:
    """Return the time of the newest row of some usage files, 0 if there is none. Raises `UsageFilesError`."""
    hours = [hour_of(Path(str(path)).absolute()) for path in paths]
    newest = max(hours, key=lambda hour_ms: -1 if hour_ms is None else hour_ms, default=None)
    found_ms = 0
    for path, hour_ms in zip(paths, hours, strict=True):
        if hour_ms is None or hour_ms == newest:
            with _opened(path) as file:
                groups = range(file.metadata.num_row_groups)
                found_ms = max([found_ms, *(_times_of(file, group)[1] for group in groups)])
    return found_ms


def _in_range(
    paths: Sequence[Location],
    directory: Location,
    *,
    from_ms: int | None,
    to_ms: int | None,
    with_before: bool,
) -> UsageFiles:
    """Return the rows of the range. Raises `OutsideRangeError` where there are none."""
    chunks = list_chunks(paths, from_ms=from_ms, to_ms=to_ms)
    if not chunks and (from_ms, to_ms) != (None, None):
        raise OutsideRangeError(
            f"no rows in {str(directory)!r} in this range of time",
            hint="give an earlier --from or a later --to; times are in UTC unless they say otherwise",
        )
    before: Sequence[Chunk] = ()
    if with_before and from_ms is not None and from_ms != _hour_of(from_ms):
        before = list_chunks(paths, from_ms=_hour_of(from_ms), to_ms=from_ms)
    return UsageFiles(
        paths=paths, chunks=chunks, record=directory, from_ms=from_ms, to_ms=to_ms, before=before
    )


def _hour_of(time_ms: int | None) -> int | None:
    """Return the first millisecond of the hour of a time."""
    return None if time_ms is None else time_ms - time_ms % HOUR_MS


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
        found = _in_hours(found, directory, from_ms=from_ms, to_ms=to_ms)
    return [below.uri / path.as_posix().removeprefix(below.path).lstrip("/") for path in found]


def _in_hours(
    files: Sequence[Path], directory: Location, *, from_ms: int | None, to_ms: int | None
) -> list[Path]:
    """Return the files of the hours in between. Raises `OutsideRangeError` if all files are of other hours."""
    found = in_hours(files, from_ms=from_ms, to_ms=to_ms)
    if files and not found:
        first, last = ("/".join(file.absolute().parts[-3:-1]) for file in (files[0], files[-1]))
        raise OutsideRangeError(
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


def _chunks_of(path: Location, *, from_ms: int | None, to_ms: int | None) -> list[Chunk]:
    name = _name_of(path)
    with _opened(path) as file:
        check_format(name, file)
        _check_columns(path, file.schema_arrow)
        found = []
        for place in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(place)
            chunk = Chunk(
                name,
                place,
                size_bytes=group.total_byte_size,
                rows=group.num_rows,
                is_of_process=_is_of_process(file, place),
            )
            if (from_ms, to_ms) != (None, None):
                chunk = _cut(chunk, file, from_ms=from_ms, to_ms=to_ms)
            if chunk.rows or (from_ms, to_ms) == (None, None):
                found.append(chunk)
        return found


def _is_of_process(file: pq.ParquetFile, row_group: int) -> bool:
    """Return whether a row group has the rows of one of several processes of a broker."""
    found = _ends_of(file, row_group, "node_id")
    return found is not None and process_of_node(found[0]) is not None


def _cut(chunk: Chunk, file: pq.ParquetFile, *, from_ms: int | None, to_ms: int | None) -> Chunk:
    """Return the part of a chunk that is in a range. It has limits only where the range cuts the chunk."""
    first_ms, last_ms = _times_of(file, chunk.row_group)
    if from_ms is not None and from_ms <= first_ms:
        from_ms = None
    if to_ms is not None and to_ms > last_ms:
        to_ms = None
    if from_ms is None and to_ms is None:
        return chunk
    rows = 0
    if (from_ms is None or from_ms <= last_ms) and (to_ms is None or to_ms > first_ms):
        rows = len(rows_between(_read_times(file, chunk.row_group), from_ms=from_ms, to_ms=to_ms))
    return replace(chunk, rows=rows, from_ms=from_ms, to_ms=to_ms)


def _times_of(file: pq.ParquetFile, row_group: int) -> tuple[int, int]:
    """Return the times of the first and last row of a row group: from its footer if it has them."""
    found = _ends_of(file, row_group, _TIME)
    if found is not None:
        return found
    ends = pc.min_max(_read_times(file, row_group)[_TIME]).as_py()
    return ends["min"] or 0, ends["max"] or 0


def _ends_of(file: pq.ParquetFile, row_group: int, name: str) -> tuple[int, int] | None:
    """Return the least and the largest number of a column; None: the footer does not state them."""
    group = file.metadata.row_group(row_group)
    for place in range(group.num_columns):
        if group.column(place).path_in_schema == name:
            found = statistics_of(file.metadata, group, place)
            return (found.min, found.max) if found is not None and found.has_min_max else None
    return None


def _read_times(file: pq.ParquetFile, row_group: int) -> pa.Table:
    return file.read_row_group(row_group, columns=[_TIME], use_threads=False)


def _name_of(path: Location) -> str:
    return str(path if isinstance(path, Uri) else path.absolute())


@contextmanager
def _opened(path: Location) -> Iterator[pq.ParquetFile]:
    """Open a file of the record. Raises `UsageFilesError` where it is no Parquet file that can be read."""
    try:
        with opened_parquet(_name_of(path)) as file:
            yield file
    except FilesystemError:
        raise
    except FileNotFoundError as error:
        raise VanishedFileError(str(path)) from error
    except DAMAGE as error:
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
