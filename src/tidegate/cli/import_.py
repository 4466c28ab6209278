"""`tidegate import`: request logs of Apache Kafka become a usage record, for `tidegate usage` and `tidegate replay`."""

import argparse
import os
from pathlib import Path
from typing import Any

from tidegate.cli.job_options import path_type
from tidegate.errors import ConfigError

__all__ = ["add_parser", "run"]

_EXIT_BAD_LINES = 1

_DESCRIPTION = """\
Turn request logs of Apache Kafka brokers into a usage record: what each request
was charged, when, and for whom. What was imported before is not taken again: of
a log that has grown, only what is new."""

_EPILOG = """\
examples:
  tidegate import kafka-request.log --out ./usage
  tidegate import 1=./broker1 2=./broker2 --out ./usage    node ids of the logs
  tidegate import ./logs --out ./usage --time-zone Europe/Berlin
  tidegate import ./logs --out ./usage --in-force quotas.yaml
  tidegate replay ./usage --quotas quotas.yaml             what quotas would do

A log is what Kafka's logger `kafka.request.logger` writes at level DEBUG, plain
or gzip, one file or a directory of rotated ones. docs/import.md says how to get
it, what it cannot tell, and how exact a replay of it is.

The log holds secrets (SCRAM credentials, settings); the record does not. It
holds user names and client ids: personal data. Lines that cannot be read are
listed in DIR/import-rejected.txt by file, line and reason.
Needs the extra: pip install 'tidegate[pipeline]'

exit codes:
  0    done
  1    done, but for lines that could not be read
  2    an option or a file cannot be used; the reason is on stderr, nothing is
       imported
  130  interrupted with Ctrl-C; nothing is imported"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "import",
        help="make a usage record of Apache Kafka's request logs",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        type=_log,
        help="file or directory; NODE=LOG for a node other than --node-id",
    )
    parser.add_argument(
        "--out", metavar="DIR", type=path_type, required=True, help="where the usage record is, or begins"
    )
    parser.add_argument(
        "--node-id", metavar="N", type=_node_id, default=1, help="the broker that wrote the logs (default: 1)"
    )
    parser.add_argument(
        "--time-zone", metavar="ZONE", default="UTC", help="the brokers' time zone (default: UTC)"
    )
    parser.add_argument(
        "--in-force",
        metavar="FILE",
        type=path_type,
        help="quotas.yaml: what was set before the first request of a log",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=_count,
        help="how many read lines (default: one per processor, one in all for little input)",
    )


def run(args: argparse.Namespace) -> int:
    """Import, and say what came of it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from tidegate.config.quotas_file import load_quotas_file
    from tidegate.kafka_log.importing import import_logs
    from tidegate.kafka_log.log_files import Source
    from tidegate.pipeline.report.console import results_console

    sources = [Source(args.node_id if node_id is None else node_id, path) for node_id, path in args.logs]
    zone = _zone(args.time_zone)
    in_force = None if args.in_force is None else load_quotas_file(args.in_force)
    if in_force is not None and (part := in_force.beyond_kafka()) is not None:
        raise ConfigError(
            f"{args.in_force} has {part}, which no Kafka had in force", hint="give a file without them"
        )
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=None)

        def show(path: Path, size: int) -> None:
            progress.update(task, description=path.name, completed=size)

        summary = import_logs(
            sources, args.out, zone=zone, in_force=in_force, processes=args.processes, on_progress=show
        )
    results = results_console()
    for line in _lines(summary, args.out):
        results.print(line, soft_wrap=not results.is_terminal)
    return _EXIT_BAD_LINES if summary.bad else 0


def _lines(summary: Any, out: Path) -> list[str]:
    """Return what came of it, a line each."""
    from tidegate.pipeline.report.text import things_text

    known = f" ({summary.files_known} known already)" if summary.files_known else ""
    lines = [
        f"{things_text(summary.files, 'file')}{known}, {summary.bytes / 1e6:,.1f} MB: "
        f"{things_text(summary.requests, 'request')}, "
        f"{things_text(summary.quotas, 'changed quota')}"
    ]
    lines += [
        f"left out: {things_text(count, 'line')} of {_LEFT_OUT[reason]}"
        for reason, count in sorted(summary.skipped.items())
    ]
    if summary.bad:
        count = things_text(summary.bad, "line")
        lines.append(f"not read: {count}, listed in {out / 'import-rejected.txt'}")
    if summary.unfinished:
        which = f"the last line of {things_text(summary.unfinished, 'file')}"
        lines.append(f"left for later: {which}, which has no end yet")
    if not summary.requests and not summary.files_known:
        lines.append(
            "no requests: a request log is what kafka.request.logger writes at DEBUG (docs/import.md)"
        )
    if summary.requests:
        lines.append(
            "exact: bytes produced and fetched, mutations; estimated: request time (network threads are not in the log)"
        )
    if summary.estimated_fetches:
        lines.append(
            "estimated too: the size of "
            f"{things_text(summary.estimated_fetches, 'throttled fetch', 'throttled fetches')}, which is not in the log"
        )
    if summary.whole_seconds:
        lines.append(
            f"coarse: the times in {things_text(summary.whole_seconds, 'file')} "
            "are whole seconds, and what is decided in a replay depends on less"
        )
    if summary.doubles * _FEW_OF > summary.requests:
        lines.append(
            f"there twice: {things_text(summary.doubles, 'request')}, counted twice from now on: "
            "some lines are in two logs, and neither log is the beginning of the other"
        )
    if summary.unpriced:
        lines.append(
            f"not known: what {things_text(summary.unpriced, 'change')} of topics cost "
            "(the partitions are not in the log)"
        )
    return lines


_FEW_OF = 100  # requests, one of which may look like another by chance

_LEFT_OUT = {
    "begun before": "requests that came before the logger was switched on",
    "forwarded": "controllers about requests that a broker has a line of",
    "no request": "other loggers",
}


def _log(text: str) -> tuple[int | None, Path]:
    """Return the node, if it is given, and the path of a log. Raises `argparse.ArgumentTypeError`."""
    number, equals, path = text.partition("=")
    if equals and number.isascii() and number.isdigit() and not os.path.lexists(text):
        return _node_id(number), path_type(path)
    return None, path_type(text)


def _zone(name: str) -> Any:
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigError(
            f"no time zone {name!r}", hint="like Europe/Berlin, America/New_York or UTC"
        ) from None


def _node_id(text: str) -> int:
    return _whole(text, 2**31 - 1, least=0)


def _count(text: str) -> int:
    return _whole(text, 1024, least=1)


def _whole(text: str, most: int, *, least: int) -> int:
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} to {most}, got {text!r}")
    return int(text)
