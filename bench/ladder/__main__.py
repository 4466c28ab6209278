"""Run the ladder: `make bench-kafka`, or `python -m bench.ladder [--rounds N] [--only TEXT]`.

A real Apache Kafka and `tidegate serve` run side by side, with the same quotas defined, and are driven in turn by
the same clients, in alternating order. Prints medians, ranges, ratios and CPU; exits with 1 when a rung is below
what is wanted.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.ladder.brokers import BenchBroker, KafkaBench, TidegateBench, machine
from bench.ladder.rungs import RUNGS, Rung, Sample, prepare
from rich.console import Console
from rich.table import Table

IDLE_AFTER_S = 3.0


def main() -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="rungs whose name has this text")
    args = parser.parse_args()
    rungs = [rung for rung in RUNGS if args.only in rung.name]
    with tempfile.TemporaryDirectory(prefix="tidegate-ladder-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        kafka, ours = (
            KafkaBench("kafka", directory / "kafka"),
            TidegateBench("tidegate", directory / "tidegate"),
        )
        try:
            return _climb(kafka, ours, rungs, args.rounds, directory)
        finally:
            kafka.stop()
            ours.stop()


def _climb(kafka: BenchBroker, ours: BenchBroker, rungs: list[Rung], rounds: int, directory: Path) -> int:
    console = Console(width=150)
    console.print(f"$ python -m bench.ladder --rounds {rounds}\nmachine: {machine()}")
    for broker in (kafka, ours):
        broker.start()
    time.sleep(IDLE_AFTER_S)
    idle = {broker.name: broker.resident_mb() for broker in (kafka, ours)}
    for broker in (kafka, ours):
        prepare(broker, directory)
    table = Table(
        "rung", "unit", "kafka", "tidegate", "ratio", "wanted", "broker CPU ratio", "client CPU share", "ok"
    )
    failed = 0
    for rung in rungs:
        print(f"… {rung.name}", file=sys.stderr)
        samples: dict[str, list[Sample]] = {"kafka": [], "tidegate": []}
        for number in range(rounds):
            for broker in (kafka, ours) if number % 2 == 0 else (ours, kafka):
                samples[broker.name].append(rung.run(broker, directory))
        failed += not _add_row(table, rung, samples)
    console.print(table)
    _print_footprint(console, kafka, ours, idle)
    return 1 if failed else 0


def _add_row(table: Table, rung: Rung, samples: dict[str, list[Sample]]) -> bool:
    medians = {name: statistics.median(s.value for s in runs) for name, runs in samples.items()}
    cpu = {name: statistics.median(s.broker_cpu for s in runs) for name, runs in samples.items()}
    ratio = medians["tidegate"] / medians["kafka"]
    cpu_ratio = cpu["tidegate"] / cpu["kafka"] if cpu["kafka"] else float("nan")
    good = ratio <= rung.wanted if rung.lower_is_better else ratio >= rung.wanted
    if rung.wanted_cpu is not None:
        good = good and cpu_ratio <= rung.wanted_cpu
    table.add_row(
        rung.name,
        rung.unit,
        _spread([s.value for s in samples["kafka"]]),
        _spread([s.value for s in samples["tidegate"]]),
        f"{ratio:.2f}",
        f"{'≤' if rung.lower_is_better else '≥'} {rung.wanted:.1f}",
        f"{cpu_ratio:.2f}" + (f" (≤ {rung.wanted_cpu})" if rung.wanted_cpu else ""),
        " / ".join(f"{_client_share(runs):.0%}" for runs in samples.values()),
        "yes" if good else "NO",
    )
    return good


def _client_share(runs: list[Sample]) -> float:
    """Return the client's part of all CPU used: near 100 % means that the client was the limit."""
    client, broker = sum(s.client_cpu for s in runs), sum(s.broker_cpu for s in runs)
    return client / (client + broker) if client + broker else 0.0


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


def _print_footprint(console: Console, kafka: BenchBroker, ours: BenchBroker, idle: dict[str, float]) -> None:
    table = Table("footprint", "kafka", "tidegate", "wanted")
    table.add_row("start to first answer, s", f"{kafka.start_s:.2f}", f"{ours.start_s:.2f}", "≤ 0.3 s")
    table.add_row("resident idle, MB", f"{idle['kafka']:.0f}", f"{idle['tidegate']:.0f}", "≤ 1/5")
    table.add_row(
        "resident after load, MB", f"{kafka.resident_mb():.0f}", f"{ours.resident_mb():.0f}", "≤ 1/5"
    )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
