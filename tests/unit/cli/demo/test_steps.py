"""The directory that the demo writes to, its checks, and its summary of a replay."""

import dataclasses
import io
import re

import pytest
from rich.console import Console

from tidegate.cli.demo.steps import (
    Check,
    clear_results,
    print_checks,
    replay_checks,
    replay_summary,
    traffic_checks,
)
from tidegate.cli.demo.traffic import CONTROL, RATE_LIMITS, Report, Tally, Traffic
from tidegate.errors import ConfigError
from tidegate.pipeline.replay.plan import IN_FORCE, Plan, load_plans
from tidegate.pipeline.report.tables import table_lines


def phase(latencies_ms, idle_ms=1.0, **throttles_ms):
    """Return the tallies of a phase in which the limited clients took their limit for a second."""
    tallies = {name: Tally(started_s=0.0) for name in ("checkout", CONTROL, "loader", "analytics")}
    tallies["checkout"].add(Report(latencies_ms=latencies_ms), 0.0)
    tallies[CONTROL].add(Report(latencies_ms=[idle_ms]), 0.0)
    for client, limit in RATE_LIMITS.items():
        tallies[client].bytes = int(limit)
    for client, throttle_ms in throttles_ms.items():
        tallies[client].throttles_ms = [throttle_ms]
    return tallies


@pytest.fixture
def traffic():
    """Return the traffic of a demo in which all claims hold."""
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
    """All checks hold."""
    assert failed(traffic) == []


def with_after(traffic, *moments_ms, idle_ms=1.0):
    """Return the demo with other latencies under quotas: those of each moment."""
    after = phase([], idle_ms)
    for latencies_ms in moments_ms:
        after["checkout"].add(Report(latencies_ms=latencies_ms), 0.0)
    return dataclasses.replace(traffic, after=after)


def test_latency_that_did_not_fall_is_noticed(traffic):
    """Quotas must reduce the latency of the other clients."""
    assert failed(with_after(traffic, [100.0])) == [
        "checkout's latency fell: p50 90.0 ms to 100.0 ms, p90 100.0 ms to 100.0 ms; "
        "at an idle broker: p50 1.0 ms to 1.0 ms, p90 1.0 ms to 1.0 ms"
    ]


def test_latency_that_fell_for_most_only_is_noticed(traffic):
    """The median and p90 must both fall."""
    assert len(failed(with_after(traffic, [1.0, 1.0, 1.0, 150.0]))) == 1


def test_one_bad_moment_says_nothing(traffic):
    """One report with high latencies, as when the disk writes back, does not fail the check."""
    assert failed(with_after(traffic, [1.0, 2.0], [900.0, 1000.0], [1.0, 2.0])) == []


@pytest.mark.parametrize(("idle_ms", "failures"), [(1.0, 1), (1.4, 1), (2.5, 0)])
def test_a_machine_that_became_slower_is_taken_into_account(traffic, idle_ms, failures):
    """Latency that rose by half fails the check, unless that of the idle broker rose by more."""
    assert len(failed(with_after(traffic, [140.0, 150.0], idle_ms=idle_ms))) == failures


def test_a_machine_that_became_faster_is_not(traffic):
    """Latency must fall, but need not fall as much as that of the idle broker."""
    assert failed(with_after(traffic, [80.0, 90.0], idle_ms=0.1)) == []


def test_latency_that_was_not_measured_is_noticed(traffic):
    """Without acknowledged orders at either broker, the check fails."""
    assert len(failed(with_after(traffic))) == 1
    traffic.before[CONTROL].moments_ms.clear()
    assert len(failed(traffic)) == 1


def test_a_flood_that_was_not_throttled_is_noticed(traffic):
    """A limit that throttled no request fails the check."""
    traffic.settling["loader"].throttles_ms = []
    assert [claim.partition(" ")[0] for claim in failed(traffic)] == ["loader"]


def test_more_than_limit_and_burst_is_noticed(traffic):
    """More bytes than the limit allows fail the check."""
    traffic.after["analytics"].bytes = int(RATE_LIMITS["analytics"] * 100)
    assert [claim.partition(" ")[0] for claim in failed(traffic)] == ["analytics"]


def test_a_client_that_got_nothing_is_noticed(traffic):
    """A throttled client must still be served."""
    traffic.settling["loader"].bytes = traffic.after["loader"].bytes = 0
    assert [claim.partition(" ")[0] for claim in failed(traffic)] == ["loader"]


@pytest.mark.parametrize("which", ["before", "settling", "after"])
def test_a_throttled_checkout_is_noticed(traffic, which):
    """The demo sets no quota for checkout, so it must not be throttled."""
    getattr(traffic, which)["checkout"].throttles_ms = [1]
    assert failed(traffic) == ["checkout was never throttled"]


def test_claims_are_printed_with_their_state():
    """Each claim is printed after `ok` or `FAILED`."""
    out = io.StringIO()
    assert not print_checks(Console(file=out, width=80), [Check("up", True), Check("down", False)])
    assert out.getvalue() == "ok      up\nFAILED  down\n"


def row(plan, client, *, quota="Produce", requests=10, throttled=0, different=0):
    """Return one row of `REPLAY_BY_ENTITY`, as far as the demo reads it."""
    return {
        "plan": plan,
        "entity_client_id": client,
        "quota_type": quota,
        "bound": 1024.0 if throttled else None,
        "bound_changed": False,
        "requests": requests,
        "amount": 1000,
        "throttled_requests": throttled,
        "longest_throttle_ms": 1500 * bool(throttled),
        "delayed_amount": 100 * throttled,
        "different_decisions": different,
    }


def went_well():
    """Return the rows of a replay in which all claims hold."""
    return [
        row(IN_FORCE, "checkout"),
        row(IN_FORCE, "loader", throttled=2),
        row("generous", "checkout"),
        row("one-for-all", "checkout", throttled=5),
    ]


def failed_replay(rows):
    """Return the claims that do not hold."""
    return [check.claim for check in replay_checks(rows) if not check.holds]


def test_a_replay_that_went_well_holds():
    """All checks hold."""
    assert failed_replay(went_well()) == []


def test_a_different_decision_is_noticed():
    """One decision that differs from the recorded decision fails the demo."""
    rows = [*went_well(), row(IN_FORCE, "analytics", quota="Fetch", different=1)]
    assert failed_replay(rows) == [
        "replayed under the quotas in force, 29 of 30 decisions come out as recorded"
    ]


def test_no_decisions_are_noticed():
    """Without decisions, both checks fail."""
    assert len(failed_replay([])) == 2


def test_plans_that_do_the_same_are_noticed():
    """Only the small default may throttle checkout."""
    rows = [row(IN_FORCE, "checkout"), row("generous", "checkout", throttled=1)]
    assert failed_replay(rows) == ["'one-for-all' would have throttled checkout 0 times, 'generous' 1"]


def test_the_summary_has_the_clients_bytes_only():
    """The table omits other quotas and other clients, and lists clients in the demo's order."""
    rows = [*went_well(), row(IN_FORCE, "checkout", quota="Request"), row(IN_FORCE, "tidegate-demo")]
    table = replay_summary(rows[::-1], [Plan(name="generous", records=())])
    lines = [re.split(r"\s{2,}", line.plain) for line in table_lines(table, width=80)]
    assert [line for line in lines if line[0] in (IN_FORCE, "generous")] == [
        [IN_FORCE, "checkout", "none", "10", "never", "–", "0.0%"],
        [IN_FORCE, "loader", "1.0 KiB/s", "10", "20.0%", "1.5 s", "20.0%"],
        ["generous", "checkout", "none", "10", "never", "–", "0.0%"],
    ]


def test_a_new_directory_is_made(tmp_path):
    """The directory and its parents need not exist. It holds the plans, which can be loaded."""
    clear_results(tmp_path / "a" / "b")
    plans = load_plans(sorted((tmp_path / "a" / "b" / "plans").iterdir()))
    assert [plan.name for plan in plans] == ["generous", "one-for-all"]


def test_an_earlier_demo_is_cleared_away(tmp_path):
    """The results of the last demo are deleted when the next begins."""
    clear_results(tmp_path)
    (tmp_path / "broker").mkdir()
    (tmp_path / "broker" / "old").touch()
    (tmp_path / "broker.log").touch()
    clear_results(tmp_path)
    assert not (tmp_path / "broker").exists()
    assert not (tmp_path / "broker.log").exists()


def test_a_file_among_the_results_stays(tmp_path):
    """A file next to an earlier demo's results is not deleted."""
    clear_results(tmp_path)
    (tmp_path / "notes.txt").touch()
    clear_results(tmp_path)
    assert (tmp_path / "notes.txt").exists()


def test_a_foreign_directory_is_refused(tmp_path):
    """A directory that holds anything else is not changed, and the error names what was found."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"is not empty .*'thesis\.tex'") as refused:
        clear_results(tmp_path)
    assert "--out" in refused.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_link_is_removed_and_not_followed(tmp_path):
    """A symbolic link in the place of a result is deleted, and its target is not."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    clear_results(tmp_path / "out")
    (tmp_path / "out" / "broker").symlink_to(precious)
    clear_results(tmp_path / "out")
    assert (precious / "data").exists()
    assert not (tmp_path / "out" / "broker").exists()


def test_a_file_in_its_place_is_an_error(tmp_path):
    """A file with the directory's name is an error."""
    (tmp_path / "out").touch()
    with pytest.raises(ConfigError, match="cannot write to"):
        clear_results(tmp_path / "out")
