"""Needs of many entities as columns: what is proposed, and noted, is what rows of them give."""

from random import Random

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.unit.pipeline.proposals.skew import skew_notes

from tidegate.errors import ConfigError
from tidegate.pipeline.proposals import limits_of_type
from tidegate.pipeline.proposals import propose as propose_module
from tidegate.pipeline.proposals.needs import TableNeeds, requests_by_type, uneven_shares
from tidegate.pipeline.proposals.notes import uneven_notes
from tidegate.pipeline.proposals.propose import proposal_of, propose
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.sums import compact
from tidegate.pipeline.schemas import LIMITS_BY_ENTITY, LIMITS_BY_NODE
from tidegate.quota import QuotaType

_SKEWED = (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST)


def _found(rng, *, users, nodes):
    """Return rows of limits and of nodes, many of them alike or below the floor."""
    entities, on_nodes = [], []
    for quota_type in QuotaType:
        for user in range(users):
            if rng.random() < 0.2:
                continue
            need = rng.choice([0.0, 0.3, 70e3, 70e3, 1e6, 10 ** rng.uniform(-3, 9)])
            name = {"quota_type": quota_type.value, "entity_user": f"u{user}", "entity_client_id": None}
            counts = {
                "requests": rng.randrange(100),
                "amount": rng.choice([0, 1, 50, 10**12]),
                "recorded_throttled_requests": rng.randrange(2),
                "recorded_throttle_ms": rng.randrange(3),
                "recorded_rejected_mutations": 0,
            }
            entities.append(name | counts | {"never_throttled": need, "tolerable": need})
            for node_id in rng.sample(range(nodes), rng.randint(1, nodes)):
                amount = counts["amount"] * rng.choice([1, 1, 5])
                peaks = {"peak": need, "largest_amount": 0.0}
                on_nodes.append(name | counts | peaks | {"node_id": node_id, "amount": amount})
    on_nodes.sort(key=lambda row: [*(kind.value for kind in QuotaType)].index(row["quota_type"]))
    return entities, on_nodes


def _table(rows, columns):
    return TableRows(compact(pa.Table.from_pylist(rows, to_arrow_schema(columns))))


def _wanted(rng):
    budgets = {"producer_byte_rate": rng.choice([1e6, 1e9, 1e12]), "request_percentage": 500.0}
    return Wanted(
        headroom=rng.choice([1, 1.5, 7.3]),
        budgets=budgets if rng.random() < 0.5 else {},
        protect=[("user", f"u{user}") for user in rng.sample(range(12), rng.randrange(4))],
    )


def _outcome(make):
    try:
        found = make()
    except ConfigError as error:
        return str(error), error.hint
    return found.quotas, found.protected


@pytest.mark.parametrize("seed", range(120))
def test_a_proposal_out_of_columns_is_that_out_of_rows(seed, monkeypatch):
    """With few and many overrides, ties, floors, budgets, protected entities and several nodes."""
    rng = Random(seed)
    monkeypatch.setattr(limits_of_type, "MOST_OVERRIDES", rng.choice([1, 4, 1000]))
    entities, nodes = _found(rng, users=rng.choice([1, 4, 60]), nodes=rng.randint(1, 4))
    wanted = _wanted(rng)
    needs = TableNeeds(_table(entities, LIMITS_BY_ENTITY), _table(nodes, LIMITS_BY_NODE), wanted)
    expected = _outcome(lambda: propose("user", entities, nodes, wanted))
    assert _outcome(lambda: proposal_of("user", needs, wanted)) == expected


def test_few_of_many_rows_are_looked_at(monkeypatch):
    """Those of protected entities, and as many others as may have overrides, and one."""
    monkeypatch.setattr(limits_of_type, "MOST_OVERRIDES", 3)
    entities, nodes = _found(Random(1), users=200, nodes=2)
    needs = TableNeeds(_table(entities, LIMITS_BY_ENTITY), _table(nodes, LIMITS_BY_NODE), Wanted())
    found = needs.of_type(QuotaType.PRODUCE, frozenset({("u1", None), ("u199", None)}))
    produced = [row for row in entities if row["quota_type"] == "Produce"]
    protected = [row for row in found.rows if row["entity_user"] in ("u1", "u199")]
    assert len(found.rows) == 4 + len(protected)
    assert found.others == len(produced) - len(protected)
    assert found.on_node == {
        node_id: sum(row["quota_type"] == "Produce" and row["node_id"] == node_id for row in nodes)
        for node_id in (0, 1)
    }
    assert requests_by_type(_table(produced, LIMITS_BY_ENTITY)) == {
        "Produce": sum(row["requests"] for row in produced)
    }


def test_too_many_protected_entities_are_refused(monkeypatch):
    """Each would have an entry of its own in a file that holds fewer."""
    monkeypatch.setattr(propose_module, "_MOST_PROTECTED", 1)
    entities, nodes = _found(Random(1), users=9, nodes=1)
    protect = [("user", entities[0]["entity_user"]), ("user", entities[1]["entity_user"])]
    with pytest.raises(ConfigError, match="cannot protect 2 entities: each has quotas of its own, at most 1"):
        propose("user", entities, nodes, Wanted(protect=protect))
    assert len(propose("user", entities, nodes, Wanted(protect=protect[:1])).protected) == 1


@pytest.mark.parametrize("seed", range(40))
def test_uneven_usage_out_of_columns_is_that_out_of_rows(seed):
    """The same notes, in the same order."""
    rng = Random(seed)
    _, nodes = _found(rng, users=rng.choice([2, 30]), nodes=rng.randint(1, 4))
    brokers = len({row["node_id"] for row in nodes})
    table = _table(nodes, LIMITS_BY_NODE)
    shares = {kind.value: uneven_shares(table, kind, brokers=brokers, least=1.5, most=3) for kind in _SKEWED}
    assert uneven_notes(shares, brokers) == skew_notes(nodes)
