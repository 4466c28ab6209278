"""`tidegate replay`: shows the effect of other quotas on recorded traffic."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidegate.cli.job_options import (
    add_job_options,
    directory_argument,
    json_option,
    location_type,
    loop_option,
    opened_for_tables,
    plans_option,
    rows_of,
    running_record,
    shown,
    top_option,
)

if TYPE_CHECKING:
    from tidegate.pipeline.outcomes import Replay
    from tidegate.pipeline.report.compared import Row

__all__ = ["add_parser", "run"]

_EXIT_DIFFERENT = 1  # the check of --in-force failed
_EXIT_NOT_COMPARED = 3  # the check of --in-force could compare no decision

_DESCRIPTION = """\
Apply other quotas (plans) to recorded requests. For each quota entity, show how
many requests would have been throttled, for how long, and since when, next to
what really happened. By default a throttled client sends its next requests
later: the result is a forecast (docs/closed-loop.md). With --loop open, all
requests keep their recorded times: the result is exact, and a check."""

_EPILOG = """\
examples:
  tidegate replay ./usage --quotas quotas.yaml
  tidegate replay ./usage --quotas tight.yaml --quotas loose.yaml
                                        compare two plans
  tidegate replay ./usage --in-force    check every recorded decision
  tidegate replay ./usage --in-force --from 2026-11-22T14:05:30
                                        from this time on, in UTC
  tidegate replay ./usage --quotas quotas.yaml --last 15m
                                        the last 15 minutes of the record
  tidegate replay ./usage --quotas quotas.yaml --loop open
                                        requests keep their recorded times
  tidegate replay ./usage --quotas quotas.yaml --limits
                                        and the smallest sufficient limits
  tidegate replay ./usage --quotas quotas.yaml --json
                                        for programs: docs/results.md
  tidegate replay ./usage --quotas quotas.yaml --loop open --out ./out \\
      --decisions                       each decision
  tidegate replay ./usage --quotas quotas.yaml --loop open \\
      --continue ./before --out ./now   continue from an earlier state
  tidegate replay s3://bucket/usage --in-force --out s3://bucket/out
                                        by URI: docs/clusters.md

DIR is the usage directory of `tidegate serve`, or one that `tidegate import`
has written. docs/quotas-file.md describes quotas.yaml, which can also have
groups that share a limit, and smooth mode. A plan has the name of its file.

--out writes the tables replay_by_entity and replay_by_client; in open loop
also state (the input of --continue) and, with --decisions, decisions (one row
per plan and request, by date). They contain user names and client ids, which
are personal data.

The heading of each table shows the loop of each plan. --decisions and
--continue need --loop open; --limits always uses the recorded times.

A recorded fetch that is larger than a plan's cap (limit * (windows - 1))
returns the cap in the replay. A fetch that was throttled when recorded, and
repeated, is several requests; its bytes count once.
Up to 20 million rows are processed in this process, larger records on
Spark, which needs Java 17 or later; --explain prints which.
Needs the extra 'pipeline' (README, Install)

exit codes:
  0    done
  1    --in-force: some decisions differ from the recorded ones
  2    an option, the files, Java or Spark cannot be used; the reason is on
       stderr
  3    --in-force: no decision could be compared, because none is exact
  130  interrupted with Ctrl-C"""


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command and its options."""
    parser = subparsers.add_parser(
        "replay",
        help="show the effect of other quotas on recorded traffic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    directory_argument(parser)
    plans_option(parser)
    parser.add_argument(
        "--in-force",
        action="store_true",
        help="also replay the quotas that were in force, and compare the decisions with the recorded ones",
    )
    parser.add_argument(
        "--continue",
        dest="before",
        metavar="DIR",
        type=location_type,
        help="continue from the state that a replay of the same plans wrote to DIR with --out",
    )
    parser.add_argument("--decisions", action="store_true", help="also write each decision (needs --out)")
    parser.add_argument(
        "--limits",
        action="store_true",
        help="also find the smallest limits that throttle no request, for the entities of each plan; takes "
        "several times as long",
    )
    loop_option(parser)
    top_option(parser, "entities", default=None)
    parser.add_argument(
        "--all",
        action="store_true",
        help="also show entities that were never throttled and have no limit of their own",
    )
    json_option(parser)
    add_job_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the job, and print its results."""
    _check_options(args)
    from tidegate.pipeline import limits, replay
    from tidegate.pipeline.replay.limits import levels_of_file
    from tidegate.pipeline.replay.plan import in_force_plan, load_plans
    from tidegate.pipeline.report.compared import entity_rows, with_limits

    plans = load_plans(args.quotas, is_closed=args.loop == "closed")
    for path in args.quotas if args.limits else ():
        levels_of_file(path)  # refuse an unusable file before rows are read
    plans += [in_force_plan()] if args.in_force else []
    with opened_for_tables(args, with_before=args.before is None) as files:
        wanted = {
            "quotas": args.quotas,
            "in_force": args.in_force,
            "loop": args.loop,
            "decisions": args.decisions,
            "continue_from": args.before,
            "out": args.out,
            "overwrite": args.overwrite,
        }
        with running_record(args, files, plans=plans, replays_all=True) as record:
            found = replay(record, **wanted)
            entities: Sequence[Row] = [] if found.summary is None else found.summary.entities
            if args.limits:
                smallest = {path.stem: rows_of(limits(record, quotas=path).by_entity) for path in args.quotas}
                entities = with_limits(entities, smallest)
    _print(args, found, entities)
    in_force = entity_rows(entities).where(plan=found.plans[-1].name)
    return _exit_code(in_force.sums()) if args.in_force else 0


def _exit_code(in_all: Mapping[str, int]) -> int:
    """Return the result of the check of --in-force, from the sums over its entities."""
    if in_all["different_decisions"]:
        return _EXIT_DIFFERENT
    return 0 if in_all["requests"] > in_all["approximate_requests"] else _EXIT_NOT_COMPARED


def _check_options(args: argparse.Namespace) -> None:
    from tidegate.errors import ConfigError

    if not args.quotas and not args.in_force:
        raise ConfigError("no quotas to replay", hint="give --quotas FILE or --in-force")
    if args.before is not None and (args.loop == "closed" or not args.quotas):
        raise ConfigError(
            "--continue needs --quotas and --loop open",
            hint="add --loop open, here and to the replay of the earlier hours"
            if args.quotas
            else "remove --continue: the record contains the state of the quotas in force",
        )
    if args.limits and not args.quotas:
        raise ConfigError(
            "--limits needs --quotas: the quotas in force can change from row to row",
            hint="add --quotas FILE, or run `tidegate limits`",
        )
    if args.decisions and args.out is None:
        raise ConfigError("--decisions needs --out", hint="add --out DIR")
    if args.decisions and args.quotas and args.loop == "closed":
        raise ConfigError(
            "--decisions needs --loop open: in closed loop, requests do not keep their recorded times",
            hint="add --loop open, or remove --decisions",
        )


def _print(args: argparse.Namespace, found: "Replay", rows_found: "Sequence[Row]") -> None:
    from tidegate.pipeline.report.compared import compared, entity_rows
    from tidegate.pipeline.report.console import print_document, print_ending, print_lines, results_console
    from tidegate.pipeline.report.documents import replay_document
    from tidegate.pipeline.report.notes import forecast_notes, replay_notes, unmatched_notes
    from tidegate.pipeline.report.replay_report import replay_lines

    plans, unmatched = found.plans, found.unmatched or ()
    rows = entity_rows(rows_found)
    entities = compared(plans, rows)
    if args.json:
        document = replay_document(
            plans, entities, top=shown(args), unmatched=unmatched, events=found.rows, out=args.out
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
    for note in unmatched_notes(unmatched):
        console.print(note)
    print_ending(console, found.missing, with_cold_starts=False, events=found.rows, out=args.out)
