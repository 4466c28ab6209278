"""Blocks of a page, typed into one shell one after the other: what a newcomer gets who pastes them.

A `text` block behind a `bash` block is what that prints: any number stands for every other, and `...` for any number of
lines. The ports of a page are replaced by free ones: another run of the tests may use the same page.
"""

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.ports import free_port

__all__ = ["BLOCK", "Page", "free_ports", "pattern_of", "type_blocks"]

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A fenced block: its language and its text."""
_DOCS = Path(__file__).parents[2] / "docs"
_MARK = "--- block {} ---"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page of `docs/`. run: its `bash` blocks. shown: numbers of such blocks, and the output that the page shows."""

    text: str
    run: list[str]
    shown: list[tuple[int, str]]

    @classmethod
    def read(cls, name: str) -> "Page":
        """Return a page by its file name."""
        text = (_DOCS / name).read_text(encoding="utf-8")
        blocks = BLOCK.findall(text)
        run = [text for language, text in blocks if language == "bash"]
        shown = [
            (run.index(text), after)
            for (language, text), (kind, after) in itertools.pairwise(blocks)
            if (language, kind) == ("bash", "text")
        ]
        return cls(text=text, run=run, shown=shown)

    def check(self, printed: Sequence[str]) -> None:
        """Check that each block has printed what the page shows."""
        assert len(printed) == len(self.run)
        for number, expected in self.shown:
            terminal = printed[number].strip() + "\n"
            assert pattern_of(expected).fullmatch(terminal), terminal


def pattern_of(expected: str) -> re.Pattern[str]:
    """Return the regular expression for an expected output: see the module."""
    any_number, blank = "[0-9][0-9,.]*", "[ \u2500]+"
    parts = [re.escape(part) for part in re.sub(blank, " ", expected).split("...\n")]
    parts = [re.sub(r"[0-9](?:[0-9,]|\\\.)*", lambda _: any_number, part) for part in parts]
    return re.compile(".*".join(part.replace(r"\ ", blank) for part in parts), re.DOTALL)


def free_ports(first: int, following: int = 0) -> dict[int, int]:
    """Return a free port for a port of a page, and for so many that follow it."""
    free = free_port(following)
    return {first + at: free + at for at in range(following + 1)}


def type_blocks(
    blocks: Sequence[str], directory: Path, *, ports: Mapping[int, int], timeout_s: float
) -> list[str]:
    """Return what each block printed. All of them have to end well, in time; what they left running ends.

    ports: for each port of the page, the port to use.
    """
    typed = "".join(f"echo; echo '{_MARK.format(number)}'\n{text}" for number, text in enumerate(blocks))
    for port, used in ports.items():
        typed, found = re.subn(rf"\b{port}\b", str(used), typed)
        assert found, f"the page does not use the port {port}"
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
            shell.communicate(typed.encode(), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            terminal.write(f"\nnot done after {timeout_s:.0f} s\n".encode())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
    text = output.read_text(encoding="utf-8")
    assert shell.returncode == 0, text
    return re.split(_MARK.format(r"\d+") + "\n", text)[1:]
