"""The table that shows each client's rate against its limit, its throttle time and its latency."""

import time
from collections.abc import Callable, Mapping

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tidegate.cli.demonstration.tally import Tally
from tidegate.pipeline.report.text import duration_text

__all__ = ["board", "watch"]

_REFRESH_S = 0.25
_MS_PER_S = 1000
_MIB = 1024 * 1024


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
