"""The second half of the demo: sum up and replay the record on Spark."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from tidegate.cli.demonstration.checks import Check
from tidegate.cli.demonstration.clients import CLIENTS
from tidegate.cli.demonstration.plans import write_plans
from tidegate.cli.demonstration.results import Results
from tidegate.pipeline.jobs.where import Jobs, jobs_on_spark
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.replay.plan import IN_FORCE, Plan, in_force_plan, load_plans
from tidegate.pipeline.report.console import print_lines, print_table
from tidegate.pipeline.report.names import BYTE_QUOTAS
from tidegate.pipeline.report.tables import Column, Table
from tidegate.pipeline.report.text import bytes_text, count_text, duration_text, percent_text, throttled_text
from tidegate.pipeline.report.usage_report import usage_lines
from tidegate.pipeline.schemas import CLIENT
from tidegate.pipeline.session import running_spark
from tidegate.pipeline.warm_up import kernel_in_the_making

__all__ = ["replay_checks", "replay_summary", "run_jobs"]

_USAGE_LINES = 5
_LOOPS = """\
in force: a check with recorded times; other plans: a forecast, in which
throttled clients send later (docs/closed-loop.md)"""

Rows = Sequence[Mapping[str, Any]]


def run_jobs(console: Console, results: Results) -> list[Check]:
    """Sum up and replay the record of the broker, print both, and return the checks of the results."""
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
    print_table(console, replay_summary(found.entities, plans))
    console.print(_LOOPS, style="dim")
    return [*checks, *replay_checks(found.entities)]


def _sum_up(console: Console, results: Results, jobs: Jobs) -> Check:
    summary = jobs.usage(out=results.usage_tables, top=_USAGE_LINES)
    print_lines(console, usage_lines(summary.top, by=CLIENT, groups=summary.groups, width=console.width))
    console.print()
    found = {row["client_id"] for row in summary.top}
    return Check("the usage table has all three clients", found >= set(CLIENTS))


def replay_summary(rows: Rows, plans: Iterable[Plan]) -> Table:
    """Return a table of the effect of each plan on each client. rows: columns `REPLAY_BY_ENTITY`."""
    clients = list(CLIENTS)
    shown: list[Mapping[str, Any] | str] = []
    for name in (IN_FORCE, *(plan.name for plan in plans)):
        of_plan = [row for row in rows if row["plan"] == name and _is_of_interest(row)]
        shown += [*sorted(of_plan, key=lambda row: clients.index(row["entity_client_id"])), ""]
    title = "replay: the effect of these quotas on the same requests"
    return Table(caption=title, columns=_COLUMNS, rows=shown[:-1])


def _is_of_interest(row: Mapping[str, Any]) -> bool:
    return row["quota_type"] in BYTE_QUOTAS and row["entity_client_id"] in CLIENTS and row["amount"] > 0


def _limit_text(row: Mapping[str, Any]) -> str:
    if row["bound"] is None:
        return "changed" if row["bound_changed"] else "none"
    return f"{bytes_text(row['bound'])}/s"


_COLUMNS = (
    Column("plan", "plan", is_name=True),
    Column("client", "entity_client_id", is_name=True),
    Column("limit", _limit_text),
    Column("requests", "requests", count_text),
    Column("throttled", throttled_text),
    Column(
        "longest",
        lambda row: row["longest_throttle_ms"] if row["throttled_requests"] else None,
        duration_text,
    ),
    Column("delayed", lambda row: percent_text(row["delayed_amount"], row["amount"])),
)


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
        if row["plan"] == plan and row["entity_client_id"] == client and row["quota_type"] in BYTE_QUOTAS
    )
