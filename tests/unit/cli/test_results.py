"""`tidegate usage` and `tidegate replay` in this process: tables on a terminal, documents in a pipe."""

import json
import sys

import pytest
from rich.cells import cell_len
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode
from tests.unit.pipeline.report.rows import HOSTILE

from tidegate.cli.main import main
from tidegate.pipeline.report.console import results_console


@pytest.fixture
def usage(tmp_path):
    """Return a directory with the record of clients that call themselves what they like."""
    node = RecordingNode()
    node.start(START_MS)
    for at, name in enumerate(("loader", *(name[:8000] for name in HOSTILE))):
        for seconds in range(5):
            node.produce("ANONYMOUS", name, 10**7 + at, START_MS + 1000 * seconds)
    write_events(tmp_path / "usage", node.events)
    return tmp_path / "usage"


@pytest.fixture
def plan(tmp_path):
    """Return a plan with a misspelt client id, and with a user where nobody has logged in."""
    path = tmp_path / "tight.yaml"
    entries = [("client-id: {name: loader}", "20MB"), ("client-id: {name: loadr}", "20MB"),
               ("user: {name: alice}", "1MB"), ("client-id: {default: true}", "1000")]  # fmt: skip
    path.write_text(
        "quotas:\n" + "".join(f"  - {who}\n    producer_byte_rate: {size}\n" for who, size in entries)
    )
    return path


@pytest.mark.usefixtures("small_terminal")
def test_a_terminal_of_80_columns_shows_all_of_it(usage, plan, capsys):
    """No line is wider, limits are as they were written, and who is nobody is named."""
    assert main(["usage", str(usage)]) == 0
    assert main(["replay", str(usage), "--quotas", str(plan)]) == 0
    out = capsys.readouterr().out
    assert max(map(cell_len, out.splitlines())) <= 80
    assert "20MB" in out
    assert "did you mean loader?" in " ".join(out.split())
    assert "its only user is ANONYMOUS" in " ".join(out.split())


def test_a_reader_that_goes_away_is_no_answer(monkeypatch):
    """`tidegate usage DIR | head -1` ends as any other program in a pipe, not with the code of a check that failed."""

    def refuse(text):
        raise BrokenPipeError

    console = results_console()
    monkeypatch.setattr(sys.stdout, "write", refuse)
    with pytest.raises(BrokenPipeError):
        console.print("1 event")


def test_json_is_one_document_and_nothing_else(usage, plan, capsys):
    """On stdout; stderr is empty in a pipe."""
    assert main(["usage", str(usage), "--by", "listener", "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert (document["by"], document["groups_in_all"], err) == (["listener"], 1, "")
    assert document["groups"][0]["requests"] == 5 * (1 + len(HOSTILE))
    assert main(["replay", str(usage), "--quotas", str(plan), "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert (found["plans"][0]["name"], err) == ("tight", "")
    assert [entry["nearest"] for entry in found["unmatched"]] == ["loader", None]
    limits = {entity["client_id"]: entity["plans"][0].get("limit_bytes_per_second") for entity in found["entities"]
              if entity["quota_type"] == "Produce"}  # fmt: skip
    assert limits["loader"] == 2e7
