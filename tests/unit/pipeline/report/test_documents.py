"""The documents that programs read."""

import json
import math

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.unit.pipeline.report.rows import HOSTILE, outcome

from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import compared
from tidegate.pipeline.report.documents import (
    limits_document,
    missing_document,
    replay_document,
    usage_document,
)
from tidegate.pipeline.report.json_text import json_text
from tidegate.pipeline.report.manifest import MOST_LISTED
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.schemas import LIMITS_BY_ENTITY


def _document(rows, *, top=100, unmatched=()):
    plans = [Plan(name="p", records=()), in_force_plan()]
    found = compared(plans, rows)
    document = replay_document(plans, found, top=top, unmatched=unmatched, events=7, out=None)
    return json.loads(json_text(document))


@pytest.mark.parametrize(
    ("quota_type", "amount", "limit"),
    [
        ("Produce", "bytes", "limit_bytes_per_second"),
        ("Fetch", "bytes", "limit_bytes_per_second"),
        ("Request", "thread_ns", "limit_percent"),
        ("ControllerMutation", "mutations", "limit_mutations_per_second"),
    ],
)
def test_numbers_have_their_units_in_their_names(quota_type, amount, limit):
    """What a quota type counts, and per what it limits."""
    row = outcome(client_id="a", quota_type=quota_type, bound=2.5, amount=10, delayed_amount=4)
    (entity,) = _document([row])["entities"]
    (plan,) = entity["plans"]
    assert (entity["quota_type"], entity["user"], entity["client_id"]) == (quota_type, None, "a")
    assert (plan[limit], plan[amount], plan[f"delayed_{amount}"], plan[f"recorded_delayed_{amount}"]) == (
        2.5,
        10,
        4,
        0,
    )
    assert "amount" not in plan
    assert "bound" not in plan
    assert (plan["limit_of"], plan["limit_changed"]) == ("client-id", False)


def test_silent_entities_are_there():
    """As many as were asked for; how many there are is said."""
    rows = [outcome(client_id=f"c{number}", requests=number) for number in range(30)]
    assert len(_document(rows)["entities"]) == 30
    cut = _document(rows, top=3)
    assert (len(cut["entities"]), cut["entities_in_all"], cut["events"]) == (3, 30, 7)


def test_plans_and_what_they_have_for_nobody_are_there():
    """With the entity as quotas.yaml has it."""
    entry = Unmatched(plan="p", entity=(("client-id", None), ("user", "a")), kind="user", nearest="b")
    document = _document([], unmatched=[entry])
    assert document["plans"] == [
        {"name": "p", "in_force": False, "loop": "open"},
        {"name": "in force", "in_force": True, "loop": "open"},
    ]
    assert document["unmatched"] == [
        {
            "plan": "p",
            "entity": {"client-id": {"default": True}, "user": {"name": "a"}},
            "missing": "user",
            "nearest": "b",
            "no_users": False,
        }
    ]


@pytest.mark.parametrize(
    ("bound", "shown"), [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")]
)
def test_limits_that_are_no_numbers_are_texts(bound, shown):
    """JSON has none, and Kafka takes them."""
    (entity,) = _document([outcome(client_id="a", bound=bound)])["entities"]
    assert entity["plans"][0]["limit_bytes_per_second"] == shown


def test_no_name_writes_to_the_terminal():
    """One line of ASCII, and every name comes back whole."""
    rows = [{"listener": name, "requests": 1} for name in HOSTILE]
    document = usage_document(rows, by=["listener"], groups=len(rows), events=1, out=None)
    text = json_text(document)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text) == document
    assert document["groups_in_all"] == len(HOSTILE)


def test_limits_without_end_are_strings():
    """As Kafka prints them: JSON has no such numbers."""
    entity = {"quota_type": "Request", "entity_user": "a", "entity_client_id": None}
    row = {**entity, "never_throttled": math.inf, "tolerable": 1.5, "recorded_throttled_requests": 0}
    node = {**entity, "node_id": 1, "peak": math.nan, "largest_amount": 7.0}
    schema = to_arrow_schema(LIMITS_BY_ENTITY)
    rows = TableRows(pa.Table.from_pylist([row], pa.schema([schema.field(name) for name in row])))
    nodes = TableRows(pa.Table.from_pylist([node]))
    document = limits_document(rows, nodes, tolerated={}, top=1, events=1, out=None)
    (found,) = json.loads(json_text(document))["entities"]
    assert (found["never_throttled_percent"], found["tolerable_percent"]) == ("Infinity", 1.5)
    assert found["nodes"] == [{"node_id": 1, "peak_percent": "NaN", "largest_thread_ns": 7.0}]


def test_a_document_of_many_holes_has_an_end():
    """The first of them, and their number."""
    many = [
        Missing(node_id=1, seq=seq, ts_ms=0, reason="missing rows", lost_events=None)
        for seq in range(2 * MOST_LISTED)
    ]
    document = missing_document(many)
    assert document["missing_in_all"] == 2 * MOST_LISTED
    assert [place["seq"] for place in document["missing"]] == list(range(MOST_LISTED))
