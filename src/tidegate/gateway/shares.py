"""Arithmetic of cluster-wide quotas: how the unused part of a limit is divided between sensors.

A sensor has a rate, as Kafka measures it over the quota's windows, and a demand: the rate of the last seconds and of
fetches that were refused. The unused rate is divided in proportion to demand. Each sensor counts for at least
`IDLE_SHARE` of the limit, so that the first client at an idle broker is not throttled at once.

A process publishes its usage together with its claims: the rates that its sensors may reach before its next report. A
sensor gets a larger share only when the others have published smaller claims, so that two do not use the same part.

>>> divide_limit(100.0, [Usage(rate=60.0, demand=99.0)], others=Usage(), idle_sensors=0)
[Part(by_demand=1.0, granted=1.0)]
>>> divide_limit(100.0, [Usage(rate=60.0, demand=99.0)], others=Usage(claim=30.0), idle_sensors=0)
[Part(by_demand=1.0, granted=0.25)]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegate.quota import UNLIMITED

__all__ = ["IDLE_SHARE", "Part", "Usage", "divide_limit", "faded_rate"]

IDLE_SHARE = 0.01
SMALLEST = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of one quota, per second.

    rate: as Kafka measures it. demand: the rate of the last seconds, and of refused fetches. claim: the rate that may
    be reached before the next report.
    """

    rate: float = 0.0
    demand: float = 0.0
    claim: float = 0.0

    def plus(self, other: "Usage") -> "Usage":
        """Return the usage of both.

        >>> Usage(rate=1.0, demand=2.0).plus(Usage(rate=3.0))
        Usage(rate=4.0, demand=2.0, claim=0.0)
        """
        return Usage(
            rate=self.rate + other.rate, demand=self.demand + other.demand, claim=self.claim + other.claim
        )


class Part(NamedTuple):
    """The part of a limit for one sensor, from 0 to 1: by demand, and what it may use of the unused rate now."""

    by_demand: float
    granted: float


def divide_limit(limit: float, own: Sequence[Usage], *, others: Usage, idle_sensors: int) -> list[Part]:
    """Return the part of each sensor of `own`.

    others: the usage of sensors in other processes. idle_sensors: the number of sensors without usage. A demand above
    `UNLIMITED` counts as that, so that every sum is finite.
    """
    least = max(IDLE_SHARE * limit, SMALLEST)
    demands = [min(usage.demand, UNLIMITED) for usage in own]
    total = min(others.demand, UNLIMITED) + sum(demands) + least * (len(own) + idle_sensors)
    parts = [(demand + least) / total for demand in demands]
    unused = limit - others.rate - sum(usage.rate for usage in own)
    scale = 1.0
    if unused > 0.0:
        reserved = max(others.claim - others.rate, 0.0) + unused * least * idle_sensors / total
        scale = min(1.0, max(unused - reserved, 0.0) / unused / sum(parts))
    return [Part(by_demand=part, granted=part * scale) for part in parts]


def faded_rate(rate: float, *, silent_ms: int, window_ms: int) -> float:
    """Return the rate of a process that has been lost for `silent_ms`: its samples expire evenly over the window.

    >>> faded_rate(100.0, silent_ms=2500, window_ms=10_000), faded_rate(100.0, silent_ms=20_000, window_ms=10_000)
    (75.0, 0.0)
    """
    return rate * max(0.0, 1.0 - silent_ms / window_ms)
