"""The demo from its first line to its last."""

import os
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console

from tidegate.cli.demonstration.checks import Check, print_checks, traffic_checks
from tidegate.cli.demonstration.jobs import run_jobs
from tidegate.cli.demonstration.results import Results
from tidegate.cli.demonstration.traffic import run_traffic
from tidegate.errors import ConfigError
from tidegate.pipeline.java import require_java
from tidegate.pipeline.report.console import results_console
from tidegate.pipeline.report.text import bytes_text

__all__ = ["run_story"]

_INTRODUCTION = """\
One broker, three clients:
  checkout   sends an order of 400 bytes every 5 ms and waits for its acknowledgement
  loader     sends as much as it can over eight connections
  analytics  reads all that loader sent, as fast as it comes
p50 and p99 are how long a record took from its producer to the acknowledgement.
"""
_BYTES_PER_SECOND_MAX = 400 << 20  # what the flood was seen to write on a fast machine


def run_story(directory: Path, *, seconds: int) -> bool:
    """Run the whole demo, results in `directory`; return whether all that it claims came true.

    Raises `TidegateError` where it cannot even try.
    """
    started_s = time.monotonic()
    require_java()
    results = Results(directory)
    _require_space(results.directory, seconds)
    console = results_console()
    console.print(_INTRODUCTION)
    traffic = run_traffic(console, results, seconds=seconds)
    checks = [*traffic_checks(traffic), *run_jobs(console, results)]
    console.print()
    holds = print_checks(console, checks)
    _print_end(console, results, checks, time.monotonic() - started_s)
    return holds


def _require_space(directory: Path, seconds: int) -> None:
    needed = seconds * _BYTES_PER_SECOND_MAX
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise ConfigError(
            f"{str(directory)!r} has {bytes_text(free)} free, expected {bytes_text(needed)} for the flood",
            hint="give a directory on another disk (--out), or fewer --seconds",
        )


def _print_end(console: Console, results: Results, checks: list[Check], took_s: float) -> None:
    held = sum(check.holds for check in checks)
    console.print(f"\n{held} of {len(checks)} checks hold, {took_s:.0f} seconds in all\n")
    for name, path in (
        ("the broker's data", results.broker),
        ("its usage record", results.usage),
        ("the plans", results.plans),
        ("the usage tables", results.usage_tables),
        ("the replay's tables", results.replays),
    ):
        console.print(f"{name:<21}{path}", soft_wrap=True)
    tidegate = _command()
    console.print("\nnext, change a limit in a plan and see what it would have done:")
    plan = results.plans / "generous.yaml"
    console.print(f"  {tidegate} replay {results.usage} --quotas {plan}", soft_wrap=True)
    console.print("or start a broker of your own and point any Kafka client at it:")
    console.print(f"  {tidegate} serve --port 9092", soft_wrap=True)


def _command() -> str:
    """Return how the user can type our command here."""
    if shutil.which("tidegate"):
        return "tidegate"
    return os.path.relpath(Path(sys.executable).with_name("tidegate"))
