"""Options that the commands over a usage record share, and the functions that use them."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.cli.arguments import whole_number
from tidegate.config.locations import Location, location
from tidegate.errors import ConfigError
from tidegate.pipeline.arguments import duration_ms

if TYPE_CHECKING:
    from tidegate.pipeline.progress import OnProgress, Progress
    from tidegate.pipeline.read.ingest import UsageFiles
    from tidegate.pipeline.record import Record
    from tidegate.pipeline.replay.plan import Plan

__all__ = [
    "add_job_options",
    "check_range",
    "directory_argument",
    "duration_type",
    "json_option",
    "location_type",
    "loop_option",
    "opened",
    "opened_for_tables",
    "path_type",
    "plans_option",
    "progress_shown",
    "range_options",
    "rows_of",
    "running_record",
    "shown",
    "time_of",
    "top_option",
    "where_options",
]

_MOST_LINES = 100_000  # most lines of a printed table; --out writes all
_SHOWN = 20
_UNRELEASED = {  # as Maven Central had them on 2026-11-27
    "delta": "Delta Lake has no release for Spark 4.3: 4.4.0 is for Spark 4.0 to 4.2",
    "iceberg": "Apache Iceberg has no release for Spark 4.3: 1.12.0 is for Spark up to 4.1",
}
_EPOCH = datetime.fromtimestamp(0, UTC)


def directory_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the usage record to read."""
    parser.add_argument(
        "directory", metavar="DIR", type=location_type, help="usage directory of a broker: a path or URI"
    )


def location_type(text: str) -> Location:
    """Return the path or URI of an option. Raises `argparse.ArgumentTypeError`, without secrets in its text."""
    if not text:
        raise argparse.ArgumentTypeError(
            "expected a path, got '' (hint: check for an empty variable; write . for the current directory)"
        )
    try:
        return location(text)
    except ConfigError as error:
        hint = f" (hint: {error.hint})" if error.hint else ""
        raise argparse.ArgumentTypeError(f"{error}{hint}") from error


def path_type(text: str, *, hint: str | None = None) -> Path:
    """Return the path of an option that takes no other URI than `file:`. Raises `argparse.ArgumentTypeError`."""
    found = location_type(text)
    if isinstance(found, Path):
        return found
    ending = f" (hint: {hint})" if hint else ""
    raise argparse.ArgumentTypeError(f"expected a path on this machine, got {text!r}{ending}")


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all Spark jobs share."""
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=location_type,
        help="also write the tables as Parquet to this path or URI",
    )
    parser.add_argument(
        "--format",
        metavar="FORMAT",
        type=_table_format,
        default="parquet",
        help="format of the tables: parquet (default); delta and iceberg have no release for this Spark",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="write to --out even if it contains other files, and replace dates even if --out has more of their hours",
    )
    where_options(parser)


def where_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the rows that a job reads, and the back end that it runs on."""
    parser.add_argument(
        "--master",
        metavar="M",
        help="run on this Spark master, such as local[2], or on a Spark Connect server, sc://HOST:PORT (default: "
        "local[*], for large records only)",
    )
    range_options(
        parser,
        start="read rows from this time on, in UTC, such as 2026-11-22T14:00 or 2026-11-22T14:05:30Z",
        end="read rows before this time; a date means its beginning",
        last="read the last part of the record, such as 90s, 15m, 6h or 2d, up to its newest row",
    )
    parser.add_argument("--explain", action="store_true", help="print to stderr where the job runs, and why")


def range_options(parser: argparse.ArgumentParser, *, start: str, end: str, last: str) -> None:
    """Add the options of a range of time: its start, its end, or its length before the end of the record.

    start, end, last: their help texts.
    """
    parser.add_argument("--from", dest="from_ms", metavar="TIME", type=_time, help=start)
    parser.add_argument("--to", dest="to_ms", metavar="TIME", type=_time, help=end)
    parser.add_argument("--last", dest="last_ms", metavar="TIME", type=duration_type, help=last)


def check_range(from_ms: int | None, to_ms: int | None, last_ms: int | None) -> None:
    """Check that the options of a range of time agree. Raises `ConfigError`."""
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise ConfigError("--to must be later than --from", hint="rows at the time of --to are not read")
    if last_ms is not None and (from_ms, to_ms) != (None, None):
        raise ConfigError(
            "--last cannot be used with --from and --to", hint="give either --last, or --from and --to"
        )


def opened(args: argparse.Namespace, *, with_before: bool = True) -> "AbstractContextManager[UsageFiles]":
    """Return the usage files that the options name, to be read in a `with` block.

    with_before: also read the rows of the first hour before `--from`, because a replay needs the state after them.
    Raises `TidegateError`.
    """
    from tidegate.pipeline.read.ingest import open_usage

    check_range(args.from_ms, args.to_ms, args.last_ms)
    return open_usage(
        args.directory,
        from_ms=args.from_ms,
        to_ms=args.to_ms,
        last_ms=args.last_ms,
        with_before=with_before,
    )


@contextmanager
def opened_for_tables(args: argparse.Namespace, *, with_before: bool = True) -> "Iterator[UsageFiles]":
    """Open the usage files as `opened` does; check that tables can be written to `--out`. Raises `TidegateError`."""
    from tidegate.pipeline.results.output import check_output

    with opened(args, with_before=with_before) as files:
        if args.out is not None:
            records = [] if files.record is None else [files.record]
            check_output(args.out, overwrite=args.overwrite, records=records)
        yield files


@contextmanager
def running_record(
    args: argparse.Namespace,
    files: "UsageFiles",
    *,
    sums: bool = False,
    with_peaks: bool = True,
    plans: "Sequence[Plan]" = (),
    replays_all: bool = False,
) -> "Iterator[Record]":
    """Yield the record for jobs in this process or on Spark; print the choice with `--explain`; show their progress.

    sums: the job sums up rows, for which Spark compiles code; with_peaks: it also measures rates.
    plans: the plans to replay. replays_all: `Jobs.replay` replays all plans at once.
    Raises `TidegateError`.
    """
    from tidegate.pipeline.jobs.on_spark import surveys_in_the_making
    from tidegate.pipeline.record import Record, jobs_here, jobs_on_spark, where_and_why
    from tidegate.pipeline.spark.session import running_spark
    from tidegate.pipeline.warm_up import kernel_in_the_making

    is_local, reason = where_and_why(master=args.master, rows=files.rows)
    if args.explain:
        print(reason, file=sys.stderr)
    places = [] if files.record is None else [files.record]
    if is_local:
        with progress_shown() as show:
            yield Record(jobs=jobs_here(files, show), places=places)
        return
    app_name, rows = f"tidegate {args.command}", files.rows if sums else 0
    with (
        kernel_in_the_making(plans, with_usage=sums and with_peaks),
        surveys_in_the_making(files, plans if replays_all else ()) as early,
        running_spark(app_name=app_name, master=args.master, rows=rows) as spark,
        progress_shown() as show,
    ):
        yield Record(jobs=jobs_on_spark(spark, files, early, show), places=places)


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Return the rows of an Arrow table."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def top_option(parser: argparse.ArgumentParser, lines: str, *, default: int | None = _SHOWN) -> None:
    """Add the option for the number of `lines` to print. Its default is None if JSON has another default."""
    otherwise = f"default: {_SHOWN}" if default else f"default: {_SHOWN}; in JSON {_MOST_LINES}"
    parser.add_argument(
        "--top",
        metavar="N",
        type=whole_number(1, _MOST_LINES),
        default=default,
        help=f"number of {lines} to print ({otherwise})",
    )


def plans_option(parser: argparse.ArgumentParser, otherwise: str = "") -> None:
    """Add the option for the plans to replay. otherwise: the end of its help text, about its default."""
    parser.add_argument(
        "--quotas",
        metavar="FILE",
        type=path_type,
        action="append",
        default=[],
        help=f"quotas.yaml with quotas to try (a plan); repeatable{otherwise}",
    )
    parser.add_argument("--plan", dest="quotas", type=path_type, action="append", help=argparse.SUPPRESS)


def loop_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the loop of a replay: open or closed."""
    parser.add_argument(
        "--loop",
        choices=("open", "closed"),
        default="closed",
        help="closed: a forecast, in which throttled clients send later; open: a check, in which requests keep their "
        "recorded times; the quotas in force are always replayed open (default: closed)",
    )


def json_option(
    parser: argparse.ArgumentParser, text: str = "print one JSON document (docs/results.md)"
) -> None:
    """Add the option for JSON documents instead of tables."""
    parser.add_argument("--json", action="store_true", help=text)


def shown(args: argparse.Namespace) -> int:
    """Return the number of lines to print."""
    top: int = args.top or (_MOST_LINES if args.json else _SHOWN)
    return top


def _time(text: str) -> int:
    """Return a time in ms since 1970. Without an offset, it is UTC. Raises `argparse.ArgumentTypeError`."""
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(text)
        time_ms, rest = divmod(
            (time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH, timedelta(milliseconds=1)
        )
        if time_ms >= 0 and not rest:
            return time_ms
    raise argparse.ArgumentTypeError(
        f"expected a date and time such as 2026-11-22, 2026-11-22T14:00 or 2026-11-22T14:05:30Z, got {text!r}"
    )


def time_of(time_ms: int) -> datetime:
    """Return a time in ms since 1970 as a `datetime`."""
    return _EPOCH + timedelta(milliseconds=time_ms)


def _table_format(text: str) -> str:
    """Return the format of written tables. Raises `argparse.ArgumentTypeError`."""
    if text in _UNRELEASED:
        raise argparse.ArgumentTypeError(
            f"{_UNRELEASED[text]} (hint: write Parquet, and copy the tables with a Spark that has this format)"
        )
    if text != "parquet":
        raise argparse.ArgumentTypeError(f"expected parquet, delta or iceberg, got {text!r}")
    return text


def duration_type(text: str) -> int:
    """Return a length of time in ms. Raises `argparse.ArgumentTypeError`."""
    found_ms = duration_ms(text)
    if found_ms is None:
        raise argparse.ArgumentTypeError(
            f"expected a number with a unit s, m, h or d, such as 90s, 15m, 6h or 2d, got {text!r}"
        )
    return found_ms


@contextmanager
def progress_shown(*, in_bytes: bool = False) -> "Iterator[OnProgress]":
    """Yield the function that shows the progress of a job. in_bytes: the progress is counted in bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from tidegate.pipeline.progress import silent

    console = Console(stderr=True)
    if not console.is_terminal:
        yield silent
        return
    counted = DownloadColumn() if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), counted, TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task("starting", total=None)

        def show(progress: "Progress") -> None:
            what, done, total = progress
            bars.update(task, description=what, completed=done, total=total)
            if done == 0:  # show a new step when it begins
                bars.refresh()

        yield show
