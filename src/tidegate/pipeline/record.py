"""Usage records that are open for jobs: their rows, and the place where the jobs run, this process or Spark."""

import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from inspect import Parameter, signature
from pathlib import Path
from threading import Event
from typing import Any, TypeAlias, TypedDict, Unpack

from pyspark.sql import SparkSession

from tidegate.config.locations import Location, Uri
from tidegate.config.values import did_you_mean
from tidegate.errors import ArgumentError, ConfigError
from tidegate.pipeline.arguments import Path_, Time, location_to_read, range_ms
from tidegate.pipeline.errors import OutsideRangeError, spark_errors_as_ours
from tidegate.pipeline.jobs.here import Here
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.jobs.on_spark import EarlySurveys, OnSpark
from tidegate.pipeline.progress import OnProgress, silent
from tidegate.pipeline.read.ingest import UsageFiles, find_all_files, is_imported, newest_ms, open_usage
from tidegate.pipeline.spark.session import RunningSpark, connect_address, is_submitted
from tidegate.pipeline.spark.sessions import check_session, send_package

__all__ = [
    "LOCAL_ROWS",
    "Opening",
    "Paths",
    "Record",
    "jobs_here",
    "jobs_on_spark",
    "open_record",
    "opened",
    "places_of",
    "where_and_why",
]

LOCAL_ROWS = 20_000_000
"""Most rows that are read in this process: some 20 bytes of memory each."""


class Opening(TypedDict, total=False):
    """Keyword parameters that all functions over a record take, unless the record is open already.

    spark: a session, classic or of Spark Connect; then tables are its data frames, and its settings stay as they are.
    Without it, the job runs in this process and tables are Arrow tables. start, end: rows from the first on and before
    the second, as a `datetime` with a time zone or a text such as 2026-11-22T14:00, in UTC. last: instead of both, the
    last part of the record, as a `timedelta` or a text such as 15m. progress: a function that is called with a
    `Progress`.
    """

    spark: SparkSession | None
    start: Time | None
    end: Time | None
    last: timedelta | str | None
    progress: OnProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Rows of a usage record, open for any number of jobs. places: the directories of the record.

    session: the session whose data frames the jobs return; None: they return Arrow tables. closed: set when its `with`
    block has ended.
    """

    jobs: Jobs
    places: Sequence[Location]
    session: SparkSession | None = None
    closed: Event = field(default_factory=Event, repr=False, compare=False)

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
def open_record(paths: Path_ | Sequence[Path_], **opening: Unpack[Opening]) -> Iterator[Record]:
    """Open usage records for several jobs over the same rows, to be given to them in place of paths.

    opening: see `Opening`. Data frames can be used within the `with` block. Raises `TidegateError`.
    """
    with ExitStack() as stack:
        record = _opened(paths, stack, with_before=True, **_checked(opening, open_record))
        stack.callback(record.closed.set)
        yield record


@contextmanager
def opened(
    paths: Paths,
    job: Callable[..., object],
    *,
    with_before: bool = True,
    is_lazy: bool,
    **opening: Unpack[Opening],
) -> Iterator[Record]:
    """Open the paths that a job was given. For a record that is open already, `opening` must be empty.

    job: the function that was called, whose parameters errors name. with_before: a replay also reads the rows of the
    first hour before `start`. is_lazy: with a session, files are kept until this process ends, because the data frames
    of the job are used after this block.
    """
    given = _checked(opening, job)
    if isinstance(paths, Record):
        if paths.closed.is_set():
            raise ConfigError(
                "the record is closed, because its `with` block has ended",
                hint="use it within the block, or open it again",
            )
        named = [name for name, value in given.items() if value is not None]
        if named:
            raise ConfigError(
                f"{named[0]} cannot be set for a record that is open", hint="set it in open_record"
            )
        files = paths.jobs.files
        yield replace(
            paths, jobs=replace(paths.jobs, files=files if with_before else replace(files, before=()))
        )
        return
    with ExitStack() as stack:
        record = _opened(paths, stack, with_before=with_before, **given)
        if record.session is not None and is_lazy:
            weakref.finalize(record.session, stack.pop_all().close)
        yield record


def _opened(
    paths: Path_ | Sequence[Path_], stack: ExitStack, *, with_before: bool, **given: Unpack[Opening]
) -> Record:
    """Return the record at the paths; `stack` closes its files."""
    places, spark = places_of(paths), given.get("spark")
    if spark is not None:
        check_session(spark)
    ends = given.get("start"), given.get("end"), given.get("last")
    files = stack.enter_context(_files(places, range_ms(*ends), with_before=with_before))
    progress = given.get("progress")
    on_progress = silent if progress is None else progress
    if not callable(on_progress):
        raise ArgumentError(f"progress must be a function, got {progress!r}")
    if spark is None:
        return Record(jobs=jobs_here(files, on_progress), places=places)
    with spark_errors_as_ours(spark_log=None):
        send_package(spark)
    jobs = jobs_on_spark(RunningSpark(session=spark, log=None), files, on_progress=on_progress)
    return Record(jobs=jobs, places=places, session=spark)


def _checked(opening: Opening, function: Callable[..., object]) -> Opening:
    """Return the parameters. Raises `TypeError` for one that the function does not have, as Python does."""
    unknown = next((name for name in opening if name not in Opening.__annotations__), None)
    if unknown is not None:
        own = [
            name for name, of in signature(function).parameters.items() if of.kind is Parameter.KEYWORD_ONLY
        ]
        hint = did_you_mean(unknown, [*own, *Opening.__annotations__])
        raise TypeError(f"unexpected keyword argument {unknown!r} (hint: {hint})")
    return opening


@contextmanager
def _files(
    directories: Sequence[Location], of_range: tuple[int | None, int | None, int | None], *, with_before: bool
) -> Iterator[UsageFiles]:
    """Open the files of all records together. A record without rows in the range counts only where all are so.

    of_range: see `range_ms`.
    """
    from_ms, to_ms, last_ms = of_range
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


def places_of(paths: Paths) -> Sequence[Location]:
    """Return the directories of the records that a job was given. Raises `ArgumentError`."""
    if isinstance(paths, Record):
        return paths.places
    if isinstance(paths, str | os.PathLike | Uri):
        return [location_to_read(paths)]
    if not isinstance(paths, Sequence) or isinstance(paths, bytes) or not paths:
        raise ArgumentError(f"paths must be a path or URI, or several of them, got {paths!r}")
    return list(map(location_to_read, paths))


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


def where_and_why(*, master: str | None, rows: int) -> tuple[bool, str]:
    """Return whether a job runs in this process, and the reason in a few words."""
    if master is not None:
        return False, f"on Spark: --master {master}"
    if connect_address(master) is not None:
        return False, "on Spark Connect: SPARK_REMOTE"
    if is_submitted():
        return False, "on Spark: started by spark-submit"
    if SparkSession.getActiveSession() is not None:
        return False, "on Spark: a Spark session is already running"
    if rows > LOCAL_ROWS:
        return False, f"on Spark: {rows:,} rows, more than the {LOCAL_ROWS:,} that one process reads"
    return True, f"in this process: {rows:,} rows; Spark is used for more than {LOCAL_ROWS:,}"


def jobs_here(files: UsageFiles, on_progress: OnProgress = silent) -> Jobs:
    """Return the jobs in this process."""
    return Jobs(files=files, back_end=Here(on_progress))


def jobs_on_spark(
    spark: RunningSpark,
    files: UsageFiles,
    early: EarlySurveys | None = None,
    on_progress: OnProgress = silent,
) -> Jobs:
    """Return the jobs on Spark. early: what was found in the files meanwhile."""
    return Jobs(files=files, back_end=OnSpark(spark, early, on_progress))
