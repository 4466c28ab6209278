"""The page about production: its blocks run in one shell, in order, and print what the page shows."""

import itertools
import re
from pathlib import Path

from tests.e2e.test_readme import pattern_of
from tests.e2e.typed_blocks import type_blocks

PAGE = Path(__file__).parents[2] / "docs" / "production.md"
PORT, TIMEOUT_S = 19095, 100.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(match[1], match[2]) for match in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
RUN = [text for language, text in BLOCKS if language == "bash"]
SHOWN = [
    (RUN.index(text), after)
    for (language, text), (kind, after) in itertools.pairwise(BLOCKS)
    if (language, kind) == ("bash", "text")
]


def test_the_blocks_run_as_they_stand(tmp_path: Path, kcat: str) -> None:
    """A change is in the audit log, a copy starts with the records, and a held broker can be copied."""
    assert Path(kcat).name == "kcat"
    printed = type_blocks(RUN, tmp_path, port=PORT, timeout_s=TIMEOUT_S)
    assert len(SHOWN) == 2
    for number, expected in SHOWN:
        terminal = printed[number].strip() + "\n"
        assert pattern_of(expected).fullmatch(terminal), terminal
    assert (tmp_path / "second-backup" / "tidegate.db").is_file()


def test_the_example_of_the_page_adds_up() -> None:
    """The arithmetic of the disk sizes is right."""
    text = PAGE.read_text(encoding="utf-8")
    seconds = 7 * 86_400
    records_gb = 5e6 * seconds / 1e9
    segments_gb = 20 * 2**30 / 1e9
    usage_gb = 3 * 2000 * seconds / 1e9
    assert f"{records_gb:,.0f} GB, and 20 × 1.07 GB = {segments_gb:.0f} GB" in text
    assert f"= {usage_gb:.1f} GB" in text
    total = records_gb + segments_gb + usage_gb
    assert f"together  {total:,.0f} GB" in text
    assert f"order {total * 1.2 / 1000:.1f} TB" in text
