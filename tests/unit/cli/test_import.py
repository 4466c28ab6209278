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
        "imported 2,702 requests and 5 quota changes from 1 file, 3.2 MB",
        "skipped 24 lines of controllers that duplicate lines of brokers",
        "exact: bytes produced and fetched, mutations. estimated: request time; see docs/import.md",
        "estimated the size of 7 throttled fetches: the log does not contain it",
    ]
    assert main(["import", str(QUICK), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("nothing new: imported 1 file before\n", "")


def test_lines_that_are_in_two_logs_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For all that is added up counts them twice."""
    lines = gzip.decompress(QUICK.read_bytes()).splitlines(keepends=True)
    (tmp_path / "tail.log").write_bytes(b"".join(lines[-100:]))
    logs = [str(QUICK), str(tmp_path / "tail.log")]
    assert main(["import", *logs, "--out", str(tmp_path / "out")]) == 0
    assert "counted 100 requests twice: two logs contain the same requests" in capsys.readouterr().out


def test_times_of_whole_seconds_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are too coarse for a replay."""
    log = tmp_path / "request.log"
    log.write_bytes(line("2026-11-21 09:42:57") + line("2026-11-21 09:42:58"))
    assert main(["import", str(log), "--out", str(tmp_path / "out")]) == 0
    assert "the times in 1 file are whole seconds" in capsys.readouterr().out


def test_a_terminal_of_80_columns_gets_whole_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is too long is folded between two words."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["import", str(QUICK), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said)) <= 80
    assert "exact: bytes produced and fetched, mutations. estimated: request time; see" in map(
        str.rstrip, said
    )


def test_bad_lines_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the place of the list is named."""
    log = tmp_path / "request.log"
    log.write_bytes(line() + b"{}\n")
    assert main(["import", f"7={log}", "--out", str(tmp_path / "out")]) == 1
    assert f"rejected 1 line; see {tmp_path / 'out' / 'import-rejected.txt'}" in capsys.readouterr().out


@pytest.mark.parametrize("content", [b"", b"half a line", b"[2026-11-21 09:42:57,018] INFO started\n"])
def test_a_file_without_requests_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    """Exit code 2, and a hint how to switch the request log on."""
    log = tmp_path / "request.log"
    log.write_bytes(content)
    assert main(["import", str(log), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == (
        f"error: nothing imported from {str(log)!r}: no line contains a request\n"
        "hint: set the logger kafka.request.logger to DEBUG on the broker, "
        "then import the file that it writes (docs/import.md)\n"
    )


def test_files_of_other_loggers_and_unfinished_lines_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory of Kafka's logs has them beside the request log, whose last line is being written."""
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "kafka-request.log").write_bytes(line() + b"[2026")
    (logs / "server.log").write_bytes(b"[2026-11-21 09:42:57,018] INFO started {a=1}\n")
    assert main(["import", str(logs), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("imported 1 request and 0 quota changes from 2 files")
    assert f"skipped 1 file without a request line: {str(logs / 'server.log')!r}" in said
    assert "skipped the incomplete last line of 1 file; the next import reads it" in said


def test_a_damaged_file_is_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its readable part and all other files are imported; with --strict nothing is, and the exit code is 2."""
    cut = tmp_path / "cut.gz"
    cut.write_bytes(QUICK.read_bytes()[:50_000])
    out = str(tmp_path / "out")
    assert main(["import", str(cut), str(QUICK), "--out", out, "--strict"]) == 2
    assert f"error: cannot read {str(cut)!r}: the gzip file is truncated\nhint: " in capsys.readouterr().err
    assert not list((tmp_path / "out").rglob("*.parquet"))
    assert main(["import", str(cut), "--out", out]) == 3
    assert f"could not read all of {str(cut)!r}: the gzip file is truncated" in capsys.readouterr().out


def test_lines_in_another_format_are_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broker that was upgraded from before 2.8 has both in its log."""
    log = tmp_path / "request.log"
    old = b"[2020-11-21 09:42:57,018] DEBUG Completed request:RequestHeader(apiKey=PRODUCE) -- {acks=-1}\n"
    log.write_bytes(old + line())
    assert main(["import", str(log), "--out", str(tmp_path / "out")]) == 1
    assert "skipped 1 line in the text format of Kafka before 2.8" in capsys.readouterr().out


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
    assert f"{str(path)!r} contains settings, which Apache Kafka does not have" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["/nowhere/log"], "error: no request log at '/nowhere/log', expected a file or a directory\n"),
        (["/tmp/" + "x" * 300], "error: no request log at '/tmp/xxx"),
        (
            [str(QUICK), "--time-zone", "Mars"],
            "error: unknown time zone 'Mars'\nhint: write a name such as Europe/Berlin",
        ),
        ([str(QUICK), "--in-force", "/nowhere"], "error: /nowhere: cannot read the file"),
    ],
)
def test_what_cannot_be_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    """Exit code 2, the reason, and nothing is made."""
    assert main(["import", *arguments, "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(error)
    assert not (tmp_path / "out").exists()
