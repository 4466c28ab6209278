"""`tidegate watch` in this process: what it prints, and what it refuses."""

import json
import os

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main
from tidegate.quota.admin.definitions import QuotaRecord

PLAN = """\
quotas:
  - client-id: {name: loader}
    producer_byte_rate: 1000
  - client-id: {name: loadr}
    producer_byte_rate: 1000
"""


@pytest.fixture
def usage(tmp_path):
    """A record in which two clients produce, one of them far more, and a gap comes in between."""
    node = RecordingNode()
    limit = QuotaRecord(entity=(("client-id", "loader"),), key="producer_byte_rate", value=5000.0)
    node.start(START_MS, records=(limit,))
    for at in range(60):
        if at == 30:
            node.gap(START_MS + at * 500)
        node.produce("ANONYMOUS", "loader", 4000, START_MS + at * 500)
        node.produce("ANONYMOUS", "checkout", 10, START_MS + at * 500)
    record = tmp_path / "usage"
    write_events(record / "parquet", node.events)
    for path in record.rglob("*.parquet"):
        os.utime(path, (0, 0))
    (tmp_path / "plan.yaml").write_text(PLAN)
    return record


def test_one_document(usage, tmp_path, capsys):
    """With --once --json: the same rows as `replay --json` and `usage --json` have."""
    plan = str(tmp_path / "plan.yaml")
    assert main(["watch", str(usage), "--plan", plan, "--in-force", "--once", "--json"]) == 0
    watched = json.loads(capsys.readouterr().out)
    assert main(["replay", str(usage), "--quotas", plan, "--in-force", "--loop", "open", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert main(["usage", str(usage), "--json"]) == 0
    used = json.loads(capsys.readouterr().out)
    assert watched["in_all"]["entities"] == watched["window"]["entities"] == replayed["entities"]
    assert watched["in_all"]["entities_in_all"] == replayed["entities_in_all"]
    for row, other in zip(watched["in_all"]["groups"], used["groups"], strict=True):
        assert row == {name: other[name] for name in row}
    assert watched["unmatched"] == replayed["unmatched"] != []
    assert watched["plans"] == replayed["plans"]
    assert (watched["events"], watched["waiting_events"], watched["update"]) == (used["events"], 0, 1)
    assert watched["nodes"][0]["node_id"] == 1


def test_a_range_of_time(usage, capsys):
    """To the millisecond: `--from`, and `--last` before the newest row, count what `usage` counts."""
    newest = "2023-11-14T22:13:49.500"  # START_MS and 29.5 s
    for watched, used in (
        (["--from", "2023-11-14T22:13:35.250"], ["--from", "2023-11-14T22:13:35.250"]),
        (["--last", "10s"], ["--last", "10s"]),
        (["--last", "999999d"], []),
        (["--from", newest], ["--from", newest]),
    ):
        assert main(["watch", str(usage), "--once", "--json", *watched]) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["usage", str(usage), "--json", *used]) == 0
        expected = json.loads(capsys.readouterr().out)
        assert found["events"] == expected["events"]
        requests = [
            [row["requests"] for row in rows] for rows in (found["in_all"]["groups"], expected["groups"])
        ]
        assert requests[0] == requests[1]


def test_the_last_part_of_a_record_that_is_empty_or_missing(tmp_path, capsys):
    """All rows that come count; a directory that is missing is an error, and two starts are, too."""
    (tmp_path / "usage").mkdir()
    assert main(["watch", str(tmp_path / "usage"), "--last", "15m", "--once"]) == 0
    assert main(["watch", str(tmp_path / "nothing"), "--last", "15m", "--once"]) == 2
    assert "no usage record at" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "usage"), "--last", "15m", "--from", "2026-01-01"]) == 2
    assert "--last cannot be used with --from" in capsys.readouterr().err


def test_a_screen(usage, tmp_path, capsys, monkeypatch):
    """With --once: who used what, who would have been throttled, what is not exact, whom the plan misspells."""
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["watch", str(usage), "--plan", str(tmp_path / "plan.yaml"), "--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "last 5 min" in lines[0]
    assert lines[2].split()[:3] == ["client-id", "user", "requests"]
    assert lines[4].split()[:3] == ["loader", "ANONYMOUS", "60"]
    text = "\n".join(lines)
    assert "client-id=loader · 60 requests" in text
    assert "did you mean loader?" in text
    assert "approximate: earlier events were lost (gap)" in text
    notes = next(at for at, line in enumerate(lines) if line.startswith("plan: "))
    assert max(len(line) for line in lines[:notes]) <= 80


def test_a_checkpoint(usage, tmp_path, capsys):
    """The second run has nothing to add and says the same."""
    command = ["watch", str(usage), "--once", "--json", "--checkpoint", str(tmp_path / "watched")]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert main(command) == 0
    assert capsys.readouterr().out == first
    plan = str(tmp_path / "plan.yaml")
    assert main([*command, "--plan", plan]) == 2
    assert "belongs to other plans: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["{missing}", "--once"], "no usage record at"),
        (["{usage}", "--plan", "{missing}"], "missing"),
        (
            ["{usage}", "--to", "2033-01-01"],
            "--to is not supported: a watch has no end\nhint: use --to with tidegate usage or",
        ),
        (["{usage}", "--window", "0"], "expected a whole number from 1 to 60"),
        (["{usage}", "--every", "nan"], "expected a number of seconds from 0.1 to 3600"),
    ],
)
def test_what_cannot_be(usage, tmp_path, capsys, arguments, reason):
    """Each with its reason and exit code 2."""
    places = {"missing": str(tmp_path / "missing"), "usage": str(usage)}
    try:
        code = main(["watch", *(argument.format(**places) for argument in arguments)])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert reason in capsys.readouterr().err


def test_no_rows(usage, capsys):
    """Hours in which nothing is have no time."""
    assert main(["watch", str(usage), "--from", "2033-01-01", "--once"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("no rows · last 5 min · 0 events so far\n")
    assert err.startswith(f"no rows in {str(usage)!r}: only files named node-N-... in the requested hours")
