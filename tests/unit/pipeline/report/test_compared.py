"""Plans beside one another, by column, against the same in plain Python."""

from random import Random

import pytest
from tests.unit.pipeline.report.rows import HOSTILE, outcome

from tidegate.pipeline.replay.plan import IN_FORCE, Plan
from tidegate.pipeline.report.compared import compared, entity_rows
from tidegate.quota.admin.definitions import QuotaRecord

_NAMES = (None, "", "a", "b", *HOSTILE[:1])
_TYPES = ("Produce", "Request", "ControllerMutation")
_COUNTS = (
    "requests", "throttled_requests", "throttle_ms", "rejected_mutations",
    "recorded_throttled_requests", "recorded_throttle_ms", "recorded_rejected_mutations",
)  # fmt: skip
_PLANS = [
    Plan(name="p", records=(QuotaRecord(entity=(("client-id", "a"),), key="producer_byte_rate", value=1.0),)),
    Plan(name="q", records=(QuotaRecord(entity=(("user", None),), key="request_percentage", value=1.0),)),
    Plan(name=IN_FORCE, records=None),
]


def _rows(rng, count):
    """Return rows of which no two are of one plan, quota type and entity."""
    found = {}
    for _ in range(count):
        key = rng.choice(_PLANS).name, rng.choice(_TYPES), rng.choice(_NAMES), rng.choice(_NAMES)
        only = {name: rng.choice((None, "", "x", "y")) for name in ("only_user", "only_client_id")}
        counts = {name: rng.choice((0, 0, 1, 2, 2**62)) for name in _COUNTS}
        plan, quota_type, user, client_id = key
        found[key] = outcome(plan, user, client_id, quota_type=quota_type, **only, **counts)
    return list(found.values())


def _in_order(rows):
    """Return the rows of each that is compared, by plan, in plain Python."""
    groups = {}
    for row in rows:
        only, entity = (
            (row["only_user"], row["only_client_id"]),
            (row["entity_user"], row["entity_client_id"]),
        )
        key = row["quota_type"], (entity if None in only else only), None in only
        if row["plan"] in groups.get(key, ()):
            key = (*key, entity)
        groups.setdefault(key, {})[row["plan"]] = row
    return sorted(groups.values(), key=_rank)


def _is_named(group):
    named = ("Produce", None, "a")
    return any(named == (r["quota_type"], r["entity_user"], r["entity_client_id"]) for r in group.values())


def _whose(group):
    first = next(iter(group.values()))
    entities = {(row["entity_user"], row["entity_client_id"]) for row in group.values()}
    return entities.pop() if len(entities) == 1 else (first["only_user"], first["only_client_id"])


def _rank(group):
    def largest(name):
        return max(row[name] for row in group.values())

    numbers = (
        largest("throttle_ms"), largest("recorded_throttle_ms"), largest("rejected_mutations"),
        largest("recorded_rejected_mutations"), _is_named(group), largest("requests"),
    )  # fmt: skip
    names = [name or "" for name in _whose(group)]
    return *(-number for number in numbers), next(iter(group.values()))["quota_type"], *names


def _is_of_interest(group):
    names = ("throttled_requests", "rejected_mutations")
    held = any(
        row[f"{begin}{name}"] for row in group.values() for begin in ("", "recorded_") for name in names
    )
    return held or _is_named(group)


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_the_first_are_those_of_a_sort_of_all(count):
    """Groups, their order, who is of interest, whose limit it is; names may be empty, and of any level."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rows = _rows(Random(seed), count)
    expected, found = _in_order(rows), compared(_PLANS, rows)
    assert len(found) == len(expected)
    of_interest = [group for group in expected if _is_of_interest(group)]
    assert found.of_interest == len(of_interest)
    for top in (1, 5, 1000):
        for groups, with_all in ((expected, True), (of_interest, False)):
            first = found.first(top, with_all=with_all)
            assert [_rank(each.rows) for each in first] == [_rank(group) for group in groups[:top]]
            assert [each.is_named for each in first] == [_is_named(group) for group in groups[:top]]
            assert all((each.user, each.client_id) == _whose(each.rows) for each in first)
    assert {repr(sorted(map(repr, each.rows.values()))) for each in found.first(1000, with_all=True)} == {
        repr(sorted(map(repr, group.values()))) for group in expected
    }
    for quota_type in _TYPES:
        of_type = [group for group in expected if next(iter(group.values()))["quota_type"] == quota_type]
        assert found.of_type(quota_type) == len(of_type)


def test_totals_have_room_for_any_number():
    """Sums are Python's, though columns are not."""
    rows = [
        outcome(client_id=name, requests=2**63 - 1, longest_throttle_ms=place)
        for place, name in enumerate("abc")
    ]
    total = compared(_PLANS, rows).total("Produce", "p")
    assert (total["requests"], total["longest_throttle_ms"]) == (3 * (2**63 - 1), 2)
    assert total["first_throttled_ts_ms"] is None
    nothing = compared(_PLANS, rows).total("Fetch", "p")
    assert (nothing["requests"], nothing["longest_throttle_ms"], nothing["first_throttled_ts_ms"]) == (
        0,
        0,
        None,
    )


def test_rows_of_a_table_are_a_sequence():
    """One, some, all; those with a value, those with most of something."""
    rows = [outcome(plan, client_id=str(place), waited_ms=place % 3) for plan in "pq" for place in range(5)]
    found = entity_rows(rows)
    assert (len(found), list(found), found[1], found[-2:]) == (10, rows, rows[1], rows[-2:])
    assert list(found.where(plan="q", entity_client_id="3")) == [rows[8]]
    most = found.where(plan="p").largest("waited_ms", top=3)
    assert [row["entity_client_id"] for row in most] == ["2", "1", "4"]


def test_no_two_have_the_same_key():
    """A user's quota, and that of the user's empty client id, have equal names."""
    user = outcome("p", "alice", only_user="alice", requests=2)
    empty = outcome(
        "q", "alice", only_user="alice", only_client_id="", bound_of="user and client-id", requests=1
    )
    found = compared(_PLANS, [user, empty]).first(9, with_all=True)
    assert [(each.user, each.client_id) for each in found] == [("alice", None)] * 2
    assert [each.key for each in found] == ["Produce/alice:*", "Produce/alice:*/alice:"]
    rng = Random(22)
    for _ in range(30):
        found = compared(_PLANS, _rows(rng, 60))
        assert len({each.key for each in found.first(99, with_all=True)}) == len(found)
