"""The second half of the demo: what was recorded, summed up and replayed on Spark."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tidegate.cli.demonstration.checks import Check
from tidegate.cli.demonstration.clients import CLIENTS
from tidegate.cli.demonstration.plans import write_plans
from tidegate.cli.demonstration.results import Results
from tidegate.pipeline.jobs.where import Jobs, jobs_on_spark
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.replay.plan import IN_FORCE, Plan, in_force_plan, load_plans
from tidegate.pipeline.report.console import print_lines
from tidegate.pipeline.report.text import bytes_text, count_text, duration_text, percent_text
from tidegate.pipeline.report.usage_report import usage_lines
from tidegate.pipeline.schemas import CLIENT
from tidegate.pipeline.session import running_spark
from tidegate.pipeline.warm_up import kernel_in_the_making

__all__ = ["replay_checks", "replay_summary", "run_jobs"]

_BYTE_QUOTAS = ("Produce", "Fetch")
_USAGE_LINES = 5
_LOOPS = """\
in force: all times as recorded, a check; the others: who would have been
throttled comes later, a forecast (docs/closed-loop.md)"""

Rows = Sequence[Mapping[str, Any]]


def run_jobs(console: Console, results: Results) -> list[Check]:
    """Sum up and replay what the broker recorded, print both, and return what must have come out."""
    plans = load_plans(write_plans(results.plans).values(), is_closed=True)
    with open_usage(results.usage) as files:
        console.print(f"\nthe broker recorded {count_text(files.rows)} events; starting Spark\n")
        with (
            kernel_in_the_making([in_force_plan(), *plans], with_usage=True),
            running_spark(app_name="tidegate demo", rows=files.rows) as spark,
        ):
            jobs = jobs_on_spark(spark, files)
            checks = [_sum_up(console, results, jobs)]
            found = jobs.replay([in_force_plan(), *plans], out=results.replays)
    console.print(replay_summary(found.entities, plans))
    console.print(_LOOPS, style="dim")
    return [*checks, *replay_checks(found.entities)]


def _sum_up(console: Console, results: Results, jobs: Jobs) -> Check:
    summary = jobs.usage(out=results.usage_tables, top=_USAGE_LINES)
    print_lines(console, usage_lines(summary.top, by=CLIENT, groups=summary.groups, width=console.width))
    console.print()
    found = {row["client_id"] for row in summary.top}
    return Check("the usage table has all three clients", found >= set(CLIENTS))


def replay_summary(rows: Rows, plans: Iterable[Plan]) -> Table:
    """Return a table of what each plan would have done to each client. rows: columns `REPLAY_BY_ENTITY`."""
    title = "replay: what these quotas would have done to the same requests"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("plan")
    table.add_column("client")
    for name in ("limit", "requests", "throttled", "longest", "delayed"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (IN_FORCE, *(plan.name for plan in plans)):
        of_plan = [row for row in rows if row["plan"] == name and _is_of_interest(row)]
        for row in sorted(of_plan, key=lambda row: list(CLIENTS).index(row["entity_client_id"])):
            table.add_row(name, *_cells(row))
        table.add_section()
    return table


def _is_of_interest(row: Mapping[str, Any]) -> bool:
    return row["quota_type"] in _BYTE_QUOTAS and row["entity_client_id"] in CLIENTS and row["amount"] > 0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["entity_client_id"],
        _limit_text(row),
        count_text(row["requests"]),
        percent_text(row["throttled_requests"], row["requests"]) if row["throttled_requests"] else "never",
        duration_text(row["longest_throttle_ms"]) if row["throttled_requests"] else "–",
        percent_text(row["delayed_amount"], row["amount"]),
    )


def _limit_text(row: Mapping[str, Any]) -> str:
    if row["bound"] is None:
        return "changed" if row["bound_changed"] else "none"
    return f"{bytes_text(row['bound'])}/s"


def replay_checks(rows: Rows) -> list[Check]:
    """Return what a replay of the demo's traffic must show."""
    in_force = [row for row in rows if row["plan"] == IN_FORCE]
    decisions = sum(row["requests"] for row in in_force)
    different = sum(row["different_decisions"] for row in in_force)
    same = f"{count_text(decisions - different)} of {count_text(decisions)}"
    claim = f"replayed under the quotas in force, {same} decisions come out as recorded"
    return [Check(claim, decisions > 0 and different == 0), _plans_differ(rows)]


def _plans_differ(rows: Rows) -> Check:
    """The plans were made so that one of them hits the client that the quotas are there to protect."""
    generous, for_all = (_throttled(rows, plan, "checkout") for plan in ("generous", "one-for-all"))
    times = f"{count_text(for_all)} times, 'generous' {count_text(generous)}"
    claim = f"'one-for-all' would have throttled checkout {times}"
    return Check(claim, for_all > 0 and generous == 0)


def _throttled(rows: Rows, plan: str, client: str) -> int:
    return sum(
        row["throttled_requests"]
        for row in rows
        if row["plan"] == plan and row["entity_client_id"] == client and row["quota_type"] in _BYTE_QUOTAS
    )
