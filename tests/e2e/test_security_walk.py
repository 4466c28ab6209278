"""The walk of docs/security-walk.md runs as it stands: its blocks in one shell, printing what is shown behind them."""

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.test_readme import pattern_of

ROOT = Path(__file__).parents[2]
WALK = ROOT / "docs" / "security-walk.md"
USED = ("scripts", ".cache", ".venv", "tests")
PORT, TIMEOUT_S = 19093, 200.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "--- block {} ---"
BLOCKS = [(match[1], match[2]) for match in _BLOCK.finditer(WALK.read_text(encoding="utf-8"))]
RUN = [text for language, text in BLOCKS if language == "bash"]
SHOWN = [
    (RUN.index(text), after)
    for (language, text), (kind, after) in itertools.pairwise(BLOCKS)
    if (language, kind) == ("bash", "text")
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, kafka_classpath: str, kcat: str) -> list[str]:
    """Return what each block printed, in a directory that has what a clone has."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", PORT))  # the walk's port is free
    directory = tmp_path_factory.mktemp("walk")
    for name in USED:
        (directory / name).symlink_to(ROOT / name)
    typed = "".join(f"echo; echo '{_MARK.format(number)}'\n{text}" for number, text in enumerate(RUN))
    output = directory / "terminal"
    with output.open("wb") as terminal:
        shell = subprocess.Popen(
            ["bash", "-e", "-o", "pipefail"],
            cwd=directory,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            stdin=subprocess.PIPE,
            stdout=terminal,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            shell.communicate(typed.encode(), timeout=TIMEOUT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # the broker, too
            shell.wait()
    text = output.read_text(encoding="utf-8")
    assert shell.returncode == 0, text
    return re.split(_MARK.format(r"\d+") + "\n", text)[1:]


@pytest.mark.java
def test_the_walk_runs_as_it_stands(printed: list[str]) -> None:
    """Every block ends well, and prints what is shown behind it."""
    assert len(printed) == len(RUN)
    assert len(SHOWN) >= 6
    for number, expected in SHOWN:
        terminal = printed[number].strip() + "\n"
        assert pattern_of(expected).fullmatch(terminal), terminal
