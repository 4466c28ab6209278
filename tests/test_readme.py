"""The README's examples are run, so that they stay true.

A block marked `console` is a session of a shell: lines that begin with `$ ` are typed, the rest is what they print on
stdout (`...` stands for any number of lines, or for the rest of one). A block marked `pycon` is a session of Python.
Other blocks are not run.
"""

import doctest
import os
import re
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


@pytest.mark.parametrize("session", blocks("console"))
def test_a_shell_session_prints_what_it_says(session, tmp_path):
    """Every command that a newcomer is told to type works and prints what the README shows."""
    lines = session.splitlines(keepends=True)
    script = "".join(line[2:] for line in lines if line.startswith("$ "))
    expected = "".join(line for line in lines if not line.startswith("$ "))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-m", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert pattern_of(expected).fullmatch(done.stdout), done.stdout


@pytest.mark.parametrize("session", blocks("pycon"))
def test_a_python_session_prints_what_it_says(session):
    """Every Python example in the README gives the result it shows."""
    example = doctest.DocTestParser().get_doctest(session, {}, "README", str(README), 0)
    assert doctest.DocTestRunner().run(example).failed == 0
