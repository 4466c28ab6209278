"""Run the ladder: `make bench-kafka`, or `python -m bench.ladder [--rounds N] [--pairs N] [--only TEXT]`.

A real Apache Kafka and `tidegate serve` run side by side, with the same quotas defined, and are driven in turn by
the same clients, in alternating order, after a run that does not count. Prints medians, ranges, ratios and CPU; exits
with 1 when a rung is below what is wanted.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.ladder.brokers import BenchBroker, KafkaBench, TidegateBench, machine
from bench.ladder.costs import Cost, cost_of_quotas, cost_of_recording
from bench.ladder.memory import given_memory
from bench.ladder.rungs import (
    GROUPS,
    RUNGS,
    Rung,
    Sample,
    drive,
    frames,
    group_frames,
    group_lives,
    handshakes,
    make_anew,
    prepare,
)
from bench.ladder.secure import LISTENER, make_key, secure_settings
from bench.ports import free_port
from rich.console import Console
from rich.table import Table

FOOTPRINT, COSTS = "footprint", "costs"
IDLE_AFTER_S = 3.0
STARTS = 3
WARM_KAFKA_S = 10.0
MOST_START_S = 0.3
MOST_MEMORY = 0.2
MOST_QUOTA_COST = 0.03
MOST_RECORDING_COST = 0.04


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--pairs", type=int, default=300, help="runs with and without quotas, and with and without usage"
    )
    parser.add_argument(
        "--only", default="", help=f"rungs whose name has this text; or {FOOTPRINT!r}, or {COSTS!r}"
    )
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="tidegate-ladder-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        make_key(directory)
        settings = secure_settings(directory)
        brokers = [
            kind(
                kind.__name__.removesuffix("Bench").lower(),
                directory / kind.__name__,
                overrides=settings,
                further=(f"{LISTENER}://127.0.0.1:{free_port()}",),
            )
            for kind in (KafkaBench, TidegateBench)
        ]
        try:
            with given_memory() as memory:
                return _climb(brokers[0], brokers[1], args, directory, memory)
        finally:
            for broker in brokers:
                broker.stop()


def _climb(
    kafka: BenchBroker, ours: BenchBroker, args: argparse.Namespace, directory: Path, memory: str
) -> int:
    console = Console(width=150)
    console.print(
        f"$ python -m bench.ladder --rounds {args.rounds} --pairs {args.pairs}\nmachine: {machine()}; {memory}"
    )
    is_weighed = args.only in ("", FOOTPRINT)
    starts, idle = _started_and_idle(directory / "plain") if is_weighed else ({}, {})
    for broker in (kafka, ours):
        prepare(broker.start(), directory)
    rungs = [rung for rung in RUNGS if args.only in rung.name]
    _warm(kafka, directory, rungs)
    table = Table(
        "rung", "unit", "kafka", "tidegate", "ratio", "wanted", "broker CPU ratio", "client CPU share", "ok"
    )
    good = True
    for rung in rungs:
        samples = _alternate(rung, (kafka, ours), args.rounds, directory)
        good = _add_row(table, rung, samples) and good
    if table.row_count:
        console.print(table)
    if is_weighed:
        loaded = {broker.name: broker.resident_mb() for broker in (kafka, ours) if rungs}
        good = _print_footprint(console, starts, idle, loaded) and good
    if args.only in ("", COSTS):
        good = _print_costs(console, kafka, ours, args.pairs, directory) and good
    return 0 if good else 1


def _started_and_idle(directory: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds to the first answer and the MB of memory after it, by broker, with one listener, no TLS."""
    brokers = (KafkaBench("kafka", directory / "kafka"), TidegateBench("tidegate", directory / "tidegate"))
    try:
        starts = {broker.name: _starts(broker) for broker in brokers}
        time.sleep(IDLE_AFTER_S)
        return starts, {broker.name: broker.resident_mb() for broker in brokers}
    finally:
        for broker in brokers:
            broker.stop()


def _starts(broker: BenchBroker) -> list[float]:
    """Start the broker several times, and leave it running; return the seconds to its first answer."""
    seconds = []
    for number in range(STARTS):
        if number:
            broker.stop()
        seconds.append(broker.start().start_s)
    return seconds


def _warm(kafka: BenchBroker, directory: Path, rungs: Sequence[Rung]) -> None:
    """Run requests until Kafka's JVM has compiled the raw rungs and handshakes, as that of a broker in use has."""
    is_secure = [LISTENER in rung.name for rung in rungs]
    of_groups = [rung.name.startswith(GROUPS) for rung in rungs]
    for frame in () if all(is_secure) else group_frames() if all(of_groups) else frames():
        print(f"… warming Kafka: {frame}", file=sys.stderr)
        drive(kafka, directory, "request", frame, 32, WARM_KAFKA_S)
    if any(of_groups):
        print("… warming Kafka: groups", file=sys.stderr)
        group_lives(kafka, directory, WARM_KAFKA_S)
    if any(is_secure):
        print("… warming Kafka: handshakes", file=sys.stderr)
        handshakes(kafka, directory, WARM_KAFKA_S)


def _alternate(
    rung: Rung, brokers: tuple[BenchBroker, BenchBroker], rounds: int, directory: Path
) -> dict[str, list[Sample]]:
    """Run a rung once for nothing and then `rounds` times, the one or the other broker first."""
    print(f"… {rung.name}", file=sys.stderr)
    samples: dict[str, list[Sample]] = {broker.name: [] for broker in brokers}
    for number in range(rounds + 1):
        for broker in brokers if number % 2 else reversed(brokers):
            os.sync()  # what the other one wrote is not written back at this one's cost
            if rung.fresh:
                make_anew(broker, rung.fresh)
            sample = rung.run(broker, directory)
            if number:
                samples[broker.name].append(sample)
    return samples


def _add_row(table: Table, rung: Rung, samples: dict[str, list[Sample]]) -> bool:
    medians = {name: statistics.median(s.value for s in runs) for name, runs in samples.items()}
    cpu = {name: statistics.median(s.broker_cpu for s in runs) for name, runs in samples.items()}
    ratio = round(medians["tidegate"] / medians["kafka"], 2)
    cpu_ratio = round(cpu["tidegate"] / cpu["kafka"], 2)
    good = ratio <= rung.wanted if rung.lower_is_better else ratio >= rung.wanted
    if rung.wanted_cpu is not None:
        good = good and cpu_ratio <= rung.wanted_cpu
    wanted = f"{'≤' if rung.lower_is_better else '≥'} {rung.wanted:.1f}"
    if rung.wanted_value is not None:
        good = good and medians["tidegate"] <= rung.wanted_value
        wanted = f"≤ {rung.wanted_value:,.0f} {rung.unit}"
    table.add_row(
        rung.name,
        rung.unit,
        _spread([s.value for s in samples["kafka"]]),
        _spread([s.value for s in samples["tidegate"]]),
        f"{ratio:.2f}",
        wanted,
        f"{cpu_ratio:.2f}" + (f" (≤ {rung.wanted_cpu})" if rung.wanted_cpu else ""),
        " / ".join(f"{_client_share(runs):.0%}" for runs in samples.values()),
        _verdict(good),
    )
    return good


def _client_share(runs: list[Sample]) -> float:
    """Return the client's part of all CPU used: near 100 % means that the client was the limit."""
    client, broker = sum(s.client_cpu for s in runs), sum(s.broker_cpu for s in runs)
    return client / (client + broker) if client + broker else 0.0


def _spread(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def _verdict(good: bool) -> str:
    return "yes" if good else "NO"


def _print_footprint(
    console: Console, starts: dict[str, list[float]], idle: dict[str, float], loaded: dict[str, float]
) -> bool:
    table = Table("footprint", "kafka", "tidegate", "ratio", "wanted", "ok")
    started = statistics.median(starts["tidegate"])
    all_good = started <= MOST_START_S
    spreads = [_spread(starts[name], 2) for name in ("kafka", "tidegate")]
    table.add_row("start to first answer, s", *spreads, "", f"≤ {MOST_START_S} s", _verdict(all_good))
    weighed = {"resident idle, MB": idle, "resident after load, MB": loaded}
    for name, megabytes in ((name, each) for name, each in weighed.items() if each):
        ratio = megabytes["tidegate"] / megabytes["kafka"]
        good = ratio <= MOST_MEMORY
        all_good = all_good and good
        amounts = [f"{megabytes[broker]:.0f}" for broker in ("kafka", "tidegate")]
        table.add_row(name, *amounts, f"{ratio:.2f}", f"≤ {MOST_MEMORY}", _verdict(good))
    console.print(table)
    return all_good


def _print_costs(
    console: Console, kafka: BenchBroker, ours: BenchBroker, pairs: int, directory: Path
) -> bool:
    costs: list[tuple[Cost, float | None]] = [
        (cost_of_quotas(ours, directory, pairs), MOST_QUOTA_COST),
        (cost_of_quotas(kafka, directory, pairs), None),
        (cost_of_recording(directory, pairs), MOST_RECORDING_COST),
    ]
    table = Table(
        "CPU of a Produce 100 B", "with, us", "without, us", "cost", "95 % interval", "pairs", "wanted", "ok"
    )
    good = True
    for cost, most in costs:
        is_good = most is None or cost.share <= most
        good = good and is_good
        wanted = ("", "") if most is None else (f"≤ {most:.0%}", _verdict(is_good))
        table.add_row(*_cost_cells(cost), *wanted)
    console.print(table)
    return good


def _cost_cells(cost: Cost) -> tuple[str, ...]:
    return (
        cost.name,
        f"{cost.with_us:.1f}",
        f"{cost.without_us:.1f}",
        f"{cost.share:+.1%}",
        f"{cost.low:+.1%} to {cost.high:+.1%}",
        str(cost.pairs),
    )


if __name__ == "__main__":
    sys.exit(main())
