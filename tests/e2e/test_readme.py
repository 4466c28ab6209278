"""The blocks of the README, and of the pages that continue it, are run, so that they stay true.

All `bash` blocks are one session of a shell, in the order of the pages, typed in as they stand: what a newcomer gets
who pastes one after the other. A `text` block behind one of them is what it prints (`typed_blocks`). A `pycon` block is
a session of Python. There are no other blocks.
"""

import doctest
import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.e2e.plain_client import PlainClient
from tests.e2e.typed_blocks import BLOCK, free_ports, pattern_of, type_blocks

from tidegate.wire import API_BY_KEY

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("README.md", "docs/exactness.md", "docs/embedding.md")]

NOT_RUN = {
    "make setup": "it is what made the environment that runs this (tests/ground/test_make.py runs it again)",
    "make demo": "tests/e2e/test_demo.py runs it",
    "make": "tests/ground/test_make.py runs `make`; the others run this very test",
}
"""The first command of each `bash` block that is not run, and why."""

USED = ("scripts", "tests", ".cache", ".venv")
"""What the blocks use of a clone. What they write stays out of it."""
PORT = 19092
SESSION_TIMEOUT_S = 280.0
_SERVED_ROW = re.compile(r"\b([A-Z]\w+) (\d+)(?:–(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a page: its language, what it holds, and the line it begins at."""

    page: Path
    language: str
    text: str
    line: int

    @property
    def first_command(self):
        """Return the first line without its comment."""
        return self.text.splitlines()[0].partition("#")[0].strip()


def read_blocks():
    """Return all fenced blocks of the pages, in order."""
    return [
        Block(page=page, language=match[1], text=match[2], line=text.count("\n", 0, match.start()) + 1)
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in BLOCK.finditer(text)
    ]


BLOCKS = read_blocks()
RUN = [block for block in BLOCKS if block.language == "bash" and block.first_command not in NOT_RUN]
SHOWN = [
    (block, after) for block, after in itertools.pairwise(BLOCKS) if block in RUN and after.language == "text"
]


def by_line(block):
    """Return the name of a block in the output of the tests."""
    return f"{block.page.stem} line {block.line}" if isinstance(block, Block) else ""


@pytest.fixture(scope="module")
def clone(tmp_path_factory, kafka_classpath):
    """Return a directory that has what a clone has after `make setup`, and nothing else yet."""
    directory = tmp_path_factory.mktemp("clone")
    for name in USED:
        (directory / name).symlink_to(ROOT / name)
    return directory


@pytest.fixture(scope="module")
def printed(clone, kcat):
    """Return what each `bash` block printed, as far as the session came."""
    texts = type_blocks(
        [block.text for block in RUN], clone, ports=free_ports(PORT), timeout_s=SESSION_TIMEOUT_S
    )
    return dict(zip(RUN, texts, strict=True))


def test_every_block_is_run_or_has_a_reason():
    """No example stands there unseen: no other language, no indented block, and no reason without its block."""
    assert {block.language for block in BLOCKS} == {"bash", "pycon", "text"}
    texts = [BLOCK.sub("", page.read_text(encoding="utf-8")) for page in PAGES]
    assert [found for text in texts for found in re.findall(r"\n\n {4,}\S.*", text)] == []
    firsts = {block.first_command for block in BLOCKS if block.language == "bash"}
    assert set(NOT_RUN) <= firsts
    assert len(RUN) >= 4


@pytest.mark.java
@pytest.mark.parametrize("block", RUN, ids=by_line)
def test_a_block_runs_as_it_stands(printed, block):
    """Every command that a newcomer is told to type works, one block after the other in one shell."""
    assert block in printed


@pytest.mark.java
@pytest.mark.parametrize(("block", "expected"), SHOWN, ids=by_line)
def test_a_block_prints_what_is_shown(printed, block, expected):
    """Each block prints the text that its page shows behind it."""
    terminal = printed[block].strip() + "\n"
    assert pattern_of(expected.text).fullmatch(terminal), terminal


@pytest.mark.parametrize("session", [block for block in BLOCKS if block.language == "pycon"], ids=by_line)
def test_a_python_session_prints_what_it_says(session):
    """Every Python example gives the result it shows."""
    example = doctest.DocTestParser().get_doctest(
        session.text, {}, session.page.stem, str(session.page), session.line
    )
    assert doctest.DocTestRunner().run(example).failed == 0


def test_the_table_of_apis_is_what_is_served(broker):
    """docs/compatibility.md names every API that is served, with its versions, and no other."""
    page = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
    (served,) = re.findall(r"^## APIs of `tidegate serve`\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    table = "\n".join(line for line in served.splitlines() if line.startswith("|"))
    named = {name: (int(first), int(last or first)) for name, first, last in _SERVED_ROW.findall(table)}
    with PlainClient(broker.port, "readme") as client:
        keys = client.served_keys()
    apis = [API_BY_KEY[key] for key in keys]
    assert named == {api.name: (api.min_version, api.max_version) for api in apis}


def test_the_readme_is_short():
    """A newcomer reads it in five minutes; everything else has a page of its own."""
    assert len(PAGES[0].read_text(encoding="utf-8").split()) <= 900
