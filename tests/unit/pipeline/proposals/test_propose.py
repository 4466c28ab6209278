"""What is proposed, out of limits that were found; no files, no replay."""

from random import Random

import pytest
from tests.unit.pipeline.proposals.skew import skew_notes

from tidegate.config.quotas_file import QuotaEntry, QuotasFile
from tidegate.errors import ConfigError
from tidegate.pipeline.proposals.limits_of_type import LEAST, BudgetError
from tidegate.pipeline.proposals.notes import hidden_notes, starved_notes
from tidegate.pipeline.proposals.propose import NothingToRecommendError, propose
from tidegate.pipeline.proposals.wanted import Wanted, level_of
from tidegate.pipeline.report.rounding import chosen_up
from tidegate.pipeline.rollup.backlogs import STEP_MS
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
        row | {"node_id": node, "peak": row["never_throttled"], "largest_amount": 0.0}
        for row in limits
        for node in nodes
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
        assert 2 * need * _MB <= values[user] <= 2 * need * _MB * 1.14
    default, loader, _ = (entry.reason for entry in proposal.quotas.entries)
    assert default == "produce: the largest of 3 is user=a: needs 900kB (node 1), times 2"
    assert loader == "produce: needs 20MB (node 1), times 2"


def test_the_node_that_is_named_is_the_one_that_needs_it():
    """That may be for one large fetch, which another node's rate is above; of permits it is not known which one."""
    rows, nodes = _found({"a": _MB}, quota_type=QuotaType.FETCH, nodes=(1, 2))
    nodes[0] |= {"peak": 0.97 * _MB, "largest_amount": 9 * _MB}
    nodes[1] |= {"peak": 0.95 * _MB, "largest_amount": 10 * _MB}
    assert "needs 1MB (node 2), times" in propose("user", rows, nodes, Wanted()).quotas.entries[0].reason
    found = _found({"a": 20.0}, quota_type=QuotaType.CONTROLLER_MUTATION, nodes=(1, 2))
    assert "needs 20, times" in propose("user", *found, Wanted()).quotas.entries[0].reason


def test_those_who_need_about_the_same_share_the_default():
    """Half as much again is no reason for an override."""
    values = _values(propose("user", *_found({"a": 3 * _MB, "b": 2 * _MB, "c": 1.5 * _MB}), Wanted()))
    assert list(values) == [None]
    assert 4.5 * _MB <= values[None] <= 4.55 * _MB


def test_without_a_default_there_are_overrides_alone():
    """Leave other entities without a quota, and the protected with their own."""
    needs = {"loader": 20 * _MB, "a": 0.9 * _MB, "b": 0.8 * _MB, "c": 0.5 * _MB}
    wanted = Wanted(protect=[("user", "c")], with_default=False)
    assert _values(propose("user", *_found(needs), wanted)) == {"c": 0.75 * _MB, "loader": 30 * _MB}


def test_without_a_default_something_has_to_stand_out():
    """Refuse to propose nothing, and a budget that clients without a quota can exceed."""
    alike = _found({"a": 3 * _MB, "b": 2 * _MB})
    with pytest.raises(
        NothingToRecommendError, match="no entity needs at least twice as much as the next one"
    ):
        propose("user", *alike, Wanted(with_default=False))
    with pytest.raises(ConfigError, match="--budget needs a default quota"):
        propose("user", *alike, Wanted(with_default=False, budgets={"producer_byte_rate": _MB}))


@pytest.mark.parametrize("quota_type", list(QuotaType))
def test_proposed_numbers_are_round_and_large_enough(quota_type):
    """Choose at most 14 % more, with two digits that do not change when the quota is written and read."""
    rng = Random(7)
    for _ in range(2000):
        limit = 10 ** rng.uniform(1 if quota_type in (QuotaType.PRODUCE, QuotaType.FETCH) else -2, 11)
        chosen = chosen_up(quota_type.value, limit)
        assert limit <= chosen <= limit * 1.14 + 1
        assert float(f"{chosen:.1e}") == chosen
        assert chosen_up(quota_type.value, chosen) == chosen


def test_few_are_few():
    """Of a hundred, at most ten; the default grows instead."""
    needs = {f"u{number:02}": _MB * 2.1**number for number in range(20)} | {f"v{n}": _MB for n in range(80)}
    assert len(_values(propose("user", *_found(needs), Wanted()))) == 11


def test_who_hardly_did_anything_may_do_a_little():
    """A floor for each type of quota, said in the reason."""
    for quota_type in (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST, QuotaType.CONTROLLER_MUTATION):
        proposal = propose("user", *_found({"a": 0.0, "b": 0.001}, quota_type=quota_type), Wanted())
        assert _values(proposal, quota_type.key) == {None: LEAST[quota_type.value]}
        assert "the floor of " in str(proposal.quotas.entries[0].reason)


def test_the_protected_have_their_own_whatever_they_need():
    """So that who changes the default later leaves them alone."""
    proposal = propose("user", *_found({"a": 3 * _MB, "b": 0.2 * _MB}), Wanted(protect=[("user", "b")]))
    assert list(_values(proposal)) == [None, "b"]
    assert str(proposal.quotas.entries[1].reason).startswith("produce: protected, needs 200kB")


def test_a_budget_cuts_the_largest_to_one_height_on_every_node():
    """All together stay within it; the protected keep what they need with their headroom."""
    needs = {"pay": 2 * _MB, "x": 30 * _MB, "y": 9 * _MB, "a": 1.0 * _MB, "b": 1.0 * _MB}
    wanted = Wanted(headroom=1.0, budgets={"producer_byte_rate": 10 * _MB}, protect=[("user", "pay")])
    proposal = propose("user", *_found(needs, nodes=(1, 2)), wanted)
    values = _values(proposal)
    assert values["pay"] >= 2 * _MB
    assert values["x"] == values["y"] < 9 * _MB
    assert 9.9 * _MB < values["pay"] + values["x"] + values["y"] + 2 * values[None] <= 10 * _MB
    assert "cut to fit the budget of 10MB per broker" in str(proposal.quotas.entries[2].reason)


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
        BudgetError,
        match=r"on node 1 the protected entities need 1.5MB of the budget of 1MB: nothing is left for others",
    ):
        propose("user", *_found({"a": _MB}), wanted)


def test_nobody_to_protect_is_an_error():
    """A misspelt name protects nobody."""
    with pytest.raises(ConfigError, match="cannot protect user='chekout': the record does not contain it"):
        propose("user", *_found({"checkout": _MB}), Wanted(protect=[("user", "chekout")]))


def test_offered_load_that_was_hidden_is_said():
    """Who was throttled when recorded may want more."""
    proposal = propose("user", *_found({"waited": 9 * _MB, "a": _MB, "b": _MB}), Wanted())
    assert "was throttled when recorded and may need more" in str(proposal.quotas.entries[1].reason)


def test_uneven_brokers_are_named():
    """All of them together first, then the entities with most."""
    _, nodes = _found({"a": 1.0, "b": 1.0}, nodes=(1, 2, 3))
    assert skew_notes(nodes) == []
    nodes[0]["amount"] = 10_000
    assert skew_notes(nodes) == [
        "produce: 96.2% of the usage of all clients is on node 1 of 3",
        "produce: 98.0% of the usage of user=a is on node 1 of 3",
        "Each broker measures only its own traffic: if usage were even, smaller quotas would be enough.",
    ]


def test_hidden_demand_is_named_with_what_to_do():
    """Who was throttled when recorded: how often, for how long, and that it takes another record."""
    limits, _ = _found({"waited": 9 * _MB, "a": _MB})
    limits[0] |= {"recorded_throttled_requests": 7, "recorded_throttle_ms": 90_000}
    assert hidden_notes(limits) == [
        "Throttled when recorded, so that their demand is unknown:",
        "  produce user=waited: 7 of 10 requests, 1m30s in all",
        "Raise their quotas for a while, record again, and repeat the command.",
    ]
    assert hidden_notes(limits[1:]) == []


def _behind(user, *, first, largest, last, fetched, node=1, steps=10):
    """Return how far behind a user read in so many steps of ten seconds."""
    return {
        "node_id": node, "entity_user": user, "entity_client_id": None, "first_ms": 0,
        "last_ms": (steps - 1) * STEP_MS, "fetched_bytes": fetched, "first_lag_bytes": first,
        "last_lag_bytes": last, "largest_lag_bytes": largest,
    }  # fmt: skip


def _quotas(**values):
    """Return fetch quotas by user; `everybody` is the default."""
    entries = [
        QuotaEntry(
            entity=(("user", None if user == "everybody" else user),), values={"consumer_byte_rate": value}
        )
        for user, value in values.items()
    ]
    return QuotasFile(entries=tuple(entries))


def test_consumers_that_a_quota_keeps_behind_are_named():
    """With how far, on which node, how long it takes, and what comes in meanwhile; the worst first."""
    limits, _ = _found({"etl": 0.1 * _MB, "late": 0.1 * _MB}, quota_type=QuotaType.FETCH)
    backlogs = [
        _behind("etl", first=0, largest=20 * _MB, last=20 * _MB, fetched=30 * _MB),
        _behind("late", first=20 * _MB, largest=20 * _MB, last=12 * _MB, fetched=18 * _MB, node=2),
        _behind("done", first=90 * _MB, largest=90 * _MB, last=0, fetched=95 * _MB),
        _behind("unknown", first=None, largest=None, last=None, fetched=1),
    ]
    quotas = _quotas(everybody=0.15 * _MB, late=0.2 * _MB, done=200 * _MB)
    assert starved_notes("user", quotas, limits, backlogs) == [
        "These quotas keep consumers behind, with a backlog of more than 10 seconds of the quota:",
        "  fetch user=etl: backlog of 19.1 MiB on node 1; 150kB a second never clears it, with "
        "488.3 KiB a second of new data",
        "  fetch user=late: backlog of 11.4 MiB on node 2; 200kB a second clears it in 2m00s, with "
        "97.7 KiB a second of new data",
        "Let them catch up first, or propose a larger quota.",
    ]
    assert starved_notes("user", _quotas(everybody=_MB * 3), limits, backlogs[:2]) == []


def test_a_quota_below_what_was_needed_is_held_to_the_largest_backlog():
    """Who caught up in the record did so with what it needed; with less it might not have."""
    limits, _ = _found({"etl": 2 * _MB}, quota_type=QuotaType.FETCH)
    backlogs = [_behind("etl", first=90 * _MB, largest=90 * _MB, last=0, fetched=95 * _MB)]
    assert starved_notes("user", _quotas(everybody=3 * _MB), limits, backlogs) == []
    assert (
        "backlog of 85.8 MiB on node 1; 1MB a second clears it in 1m"
        in starved_notes("user", _quotas(everybody=_MB), limits, backlogs)[1]
    )


@pytest.mark.parametrize(
    ("users", "protect", "level"),
    [
        ((), (), "client-id"),
        (("a", "a"), (), "client-id"),
        (("a", "b"), (), "user"),
        (("a", "b"), (("client-id", "x"),), "client-id"),
        (("a",), (("client-id", "x"), ("user", "a")), "both"),
    ],
)
def test_the_level_is_that_of_who_is_protected_else_the_user_if_there_are_several(users, protect, level):
    """Where `--by` does not say it."""
    assert level_of(iter(users), Wanted(protect=protect)) == level


def test_no_more_users_are_looked_at_than_need_be():
    """In this process each chunk is read for them."""
    users = iter("aabcd")
    assert level_of(users, Wanted()) == "user"
    assert list(users) == ["c", "d"]
