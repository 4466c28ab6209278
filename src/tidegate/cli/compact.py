"""`tidegate compact`: merges a usage record that no broker is using into one file per hour and node."""

import argparse
from contextlib import nullcontext

from tidegate.cli.job_options import check_range, path_type, range_options

__all__ = ["add_parser", "run"]

_EXIT_LEFT_OUT = 1

_DESCRIPTION = """\
Merge the files of a usage record, including its spool, into one sorted file per
hour and node. A running broker does this by itself, five minutes after each
hour. Use the command for the record of a stopped broker, or for one that was
imported or copied."""

_EPILOG = """\
examples:
  tidegate compact ./usage         the record of a stopped broker
  tidegate compact ./usage --from 2026-07-01 --to 2026-08-01   July
  tidegate compact data/usage && cp -r data/usage/parquet /archive/july

DIR is the usage directory, which contains `parquet` or `spool`. The command
stops if a broker, its writer or an import uses it. If it is killed, no row is
lost or duplicated; run it again. Merged files stay for an hour, for jobs that
still read them; a later run or the broker deletes them. Only the owner can read
the files (mode 0600): they contain user names and client ids, which are
personal data.
A file has the rows of one hour, so a range of time selects all hours that it
touches; the spool is converted completely.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  1    done, except for files that cannot be read; their names are on stderr
  2    there is no record, it is in use or cannot be written; the reason is on
       stderr
  130  interrupted with Ctrl-C; run it again"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "compact",
        help="merge the files of a usage record into one file per hour",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "directory", metavar="DIR", type=path_type, help="usage directory, which contains parquet or spool"
    )
    range_options(
        parser,
        start="merge the hours from this time on, in UTC, such as 2026-11-22 or 2026-11-22T14:05:30",
        end="merge the hours before this time; a date means its beginning",
        last="merge the last hours, such as 6h or 2d, before the end of the newest hour",
    )


def run(args: argparse.Namespace) -> int:
    """Compact the record, and print the result."""
    from rich.console import Console

    from tidegate.pipeline.compacting import compact_range
    from tidegate.pipeline.report.text import things_text

    check_range(args.from_ms, args.to_ms, args.last_ms)
    console = Console(stderr=True)
    with console.status("compacting") if console.is_terminal else nullcontext():
        done = compact_range(args.directory, args.from_ms, args.to_ms, args.last_ms)
    if done.segments:
        print(f"converted {things_text(done.segments, 'segment')} of the spool to Parquet")
    print(f"merged {things_text(done.files_before, 'file')} into {done.files:,}")
    return _EXIT_LEFT_OUT if done.unreadable or done.damaged else 0
