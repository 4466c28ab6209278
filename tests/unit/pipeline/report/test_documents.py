"""The documents that programs read."""

import json
import math
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode
from tests.unit.pipeline.report.rows import HOSTILE, outcome

from tidegate import __version__
from tidegate.cli.main import main
from tidegate.config.locations import location
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.carried import End
from tidegate.pipeline.replay.plan import Plan, in_force_plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import compared
from tidegate.pipeline.report.documents import (
    MOST_LISTED,
    limits_document,
    made_of,
    missing_document,
    replay_document,
    usage_document,
)
from tidegate.pipeline.report.json_text import json_text
from tidegate.pipeline.results.output import MARKER
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


@pytest.fixture
def usage(tmp_path):
    """Return a record with a hole, in two hours' directories."""
    node = RecordingNode(3)
    node.start(START_MS)
    for second in range(6):
        node.produce("alice", "c1", 10, START_MS + 1000 * second)
    del node.events[7]
    write_events(tmp_path / "usage" / "parquet", node.events)
    return tmp_path / "usage"


@pytest.mark.parametrize("command", ["usage", "limits", "obedience", "replay"])
def test_results_say_what_they_were_made_of(usage, tmp_path, command, capsys):
    """The record, its files, nodes and holes, hours, plans, options, version and run."""
    plan = tmp_path / "tight.yaml"
    plan.write_text("quotas:\n  - user: {name: alice}\n    producer_byte_rate: 5\n")
    out = tmp_path / "out"
    more = (
        ["--quotas", str(plan), "--in-force", "--decisions", "--loop", "open"] if command == "replay" else []
    )
    assert main([command, str(usage), "--out", str(out), "--from", "2023-11-14", *more]) == 0
    found = json.loads((out / MARKER).read_text())
    assert (found["format"], found["command"], found["complete"]) == (2, command, True)
    assert found["version"] == __version__
    assert found["run"].startswith("run-20")
    record = found["record"]
    assert record["directory"] == str(usage)
    assert (record["from_ms"], record["to_ms"]) == (1_699_920_000_000, None)
    (file,) = record["files"]
    assert (usage / file).is_file()
    assert record["files_in_all"] == 1
    assert [node["node_id"] for node in record["nodes"]] == [3]
    assert record["nodes"][0]["last_seq"] - record["nodes"][0]["first_seq"] == record["rows"]
    assert [place["reason"] for place in record["missing"]] == ["missing rows"]
    assert all((out / name).is_file() for names in found["tables"].values() for name in names)
    plans = {each["name"]: each for each in found["plans"]}
    if command == "replay":
        assert len(plans["tight"].pop("digest")) == 32
        assert plans["tight"] == {"name": "tight", "in_force": False, "loop": "open"}
        assert plans["in force"]["digest"] is None
        assert found["options"] == {"decisions": True, "continued": False}
    assert "alice" not in json.dumps(found)


def test_it_is_bounded():
    """A document has the number of many files, nodes and holes, and a digest of the names of all files."""
    record = location("s3://bucket/usage")
    nodes = {node_id: [End(1, 2), End(5, 9)] for node_id in range(2 * MOST_LISTED)}
    holes = [Missing(node_id=1, seq=9, ts_ms=0, reason="gap", lost_events=None)] * (2 * MOST_LISTED)
    digests = []
    for last in ("a", "b"):
        paths = [record / f"parquet/{number}.parquet" for number in range(5 * MOST_LISTED)] + [record / last]
        files = UsageFiles(paths=paths, chunks=(), record=record)
        found = made_of(files, nodes=nodes, missing=holes, options={})["record"]
        assert [len(found[name]) for name in ("files", "nodes", "missing")] == [MOST_LISTED] * 3
        in_all = [found[f"{name}_in_all"] for name in ("files", "nodes", "missing")]
        assert in_all == [5 * MOST_LISTED + 1, 2 * MOST_LISTED, 2 * MOST_LISTED]
        assert found["files"][0] == "parquet/0.parquet"
        assert found["nodes"][0] == {"node_id": 0, "first_seq": 1, "last_seq": 9}
        digests.append(found["files_sha256"])
    assert digests[0] != digests[1]


def test_what_lay_in_a_spool_is_told(tmp_path):
    """Its copies had names for the time of the job."""
    copy = Path("/tmp/tidegate-usage-x/date=2026-11-22/hour=01/node-1.parquet")
    files = UsageFiles(paths=[tmp_path / "parquet/a.parquet", copy], chunks=(), record=tmp_path)
    found = made_of(files, nodes={}, missing=[], options={})["record"]
    assert found["files"] == ["parquet/a.parquet", "spool/date=2026-11-22/hour=01/node-1.parquet"]
