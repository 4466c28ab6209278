"""`tidegate import`: converts request logs of Apache Kafka to a usage record, for `tidegate usage` and others."""

import argparse
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from tidegate.cli.arguments import whole_number
from tidegate.cli.job_options import check_range, path_type, progress_shown, range_options, time_of
from tidegate.pipeline.report.text import things_text

__all__ = ["add_parser", "run"]

_EXIT_BAD_LINES = 1
_EXIT_DAMAGED_FILES = 3
_node_id = whole_number(0, 2**31 - 1)

_DESCRIPTION = """\
Turn request logs of Apache Kafka brokers into a usage record: what each request
was charged, when, and to which client. Repeat it as often as you like: lines
that were imported before are not imported again."""

_EPILOG = """\
examples:
  tidegate import kafka-request.log --out ./usage
  tidegate import 1=./broker1 2=./broker2 --out ./usage    logs of two brokers
  tidegate import ./logs --out ./usage --time-zone Europe/Berlin
  tidegate import ./logs --out ./usage --in-force quotas.yaml
  tidegate import ./logs --out ./usage --from 2026-11-22T14:05:30
  tidegate import ./logs --out ./usage --last 6h          the end of the logs
  tidegate replay ./usage --quotas quotas.yaml            effect of other quotas

A log is what the logger `kafka.request.logger` of Apache Kafka 2.8 to 4.x
writes at level DEBUG: one file or a directory of rotated files, plain or gzip.
docs/import.md says how to get it, what it does not contain, and how exact a
replay of it is.

The log contains secrets (SCRAM credentials, settings); the record does not. The
record contains user names and client ids, which are personal data. A record
keeps the range of its first import; later imports into it name the same range.
Rejected lines are listed in DIR/import-rejected.txt by file, line and reason.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  1    done, but some lines were rejected
  2    an option or a file cannot be used, or no file has a request; the reason
       is on stderr, nothing is imported
  3    done, but some files are damaged: their readable part is imported
  130  interrupted with Ctrl-C; nothing is imported"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "import",
        help="make a usage record from request logs of Apache Kafka",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        type=_log,
        help="log file, or directory of log files; NODE=LOG sets the node id of this log",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=path_type,
        required=True,
        help="directory of the usage record; created if it is missing",
    )
    parser.add_argument(
        "--node-id",
        metavar="N",
        type=_node_id,
        default=1,
        help="node id of the broker that wrote the logs (default: 1)",
    )
    parser.add_argument(
        "--time-zone",
        metavar="ZONE",
        default="UTC",
        help="time zone of the times in the logs, such as Europe/Berlin (default: UTC)",
    )
    range_options(
        parser,
        start="import requests from this time on, in UTC, such as 2026-11-22T14:00 or 2026-11-22T14:05:30Z",
        end="import requests before this time; a date means its beginning",
        last="import the last part of the logs, such as 15m, 6h or 2d, up to their newest request",
    )
    parser.add_argument(
        "--in-force",
        metavar="FILE",
        type=path_type,
        help="quotas.yaml with the quotas that were in force before the first request of a log",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="import nothing if a file is damaged, for example a truncated gzip",
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        type=whole_number(1, 1024),
        help="number of processes that parse lines (default: one per processor; 1 for less than 16 MiB of logs)",
    )


def run(args: argparse.Namespace) -> int:
    """Import the logs, and print a summary."""
    from tidegate.pipeline import import_request_log
    from tidegate.pipeline.report.console import results_console

    check_range(args.from_ms, args.to_ms, args.last_ms)
    logs: dict[int, list[Path]] = {}
    for node_id, path in args.logs:
        logs.setdefault(args.node_id if node_id is None else node_id, []).append(path)
    with progress_shown(in_bytes=True) as show:
        summary = import_request_log(
            logs,
            out=args.out,
            start=None if args.from_ms is None else time_of(args.from_ms),
            end=None if args.to_ms is None else time_of(args.to_ms),
            last=None if args.last_ms is None else timedelta(milliseconds=args.last_ms),
            time_zone=args.time_zone,
            in_force=args.in_force,
            strict=args.strict,
            processes=args.processes,
            progress=show,
        )
    results = results_console()
    for line in _lines(summary, args.out):
        results.print(line, soft_wrap=not results.is_terminal)
    if summary.damaged:
        return _EXIT_DAMAGED_FILES
    return _EXIT_BAD_LINES if summary.bad or any(summary.skipped[name] for name in _UNREAD) else 0


def _lines(summary: Any, out: Path) -> list[str]:
    """Return the lines of the summary."""
    from tidegate.kafka_log.log_files import names_text

    lines = [_imported(summary)]
    if summary.outside:
        lines.append(f"left out {things_text(summary.outside, 'request')} outside the range of time")
    lines += [
        f"skipped {things_text(count, 'line')} {_SKIPPED[reason]}"
        for reason, count in sorted(summary.skipped.items())
    ]
    if summary.without_requests:
        lines.append(
            f"skipped {things_text(len(summary.without_requests), 'file')} without a request line: "
            f"{names_text(summary.without_requests)}"
        )
    if summary.bad:
        lines.append(f"rejected {things_text(summary.bad, 'line')}; see {out / 'import-rejected.txt'}")
    lines += [f"could not read all of {str(path)!r}: {damage}" for path, damage in summary.damaged]
    if summary.unfinished:
        lines.append(
            f"skipped the incomplete last line of {things_text(summary.unfinished, 'file')}; the next import reads it"
        )
    if summary.requests:
        lines.append(
            "exact: bytes produced and fetched, mutations. estimated: request time; see docs/import.md"
        )
    if summary.estimated_fetches:
        fetches = things_text(summary.estimated_fetches, "throttled fetch", "throttled fetches")
        lines.append(f"estimated the size of {fetches}: the log does not contain it")
    if summary.whole_seconds:
        lines.append(
            f"the times in {things_text(summary.whole_seconds, 'file')} are whole seconds: "
            "an exact replay needs fractions of a second"
        )
    if summary.doubles * _FEW_OF > summary.requests:
        lines.append(
            f"counted {things_text(summary.doubles, 'request')} twice: two logs contain the same requests, "
            "and neither is the beginning of the other"
        )
    if summary.unpriced:
        lines.append(
            f"the cost of {things_text(summary.unpriced, 'topic change')} is unknown: "
            "the log does not contain the number of partitions"
        )
    return lines


def _imported(summary: Any) -> str:
    """Return the first line of the summary: how much was imported."""

    known = things_text(summary.files_known, "file")
    if not summary.files:
        return f"nothing new: imported {known} before"
    before = f"; imported {known} before" if summary.files_known else ""
    return (
        f"imported {things_text(summary.requests, 'request')} and {things_text(summary.quotas, 'quota change')} "
        f"from {things_text(summary.files, 'file')}, {summary.bytes / 1e6:,.1f} MB{before}"
    )


_FEW_OF = 100  # up to one in so many requests may look like another by chance

_SKIPPED = {
    "begun before": "of requests that began before the logger was switched on",
    "forwarded": "of controllers that duplicate lines of brokers",
    "json": "that are inside JSON objects; see docs/import.md",
    "no request": "of other loggers",
    "text": "in the text format of Kafka before 2.8; see docs/import.md",
}
_UNREAD = ("json", "text")
"""Kinds of skipped lines that are requests."""


def _log(text: str) -> tuple[int | None, Path]:
    """Return the node id, if one is given, and the path of a log. Raises `argparse.ArgumentTypeError`."""
    number, equals, path = text.partition("=")
    if equals and number.isascii() and number.isdigit() and not os.path.lexists(text):
        return _node_id(number), path_type(path)
    return None, path_type(text)
