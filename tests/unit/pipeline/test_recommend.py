"""What is proposed, out of limits that were found; no files, no replay."""

import pytest

from tidegate.errors import ConfigError
from tidegate.pipeline.recommend import LEAST, BudgetError, Wanted, propose, skew_notes
from tidegate.quota import QuotaType

_MB = 1_000_000.0


def _found(needs, *, quota_type=QuotaType.PRODUCE, nodes=(1,)):
    """Return rows of limits and of nodes: every user needs so much of each node."""
    limits = [
        {
            "quota_type": quota_type.value, "entity_user": user, "entity_client_id": None, "requests": 10,
            "amount": 100, "never_throttled": need, "tolerable": need,
            "recorded_throttled_requests": int(user == "waited"),
            "recorded_throttle_ms": 0, "recorded_rejected_mutations": 0,
        }
        for user, need in needs.items()
    ]  # fmt: skip
    return limits, [
        row | {"node_id": node, "peak": row["never_throttled"]} for row in limits for node in nodes
    ]


def _values(proposal, key="producer_byte_rate"):
    """Return the limits by user; None: the default."""
    return {
        dict(entry.entity)["user"]: entry.values[key]
        for entry in proposal.quotas.entries
        if key in entry.values
    }


def test_the_few_who_need_more_have_overrides():
    """The default is for the others; each number is explained."""
    needs = {"loader": 20 * _MB, "big": 4 * _MB, "a": 0.9 * _MB, "b": 0.8 * _MB, "c": 0.5 * _MB}
    proposal = propose("user", *_found(needs), Wanted(headroom=2.0))
    values = _values(proposal)
    assert list(values) == [None, "loader", "big"]
    for user, need in ((None, 0.9), ("loader", 20), ("big", 4)):
        assert 2 * need * _MB <= values[user] <= 2 * need * _MB * 1.01
    default, loader, _ = (entry.reason for entry in proposal.quotas.entries)
    assert default == "produce: the largest of 3 is user=a: needs 879KiB (node 1), times 2"
    assert loader == "produce: needs 19532KiB (node 1), times 2"


def test_those_who_need_about_the_same_share_the_default():
    """Half as much again is no reason for an override."""
    values = _values(propose("user", *_found({"a": 3 * _MB, "b": 2 * _MB, "c": 1.5 * _MB}), Wanted()))
    assert list(values) == [None]
    assert 4.5 * _MB <= values[None] <= 4.55 * _MB


def test_few_are_few():
    """Of a hundred, at most ten; the default grows instead."""
    needs = {f"u{number:02}": _MB * 2.1**number for number in range(20)} | {f"v{n}": _MB for n in range(80)}
    assert len(_values(propose("user", *_found(needs), Wanted()))) == 11


def test_who_hardly_did_anything_may_do_a_little():
    """A floor for each type of quota, said in the reason."""
    for quota_type in (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST, QuotaType.CONTROLLER_MUTATION):
        proposal = propose("user", *_found({"a": 0.0, "b": 0.001}, quota_type=quota_type), Wanted())
        assert _values(proposal, quota_type.key) == {None: LEAST[quota_type.value]}
        assert "the least that is proposed" in str(proposal.quotas.entries[0].reason)


def test_the_protected_have_their_own_whatever_they_need():
    """So that who changes the default later leaves them alone."""
    proposal = propose("user", *_found({"a": 3 * _MB, "b": 0.2 * _MB}), Wanted(protect=[("user", "b")]))
    assert list(_values(proposal)) == [None, "b"]
    assert str(proposal.quotas.entries[1].reason).startswith("produce: protected, needs 196KiB")


def test_a_budget_cuts_the_largest_to_one_height_on_every_node():
    """All together stay within it; the protected keep what they need with their headroom."""
    needs = {"pay": 2 * _MB, "x": 30 * _MB, "y": 9 * _MB, "a": 1.0 * _MB, "b": 1.0 * _MB}
    wanted = Wanted(headroom=1.0, budgets={"producer_byte_rate": 10 * _MB}, protect=[("user", "pay")])
    proposal = propose("user", *_found(needs, nodes=(1, 2)), wanted)
    values = _values(proposal)
    assert values["pay"] >= 2 * _MB
    assert values["x"] == values["y"] < 9 * _MB
    assert 9.9 * _MB < values["pay"] + values["x"] + values["y"] + 2 * values[None] <= 10 * _MB
    assert "cut to what a budget of 9766KiB a broker leaves" in str(proposal.quotas.entries[2].reason)


def test_a_budget_below_what_all_do_cuts_the_default_too():
    """Whoever is under it counts with all of it."""
    wanted = Wanted(headroom=1.0, budgets={"producer_byte_rate": 2 * _MB})
    values = _values(propose("user", *_found({"x": 30 * _MB, "a": _MB, "b": _MB, "c": _MB}), wanted))
    assert list(values) == [None]
    assert 0.99 * 500_000 <= values[None] <= 500_000


def test_the_protected_alone_may_need_more_than_the_budget():
    """Which is an error with the numbers, not a quota that throttles them."""
    wanted = Wanted(budgets={"producer_byte_rate": _MB}, protect=[("user", "a")])
    with pytest.raises(
        BudgetError, match="of the 977KiB of node 1 the protected need 1465KiB: nothing is left"
    ):
        propose("user", *_found({"a": _MB}), wanted)


def test_nobody_to_protect_is_an_error():
    """A misspelt name protects nobody."""
    with pytest.raises(ConfigError, match="nobody in the record is user='chekout'"):
        propose("user", *_found({"checkout": _MB}), Wanted(protect=[("user", "chekout")]))


def test_offered_load_that_was_hidden_is_said():
    """Who was throttled when recorded may want more."""
    proposal = propose("user", *_found({"waited": 9 * _MB, "a": _MB, "b": _MB}), Wanted())
    assert "was throttled when recorded and may want more" in str(proposal.quotas.entries[1].reason)


def test_uneven_brokers_are_named():
    """All of them together first, then the entities with most."""
    _, nodes = _found({"a": 1.0, "b": 1.0}, nodes=(1, 2, 3))
    assert skew_notes(nodes) == []
    nodes[0]["amount"] = 10_000
    assert skew_notes(nodes) == [
        "produce: node 1 has 96.2% of what all used of 3",
        "produce: node 1 has 98.0% of what user=a used of 3",
        "A quota holds on each broker by itself: evened out, less of it would do.",
    ]
