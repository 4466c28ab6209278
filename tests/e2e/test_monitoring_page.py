"""The walk of docs/monitoring.md runs as it stands: its blocks in one shell, printing what is shown behind them."""

import itertools
import re
from pathlib import Path

from tests.e2e.test_readme import pattern_of
from tests.e2e.typed_blocks import type_blocks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")
PORT, TIMEOUT_S = 19095, 120.0
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RUN = [text for language, text in BLOCKS if language == "bash"]


def test_the_walk_runs_as_it_stands(tmp_path: Path, kcat: str) -> None:
    """Every block ends well, and prints what is shown behind it."""
    printed = iter(type_blocks(RUN, tmp_path, port=PORT, timeout_s=TIMEOUT_S))
    shown = 0
    for (language, _), (kind, expected) in itertools.pairwise(BLOCKS):
        if language == "bash":
            terminal = next(printed).strip() + "\n"
            if kind == "text":
                shown += 1
                assert pattern_of(expected).fullmatch(terminal), terminal
    assert shown == 3
