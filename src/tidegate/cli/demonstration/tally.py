"""Totals of the clients' reports per phase of the demo, and the live table that shows them.

The table has each client's rate against its limit, its throttle time and its latency.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidegate.cli.demonstration.clients import Report
from tidegate.pipeline.report.text import duration_text

__all__ = ["Tally", "board", "percentile", "watch"]

_RECENT_S = 2.0
_REFRESH_S = 0.25
_MS_PER_S = 1000
_MIB = 1024 * 1024


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


def watch(
    console: Console,
    tallies: Callable[[], Mapping[str, Tally]],
    *,
    title: str,
    limits: Mapping[str, float],
    seconds: float,
    check: Callable[[], None],
) -> None:
    """Show the board for `seconds`, calling `check` all along, and leave its last state on the console."""
    end_s = time.monotonic() + seconds
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while (now_s := time.monotonic()) < end_s:
            check()
            if console.is_terminal:
                live.update(board(tallies(), title=title, limits=limits, now_s=now_s), refresh=True)
            time.sleep(min(_REFRESH_S, end_s - now_s))
    console.print(board(tallies(), title=title, limits=limits, now_s=time.monotonic()))


def board(tallies: Mapping[str, Tally], *, title: str, limits: Mapping[str, float], now_s: float) -> Table:
    """Return the table at `now_s`, rates in MiB/s, latencies at the end. limits: client id → bytes per second."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("client")
    for name in ("MiB/s now", "mean", "limit", "throttled", "longest", "p50", "p99"):
        table.add_column(name, justify="right", no_wrap=True)
    for client, tally in tallies.items():
        table.add_row(client, *_numbers(tally, limits.get(client), now_s))
    return table


def _numbers(tally: Tally, limit: float | None, now_s: float) -> tuple[str, ...]:
    mean = tally.bytes / max(now_s - tally.started_s, 0.001)
    has_latency = bool(tally.latencies_ms)
    return (
        _mib_text(tally.recent_bytes_per_second(now_s)),
        _mib_text(mean),
        "none" if limit is None else _mib_text(limit),
        f"{len(tally.throttles_ms)} times" if tally.throttles_ms else "never",
        duration_text(max(tally.throttles_ms)) if tally.throttles_ms else "–",
        _latency_text(tally.latency_ms(0.5)) if has_latency else "–",
        _latency_text(tally.latency_ms(0.99)) if has_latency else "–",
    )


def _mib_text(amount: float) -> str:
    return f"{amount / _MIB:.2f}"


def _latency_text(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < _MS_PER_S else f"{ms / _MS_PER_S:.1f} s"
