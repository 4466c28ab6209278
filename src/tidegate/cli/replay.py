"""`tidegate replay`: what other quotas would have done to recorded traffic."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tidegate.cli.job_options import (
    add_job_options,
    directory_argument,
    json_option,
    location_type,
    loop_option,
    opened_for_tables,
    plans_option,
    running_jobs,
    shown,
    top_option,
)

if TYPE_CHECKING:
    from tidegate.pipeline.jobs.summaries import ReplaySummary
    from tidegate.pipeline.replay.plan import Plan

__all__ = ["add_parser", "run"]

_EXIT_DIFFERENT = 1  # the check of --in-force failed
_EXIT_NOT_COMPARED = 3  # it had nothing to check

_DESCRIPTION = """\
Feed the requests that a server has recorded to the quota engine again, under
the quotas of a file, and show per quota entity how many of them would have been
throttled, for how long, and since when; several plans beside one another, and
beside what really happened. In closed loop, the default, a client that is
throttled comes later: a forecast (docs/closed-loop.md). In open loop all times
stay as recorded: a check."""

_EPILOG = """\
examples:
  tidegate replay ./usage --quotas quotas.yaml
  tidegate replay ./usage --quotas tight.yaml --quotas loose.yaml
                                        two plans beside one another
  tidegate replay ./usage --in-force    check the record: every decision again
  tidegate replay ./usage --in-force --from 2026-11-22T14:00
                                        from an hour on, UTC
  tidegate replay ./usage --quotas quotas.yaml --loop open
                                        the same requests at the same times
  tidegate replay ./usage --quotas quotas.yaml --limits
                                        and what would have been enough
  tidegate replay ./usage --quotas quotas.yaml --json
                                        for programs: docs/results.md
  tidegate replay ./usage --quotas quotas.yaml --loop open --out ./out \\
      --decisions                       every decision, one by one
  tidegate replay ./usage --quotas quotas.yaml --loop open \\
      --continue ./before --out ./now   on from what the hours before left
  tidegate replay s3://bucket/usage --in-force --out s3://bucket/out
                                        by URI: docs/clusters.md

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written; quotas.yaml is described in docs/quotas-file.md; it may have groups
that share a limit, and smooth mode. A plan is named after its file.

With --out: replay_by_entity.parquet, replay_by_client.parquet; in open loop
state.parquet (what --continue goes on from) and, with --decisions,
decisions.parquet (one row per plan and request, by date). They hold user names
and client ids: personal data.

The head of the tables says in which loop each plan was replayed. Single
decisions, --continue and what --limits finds are those of the recorded times:
the first two need --loop open.

A recorded fetch that is larger than a plan's cap (B = limit * (windows - 1)) is
replayed as an answer with that much of records. A fetch that was throttled when
it was recorded, and tried again, is several requests; its bytes count once.
Up to 20 million rows are replayed in this process, more on Spark, which needs
Java 17 or later; --explain says which.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  1    --in-force: not every decision came out as recorded
  2    an option, the files, Java or Spark cannot be used; the reason is on
       stderr
  3    --in-force: no decision could be compared, as none is exact
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "replay",
        help="what these quotas would have done to recorded traffic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    directory_argument(parser)
    plans_option(parser)
    parser.add_argument(
        "--in-force", action="store_true", help="also replay the quotas that were in force, and compare"
    )
    parser.add_argument(
        "--continue",
        dest="before",
        metavar="DIR",
        type=location_type,
        help="go on from what the same plans left in --out DIR of the hours before",
    )
    parser.add_argument(
        "--decisions", action="store_true", help="also write every single decision (needs --out)"
    )
    parser.add_argument(
        "--limits",
        action="store_true",
        help="also find, for the entities of each plan, the smallest limits that would have done, as "
        "`tidegate limits` does: takes several times as long",
    )
    loop_option(parser)
    top_option(parser, "entities", default=None)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show who was never throttled and has no limit of its own",
    )
    json_option(parser)
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job and print what came of it."""
    _check_options(args)
    from tidegate.pipeline.jobs.replay import saved_states
    from tidegate.pipeline.replay.limits import Tolerance, levels_of_file
    from tidegate.pipeline.replay.plan import in_force_plan, load_plans
    from tidegate.pipeline.report.compared import entity_rows, with_limits

    plans = load_plans(args.quotas, is_closed=args.loop == "closed")
    levels = {path.stem: levels_of_file(path) for path in args.quotas} if args.limits else {}
    if args.in_force:
        plans.append(in_force_plan())
    with opened_for_tables(args) as files:
        carried = None if args.before is None else saved_states(args.before, plans)
        results = {
            "out": args.out,
            "overwrite": args.overwrite,
            "with_decisions": args.decisions,
            "carried": carried,
        }
        with running_jobs(args, files, plans=plans, replays_all=True) as jobs:
            found = jobs.replay(plans, **results)
            if args.limits:
                limits = {
                    name: jobs.limits(plan, Tolerance(), out=None).entities for name, plan in levels.items()
                }
                found = replace(found, entities=with_limits(found.entities, limits))
    _print(args, plans, found, events=files.rows)
    in_force = entity_rows(found.entities).where(plan=plans[-1].name)
    return _exit_code(in_force.sums()) if args.in_force else 0


def _exit_code(in_all: Mapping[str, int]) -> int:
    """Return what the check of --in-force found, out of the sums over its entities."""
    if in_all["different_decisions"]:
        return _EXIT_DIFFERENT
    return 0 if in_all["requests"] > in_all["approximate_requests"] else _EXIT_NOT_COMPARED


def _check_options(args: argparse.Namespace) -> None:
    from tidegate.errors import ConfigError

    if not args.quotas and not args.in_force:
        raise ConfigError("no plan to replay against", hint="give --quotas quotas.yaml, or --in-force")
    if args.before is not None and (args.loop == "closed" or not args.quotas):
        raise ConfigError(
            "--continue is for plans replayed in open loop",
            hint="add --loop open, in the hours before as well"
            if args.quotas
            else "the quotas in force have states in the record",
        )
    if args.limits and not args.quotas:
        raise ConfigError(
            "--limits are those of the entities of a plan in a file",
            hint="the quotas in force may change from row to row: give --quotas, or ask `tidegate limits`",
        )
    if args.decisions and args.out is None:
        raise ConfigError("--decisions writes a table", hint="give --out DIR as well")
    if args.decisions and args.quotas and args.loop == "closed":
        raise ConfigError(
            "--decisions are those of the recorded times, and these plans would be forecasts",
            hint="add --loop open, or leave --decisions out",
        )


def _print(args: argparse.Namespace, plans: Sequence["Plan"], found: "ReplaySummary", *, events: int) -> None:
    from tidegate.pipeline.report.compared import compared, entity_rows
    from tidegate.pipeline.report.console import print_document, print_ending, print_lines, results_console
    from tidegate.pipeline.report.documents import replay_document
    from tidegate.pipeline.report.forecast_report import forecast_notes
    from tidegate.pipeline.report.replay_report import replay_lines, replay_notes, unmatched_notes

    rows = entity_rows(found.entities)
    entities = compared(plans, rows)
    if args.json:
        document = replay_document(
            plans, entities, top=shown(args), unmatched=found.unmatched, events=events, out=args.out
        )
        print_document(document, found.missing)
        return
    console = results_console()
    lines = replay_lines(plans, entities, top=shown(args), show_all=args.all, width=console.width)
    print_lines(console, lines)
    for plan in plans:
        of_plan = rows.where(plan=plan.name)
        waiting = of_plan.largest("waited_ms", top=shown(args))
        for note in (
            *replay_notes(plan.name, [of_plan.sums()], in_force=plan.is_in_force),
            *forecast_notes(plan.name, waiting, is_closed=plan.is_closed, top=shown(args)),
        ):
            console.print(note)
    for note in unmatched_notes(found.unmatched):
        console.print(note)
    print_ending(console, found.missing, with_cold_starts=False, events=events, out=args.out)
