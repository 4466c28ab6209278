"""The cycle of a group member (join, sync, heartbeat, commit, leave) on variants of the broker.

A variant is a directory with the package (`src` of another work tree), or an interpreter, which needs no more than the
dependencies of the broker. Their brokers answer one connection in turns of short windows. Beside other work on the
machine the fastest windows are the ones to compare: they were not interrupted. Two processes with the same code differ
by several percent for as long as they live, so that each variant is started several times: give one twice to see by how
much.

    python bench/bench_group_cycle.py [--starts N] [--rounds N] src src /tmp/before/src /usr/bin/python3
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_turn_loop import create_topic
from bench.ladder.brokers import BenchBroker, TidegateBench, machine
from bench.ladder.groups import live, prepare_groups

SOURCE = Path(__file__).resolve().parents[1] / "src"
SETTLED_S = 8.0  # by then the broker has compiled its codecs, in slices
WARM, CYCLES = 300, 20
FAST = 0.1  # the share of the windows that are faster than the one that counts


@dataclass
class _Variant(TidegateBench):
    source: Path = SOURCE
    python: str = sys.executable
    wall_us: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def _command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._command()
        # Another interpreter of the same version finds the dependencies of this one.
        packages = [path for path in sys.path if path.endswith("site-packages")]
        environment["PYTHONPATH"] = os.pathsep.join([str(self.source), *packages])
        return [self.python, *command[1:]], environment

    def run_window(self, cycles: Iterator[int]) -> None:
        """Run some cycles; note the time and the broker's processor time of one."""
        cpu_s, begun = self.cpu_s(), time.perf_counter()
        for _ in range(CYCLES):
            next(cycles)
        self.wall_us.append((time.perf_counter() - begun) / CYCLES * 1e6)
        self.cpu_us.append((self.cpu_s() - cpu_s) / CYCLES * 1e6)


def main(names: Sequence[str], starts: int, rounds: int) -> None:
    """Print the times of one cycle on each variant: the median and the range of several starts."""
    print(machine())
    found = [_run(names, rounds) for _ in range(starts)]
    for name, times in zip(names, zip(*found, strict=True), strict=True):
        wall, cpu = (_text([one[at] for one in times]) for at in (0, 1))
        print(f"{name}: {wall} us a cycle, {cpu} us of the broker's processor time")


def _run(names: Sequence[str], rounds: int) -> list[tuple[float, float]]:
    """Start a broker of each variant; return the time and processor time of a cycle on each, in us."""
    with tempfile.TemporaryDirectory() as directory:
        variants = [_variant(name, Path(directory) / str(number)) for number, name in enumerate(names)]
        started: list[BenchBroker] = []
        try:
            for variant in variants:
                started.append(variant.start())
                create_topic(variant)
                prepare_groups(variant)
            time.sleep(SETTLED_S)
            cycles = [live(variant, 3600) for variant in variants]
            for one in cycles:
                for _ in range(WARM):
                    next(one)
            # Always in this order: a broker that has two windows in a row is 5 % faster in the second.
            for _ in range(rounds):
                for variant, one in zip(variants, cycles, strict=True):
                    variant.run_window(one)
        finally:
            for broker in started:
                broker.stop()
    return [(_fast(variant.wall_us), _fast(variant.cpu_us)) for variant in variants]


def _variant(name: str, directory: Path) -> _Variant:
    if Path(name).is_dir():
        return _Variant(name=name, directory=directory, source=Path(name).resolve())
    return _Variant(name=name, directory=directory, python=name)


def _fast(times: Sequence[float]) -> float:
    return sorted(times)[int(FAST * len(times))]


def _text(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.0f} ({min(times):.0f}-{max(times):.0f})"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("variants", nargs="+")
    args = parser.parse_args()
    main(args.variants, args.starts, args.rounds)
