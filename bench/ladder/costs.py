"""Cost of quotas, and of recording usage: CPU of the broker for each request, with and without.

A loader runs all the time; a moment with is compared with a moment without right beside it, in the order
with, without, without, with: a machine that grows slower or faster favours neither. Quotas are defined and removed on
a running broker. Recording is a setting, so it needs two brokers, each with a loader; one of those is held.
"""

import math
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.ladder.brokers import BenchBroker, TidegateBench
from bench.ladder.rungs import define_quotas, loader_command, set_up

__all__ = ["Cost", "cost_of", "cost_of_quotas", "cost_of_recording", "load"]

FRAME = "produce100"
WARMUP_S, SETTLE_S, SLICE_S = 5.0, 0.02, 0.15
_FOR_EVER_S = 100_000.0
Z_95 = 1.96
STARTS, T_95 = 6, 2.571  # of brokers, and Student's t for so many


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The additional CPU of a request, as a share of that without, and the interval of 95 %."""

    name: str
    pairs: int
    with_us: float
    without_us: float
    share: float
    low: float
    high: float


class _Load:
    """A loader at work on a broker."""

    def __init__(self, broker: BenchBroker, process: "subprocess.Popen[str]") -> None:
        self._broker = broker
        self._process = process

    def cpu_us(self) -> float:
        """Return the broker's CPU for each request of the next moment."""
        before, cpu_before = self._answered(), self._broker.cpu_s()
        time.sleep(SLICE_S)
        requests, cpu = self._answered() - before, self._broker.cpu_s() - cpu_before
        return cpu / max(requests, 1) * 1e6

    def hold(self, *, held: bool) -> None:
        """Stop the loader, or let it go on."""
        os.kill(self._process.pid, signal.SIGSTOP if held else signal.SIGCONT)

    def _answered(self) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def load(broker: BenchBroker, directory: Path, frame: str = FRAME) -> Iterator[_Load]:
    """Keep a loader at work on `broker` as long as the block lasts."""
    command = loader_command(broker, directory, "request", frame, seconds=_FOR_EVER_S)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        try:
            time.sleep(WARMUP_S)
            yield _Load(broker, process)
        finally:
            process.kill()


def cost_of_quotas(broker: BenchBroker, directory: Path, pairs: int) -> Cost:
    """Measure produce, fetch and request quotas that no client reaches against none."""
    with load(broker, directory) as loader:

        def measure(with_it: bool) -> float:
            define_quotas(broker, remove=not with_it)
            time.sleep(SETTLE_S)
            return loader.cpu_us()

        try:
            return cost_of(f"quotas, {broker.name}", measure, pairs)
        finally:
            define_quotas(broker)


def cost_of_recording(directory: Path, pairs: int) -> Cost:
    """Measure the usage record on against off, on fresh brokers started several times, in alternating order.

    Where the interpreter finds its memory makes one start of the same broker some percent faster than the next.
    """
    starts = []
    for number in range(STARTS):
        recording = TidegateBench("recording", directory / f"recording{number}")
        silent = TidegateBench(
            "silent", directory / f"silent{number}", overrides=("tidegate.usage.enable=false",)
        )
        try:
            for broker in (recording, silent) if number % 2 == 0 else (silent, recording):
                set_up(broker.start(), directory)
            starts.append(_cost_between(recording, silent, directory, pairs // STARTS))
        finally:
            recording.stop()
            silent.stop()
    logs = [math.log1p(cost.share) for cost in starts]
    mean, error = statistics.fmean(logs), T_95 * statistics.stdev(logs) / math.sqrt(STARTS)
    return Cost(
        name=f"usage record, {STARTS} starts",
        pairs=sum(cost.pairs for cost in starts),
        with_us=statistics.median(cost.with_us for cost in starts),
        without_us=statistics.median(cost.without_us for cost in starts),
        share=math.expm1(mean),
        low=math.expm1(mean - error),
        high=math.expm1(mean + error),
    )


def _cost_between(recording: BenchBroker, silent: BenchBroker, directory: Path, pairs: int) -> Cost:
    with load(recording, directory) as one, load(silent, directory) as other:

        def measure(with_it: bool) -> float:
            (other if with_it else one).hold(held=True)
            (one if with_it else other).hold(held=False)
            time.sleep(SETTLE_S)
            return (one if with_it else other).cpu_us()

        return cost_of("usage record", measure, pairs)


def cost_of(name: str, measure: Callable[[bool], float], pairs: int) -> Cost:
    """Return the mean of the pairs' ratios (of their logarithms) with its interval."""
    print(f"… cost of {name}", file=sys.stderr)
    measure(True)
    measure(False)
    with_us, without_us = [], []
    for number in range(pairs):
        for with_it in (True, False) if number % 2 == 0 else (False, True):
            (with_us if with_it else without_us).append(measure(with_it))
    logs = [math.log(one / other) for one, other in zip(with_us, without_us, strict=True)]
    mean, error = statistics.fmean(logs), Z_95 * statistics.stdev(logs) / math.sqrt(pairs)
    return Cost(
        name=name,
        pairs=pairs,
        with_us=statistics.median(with_us),
        without_us=statistics.median(without_us),
        share=math.exp(mean) - 1,
        low=math.exp(mean - error) - 1,
        high=math.exp(mean + error) - 1,
    )
