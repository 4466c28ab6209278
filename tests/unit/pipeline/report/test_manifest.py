"""What results were made of."""

import json
from pathlib import Path

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate import __version__
from tidegate.cli.main import main
from tidegate.config.locations import location
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.carried import End
from tidegate.pipeline.report.manifest import MOST_LISTED, made_of
from tidegate.pipeline.results.output import MARKER


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
    """Of many files, nodes and holes there is the number, and of all files a digest of their names."""
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
