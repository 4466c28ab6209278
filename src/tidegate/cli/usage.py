"""`tidegate usage`: shows the usage of each client, from a usage record."""

import argparse

from tidegate.cli.job_options import (
    add_job_options,
    directory_argument,
    json_option,
    opened_for_tables,
    running_record,
    shown,
    top_option,
)

__all__ = ["add_parser", "run"]

_COLUMNS = {
    "user": "user",
    "client-id": "client_id",
    "listener": "listener",
    "software": "client_software",
    "api": "api",
    "topic": "topic",
}

_DESCRIPTION = """\
Show the usage of each client (user and client id): requests, bytes, thread
time, partition mutations and throttle time. Clients with the most bytes come
first; --out writes all clients, in total and by minute, as Parquet."""

_EPILOG = """\
examples:
  tidegate usage ./usage                    the 20 clients with most bytes
  tidegate usage ./usage --by software      by client library
  tidegate usage ./usage --by api           by request type, such as Fetch
  tidegate usage ./usage --by topic         a request counts for the topic with
                                            the most bytes of its records
  tidegate usage ./usage --sums             no peaks and no percentiles: half
                                            the time
  tidegate usage ./usage --last 15m         the last 15 minutes
  tidegate usage ./usage --json             for programs: docs/results.md
  tidegate usage ./usage --out ./usage-out  usage_by_client and
                                            usage_by_minute
  tidegate usage ./usage --from 2026-11-22 --to 2026-11-23T06:00    UTC
  tidegate usage ./usage --master 'local[2]'               on Spark, two cores
  tidegate usage /shared/usage --master spark://head:7077

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written. A peak is the largest rate on one node, as a quota measures it in
Kafka's windows. A mean covers the time from the first to the last row. p99: 99
of 100 requests have at most this value; it is up to an eighth too high. The
tables contain user names and client ids, which are personal data.
Up to 20 million rows are processed in this process, larger records on
Spark, which needs Java 17 or later; --explain prints which.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  2    an option, the files, Java or Spark cannot be used; the reason is on
       stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "usage",
        help="show the usage of each client",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    directory_argument(parser)
    parser.add_argument(
        "--by", choices=_COLUMNS, help="group by this column only (default: user and client id)"
    )
    parser.add_argument(
        "--sums",
        action="store_true",
        help="only add up: no peaks and no percentiles; takes half as long",
    )
    top_option(parser, "lines", default=None)
    json_option(parser)
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job, and print its results."""
    from tidegate.pipeline import usage
    from tidegate.pipeline.report.console import print_document, print_ending, print_lines, results_console
    from tidegate.pipeline.report.documents import usage_document
    from tidegate.pipeline.report.usage_report import topic_notes, usage_lines
    from tidegate.pipeline.schemas import CLIENT

    by = CLIENT if args.by is None else (_COLUMNS[args.by],)
    with_peaks = not args.sums
    with (
        opened_for_tables(args) as files,
        running_record(args, files, sums=True, with_peaks=with_peaks) as record,
    ):
        found = usage(
            record, by=by, top=shown(args), with_peaks=with_peaks, out=args.out, overwrite=args.overwrite
        )
    rows, groups = [] if found.summary is None else found.summary.top, found.groups or 0
    if args.json:
        document = usage_document(
            rows, by=by, groups=groups, events=found.rows, out=args.out, topics=found.topics
        )
        print_document(document, found.missing)
        return 0
    console = results_console()
    print_lines(console, usage_lines(rows, by=by, groups=groups, width=console.width))
    for note in topic_notes(found.topics) if found.topics is not None else ():
        console.print(note)
    print_ending(console, found.missing, with_cold_starts=False, events=found.rows, out=args.out)
    return 0
