"""`tidegate report`: writes one HTML file about a usage record, and about the effect of other quotas on it."""

import argparse
from pathlib import Path

from tidegate.cli.job_options import (
    directory_argument,
    loop_option,
    opened,
    path_type,
    plans_option,
    running_record,
    where_options,
)

__all__ = ["add_parser", "run"]

_DESCRIPTION = """\
Write one HTML file about a usage record: the usage of each client, usage over
time with the limits in force, throttles, the effect of each plan, quotas to
set, and what is not exact. The file needs no network and no server."""

_EPILOG = """\
examples:
  tidegate report ./usage                          report.html
  tidegate report ./usage --out week.html --quotas quotas.yaml
  tidegate report ./usage --quotas a.yaml --quotas b.yaml --overwrite
  tidegate report ./usage --limits                 also the smallest limits

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written; quotas.yaml is described in docs/quotas-file.md. The file opens in
any browser, also on a phone, and can be printed. It contains user names and
client ids, which are personal data: only its owner may read it.
Up to 20 million rows are processed in this process, larger records on
Spark, which needs Java 17 or later; --explain prints which.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  2    an option, a file, Java or Spark cannot be used; the reason is on stderr
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "report",
        help="write an HTML page about a usage record",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    directory_argument(parser)
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=path_type,
        default=Path("report.html"),
        help="HTML file to write (default: report.html)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    plans_option(parser)
    parser.add_argument(
        "--limits",
        action="store_true",
        help="also find the smallest limits that throttle no request (takes longer)",
    )
    parser.add_argument(
        "--no-recommend",
        dest="with_recommendation",
        action="store_false",
        help="do not propose quotas (saves about a third of the time)",
    )
    loop_option(parser)
    where_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the jobs and write the page."""
    from tidegate.pipeline import report
    from tidegate.pipeline.page.html import check_page
    from tidegate.pipeline.replay.plan import in_force_plan, load_plans

    check_page(args.out, overwrite=args.overwrite)
    plans = [in_force_plan(), *load_plans(args.quotas, is_closed=args.loop == "closed")]
    with opened(args) as files, running_record(args, files, sums=True, plans=plans) as record:
        report(
            record,
            quotas=args.quotas,
            loop=args.loop,
            with_limits=args.limits,
            with_recommendation=args.with_recommendation,
            out=args.out,
            overwrite=args.overwrite,
        )
    print(f"report: {args.out}")
    return 0
