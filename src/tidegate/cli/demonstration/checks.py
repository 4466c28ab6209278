"""Checks that decide whether the demo succeeded."""

from dataclasses import dataclass

from rich.console import Console

from tidegate.cli.demonstration.plans import RATE_LIMITS
from tidegate.cli.demonstration.traffic import CONTROL, Traffic
from tidegate.pipeline.report.text import bytes_text

__all__ = ["Check", "print_checks", "traffic_checks"]

_WINDOW_S = 11  # quota.window.num * quota.window.size.seconds: what was let through is forgotten after it

_SHARES = (0.5, 0.9)  # p99 is decided by one moment in which the disk writes back
_CLOCK_MS = 0.001  # the least that a client reports


@dataclass(frozen=True, slots=True)
class Check:
    """One claim, and whether it came true."""

    claim: str
    holds: bool


def traffic_checks(traffic: Traffic) -> list[Check]:
    """Return what the clients must have seen."""
    return [_latency(traffic), *(_limited(traffic, client) for client in RATE_LIMITS), _unthrottled(traffic)]


def print_checks(console: Console, checks: list[Check]) -> bool:
    """Print each claim with `ok` or `FAILED` before it, and return whether all hold."""
    for check in checks:
        console.print(f"{'ok    ' if check.holds else 'FAILED'}  {check.claim}")
    return all(check.holds for check in checks)


def _latency(traffic: Traffic) -> Check:
    """Judged in the typical quarter of a second, and corrected where the machine itself became slower meanwhile.

    How much slower, the control says: orders to a broker that has nothing else to do.
    """
    checkout, control = _fall(traffic, "checkout"), _fall(traffic, CONTROL)
    holds = all(
        after_ms < before_ms * max(idle_after_ms / max(idle_before_ms, _CLOCK_MS), 1.0)
        for (before_ms, after_ms), (idle_before_ms, idle_after_ms) in zip(checkout, control, strict=True)
    )
    return Check(f"checkout's latency fell: {_claim(checkout)}; at an idle broker: {_claim(control)}", holds)


def _fall(traffic: Traffic, client: str) -> list[tuple[float, float]]:
    """Return a client's typical latency in ms without quotas and under them, for each of `_SHARES`."""
    before, after = traffic.before[client], traffic.after[client]
    return [(before.typical_latency_ms(share), after.typical_latency_ms(share)) for share in _SHARES]


def _claim(fall: list[tuple[float, float]]) -> str:
    texts = [
        f"p{share:.0%} {before_ms:.1f} ms to {after_ms:.1f} ms"
        for share, (before_ms, after_ms) in zip(_SHARES, fall, strict=True)
    ]
    return ", ".join(texts).replace("%", "")


def _limited(traffic: Traffic, client: str) -> Check:
    """A window of 11 s lets as much through at once; over and above that, the limit holds."""
    limit = RATE_LIMITS[client]
    settling, after = traffic.settling[client], traffic.after[client]
    throttled = bool(settling.throttles_ms or after.throttles_ms)
    goes_on = settling.bytes + after.bytes > 0
    amount = f"{bytes_text(after.bytes)} in {traffic.after_s:.0f} s"
    claim = f"{client} was throttled: {amount} at a limit of {bytes_text(limit)}/s"
    return Check(claim, throttled and goes_on and after.bytes <= limit * (traffic.after_s + _WINDOW_S))


def _unthrottled(traffic: Traffic) -> Check:
    phases = (traffic.before, traffic.settling, traffic.after)
    return Check("checkout was never throttled", not any(phase["checkout"].throttles_ms for phase in phases))
