"""What must have happened for the demo to count as a success."""

from dataclasses import dataclass

from rich.console import Console

from tidegate.cli.demonstration.plans import RATE_LIMITS
from tidegate.cli.demonstration.tally import Tally
from tidegate.cli.demonstration.traffic import Traffic
from tidegate.pipeline.text import bytes_text

__all__ = ["Check", "print_checks", "traffic_checks"]

_WINDOW_S = 11  # quota.window.num * quota.window.size.seconds: what was let through is forgotten after it


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
    """Judged by p90: p99 is a dozen of a phase's records, and one moment in which the disk writes back decides it."""
    before, after = traffic.before["checkout"], traffic.after["checkout"]
    fell = [_fall(before, after, share) for share in (0.5, 0.9)]
    claim = f"checkout's latency fell: p50 {fell[0].claim}, p90 {fell[1].claim}"
    return Check(claim, all(fall.holds for fall in fell))


def _fall(before: Tally, after: Tally, share: float) -> Check:
    before_ms, after_ms = before.latency_ms(share), after.latency_ms(share)
    return Check(f"{before_ms:.1f} ms to {after_ms:.1f} ms", after_ms < before_ms)


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
