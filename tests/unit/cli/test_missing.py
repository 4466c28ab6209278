"""What is missing in a record is said by every job, and what nobody knows is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.pipeline.results.output import MARKER
from tidegate.usage.arrow import arrow_schema

REPLAY = ["replay", "--in-force"]


def _node():
    node = RecordingNode()
    node.start(START_MS)
    for second in range(6):
        node.produce("alice", "c1", 10, START_MS + 1000 * second)
    return node


def _write_changed(directory, column, value, at=-1):
    """Write a record with another value in one row, as who knows no columns without nulls."""
    node = _node()
    node.events[at][column] = value
    directory.mkdir()
    schema = pa.schema([field.with_nullable(True) for field in arrow_schema()])
    table = pa.Table.from_pylist(node.events, schema=schema)
    pq.write_table(table, directory / "rows.parquet")


@pytest.fixture(scope="module")
def usage(tmp_path_factory):
    """Return a directory with a record that has lost events, and a file."""
    node = _node()
    node.gap(START_MS + 7000)
    node.produce("alice", "c1", 10, START_MS + 8000)
    del node.events[7]
    directory: Path = tmp_path_factory.mktemp("usage")
    write_events(directory, node.events)
    return directory


@pytest.mark.parametrize("command", [["usage"], ["limits"], ["obedience"], ["recommend", "--force"], REPLAY])
def test_missing_rows_are_said(usage, command, capsys):
    """Where, and how one knows."""
    assert main([*command, str(usage)]) == 0
    said = " ".join(capsys.readouterr().out.replace("#", "").split()).lower()
    assert "rows of node 1 are missing before 2023-11-14 22:13:23 utc (missing file)" in said
    assert "node 1 lost 1 event before 2023-11-14 22:13:28 utc (gap)" in said


@pytest.mark.parametrize("command", [["usage"], ["limits"], ["obedience"], REPLAY])
def test_documents_have_what_is_missing(usage, command, capsys):
    """With the reason."""
    assert main([*command, str(usage), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["missing_in_all"] == 2
    assert [(place["reason"], place["lost_events"]) for place in document["missing"]] == [
        ("missing rows", None),
        ("gap", 1),
    ]


@pytest.mark.parametrize("command", ["usage", "limits", "obedience", "recommend", "report"])
def test_unknown_kinds_are_refused(tmp_path, command, capsys):
    """By name: the rows may be anything."""
    _write_changed(tmp_path / "usage", "kind", "lease")
    more = ["--out", str(tmp_path / "report.html")] if command == "report" else []
    assert main([command, str(tmp_path / "usage"), *more]) == 2
    assert "unknown kind 'lease' in 1 rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("column", "value", "at", "reason"),
    [
        ("ts_ms", None, -1, "1 rows of 'FILE' have no ts_ms"),
        ("seq", None, -1, "1 rows of 'FILE' have no seq"),
        ("node_id", None, -1, "1 rows of 'FILE' have no node_id"),
        ("seq", 9, -2, "seq 9 to 9 of node 1 occur twice"),
    ],
)
@pytest.mark.parametrize("command", ["usage", "limits", "recommend", REPLAY])
def test_rows_that_are_not_told_apart_are_refused(tmp_path, command, column, value, at, reason, capsys):
    """By their number and file, with a hint."""
    _write_changed(tmp_path / "usage", column, value, at)
    arguments = command if isinstance(command, list) else [command]
    assert main([*arguments, str(tmp_path / "usage")]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: {reason}".replace("FILE", str(tmp_path / "usage" / "rows.parquet"))
    assert hint.startswith("hint: ")


@pytest.mark.parametrize("command", ["usage", "obedience"])
def test_results_stay_where_the_next_rows_are_refused(usage, tmp_path, command):
    """Rows are looked at before the results of an earlier run are touched."""
    out = tmp_path / "out"
    assert main([command, str(usage), "--out", str(out)]) == 0
    before = (out / MARKER).read_bytes()
    _write_changed(tmp_path / "usage", "kind", "lease")
    assert main([command, str(tmp_path / "usage"), "--out", str(out)]) == 2
    assert (out / MARKER).read_bytes() == before


def test_logs_of_a_kafka_are_imported_first(tmp_path, capsys):
    """The hint names the command, with the directory as a shell takes it."""
    directory = tmp_path / "kafka logs"
    directory.mkdir()
    (directory / "kafka-request.log.2026-11-24-03.gz").write_bytes(b"")
    assert main(["usage", str(directory)]) == 2
    hint = f"hint: import request logs of Apache Kafka first: tidegate import '{directory}' --out ./usage\n"
    assert capsys.readouterr().err.endswith(hint)


@pytest.mark.parametrize("command", ["replay", "report", "watch", "limits"])
def test_a_plan_has_one_option_under_two_names(command, tmp_path, capsys):
    """`--plan` does what `--quotas` does; the help names the latter alone."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    assert "--quotas FILE" in text
    assert "--plan" not in text
    errors = []
    for option in ("--quotas", "--plan"):
        assert main([command, str(tmp_path), option, str(tmp_path / "none.yaml")]) == 2
        errors.append(capsys.readouterr().err)
    assert errors[0] == errors[1]
