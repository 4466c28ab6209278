"""Cost of the gateway: `make bench-gateway`, or `python -m bench.bench_gateway`.

The same load runs against a real Apache Kafka and, in turn, against `tidegate gateway` before it: same machine, same
clients, alternating order, after a run that does not count. Quotas that throttle no client are defined at the gateway,
and usage is recorded. Prints medians, ratios to Kafka alone, and the gateway's own CPU time for each unit; then the
latency at half of the gateway's load, directly and through it. With `--before`, the gateway of another version runs in
turn, too; with `--floor`, a relay that only copies bytes (`byte_relay`), for the cells whose clients stay with it; with
`--processes 2 4`, gateways of as many processes.

The anchor is Kroxylicious without filters, measured in the same way on another machine (docs/gateway.md): compare
ratios, not figures.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ladder.brokers import BenchBroker, GatewayBench, KafkaBench, machine
from bench.ladder.rungs import Sample, define_quotas, drive, frames, make_anew, prepare, transfer
from rich.console import Console
from rich.table import Table

SECONDS = 4.0
WARM_S = 10.0
_SHAPES = ((1, 1), (32, 1), (8, 8))
_KILO, _MEGA = 16_384, 1_000_000
_LATENCY = "latency at half load"
_LATENCY_FRAMES = "metadata", "produce100"
_LATENCY_CONNECTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One comparison. anchor: the ratio to Kafka of Kroxylicious 0.21. fresh: a topic to make anew before each run."""

    name: str
    unit: str
    anchor: float
    run: Callable[[BenchBroker, Path], Sample]
    fresh: str = ""

    @property
    def is_redirected(self) -> bool:
        """Return whether its clients go on to the address that the broker names."""
        return self.name.startswith("confluent")


@dataclass
class _RelayBench(GatewayBench):
    """`byte_relay` before the broker at `upstream`."""

    def _command(self) -> tuple[list[str], dict[str, str]]:
        relay = str(Path(__file__).with_name("byte_relay.py"))
        return [sys.executable, relay, str(self.port), self.upstream.rpartition(":")[2]], dict(os.environ)


def _requests(frame: str, connections: int, depth: int = 1, mode: str = "request") -> Callable[..., Sample]:
    return lambda broker, directory: drive(broker, directory, mode, frame, connections, SECONDS, depth=depth)[
        1
    ]


def _cells() -> list[Cell]:
    anchors = {
        "api_versions": ("ApiVersions", "", (0.63, 0.39, 0.64)),
        "metadata": ("Metadata", "", (0.69, 0.28, 0.47)),
        "produce100": ("Produce 100 B", "small", (0.77, 0.36, 0.63)),
    }
    cells = [
        Cell(name=f"requests {name}, {connections} x {depth}", unit="/s", anchor=anchor, fresh=fresh,
             run=_requests(frame, connections, depth))
        for frame, (name, fresh, ratios) in anchors.items()
        for (connections, depth), anchor in zip(_SHAPES, ratios, strict=True)
    ]  # fmt: skip
    for frame, name, fresh, anchor in (
        ("produce1k", "Produce 1 KB", "kilo", 0.61),
        ("fetch1k", "Fetch 1 KB", "", 0.54),
        ("produce16k", "Produce 16 KB", "kilo", 0.60),
        ("fetch16k", "Fetch 16 KB", "", 0.55),
        ("produce1m", "Produce 1000 KB", "mega", 0.75),
        ("fetch1m", "Fetch 1000 KB", "", 0.46),
    ):
        cells.append(Cell(name=f"raw {name}", unit="/s", anchor=anchor, fresh=fresh, run=_requests(frame, 8)))
    for clients, anchor in ((1, 0.29), (16, 0.25)):
        run = _requests("api_versions", clients, mode="connect")
        cells.append(Cell(name=f"connect, {clients} at a time", unit="/s", anchor=anchor, run=run))
    for record, batch, mb, produce, consume in (
        (100, _KILO, 100, 0.74, 0.97),
        (100, _MEGA, 200, 0.85, 0.94),
        (1024, _KILO, 300, 1.10, 0.62),
        (1024, _MEGA, 600, 0.79, 0.65),
    ):
        size = f"{record} B records, {batch // 1000} KB batches"
        topic = f"gateway{record}-{batch}"
        for mode, anchor, fresh in (("produce", produce, topic), ("consume", consume, "")):
            # The last run of the producer fills the topic that is consumed.
            run = transfer(mode, topic, record, batch, mb)
            cells.append(
                Cell(name=f"confluent {mode} {size}", unit="MB/s", anchor=anchor, fresh=fresh, run=run)
            )
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return 1 if a cell is clearly below the anchor."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cells whose name has this text")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--before", metavar="DIR", default="", help="the `src` directory of another version")
    others.add_argument("--floor", action="store_true", help="compare with a relay that only copies bytes")
    others.add_argument("--processes", type=int, nargs="+", default=[], help="compare with so many processes")
    args = parser.parse_args(arguments)
    cells = [cell for cell in _cells() if args.only in cell.name and not (args.floor and cell.is_redirected)]
    with tempfile.TemporaryDirectory(prefix="tidegate-gateway-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        kafka = KafkaBench("kafka", directory / "kafka")
        gateway = GatewayBench("gateway", directory / "gateway")
        gateways = [gateway]
        if args.before:
            gateways.append(
                GatewayBench("before", directory / "before", sources=str(Path(args.before).resolve()))
            )
        gateways += [
            GatewayBench(f"{number} processes", directory / f"processes{number}", processes=number)
            for number in args.processes
        ]
        relays = [_RelayBench("floor", directory / "floor")] if args.floor else []
        try:
            prepare(kafka.start(), directory)
            define_quotas(kafka, remove=True)  # Kafka alone has none: the gateway's are what is measured
            idle_mb = []
            for each in (*gateways, *relays):
                each.upstream = kafka.address
                idle_mb.append(each.start().resident_mb())
            for each in gateways:
                define_quotas(each)
            for frame in frames():
                print(f"… warming: {frame}", file=sys.stderr)
                drive(kafka, directory, "request", frame, 8, WARM_S / len(frames()))
                for each in (*gateways, *relays):
                    drive(each, directory, "request", frame, 8, 1.0)
            code = _compare(kafka, [*gateways, *relays], cells, args, directory, idle_mb[0]) if cells else 0
            if args.only in _LATENCY:
                beside = gateways[1:] if args.processes else relays
                _compare_latencies(kafka, [gateway, *beside], args.rounds, directory)
            return code
        finally:
            for each in (*gateways, *relays):
                each.stop()
            kafka.stop()


def _compare(
    kafka: BenchBroker,
    measured: Sequence[BenchBroker],
    cells: Sequence[Cell],
    args: argparse.Namespace,
    directory: Path,
    idle_mb: float,
) -> int:
    console = Console(width=140)
    floor = " --floor" if args.floor else ""
    console.print(f"$ python -m bench.bench_gateway --rounds {args.rounds}{floor}\nmachine: {machine()}")
    table = Table(
        "cell", "unit", "kafka", "gateway", "ratio", "anchor", "gateway CPU us", "kafka CPU us behind / alone",
        *[f"{each.name}: ratio, CPU us" for each in measured[1:]],
    )  # fmt: skip
    below = 0
    for cell in cells:
        brokers = (kafka, *measured)
        found: dict[str, list[tuple[Sample, float]]] = {broker.name: [] for broker in brokers}
        for number in range(args.rounds):
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                if cell.fresh:
                    make_anew(kafka, cell.fresh)
                begun_s = kafka.cpu_s()
                sample = cell.run(broker, directory)
                found[broker.name].append((sample, kafka.cpu_s() - begun_s))
        alone, through, *others = [
            statistics.median(s.value for s, _ in found[each.name]) for each in brokers
        ]
        direct, own, *own_others = [
            statistics.median(s.broker_cpu for s, _ in found[each.name]) for each in brokers
        ]
        behind = statistics.median(cpu / (s.value * s.seconds) * 1e6 for s, cpu in found["gateway"])
        below += through / alone < cell.anchor
        print(f"… {cell.name}: {through / alone:.2f}", file=sys.stderr)
        scale = 1e6 if cell.unit == "MB/s" else 1.0
        table.add_row(
            cell.name, cell.unit, f"{alone:,.0f}", f"{through:,.0f}", f"{through / alone:.2f}", f"{cell.anchor:.2f}",
            f"{own * scale:,.1f}", f"{behind:,.1f} / {direct * scale:,.1f}",
            *[f"{rate / alone:.2f}, {cpu * scale:,.1f}" for rate, cpu in zip(others, own_others, strict=True)],
        )  # fmt: skip
    console.print(table)
    console.print(f"resident: idle {idle_mb:.0f} MB, loaded {measured[0].resident_mb():.0f} MB")
    console.print(f"{len(cells) - below} of {len(cells)} cells at or above the anchor")
    return 0 if below <= len(cells) // 5 else 1


def _compare_latencies(
    kafka: BenchBroker, measured: Sequence[BenchBroker], rounds: int, directory: Path
) -> None:
    """Print the latency of all at the same rate: half of what the gateway serves, sent whether answers come or not."""
    brokers = (kafka, *measured)
    columns = [f"{label}, {broker.name}" for label in ("p50 us", "p99 us") for broker in brokers]
    table = Table("", "requests/s", *columns)
    for frame in _LATENCY_FRAMES:
        _, most = drive(measured[0], directory, "request", frame, _LATENCY_CONNECTIONS, SECONDS)
        rate = int(most.value / 2)
        found: dict[str, list[dict[str, int]]] = {broker.name: [] for broker in brokers}
        for number in range(rounds):
            for broker in brokers if number % 2 == 0 else reversed(brokers):
                result, _ = drive(
                    broker, directory, "paced", frame, _LATENCY_CONNECTIONS, SECONDS, depth=rate
                )
                found[broker.name].append(result)
        medians = [
            statistics.median(result[key] for result in found[broker.name])
            for key in ("p50_us", "p99_us")
            for broker in brokers
        ]
        table.add_row(f"{_LATENCY}, {frame}", f"{rate:,}", *[f"{median:,.0f}" for median in medians])
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
