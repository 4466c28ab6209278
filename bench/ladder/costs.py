"""What quotas cost, and what recording usage costs: CPU of the broker for each request, with and without.

Pairs of runs in the order with, without, without, with: a machine that grows slower or faster favours neither. Quotas
are defined and removed on a running broker, so both runs are of one process. Recording is a setting, so it needs two.
"""

import math
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.ladder.brokers import BenchBroker
from bench.ladder.rungs import CONNECTIONS, define_quotas, drive

__all__ = ["Cost", "cost_of", "cost_of_quotas", "cost_of_recording"]

FRAME, SECONDS = "produce100", 1.5
Z_95 = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """How much more CPU a request costs with than without, as a share, and the interval of 95 %."""

    name: str
    pairs: int
    with_us: float
    without_us: float
    share: float
    low: float
    high: float


def cost_of_quotas(broker: BenchBroker, directory: Path, pairs: int) -> Cost:
    """Measure produce, fetch and request quotas that nobody reaches against none."""

    def measure(with_it: bool) -> float:
        define_quotas(broker, remove=not with_it)
        return _cpu_us(broker, directory)

    try:
        return cost_of(f"quotas, {broker.name}", measure, pairs)
    finally:
        define_quotas(broker)


def cost_of_recording(recording: BenchBroker, silent: BenchBroker, directory: Path, pairs: int) -> Cost:
    """Measure the usage record on against off."""
    return cost_of(
        "usage record", lambda with_it: _cpu_us(recording if with_it else silent, directory), pairs
    )


def _cpu_us(broker: BenchBroker, directory: Path) -> float:
    os.sync()
    return drive(broker, directory, "request", FRAME, CONNECTIONS, SECONDS)[1].broker_cpu


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
