"""The walk of docs/quotas-as-code.md runs as it stands, from a request log to quotas and back."""

import re
from pathlib import Path

from tests.e2e.typed_blocks import type_blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "quotas-as-code.md"
PORT, TIMEOUT_S = 19094, 200.0
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_walk_runs_as_it_stands(tmp_path) -> None:
    """What is planned is applied, the second time nothing changes, and the undo leaves no quota."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    printed = type_blocks(BLOCKS, tmp_path, port=PORT, timeout_s=TIMEOUT_S)
    imported, planned, forecast, applied, undone = printed
    assert "quotas.yaml: valid, " in imported
    changes = [line for line in planned.splitlines() if line.startswith("+ ")]
    assert changes
    assert f"to change: {len(changes)} values of " in planned
    assert "loop                       closed" in forecast
    assert f"changed: {len(changes)} values of " in applied
    assert "; nothing to change" in applied
    assert "quotas: []" in undone
