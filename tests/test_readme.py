"""The README's examples are run, so that they stay true.

A block marked `console` is a session of a shell: lines that begin with `$ ` are typed, the rest is what they print on
stdout (`...` stands for any number of lines, or for the rest of one). A block marked `pycon` is a session of Python.
Other blocks are not run.
"""

import doctest
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language):
    """Return the README's blocks in a language, named by the line they begin at."""
    text = README.read_text(encoding="utf-8")
    found = [
        pytest.param(match[2], id=f"line {text.count(chr(10), 0, match.start()) + 1}")
        for match in _BLOCK.finditer(text)
        if match[1] == language
    ]
    assert found, f"the README has no {language} block"
    return found


def pattern_of(expected):
    """Return the regular expression for an expected output in which `...` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return re.compile(pattern, re.DOTALL)


def script_of(session):
    """Return the commands of a session as a script that waits, as a person would, until a server is up."""
    typed = [line[2:] for line in session.splitlines() if line.startswith("$ ")]
    lines = ["set -euo pipefail"]
    for command in typed:
        lines.append(command)
        if command.endswith("&"):
            port = re.search(r"--port (\d+)", command)[1]
            lines.append(f"until (: </dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.05; done")
    return "\n".join(lines)


def run_shell(script, directory):
    """Run a script with our commands on its path and return its exit code and what it printed; nothing of it stays."""
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=directory,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = shell.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        out, err = shell.communicate()
    return shell.returncode, out, err


@pytest.mark.parametrize("session", blocks("console"))
def test_a_shell_session_prints_what_it_says(session, tmp_path):
    """Every command that a newcomer is told to type works and prints what the README shows."""
    expected = "".join(line for line in session.splitlines(keepends=True) if not line.startswith("$ "))
    exit_code, out, err = run_shell(script_of(session), tmp_path)
    assert exit_code == 0, out + err
    assert pattern_of(expected).fullmatch(out), out


@pytest.mark.parametrize("session", blocks("pycon"))
def test_a_python_session_prints_what_it_says(session):
    """Every Python example in the README gives the result it shows."""
    example = doctest.DocTestParser().get_doctest(session, {}, "README", str(README), 0)
    assert doctest.DocTestRunner().run(example).failed == 0
