"""The demo's claims fail when they are not true."""

import dataclasses
import io

import pytest
from rich.console import Console

from tidegate.cli.demonstration.checks import Check, print_checks, traffic_checks
from tidegate.cli.demonstration.clients import Report
from tidegate.cli.demonstration.plans import RATE_LIMITS
from tidegate.cli.demonstration.tally import Tally
from tidegate.cli.demonstration.traffic import CONTROL, Traffic


def phase(latencies_ms, idle_ms=1.0, **throttles_ms):
    """Return the tallies of a phase in which the limited clients took their limit for a second."""
    tallies = {name: Tally(0.0) for name in ("checkout", CONTROL, "loader", "analytics")}
    tallies["checkout"].add(Report(latencies_ms=latencies_ms), 0.0)
    tallies[CONTROL].add(Report(latencies_ms=[idle_ms]), 0.0)
    for client, limit in RATE_LIMITS.items():
        tallies[client].bytes = int(limit)
    for client, throttle_ms in throttles_ms.items():
        tallies[client].throttles_ms = [throttle_ms]
    return tallies


@pytest.fixture
def traffic():
    """Return a demo that went well."""
    return Traffic(
        before=phase([90.0, 100.0]),
        settling=phase([50.0], loader=500, analytics=100),
        after=phase([1.0, 2.0]),
        after_s=14.0,
    )


def failed(traffic):
    """Return the claims that do not hold."""
    return [check.claim for check in traffic_checks(traffic) if not check.holds]


def test_a_demo_that_went_well_holds(traffic):
    """Every claim is true of it."""
    assert failed(traffic) == []


def with_after(traffic, *moments_ms, idle_ms=1.0):
    """Return the demo with other latencies under quotas: those of each moment."""
    after = phase([], idle_ms)
    for latencies_ms in moments_ms:
        after["checkout"].add(Report(latencies_ms=latencies_ms), 0.0)
    return dataclasses.replace(traffic, after=after)


def test_latency_that_did_not_fall_is_noticed(traffic):
    """The point of quotas is the latency of the others."""
    assert failed(with_after(traffic, [100.0])) == [
        "checkout's latency fell: p50 90.0 ms to 100.0 ms, p90 100.0 ms to 100.0 ms; "
        "at an idle broker: p50 1.0 ms to 1.0 ms, p90 1.0 ms to 1.0 ms"
    ]


def test_latency_that_fell_for_most_only_is_noticed(traffic):
    """Both the usual order and the slow ones have to gain."""
    assert len(failed(with_after(traffic, [1.0, 1.0, 1.0, 150.0]))) == 1


def test_one_bad_moment_says_nothing(traffic):
    """A moment in which the disk writes back does not undo what quotas did in all others."""
    assert failed(with_after(traffic, [1.0, 2.0], [900.0, 1000.0], [1.0, 2.0])) == []


@pytest.mark.parametrize(("idle_ms", "failures"), [(1.0, 1), (1.4, 1), (2.5, 0)])
def test_a_machine_that_became_slower_is_taken_into_account(traffic, idle_ms, failures):
    """Orders took up to 1.5 times as long as before: the quotas' fault, unless those to an idle broker did too."""
    assert len(failed(with_after(traffic, [140.0, 150.0], idle_ms=idle_ms))) == failures


def test_a_machine_that_became_faster_is_not(traffic):
    """Latency has to fall by itself: that an idle broker's fell more is no excuse, nor is it asked for."""
    assert failed(with_after(traffic, [80.0, 90.0], idle_ms=0.1)) == []


def test_latency_that_was_not_measured_is_noticed(traffic):
    """No order acknowledged is no success, at either broker."""
    assert len(failed(with_after(traffic))) == 1
    traffic.before[CONTROL].moments_ms.clear()
    assert len(failed(traffic)) == 1


def test_a_flood_that_was_not_throttled_is_noticed(traffic):
    """A limit that nobody felt shows nothing."""
    traffic.settling["loader"].throttles_ms = []
    assert [claim.partition(" ")[0] for claim in failed(traffic)] == ["loader"]


def test_more_than_limit_and_burst_is_noticed(traffic):
    """Throttled or not, more than the limit allows is a failure."""
    traffic.after["analytics"].bytes = int(RATE_LIMITS["analytics"] * 100)
    assert [claim.partition(" ")[0] for claim in failed(traffic)] == ["analytics"]


def test_a_client_that_got_nothing_is_noticed(traffic):
    """A throttled client is slow, not shut out."""
    traffic.settling["loader"].bytes = traffic.after["loader"].bytes = 0
    assert [claim.partition(" ")[0] for claim in failed(traffic)] == ["loader"]


@pytest.mark.parametrize("which", ["before", "settling", "after"])
def test_a_throttled_checkout_is_noticed(traffic, which):
    """Nobody limited checkout, so nobody may hold it."""
    getattr(traffic, which)["checkout"].throttles_ms = [1]
    assert failed(traffic) == ["checkout was never throttled"]


def test_claims_are_printed_with_their_state():
    """`ok` or `FAILED`, in words, stands before each."""
    out = io.StringIO()
    assert not print_checks(Console(file=out, width=80), [Check("up", True), Check("down", False)])
    assert out.getvalue() == "ok      up\nFAILED  down\n"
