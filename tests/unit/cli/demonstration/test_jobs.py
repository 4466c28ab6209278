"""What the demo makes of a replay's rows."""

import re

from tidegate.cli.demonstration.jobs import replay_checks, replay_summary
from tidegate.pipeline.replay.plan import IN_FORCE, Plan
from tidegate.pipeline.report.tables import table_lines


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
    """Return the rows of a demo that went well."""
    return [
        row(IN_FORCE, "checkout"),
        row(IN_FORCE, "loader", throttled=2),
        row("generous", "checkout"),
        row("one-for-all", "checkout", throttled=5),
    ]


def failed(rows):
    """Return the claims that do not hold."""
    return [check.claim for check in replay_checks(rows) if not check.holds]


def test_a_replay_that_went_well_holds():
    """Every claim is true of it."""
    assert failed(went_well()) == []


def test_a_different_decision_is_noticed():
    """One decision that comes out otherwise than recorded fails the demo."""
    rows = [*went_well(), row(IN_FORCE, "analytics", quota="Fetch", different=1)]
    assert failed(rows) == ["replayed under the quotas in force, 29 of 30 decisions come out as recorded"]


def test_no_decisions_are_noticed():
    """An empty record proves nothing."""
    assert len(failed([])) == 2


def test_plans_that_do_the_same_are_noticed():
    """The small default hits checkout, and the generous plan does not."""
    rows = [row(IN_FORCE, "checkout"), row("generous", "checkout", throttled=1)]
    assert failed(rows) == ["'one-for-all' would have throttled checkout 0 times, 'generous' 1"]


def test_the_summary_has_the_clients_bytes_only():
    """Rows of other quotas and other clients are left out; clients come in the demo's order."""
    rows = [*went_well(), row(IN_FORCE, "checkout", quota="Request"), row(IN_FORCE, "tidegate-demo")]
    table = replay_summary(rows[::-1], [Plan(name="generous", records=())])
    lines = [re.split(r"\s{2,}", line.plain) for line in table_lines(table, width=80)]
    assert [line for line in lines if line[0] in (IN_FORCE, "generous")] == [
        [IN_FORCE, "checkout", "none", "10", "never", "–", "0.0%"],
        [IN_FORCE, "loader", "1.0 KiB/s", "10", "20.0%", "1.5 s", "20.0%"],
        ["generous", "checkout", "none", "10", "never", "–", "0.0%"],
    ]
