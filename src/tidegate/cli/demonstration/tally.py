"""What the clients reported, added up per phase of the demo."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.cli.demonstration.clients import Report

__all__ = ["Tally", "percentile"]

_RECENT_S = 2.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that `share` of all values do not exceed (nearest rank); NaN without values.

    >>> percentile([4.0, 1.0, 3.0, 2.0], 0.5), percentile([1.0], 0.99)
    (2.0, 1.0)
    """
    if not values:
        return float("nan")
    ranked = sorted(values)
    return ranked[max(math.ceil(len(ranked) * share), 1) - 1]


@dataclass(slots=True)
class Tally:
    """One client's reports of one phase.

    started_s: when the phase began, by the monotonic clock, as all times here.
    moments_ms: the latencies again, those of each report together: a report covers a quarter of a second.
    """

    started_s: float
    bytes: int = 0
    records: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    throttles_ms: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    moments_ms: list[list[float]] = field(default_factory=list)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, report: Report, now_s: float) -> None:
        """Add what came at `now_s`."""
        self.bytes += report.bytes
        self.records += report.records
        self.latencies_ms += report.latencies_ms
        if report.latencies_ms:
            self.moments_ms.append(report.latencies_ms)
        self.throttles_ms += [ms for ms in report.throttles_ms if ms > 0]
        self.errors += report.errors
        self._recent.append((now_s, report.bytes))

    def recent_bytes_per_second(self, now_s: float) -> float:
        """Return the rate over the last two seconds, or since the phase began if that is later."""
        while self._recent and self._recent[0][0] <= now_s - _RECENT_S:
            self._recent.popleft()
        span_s = min(_RECENT_S, now_s - self.started_s)
        return sum(count for _, count in self._recent) / span_s if span_s > 0 else 0.0

    def latency_ms(self, share: float) -> float:
        """Return a percentile of the latencies."""
        return percentile(self.latencies_ms, share)

    def typical_latency_ms(self, share: float) -> float:
        """Return the median, over all moments, of a percentile of each moment's latencies.

        A disk that writes back, or a neighbour on the machine, makes some moments bad and leaves this as it is.
        """
        return percentile([percentile(latencies, share) for latencies in self.moments_ms], 0.5)
