"""`tidegate usage`: who used what, out of the usage files of a server."""

import argparse
import contextlib
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.pipeline.jobs import UsageFiles

__all__ = [
    "add_job_options",
    "add_parser",
    "json_option",
    "opened",
    "run",
    "runs_here",
    "shown",
    "top_option",
    "where_options",
]

_MOST_LINES = 100_000  # of a table on the terminal; --out has all
_SHOWN = 20
_COLUMNS = {"user": "user", "client-id": "client_id", "listener": "listener", "software": "client_software"}

_DESCRIPTION = """\
Sum up the usage record of a server: requests, bytes, thread time, partition
mutations and throttle time per client (user and client id), or by user, client
id, listener or client software. Prints those with most bytes; --out also writes
everything, in all and by minute, as Parquet."""

_EPILOG = """\
examples:
  tidegate usage ./usage                    the 20 clients with most bytes
  tidegate usage ./usage --by software      by client library
  tidegate usage ./usage --json             for programs: docs/results.md
  tidegate usage ./usage --out ./usage-out  usage_by_client.parquet,
                                            usage_by_minute.parquet
  tidegate usage ./usage --from 2026-11-22 --to 2026-11-23T06:00    UTC
  tidegate usage ./usage --master 'local[2]'               on Spark, two cores
  tidegate usage /shared/usage --master spark://head:7077

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written. A peak is the largest amount of one second on one node. The rows
hold user names and client ids: personal data.
Up to 20 million rows are read in this process, more on Spark, which needs
Java 17 or later; --explain says which.
Needs the extra: pip install 'tidegate[pipeline]'

exit codes:
  0    done
  2    an option, the files, Java or Spark cannot be used; the reason is on
       stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "usage",
        help="who used what",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="usage directory of a server")
    parser.add_argument(
        "--by", choices=_COLUMNS, help="sum up by this alone (default: by user and client id)"
    )
    top_option(parser, "lines", default=None)
    json_option(parser)
    add_job_options(parser)


def add_job_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all Spark jobs share."""
    parser.add_argument("--out", metavar="DIR", type=Path, help="also write the tables there, as Parquet")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="write into --out although it holds something that is not ours",
    )
    where_options(parser)


def where_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which hours a job reads, and where it runs."""
    parser.add_argument(
        "--master",
        metavar="M",
        help="run on Spark, there, in its own notation (default: if need be, local[*])",
    )
    parser.add_argument(
        "--from",
        dest="from_ms",
        metavar="TIME",
        type=_hour,
        help="only from this hour on, UTC: 2026-11-22T14:00",
    )
    parser.add_argument(
        "--to", dest="to_ms", metavar="TIME", type=_hour, help="only before this hour; a date is its first"
    )
    parser.add_argument("--explain", action="store_true", help="say on stderr where the job runs, and why")


def opened(args: argparse.Namespace) -> "contextlib.AbstractContextManager[UsageFiles]":
    """Return the usage files that the options name, to be read in a `with` block. Raises `TidegateError`."""
    from tidegate.errors import ConfigError
    from tidegate.pipeline.jobs import open_usage

    if args.from_ms is not None and args.to_ms is not None and args.to_ms <= args.from_ms:
        raise ConfigError("--to must be later than --from")
    return open_usage(args.directory, from_ms=args.from_ms, to_ms=args.to_ms)


def runs_here(args: argparse.Namespace, *, rows: int) -> bool:
    """Return whether a job is done in this process; say so if that was asked for."""
    from tidegate.pipeline.local import where_and_why

    is_local, reason = where_and_why(master=args.master, rows=rows)
    if args.explain:
        print(reason, file=sys.stderr)
    return is_local


def top_option(parser: argparse.ArgumentParser, lines: str, *, default: int | None = _SHOWN) -> None:
    """Add the option that says how many `lines` to print; the default is None where it is another in JSON."""
    otherwise = f"default: {_SHOWN}" if default else f"default: {_SHOWN}; in JSON {_MOST_LINES}"
    parser.add_argument(
        "--top", metavar="N", type=_count, default=default, help=f"how many {lines} to print ({otherwise})"
    )


def json_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for a document instead of tables."""
    parser.add_argument("--json", action="store_true", help="print one JSON document (docs/results.md)")


def shown(args: argparse.Namespace) -> int:
    """Return how many lines to print."""
    top: int = args.top or (_MOST_LINES if args.json else _SHOWN)
    return top


def run(args: argparse.Namespace) -> int:
    """Run the job and print what came of it."""
    from tidegate.pipeline.jobs import usage_job
    from tidegate.pipeline.local import local_usage
    from tidegate.pipeline.output import check_output
    from tidegate.pipeline.report.console import print_lines, results_console
    from tidegate.pipeline.report.documents import json_text, usage_document
    from tidegate.pipeline.report.text import count_text
    from tidegate.pipeline.report.usage_report import usage_lines
    from tidegate.pipeline.schemas import CLIENT
    from tidegate.pipeline.session import running_spark

    by = CLIENT if args.by is None else (_COLUMNS[args.by],)
    wanted = {"out": args.out, "overwrite": args.overwrite, "top": shown(args), "by": by}
    with opened(args) as files:
        if args.out is not None:
            check_output(args.out, overwrite=args.overwrite)
        if runs_here(args, rows=files.rows):
            summary = local_usage(files, **wanted)
        else:
            with running_spark(app_name="tidegate usage", master=args.master, rows=files.rows) as spark:
                summary = usage_job(spark, files, **wanted)
    if args.json:
        document = usage_document(summary.top, by=by, groups=summary.groups, events=files.rows, out=args.out)
        print(json_text(document))
        return 0
    console = results_console()
    print_lines(console, usage_lines(summary.top, by=by, groups=summary.groups, width=console.width))
    console.print(f"{count_text(files.rows)} events")
    if args.out is not None:
        console.print(f"tables: {args.out}")
    return 0


def _hour(text: str) -> int:
    """Return the first millisecond of an hour. Raises `argparse.ArgumentTypeError`."""
    from tidegate.usage.files import HOUR_MS

    with contextlib.suppress(ValueError):
        time = datetime.fromisoformat(text)
        time_ms = (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000
        if time_ms >= 0 and time_ms % HOUR_MS == 0:
            return int(time_ms)
    raise argparse.ArgumentTypeError(f"expected a whole hour, as 2026-11-22T14:00, got {text!r}")


def _count(text: str) -> int:
    """Return a number of lines to print. Raises `argparse.ArgumentTypeError`."""
    if (
        text.isascii()
        and text.isdigit()
        and len(text) <= len(str(_MOST_LINES))
        and 1 <= int(text) <= _MOST_LINES
    ):
        return int(text)
    raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {_MOST_LINES}, got {text!r}")
