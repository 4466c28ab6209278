"""Log lines: in order, at once where there is room, and where nobody reads them nobody waits."""

import json
import logging
import os
import re
import time
from pathlib import Path

import pytest
from tests.unit.usage.test_appender import file_size_limit

from tidegate.cli import log_lines
from tidegate.cli.log_lines import LogLines
from tidegate.log_format import formatter


def log_to(fd: int) -> tuple[logging.Logger, LogLines]:
    """Return a logger of its own, and its handler."""
    logger, lines = logging.Logger("log lines"), LogLines(fd)
    logger.addHandler(lines)
    return logger, lines


def read_all(fd: int) -> str:
    """Return what is in a pipe whose other end is closed."""
    with os.fdopen(fd, "rb") as file:
        return file.read().decode()


def test_lines_are_written_in_order_to_the_last() -> None:
    """Whatever is in them; tracebacks, too."""
    reader, writer = os.pipe()
    logger, lines = log_to(writer)
    for number in range(100):
        logger.warning("line %d of ü\ud800", number)
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    lines.close()
    os.close(writer)
    text = read_all(reader)
    assert text.startswith("line 0 of ü\\ud800\nline 1 of")
    assert text.count("\n") > 100
    assert text.endswith("ValueError: why\n")


def test_a_line_is_there_at_once(tmp_path: Path) -> None:
    """In a file, and in a pipe that has room for it: who looks after an answer finds what was logged before."""
    reader, writer = os.pipe()
    logger, lines = log_to(writer)
    logger.warning("first")
    assert os.read(reader, 100) == b"first\n"
    lines.close()
    os.close(writer)
    os.close(reader)
    with (tmp_path / "log").open("wb") as file:
        logger, lines = log_to(file.fileno())
        logger.warning("x" * 100_000)
        assert (tmp_path / "log").stat().st_size == 100_001
        lines.close()


def test_where_nobody_reads_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is no room for is dropped, and how much that was is said to whoever reads at last."""
    monkeypatch.setattr(log_lines, "MAX_CHARS", 200_000)
    monkeypatch.setattr(log_lines, "_LAST_LINES_S", 0.2)
    reader, writer = os.pipe()
    logger, lines = log_to(writer)
    begun_s = time.monotonic()
    for _ in range(1000):
        logger.warning("x" * 999)
    assert time.monotonic() - begun_s < 10
    text = b""
    while lines._lines:
        text += os.read(reader, 1 << 16)
    logger.warning("the end")
    while not text.endswith(b"the end\n"):
        text += os.read(reader, 1 << 16)
    dropped = sum(
        int(count) for count in re.findall(rb"dropped (\d+) log lines: stderr is not being read\n", text)
    )
    assert dropped > 700
    assert text.count(b"x" * 999 + b"\n") == 1000 - dropped
    lines.close()
    lines._thread.join(10)
    assert not lines._thread.is_alive()
    os.close(writer)
    os.close(reader)


def test_lines_that_a_full_disk_loses_are_counted(tmp_path: Path) -> None:
    """The number is said before the first line that fits again, in the format of the log, and no line is torn."""
    path, size_bytes = tmp_path / "log", 1000
    with path.open("ab") as file:
        logger, lines = log_to(file.fileno())
        lines.setFormatter(formatter("json"))
        logger.warning("before")
        with file_size_limit(size_bytes):
            for _ in range(40):
                logger.warning("x" * 99)
            assert path.stat().st_size == size_bytes
        logger.warning("after")
        lines.close()
    *whole, torn, note, after = path.read_text().splitlines()
    assert {json.loads(line)["message"] for line in whole} == {"before", "x" * 99}
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(torn)
    assert json.loads(note)["message"] == f"lost {41 - len(whole)} log lines: File too large"
    assert json.loads(after)["message"] == "after"


def test_an_end_that_is_closed_is_no_mistake() -> None:
    """There is nobody to tell."""
    reader, writer = os.pipe()
    logger, lines = log_to(writer)
    os.close(reader)
    logger.warning("to nobody")
    lines.close()
    os.close(writer)
