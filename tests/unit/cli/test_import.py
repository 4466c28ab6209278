"""`tidegate import`: what it says, and its exit codes."""

import gzip
import resource
from pathlib import Path

import pytest
from tests.unit.kafka_log.samples import QUICK, line

from tidegate.cli.main import main


def test_what_came_of_it_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was taken, left out and estimated; the second time, that it is known."""
    assert main(["import", str(QUICK), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "1 file, 3.2 MB: 2,702 requests, 5 changed quotas",
        "left out: 24 lines of controllers about requests that a broker has a line of",
        "exact: bytes produced and fetched, mutations; estimated: request time (network threads are not in the log)",
        "estimated too: the size of 7 throttled fetches, which is not in the log",
    ]
    assert main(["import", str(QUICK), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("0 files (1 known already), 0.0 MB: 0 requests, 0 changed quotas\n", "")


def test_lines_that_are_in_two_logs_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For all that is added up counts them twice."""
    lines = gzip.decompress(QUICK.read_bytes()).splitlines(keepends=True)
    (tmp_path / "tail.log").write_bytes(b"".join(lines[-100:]))
    logs = [str(QUICK), str(tmp_path / "tail.log")]
    assert main(["import", *logs, "--out", str(tmp_path / "out")]) == 0
    assert "there twice: 100 requests, counted twice from now on" in capsys.readouterr().out


def test_times_of_whole_seconds_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are too coarse for a replay."""
    log = tmp_path / "request.log"
    log.write_bytes(line("2026-11-21 09:42:57") + line("2026-11-21 09:42:58"))
    assert main(["import", str(log), "--out", str(tmp_path / "out")]) == 0
    assert "coarse: the times in 1 file are whole seconds" in capsys.readouterr().out


def test_a_terminal_of_80_columns_gets_whole_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is too long is folded between two words."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["import", str(QUICK), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= 80
    assert "exact: bytes produced and fetched, mutations; estimated: request time (network" in map(
        str.rstrip, said
    )


def test_bad_lines_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the place of the list is named."""
    log = tmp_path / "request.log"
    log.write_bytes(line() + b"{}\n")
    assert main(["import", f"7={log}", "--out", str(tmp_path / "out")]) == 1
    assert (
        f"not read: 1 line, listed in {tmp_path / 'out' / 'import-rejected.txt'}" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("content", "out"),
    [
        (b"", "0 files, 0.0 MB: 0 requests, 0 changed quotas\nno requests: "),
        (b"half a line", "0 files, 0.0 MB: 0 requests, 0 changed quotas\nleft for later: the last line"),
        (line() + b"[2026", "1 file, 0.0 MB: 1 request"),
    ],
)  # fmt: skip
def test_what_is_empty_or_has_no_end_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, out: str
) -> None:
    """It is not known already; a line that a broker is writing is taken when it is whole."""
    log = tmp_path / "request.log"
    log.write_bytes(content)
    assert main(["import", str(log), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.startswith(out)
    assert ("left for later: the last line of 1 file" in said) == bool(content)
    assert ("no requests: " in said) == (content in (b"", b"half a line"))


def test_a_full_disk_leaves_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One error, not about the log; and no files that fill the disk further."""
    out = tmp_path / "out"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        assert main(["import", str(QUICK), "--out", str(out)]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    err = capsys.readouterr().err
    assert err == f"error: cannot write to {str(out)!r}: File too large\nhint: give --out another directory\n"
    assert [path.name for path in out.rglob("*")] == ["import.lock"]
    assert main(["import", str(QUICK), "--out", str(out)]) == 0


def test_quotas_that_no_kafka_has_were_not_in_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Groups and smooth mode are refused before a log is read."""
    path = tmp_path / "q.yaml"
    path.write_text("settings: {tidegate.quota.smooth: all}\nquotas: []\n")
    assert main(["import", str(QUICK), "--in-force", str(path), "--out", str(tmp_path / "out")]) == 2
    assert f"{path} has settings, which no Kafka had in force" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["/nowhere/log"], "error: no request log at '/nowhere/log', expected a file or a directory\n"),
        (["/tmp/" + "x" * 300], "error: no request log at '/tmp/xxx"),
        ([str(QUICK), "--time-zone", "Mars"], "error: no time zone 'Mars'\nhint: like Europe/Berlin"),
        ([str(QUICK), "--in-force", "/nowhere"], "error: /nowhere: cannot be read"),
    ],
)
def test_what_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    """Exit code 2, the reason, and nothing is made."""
    assert main(["import", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(error)
    assert not (tmp_path / "out").exists()
