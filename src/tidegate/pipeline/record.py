"""Usage records that are open for the jobs of `tidegate.pipeline`: their rows, and the place where jobs run."""

import os
import re
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tidegate.config.locations import Location, Uri, location
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.errors import OutsideRangeError
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.jobs.where import jobs_here, jobs_in_session
from tidegate.pipeline.progress import OnProgress, silent
from tidegate.pipeline.read.ingest import UsageFiles, find_all_files, is_imported, newest_ms, open_usage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Path_", "Paths", "Record", "Time", "location_of", "open_record", "opened", "range_ms"]

Path_: TypeAlias = str | os.PathLike[str] | Uri
Time: TypeAlias = datetime | str

_EPOCH = datetime.fromtimestamp(0, UTC)
_LAST = re.compile(r"([1-9][0-9]{0,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_ZONE_HINT = "give it a time zone, such as datetime(2026, 11, 22, 14, tzinfo=UTC)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Rows of a usage record, open for any number of jobs. places: the directories of the record.

    session: the session whose data frames the jobs return; None: they return Arrow tables.
    """

    jobs: Jobs
    places: Sequence[Location]
    session: "SparkSession | None" = None

    @property
    def rows(self) -> int:
        """Return how many rows of the range the record has."""
        return self.jobs.files.rows

    @property
    def is_imported(self) -> bool:
        """Return whether rows were imported from a request log of Apache Kafka."""
        return any(map(is_imported, self.places))


Paths: TypeAlias = Path_ | Sequence[Path_] | Record
"""A usage directory (a path or URI), several of them, or a record that is open."""


@contextmanager
def open_record(
    paths: Path_ | Sequence[Path_],
    *,
    spark: "SparkSession | None" = None,
    start: Time | None = None,
    end: Time | None = None,
    last: timedelta | str | None = None,
    progress: OnProgress | None = None,
) -> Iterator[Record]:
    """Open usage records for several jobs over the same rows, to be given to them in place of paths.

    Parameters as in `tidegate.pipeline.usage`. Data frames can be used within the `with` block. Raises `TidegateError`.
    """
    places = _places(paths)
    if spark is not None:
        _check_session(spark)
    with _files(places, start=start, end=end, last=last, with_before=True) as files:
        yield _record(files, places, spark, progress)


@contextmanager
def opened(paths: Paths, *, with_before: bool = True, is_lazy: bool, **options: Any) -> Iterator[Record]:
    """Open what a job was given. options: of `open_record`; a record that is open takes none.

    with_before: a replay also reads the rows of the first hour before `start`. is_lazy: with a session, files are kept
    until this process ends, because the data frames of the job are used after this block.
    """
    if isinstance(paths, Record):
        named = [name for name, value in options.items() if value is not None]
        if named:
            raise ConfigError(
                f"{named[0]} cannot be set for a record that is open", hint="set it in open_record"
            )
        jobs = paths.jobs if with_before else _without_before(paths.jobs)
        yield replace(paths, jobs=jobs)
        return
    places, spark, progress = _places(paths), options.pop("spark"), options.pop("progress")
    if spark is not None:
        _check_session(spark)
    with ExitStack() as stack:
        files = stack.enter_context(_files(places, with_before=with_before, **options))
        if spark is not None and is_lazy:
            weakref.finalize(spark, stack.pop_all().close)
        yield _record(files, places, spark, progress)


def location_of(path: Path_, what: str = "paths") -> Location:
    """Return a path or URI that a caller gave. Raises `ConfigError`; `what` names the argument."""
    if isinstance(path, Uri):
        return path
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ArgumentError(f"{what} must be a path or URI, got {path!r}")
    return location(os.fspath(path)) if isinstance(path, str) else Path(path)


def _time_ms(time: Time, what: str = "start") -> int:
    """Return a time in ms since 1970; a text without an offset is UTC.

    Raises `ConfigError`; `what` names the argument.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ConfigError(f"{what} must have a time zone, got {time!r}", hint=_ZONE_HINT)
        return _ms_of(time, what)
    if isinstance(time, str):
        try:
            found = datetime.fromisoformat(time)
        except ValueError:
            raise ArgumentError(
                f"{what} must be a date and time such as 2026-11-22T14:00, got {time!r}"
            ) from None
        return _ms_of(found if found.tzinfo else found.replace(tzinfo=UTC), what)
    raise ArgumentError(f"{what} must be a datetime or a text such as 2026-11-22T14:00, got {time!r}")


def range_ms(
    start: Time | None, end: Time | None, last: timedelta | str | None
) -> tuple[int | None, int | None, int | None]:
    """Return a range of time in ms: where it begins and ends, or how long the last part is. Raises `ConfigError`."""
    from_ms = None if start is None else _time_ms(start)
    to_ms = None if end is None else _time_ms(end, "end")
    if last is not None and (from_ms, to_ms) != (None, None):
        raise ConfigError("last excludes start and end", hint="give either last, or start and end")
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise ConfigError(
            f"end must be later than start, got {start} and {end}",
            hint="rows at the time of end are not read",
        )
    return from_ms, to_ms, None if last is None else _last_ms(last)


def _ms_of(time: datetime, what: str) -> int:
    try:
        found = (time - _EPOCH) // timedelta(milliseconds=1)
    except (ArithmeticError, ValueError, TypeError):
        found = -1
    if found < 0:
        raise ArgumentError(f"{what} must be a time since 1970, got {str(time)!r}")
    return found


def _last_ms(last: timedelta | str) -> int:
    found = last
    if isinstance(last, str) and (match := _LAST.fullmatch(last)):
        found = timedelta(**{_UNITS[match[2]]: int(match[1])})
    if not isinstance(found, timedelta) or found < timedelta(milliseconds=1):
        raise ArgumentError(
            f"last must be a timedelta above 0, or a text such as 90s, 15m, 6h or 2d, got {last!r}"
        )
    return found // timedelta(milliseconds=1)


@contextmanager
def _files(
    directories: Sequence[Location],
    *,
    start: Time | None,
    end: Time | None,
    last: timedelta | str | None,
    with_before: bool,
) -> Iterator[UsageFiles]:
    """Open the files of all records together. A record without rows in the range counts only where all are so."""
    from_ms, to_ms, last_ms = range_ms(start, end, last)
    if last_ms is not None and len(directories) > 1:
        to_ms = max(map(_newest_ms, directories)) + 1
        from_ms, last_ms = max(0, to_ms - last_ms), None
    ends: dict[str, Any] = {
        "from_ms": from_ms,
        "to_ms": to_ms,
        "last_ms": last_ms,
        "with_before": with_before,
    }
    parts, outside = [], []
    with ExitStack() as stack:
        for directory in directories:
            try:
                parts.append(stack.enter_context(open_usage(directory, **ends)))
            except OutsideRangeError as error:
                outside.append(error)
        if not parts:
            raise outside[0]
        yield _together(parts)


def _places(paths: Path_ | Sequence[Path_]) -> list[Location]:
    if isinstance(paths, str | os.PathLike | Uri):
        return [location_of(paths)]
    if not isinstance(paths, Sequence) or isinstance(paths, bytes) or not paths:
        raise ArgumentError(f"paths must be a path or URI, or several of them, got {paths!r}")
    return list(map(location_of, paths))


def _newest_ms(directory: Location) -> int:
    with find_all_files(directory) as files:
        return newest_ms(files)


def _together(parts: Sequence[UsageFiles]) -> UsageFiles:
    """Return the files of several records. Raises `ConfigError` for a file that is in two of them."""
    if len(parts) == 1:
        return parts[0]
    names = [str(path.resolve() if isinstance(path, Path) else path) for part in parts for path in part.paths]
    twice = (
        next((name for name in names if names.count(name) > 1), None) if len({*names}) < len(names) else None
    )
    if twice is not None:
        raise ConfigError(f"{twice!r} is in two of the paths", hint="give each record once")
    return UsageFiles(
        paths=[path for part in parts for path in part.paths],
        chunks=[chunk for part in parts for chunk in part.chunks],
        before=[chunk for part in parts for chunk in part.before],
        from_ms=parts[0].from_ms,
        to_ms=parts[0].to_ms,
    )


def _check_session(spark: object) -> None:
    from tidegate.pipeline.spark.sessions import check_session

    check_session(spark)


def _record(
    files: UsageFiles, places: Sequence[Location], spark: "SparkSession | None", progress: OnProgress | None
) -> Record:
    on_progress = silent if progress is None else progress
    if not callable(on_progress):
        raise ArgumentError(f"progress must be a function, got {progress!r}")
    if spark is None:
        return Record(jobs=jobs_here(files, on_progress), places=places)
    return Record(jobs=jobs_in_session(spark, files, on_progress), places=places, session=spark)


def _without_before(jobs: Jobs) -> Jobs:
    return replace(jobs, files=replace(jobs.files, before=()))
