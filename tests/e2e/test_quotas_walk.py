"""The walk of docs/quotas-as-code.md runs as it stands, from a request log to quotas and back."""

import re
from pathlib import Path

import pytest
from tests.e2e.typed_blocks import Page, free_ports, type_blocks

ROOT = Path(__file__).parents[2]
PORT, TIMEOUT_S = 19092, 200.0
BLOCKS = Page.read("quotas-as-code.md").run


SERVE = re.compile(r"^tidegate serve .*\n^until .*\n", re.MULTILINE)


def check(printed: list[str]) -> None:
    """Check that what is planned is applied, the second time nothing changes, and the undo leaves no quota."""
    imported, planned, forecast, applied, undone = printed
    assert "quotas.yaml: valid, " in imported
    changes = [line for line in planned.splitlines() if line.startswith("+ ")]
    assert changes
    assert f"to change: {len(changes)} values of " in planned
    assert "loop                       closed" in forecast
    assert f"changed: {len(changes)} values of " in applied
    assert "; nothing to change" in applied
    assert "quotas: []" in undone


def test_the_walk_runs_as_it_stands(tmp_path: Path) -> None:
    """With the broker of the page."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    check(type_blocks(BLOCKS, tmp_path, ports=free_ports(PORT), timeout_s=TIMEOUT_S))


@pytest.mark.java
def test_the_walk_on_a_real_kafka(tmp_path: Path, beside_kafka) -> None:
    """With the address of a cluster of Apache Kafka in place of the page's broker, as the page says."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    assert len(SERVE.findall(BLOCKS[1])) == 1
    page = (
        "\0".join(BLOCKS)
        .replace("kill %1; wait\n", "")
        .replace(f"127.0.0.1:{PORT}", beside_kafka["kafka"].address)
    )
    blocks = SERVE.sub("", page).split("\0")
    check(type_blocks(blocks, tmp_path, ports={}, timeout_s=TIMEOUT_S))
