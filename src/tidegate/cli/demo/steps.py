"""The steps of `tidegate demo`: run the clients, replay their requests on Spark, and check the results."""

import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tidegate.cli.demo.traffic import CLIENTS, CONTROL, RATE_LIMITS, Traffic, run_traffic
from tidegate.errors import ConfigError
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_on_spark
from tidegate.pipeline.replay.plan import IN_FORCE, Plan, in_force_plan, load_plans
from tidegate.pipeline.report.console import print_lines, print_table, results_console
from tidegate.pipeline.report.names import BYTE_QUOTAS
from tidegate.pipeline.report.tables import Column, Table
from tidegate.pipeline.report.text import bytes_text, count_text, duration_text, percent_text, throttled_text
from tidegate.pipeline.report.usage_report import usage_lines
from tidegate.pipeline.schemas import CLIENT
from tidegate.pipeline.spark.java import require_java
from tidegate.pipeline.spark.session import running_spark
from tidegate.pipeline.warm_up import kernel_in_the_making

__all__ = [
    "Check",
    "clear_results",
    "print_checks",
    "replay_checks",
    "replay_summary",
    "run_demo",
    "traffic_checks",
]

_INTRODUCTION = """\
One broker, three clients:
  checkout   sends an order of 400 bytes every 5 ms and waits for its acknowledgement
  loader     sends as much as it can over eight connections
  analytics  reads everything that loader sends, as fast as it can
p50 and p99 are percentiles of the time from sending a record to its acknowledgement.
"""
_LOOPS = """\
in force: a check with recorded times; other plans: a forecast, in which
throttled clients send later (docs/closed-loop.md)"""

_PLANS = {
    "generous": """\
# Ten times the limits for the two clients that move most bytes.
version: 1
quotas:
  - client-id: {name: loader}
    producer_byte_rate: 20MiB
    reason: the nightly load must finish before six
  - client-id: {name: analytics}
    consumer_byte_rate: 40MiB
    reason: reads what loader wrote, at twice its rate
""",
    "one-for-all": """\
# One small default for every client, and no exceptions. It looks fair, but it also throttles checkout.
version: 1
quotas:
  - client-id: {default: true}
    producer_byte_rate: 64KiB
    consumer_byte_rate: 1MiB
    reason: the same limit for every client
""",
}
_MARKER = ".tidegate-demo"
_BROKER, _PLAN_FILES, _USAGE, _REPLAYS = "broker", "plans", "usage-tables", "replay-tables"
_LEFT_BY_BROKERS = ("broker.log", "broker.port", "idle-broker", "idle-broker.log", "idle-broker.port")
_BYTES_PER_SECOND_MAX = 400 << 20  # the most that the clients wrote on a fast machine
_USAGE_LINES = 5
_WINDOW_S = 11  # quota.window.num * quota.window.size.seconds: a window allows as much at once
_SHARES = (0.5, 0.9)  # p99 depends on a single moment in which the disk writes back
_CLOCK_MS = 0.001  # the resolution of a client's latencies

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check: the claim, and whether it holds."""

    claim: str
    holds: bool


def run_demo(directory: Path, *, seconds: int) -> bool:
    """Run all steps, write the results to `directory` and return whether all checks hold. Raises `TidegateError`."""
    started_s = time.monotonic()
    require_java()
    clear_results(directory)
    needed, free = seconds * _BYTES_PER_SECOND_MAX, shutil.disk_usage(directory).free
    if free < needed:
        raise ConfigError(
            f"{str(directory)!r} has {bytes_text(free)} free, expected {bytes_text(needed)} for the clients' data",
            hint="give a directory on another disk (--out), or fewer --seconds",
        )
    console = results_console()
    console.print(_INTRODUCTION)
    checks = traffic_checks(run_traffic(console, directory, seconds=seconds)) + _run_jobs(console, directory)
    console.print()
    holds = print_checks(console, checks)
    held, took_s = sum(check.holds for check in checks), time.monotonic() - started_s
    usage, plans = directory / _BROKER / "usage", directory / _PLAN_FILES
    by_path = os.path.relpath(Path(sys.executable).with_name("tidegate"))
    tidegate = "tidegate" if shutil.which("tidegate") else by_path
    for line in (
        f"\n{held} of {len(checks)} checks hold, {took_s:.0f} seconds in all\n",
        f"the broker's data    {directory / _BROKER}",
        f"its usage record     {usage}",
        f"the plans            {plans}",
        f"the usage tables     {directory / _USAGE}",
        f"the replay's tables  {directory / _REPLAYS}",
        "\nnext, change a limit in a plan and see what it would have done:",
        f"  {tidegate} replay {usage} --quotas {plans / 'generous.yaml'}",
        "or start a broker of your own and point any Kafka client at it:",
        f"  {tidegate} serve --port 9092",
    ):
        console.print(line, soft_wrap=True)
    return holds


def clear_results(directory: Path) -> None:
    """Create the directory of results, or delete the results of an earlier demo from it. Then write the plans.

    Raises `ConfigError` if the directory cannot be written, or is not empty and not from an earlier demo.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = next(directory.iterdir(), None)
        if found is not None and not (directory / _MARKER).is_file():
            raise ConfigError(
                f"{str(directory)!r} is not empty and does not hold an earlier demo (found {found.name!r})",
                hint="give another directory: tidegate demo --out DIR",
            )
        (directory / _MARKER).touch()
        for path in map(directory.joinpath, (_BROKER, _PLAN_FILES, _USAGE, _REPLAYS, *_LEFT_BY_BROKERS)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        (directory / _PLAN_FILES).mkdir()
        for name, text in _PLANS.items():
            (directory / _PLAN_FILES / f"{name}.yaml").write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {str(directory)!r}: {error.strerror or error}") from error


def _run_jobs(console: Console, directory: Path) -> list[Check]:
    """Summarise and replay the recorded requests on Spark, print both, and return the checks of their results."""
    plans = load_plans([directory / _PLAN_FILES / f"{name}.yaml" for name in _PLANS], is_closed=True)
    with open_usage(directory / _BROKER / "usage") as files:
        console.print(f"\nthe broker recorded {count_text(files.rows)} events; starting Spark\n")
        with (
            kernel_in_the_making([in_force_plan(), *plans], with_usage=True),
            running_spark(app_name="tidegate demo", rows=files.rows) as spark,
        ):
            jobs = jobs_on_spark(spark, files)
            summary = jobs.usage(out=directory / _USAGE, top=_USAGE_LINES)
            lines = usage_lines(summary.top, by=CLIENT, groups=summary.groups, width=console.width)
            print_lines(console, lines)
            console.print()
            found = jobs.replay([in_force_plan(), *plans], out=directory / _REPLAYS).entities
    print_table(console, replay_summary(found, plans))
    console.print(_LOOPS, style="dim")
    clients = {row["client_id"] for row in summary.top}
    return [Check("the usage table has all three clients", clients >= set(CLIENTS)), *replay_checks(found)]


def replay_summary(rows: Rows, plans: Iterable[Plan]) -> Table:
    """Return a table of the effect of each plan on each client. rows: columns `REPLAY_BY_ENTITY`."""
    used = [row for row in rows if row["amount"] > 0]
    shown: list[Mapping[str, Any] | str] = []
    for plan in (IN_FORCE, *(plan.name for plan in plans)):
        for client in CLIENTS:
            shown += _byte_rows(used, plan, client)
        shown.append("")
    title = "replay: the effect of these quotas on the same requests"
    return Table(caption=title, columns=_COLUMNS, rows=shown[:-1])


def _byte_rows(rows: Rows, plan: str, client: str) -> Rows:
    """Return the rows of one client's byte quotas under one plan."""
    wanted = (plan, client)
    return [
        row
        for row in rows
        if (row["plan"], row["entity_client_id"]) == wanted and row["quota_type"] in BYTE_QUOTAS
    ]


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
    Column("longest", lambda row: row["longest_throttle_ms"] or None, duration_text),
    Column("delayed", lambda row: percent_text(row["delayed_amount"], row["amount"])),
)


def traffic_checks(traffic: Traffic) -> list[Check]:
    """Return the checks of the clients' latencies, bytes and throttle times."""
    limited = [_limited(traffic, client) for client in RATE_LIMITS]
    phases = (traffic.before, traffic.settling, traffic.after)
    unthrottled = not any(phase["checkout"].throttles_ms for phase in phases)
    return [_latency_fell(traffic), *limited, Check("checkout was never throttled", unthrottled)]


def _latency_fell(traffic: Traffic) -> Check:
    """Return whether the typical latency of an order fell.

    If the machine became slower in the meantime, the latency may be higher by the same factor, which is measured with
    the control client, whose broker has no other client.
    """
    holds, texts, idle_texts = True, [], []
    for share in _SHARES:
        before_ms, after_ms, idle_before_ms, idle_after_ms = (
            phase[client].typical_latency_ms(share)
            for client in ("checkout", CONTROL)
            for phase in (traffic.before, traffic.after)
        )
        holds &= after_ms < before_ms * max(idle_after_ms / max(idle_before_ms, _CLOCK_MS), 1.0)
        texts.append(f"p{share * 100:.0f} {before_ms:.1f} ms to {after_ms:.1f} ms")
        idle_texts.append(f"p{share * 100:.0f} {idle_before_ms:.1f} ms to {idle_after_ms:.1f} ms")
    return Check(
        f"checkout's latency fell: {', '.join(texts)}; at an idle broker: {', '.join(idle_texts)}", holds
    )


def _limited(traffic: Traffic, client: str) -> Check:
    """Return whether a client was throttled and served: its limit, and at most one window's worth of bytes more."""
    limit, settling, after = RATE_LIMITS[client], traffic.settling[client], traffic.after[client]
    throttled = bool(settling.throttles_ms or after.throttles_ms)
    served = settling.bytes + after.bytes > 0 and after.bytes <= limit * (traffic.after_s + _WINDOW_S)
    amount = f"{bytes_text(after.bytes)} in {traffic.after_s:.0f} s at a limit of {bytes_text(limit)}/s"
    return Check(f"{client} was throttled: {amount}", throttled and served)


def replay_checks(rows: Rows) -> list[Check]:
    """Return the checks of the replays: decisions as recorded, and plans with different effects on checkout."""
    in_force = [row for row in rows if row["plan"] == IN_FORCE]
    decisions = sum(row["requests"] for row in in_force)
    different = sum(row["different_decisions"] for row in in_force)
    same = f"{count_text(decisions - different)} of {count_text(decisions)}"
    generous, one_for_all = (
        sum(row["throttled_requests"] for row in _byte_rows(rows, plan, "checkout")) for plan in _PLANS
    )
    times = f"{count_text(one_for_all)} times, 'generous' {count_text(generous)}"
    replayed = f"replayed under the quotas in force, {same} decisions come out as recorded"
    return [
        Check(replayed, decisions > 0 and different == 0),
        Check(f"'one-for-all' would have throttled checkout {times}", one_for_all > 0 and generous == 0),
    ]


def print_checks(console: Console, checks: Sequence[Check]) -> bool:
    """Print each claim after `ok` or `FAILED`, and return whether all hold."""
    for check in checks:
        console.print(f"{'ok    ' if check.holds else 'FAILED'}  {check.claim}")
    return all(check.holds for check in checks)
