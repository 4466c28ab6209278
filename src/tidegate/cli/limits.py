"""`tidegate limits`: the smallest quotas that would have throttled nothing, by entity."""

import argparse

from tidegate.cli.arguments import number
from tidegate.cli.job_options import (
    add_job_options,
    directory_argument,
    json_option,
    opened_for_tables,
    path_type,
    running_record,
    shown,
    top_option,
)

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
For each entity and quota type, show the smallest limit that would never have
throttled it, and the smallest limit that delays at most 1 % of its bytes by at
most 1 s. The last line of each type is the default limit that is enough for all
entities."""

_EPILOG = """\
examples:
  tidegate limits ./usage                       by user and client id
  tidegate limits ./usage --by user
  tidegate limits ./usage --delayed 5 --longest 10
  tidegate limits ./usage --quotas quotas.yaml  for the entities of a plan
  tidegate limits ./usage --json                for programs: docs/results.md
  tidegate limits ./usage --out ./found         limits_by_entity and
                                                limits_by_node

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written. Limits are per second and broker, rounded up to the precision of
quotas.yaml; --json and --out have all digits. They assume Kafka's windows (11
of 1 s), or those of --quotas. Each quota type is examined separately. A fetch
that a limit would shorten counts as throttled. Levels with a client id omit
clients without a client id.

Requests keep their recorded times (open loop). Clients that were throttled when
recorded may have wanted more. The tables contain user names and client ids,
which are personal data. Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  2    an option, the files, Java or Spark cannot be used; the reason is on
       stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "limits",
        help="find the smallest quotas that throttle no recorded request",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    directory_argument(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--by",
        choices=("both", "user", "client-id"),
        help="level of the entities; both: user and client id (default: both)",
    )
    which.add_argument(
        "--quotas", metavar="FILE", type=path_type, help="use the entities and windows of this quotas.yaml"
    )
    which.add_argument("--plan", dest="quotas", type=path_type, help=argparse.SUPPRESS)
    parser.add_argument(
        "--delayed",
        metavar="PERCENT",
        type=number(0, 100),
        default=1.0,
        help="largest share of bytes, time or mutations that may be delayed, in percent (default: 1)",
    )
    parser.add_argument(
        "--longest",
        metavar="SECONDS",
        type=number(0, 86_400),
        default=1.0,
        help="longest delay, in seconds (default: 1)",
    )
    top_option(parser, "entities of each type", default=None)
    json_option(parser)
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job and print its table."""
    from tidegate.pipeline import Tolerance, limits
    from tidegate.pipeline.plan_arguments import levels_given
    from tidegate.pipeline.report.console import print_document, print_ending, print_table, results_console
    from tidegate.pipeline.report.documents import limits_document
    from tidegate.pipeline.report.limits_report import ESTIMATED, limits_notes, limits_table
    from tidegate.pipeline.results.table_rows import TableRows

    levels = levels_given(args.by, args.quotas)
    tolerance = Tolerance(share=args.delayed / 100, longest_ms=round(args.longest * 1000))
    with opened_for_tables(args) as files:
        results = {"out": args.out, "overwrite": args.overwrite}
        with running_record(args, files, plans=[levels]) as record:
            found = limits(record, by=args.by, quotas=args.quotas, tolerance=tolerance, **results)
    entities = TableRows(found.by_entity)
    if args.json:
        tolerated = {"delayed_percent": args.delayed, "longest_ms": tolerance.longest_ms}
        document = limits_document(
            entities,
            TableRows(found.by_node),
            tolerated=tolerated,
            top=shown(args),
            events=found.rows,
            out=args.out,
        )
        print_document(document, found.missing)
        return 0
    console = results_console()
    heading = f"delays {args.delayed:g} %\nby {args.longest:g} s"
    print_table(console, limits_table(entities, top=shown(args), tolerated=heading))
    estimated = [ESTIMATED] if found.is_imported else []
    for note in [*limits_notes(entities, callback=found.callback), *estimated]:
        console.print(note)
    print_ending(console, found.missing, with_cold_starts=True, events=found.rows, out=args.out)
    return 0
