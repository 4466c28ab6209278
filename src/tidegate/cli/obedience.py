"""`tidegate obedience`: client libraries that send requests before their throttle time is over."""

import argparse

from tidegate.cli.job_options import (
    add_job_options,
    directory_argument,
    json_option,
    opened_for_tables,
    rows_of,
    running_record,
    shown,
    top_option,
)

__all__ = ["add_parser", "run"]

_EXIT_NOT_KNOWN = 1

_DESCRIPTION = """\
Show which client libraries obey throttle times. While a connection is
throttled, the broker does not read it, and records whether its client sends
before the throttle time is over. For each library and version: how many
throttled clients sent early, after how many throttled requests, and how early."""

_EPILOG = """\
examples:
  tidegate obedience ./usage
  tidegate obedience ./usage --top 5
  tidegate obedience ./usage --json            for programs: docs/results.md
  tidegate obedience ./usage --out ./obeyed    obedience_by_software and
                                               obedience_by_client

DIR is the usage directory of `tidegate serve`. A request log of Apache Kafka
does not contain when clients sent again, so the command rejects records of
`tidegate import`.

An early request is not always a fault: a client with several requests in flight
sent them before it could read the first answer, and a producer with acks=0 gets
no answer. The median is the upper bound of its bucket (1, 2, 5, 10, ... ms).
Requests that are less than 1 ms early do not count.
The tables contain user names and client ids, which are personal data.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  1    unknown: the record was made by `tidegate import`
  2    an option, the files, Java or Spark cannot be used; the reason is on
       stderr
  130  interrupted with Ctrl-C"""

_NOT_KNOWN = """\
unknown: this record was made from request logs of Apache Kafka, which do not
contain when a throttled client sent its next request"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "obedience",
        help="show which client libraries ignore throttle times",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    directory_argument(parser)
    top_option(parser, "libraries", default=None)
    json_option(parser)
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job and print its table."""
    from tidegate.pipeline import obedience
    from tidegate.pipeline.read.ingest import is_imported
    from tidegate.pipeline.report.console import print_document, print_ending, print_table, results_console
    from tidegate.pipeline.report.documents import obedience_document
    from tidegate.pipeline.report.json_text import json_text
    from tidegate.pipeline.report.obedience_report import (
        obedience_notes,
        obedience_table,
        was_throttled,
        worst_first,
    )

    if is_imported(args.directory):
        unknown = obedience_document(None, top=0, events=None, out=None)
        print(json_text(unknown) if args.json else _NOT_KNOWN)
        return _EXIT_NOT_KNOWN
    with opened_for_tables(args) as files, running_record(args, files) as record:
        found = obedience(record, out=args.out, overwrite=args.overwrite)
    rows = worst_first(rows_of(found.by_software))
    if args.json:
        document = obedience_document(rows, top=shown(args), events=found.rows, out=args.out)
        print_document(document, found.missing)
        return 0
    throttled = [row for row in rows if was_throttled(row)][: shown(args)]
    console = results_console()
    if throttled:
        print_table(console, obedience_table(throttled))
    for note in obedience_notes(rows, shown=len(throttled)):
        console.print(note)
    print_ending(console, found.missing, with_cold_starts=False, events=found.rows, out=args.out)
    return 0
