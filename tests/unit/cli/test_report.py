"""`tidegate report`: one file, private, and never over another."""

import stat
from pathlib import Path

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.cli.main import main


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    """A record of one request."""
    node = RecordingNode()
    node.start(START_MS)
    node.produce("alice", "orders", 1000, START_MS)
    write_events(tmp_path / "usage", node.events)
    return tmp_path / "usage"


def test_a_report_is_one_private_file(
    usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a plan; it names its client."""
    plan = tmp_path / "tight.yaml"
    plan.write_text("version: 1\nquotas:\n  - client-id: {name: orders}\n    producer_byte_rate: 1\n")
    page = tmp_path / "page.html"
    assert main(["report", str(usage), "--out", str(page), "--quotas", str(plan)]) == 0
    assert capsys.readouterr().out == f"report: {page}\n"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    text = page.read_text(encoding="utf-8")
    assert "client-id=orders (produce)" in text
    assert "Plan tight throttles 1 of" in text


def test_a_file_that_is_there_stays(usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unless that is asked for."""
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert main(["report", str(usage), "--out", str(page)]) == 2
    assert capsys.readouterr().err == (
        f"error: {str(page)!r} already exists\nhint: give another name, or --overwrite\n"
    )
    assert page.read_text() == "mine"
    assert main(["report", str(usage), "--out", str(page), "--overwrite"]) == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_quotas_are_proposed_unless_they_are_left_out(usage: Path, tmp_path: Path) -> None:
    """They take a third of the time."""
    pages = tmp_path / "with.html", tmp_path / "without.html"
    for page, more in zip(pages, ([], ["--no-recommend"]), strict=True):
        assert main(["report", str(usage), "--out", str(page), *more]) == 0
    is_proposed = ["Proposed quotas" in page.read_text(encoding="utf-8") for page in pages]
    assert is_proposed == [True, False]


@pytest.mark.parametrize("parts", [["x" * 300], ["x" * 40_000], ["no", "such.html"], ["x" * 300, "y.html"]])
def test_what_can_be_no_file_is_one_clear_error(
    usage: Path, tmp_path: Path, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a name that is too long to be one."""
    assert main(["report", str(usage), "--out", str(tmp_path.joinpath(*parts))]) == 2
    assert capsys.readouterr().err.startswith("error: cannot write to ")


def test_the_help_is_80_columns_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every help text."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["report", "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80
