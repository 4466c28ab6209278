"""`tidegate limits`: the smallest limits as a table, as JSON and as Parquet."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.replaying.callbacks import quota_groups
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.quota import QuotaRecord

_HOSTILE = "x\x1b[2J\n[red]é" * 40


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    """A client that bursts once and then goes on evenly, one with a hostile name, one that was throttled."""
    node = RecordingNode()
    throttled = QuotaRecord(entity=(("user", "carol"),), key="producer_byte_rate", value=10.0)
    node.start(START_MS, records=(throttled,))
    node.produce("alice", "c1", 50_000, START_MS)
    for second in range(200):
        node.produce("alice", "c1", 10_000, START_MS + 1000 * second)
    node.fetch(_HOSTILE, "c2", 1_000_000, START_MS + 200_000, handler_ns=5_000_000)
    node.produce("carol", "c3", 1000, START_MS + 201_000)
    node.mutate("alice", "c1", 110, START_MS + 202_000, connection_id=9)
    node.mutate("alice", "c1", 1, START_MS + 202_001, connection_id=9)
    node.other("alice", "c1", START_MS + 202_002, connection_id=9, api_key=19)
    write_events(tmp_path / "usage" / "parquet", node.events, rows_per_file=50)
    return tmp_path / "usage"


def test_the_table_has_each_entity_and_the_default(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each in a line, hostile names made harmless; who was throttled is said."""
    assert main(["limits", str(usage)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert "\x1b" not in out
    assert [line.split() for line in lines if "alice" in line or "carol" in line] == [
        ["produce", "user=alice", "client-id=c1", "16000B", "14559B", "0"],
        ["produce", "user=carol", "client-id=c3", "100B", "100B", "1"],
        ["request", "user=alice", "client-id=c1", "0", "%", "0", "%", "0"],
        ["request", "user=carol", "client-id=c3", "0", "%", "0", "%", "0"],
        ["mutation", "user=alice", "client-id=c1", "10.1", "9.18", "0"],
    ]
    assert ["produce", "<default>,", "for", "all", "2", "entities", "16000B", "14559B", "1"] in map(
        str.split, lines
    )
    assert "1 of 7 entities were throttled when this was recorded:" in lines


@pytest.mark.usefixtures("small_terminal")
def test_a_terminal_of_80_columns_has_room_for_all(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Long names are folded."""
    assert main(["limits", str(usage)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_json_and_tables_have_all(usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With all digits, names as they are."""
    assert main(["limits", str(usage), "--by", "user", "--json", "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["tolerated"] == {"delayed_percent": 1.0, "longest_ms": 1000}
    by_entity = pq.read_table(tmp_path / "out" / "limits_by_entity").to_pylist()
    assert (found["format"], found["command"], found["entities_in_all"]) == (1, "limits", len(by_entity))
    assert found["tables"] == str(tmp_path / "out")
    assert sorted((row["quota_type"], row["user"], row["requests"]) for row in found["entities"]) == sorted(
        (row["quota_type"], row["entity_user"], row["requests"]) for row in by_entity
    )
    by_node = pq.read_table(tmp_path / "out" / "limits_by_node")
    assert [len(row["nodes"]) for row in found["entities"]] == [1] * len(by_node)
    (fetch,) = [row for row in found["entities"] if row["quota_type"] == "Fetch"]
    assert (fetch["user"], fetch["client_id"]) == (_HOSTILE, None)
    # a larger fetch than ten seconds of it would be cut
    assert fetch["never_throttled_bytes_per_second"] == 100_000.0
    assert fetch["nodes"][0]["largest_bytes"] == 1_000_000
    assert [default["quota_type"] for default in found["defaults"]] == [
        "Produce",
        "Fetch",
        "Request",
        "ControllerMutation",
    ]


def test_the_entities_and_windows_of_a_plan(
    usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its limits are; what it has no quota for is not looked at."""
    plan = tmp_path / "quotas.yaml"
    plan.write_text(
        "windows: {quota.window.num: 2}\nquotas:\n  - client-id: {name: c1}\n    producer_byte_rate: 1\n"
    )
    assert main(["limits", str(usage), "--quotas", str(plan), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["entities"]
    assert (row["quota_type"], row["user"], row["client_id"]) == ("Produce", None, "c1")
    assert row["never_throttled_bytes_per_second"] == 70_000.0


def test_top_holds_for_json_too(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The largest of each type, with their nodes; how many there are is said."""
    assert main(["limits", str(usage), "--by", "user", "--json", "--top", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    first, *others = found["entities"]
    assert (first["quota_type"], first["user"]) == ("Produce", "alice")
    assert len(others) == 3
    assert found["entities_in_all"] > 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--delayed", "101"), "expected a number from 0 to 100, got '101'"),
        (("--longest", "nan"), "expected a number from 0 to 86400, got 'nan'"),
        (("--by", "user", "--quotas", "x.yaml"), "not allowed with argument"),
    ],
)
def test_bad_options_are_one_clear_error(
    arguments: tuple[str, ...], error: str, usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, the reason on stderr."""
    with pytest.raises(SystemExit) as stopped:
        main(["limits", str(usage), *arguments])
    assert stopped.value.code == 2
    assert error in capsys.readouterr().err


def test_a_callback_of_the_record_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who it puts into a group has no limit of its own, whatever the table says."""
    node = RecordingNode()
    node.start(START_MS)
    node.exchange(quota_groups(), "tidegate.callbacks:QuotaGroups", START_MS)
    node.produce("alice", "c1", 300, START_MS)
    write_events(tmp_path, node.events)
    assert main(["limits", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "client.quota.callback.class=tidegate.callbacks:QuotaGroups was set." in lines
    assert max(map(len, lines)) <= 80
    assert main(["recommend", str(tmp_path), "--force"]) == 0
    comments = " ".join(capsys.readouterr().out.replace("#", " ").split())
    assert "callbacks:QuotaGroups was set. These limits follow Kafka's own rules" in comments
