"""The walk of docs/security-walk.md runs as it stands: its blocks in one shell, printing what is shown behind them."""

import itertools
import re
from pathlib import Path

import pytest
from tests.e2e.test_readme import pattern_of
from tests.e2e.typed_blocks import type_blocks

ROOT = Path(__file__).parents[2]
WALK = ROOT / "docs" / "security-walk.md"
USED = ("scripts", ".cache", ".venv", "tests")
PORT, TIMEOUT_S = 19093, 200.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
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
    directory = tmp_path_factory.mktemp("walk")
    for name in USED:
        (directory / name).symlink_to(ROOT / name)
    return type_blocks(RUN, directory, port=PORT, timeout_s=TIMEOUT_S)


@pytest.mark.java
def test_the_walk_runs_as_it_stands(printed: list[str]) -> None:
    """Every block ends well, and prints what is shown behind it."""
    assert len(printed) == len(RUN)
    assert len(SHOWN) >= 6
    for number, expected in SHOWN:
        terminal = printed[number].strip() + "\n"
        assert pattern_of(expected).fullmatch(terminal), terminal
