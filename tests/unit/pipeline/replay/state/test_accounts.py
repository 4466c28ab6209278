"""Accounts of clients: a row for each client, quota type and tags, and the limit over the time of its use."""

import math

import numpy as np
import pyarrow as pa

from tidegate.pipeline.replay.resolved import Resolved, ResolvedColumns
from tidegate.pipeline.replay.state.accounts import AccountTable
from tidegate.quota.admin.entity import DEFAULT, QuotaEntity
from tidegate.quota.measure.throttle import MAX_INT64

_USERS, _CLIENT_IDS = pa.array(["alice", "bob"]), pa.array(["c1", "c2"])
_EVERY_USER = QuotaEntity(user=DEFAULT)


def _found(*tags, bound=5.0):
    """Return what is found of the two clients."""
    rows = [Resolved(each, each, bound, MAX_INT64, _EVERY_USER) for each in tags]
    return ResolvedColumns.of(_USERS, _CLIENT_IDS, rows)


def _looked_up(table, found, before, *, is_known=True):
    clients = np.arange(2)
    return table.rows_for(0, clients, found, before=before, are_known=[is_known] * 2)


def test_clients_come_back_to_the_accounts_that_they_had():
    """Other tags are another account; names of other clients and texts count as such."""
    table, no_rows = AccountTable(), np.zeros(2, np.int32)
    by_user = _looked_up(table, _found(("alice", ""), ("bob", "")), no_rows)
    as_said = _looked_up(table, _found('{"a":"b"}', ("alice", "")), by_user)
    again = _looked_up(table, _found(("alice", ""), ("bob", "")), as_said)
    assert (by_user.tolist(), as_said.tolist(), again.tolist()) == ([0, 1], [2, 3], [0, 1])
    assert _looked_up(table, _found('{"a":"b"}', ("alice", "")), again).tolist() == [2, 3]
    table.tallies[:4] = 1
    used = table.used()
    assert used.clients.tolist() == [0, 1, 0, 1]
    others = [used.other_tags[tags - 4] if tags >= 4 else None for tags in used.tags.tolist()]
    assert others == [None, None, '{"a":"b"}', ("alice", "")]


def test_a_limit_that_is_the_same_has_not_changed():
    """NaN equals itself; a guess does not replace a known limit, and a known one replaces a guess."""
    table, rows = AccountTable(), np.zeros(2, np.int32)
    by_user = ("alice", ""), ("bob", "")
    for bound, is_known in ((7.0, False), (math.nan, True), (math.nan, True), (7.0, False)):
        rows = _looked_up(table, _found(*by_user, bound=bound), rows, is_known=is_known)
    table.tallies[:2] = 1
    places, limits = table.used().limits
    assert [limits[place][2:] for place in places.tolist()] == [(True, False)] * 2
    _looked_up(table, _found(*by_user, bound=1.0), rows)
    places, limits = table.used().limits
    assert [limits[place].has_changed for place in places.tolist()] == [True] * 2
    places, limits = table.latest_limits(rows)
    assert [limits[place].bound for place in places.tolist()] == [1.0, 1.0]


def test_limits_of_no_account_are_removed():
    """A quota may change very often while a record is watched."""
    table, rows = AccountTable(), np.zeros(2, np.int32)
    for bound in range(5000):
        rows = _looked_up(table, _found(("alice", ""), ("bob", ""), bound=float(bound)), rows)
    table.tallies[:2] = 1
    places, limits = table.latest_limits(rows)
    assert len(limits) < 5000
    assert {limits[place].bound for place in places.tolist()} == {4999.0}
    assert {limits[place].has_changed for place in table.used().limits.places.tolist()} == {True}
