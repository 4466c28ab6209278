"""Which entries of a plan are for nobody."""

import time

import pyarrow as pa
import pytest

from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.replay.unmatched import Unmatched, unmatched_entries
from tidegate.quota.admin.definitions import QuotaRecord, entity_parts
from tidegate.quota.admin.groups import Groups

_CLIENTS = (("alice", "loader"), ("alice", "checkout"), ("bob", "reporting"), ("ANONYMOUS", ""))


def _found(*entities, clients=_CLIENTS):
    records = tuple(
        QuotaRecord(entity=entity_parts(parts.items()), key="producer_byte_rate", value=1.0)
        for parts in entities
    )
    plans = [Plan(name="p", records=records), in_force_plan()]
    users, client_ids = (pa.array(names, pa.string()) for names in zip(*clients, strict=True))
    return unmatched_entries(plans, users=users, client_ids=client_ids)


@pytest.mark.parametrize(
    "parts",
    [
        {"client-id": "loader"},
        {"user": "alice", "client-id": "loader"},
        {"user": "bob", "client-id": None},
        {"user": None},
        {"user": None, "client-id": None},
        {"ip": None},
    ],
)
def test_what_is_for_somebody_is_not_named(parts):
    """Names that are there, together where there are two, and defaults."""
    assert _found(parts) == []


def test_a_misspelt_name_is_named_with_the_nearest():
    """Of its own kind; none where none is like it."""
    one, other = _found({"client-id": "loadr"}, {"user": "zzz"})
    assert (one.kind, one.nearest) == ("client-id", "loader")
    assert (other.kind, other.nearest, other.no_users) == ("user", None, False)


def test_names_that_never_come_together_are_named():
    """Bob has no loader."""
    (one,) = _found({"user": "bob", "client-id": "loader"})
    assert one == Unmatched(plan="p", entity=(("client-id", "loader"), ("user", "bob")))


def test_a_user_where_all_are_anonymous_is_told_so():
    """No name is like it: nobody has logged in."""
    (one,) = _found({"user": "ANONYMOU"}, clients=[("ANONYMOUS", "a"), ("ANONYMOUS", "b")])
    assert (one.no_users, one.nearest) == (True, None)


def test_members_of_groups_are_named():
    """Also those that are in the record only as the other kind."""
    groups = Groups(members={("user", "alice"): "g", ("client-id", "loadr"): "g", ("client-id", "bob"): "g"})
    users, client_ids = (pa.array(names, pa.string()) for names in zip(*_CLIENTS, strict=True))
    one, other = unmatched_entries(
        [Plan(name="p", records=(), groups=groups)], users=users, client_ids=client_ids
    )
    assert (one.entity, one.nearest) == ((("client-id", "loadr"),), "loader")
    assert other.entity == (("client-id", "bob"),)


def test_an_entity_is_named_once():
    """Whatever number of quotas it has."""
    assert len(_found({"user": "zzz"}, {"user": "zzz"})) == 1


@pytest.mark.alone
def test_many_names_cost_seconds():
    """A hundred thousand recorded names, long ones too, and as many mistakes as a file may have."""
    clients = [("ANONYMOUS", f"client-{number:06}" + "x" * (number % 300)) for number in range(100_000)]
    entities = [{"client-id": f"clent-{number}"} for number in range(10_000)]
    before = time.process_time()
    found = _found(*entities, clients=clients)
    assert len(found) == 10_000
    assert sum(one.nearest is not None for one in found) <= 20
    assert time.process_time() - before < 20


def test_nobody_is_in_an_empty_record():
    """Neither are users known to be anonymous."""
    plan = Plan(
        name="p", records=(QuotaRecord(entity=(("user", "a"),), key="producer_byte_rate", value=1.0),)
    )
    nothing = pa.array([], pa.string())
    (one,) = unmatched_entries([plan], users=nothing, client_ids=nothing)
    assert not one.no_users
