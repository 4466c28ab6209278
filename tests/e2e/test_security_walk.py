"""The walk of docs/security-walk.md runs as it stands: its blocks in one shell, printing what is shown behind them."""

from pathlib import Path

import pytest
from tests.e2e.typed_blocks import Page, free_ports, type_blocks

ROOT = Path(__file__).parents[2]
PAGE = Page.read("security-walk.md")
USED = ("scripts", ".cache", ".venv", "tests")
PORT, TIMEOUT_S = 19093, 200.0


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory, kafka_classpath: str, kcat: str) -> list[str]:
    """Return what each block printed, in a directory that has what a clone has."""
    directory = tmp_path_factory.mktemp("walk")
    for name in USED:
        (directory / name).symlink_to(ROOT / name)
    return type_blocks(PAGE.run, directory, ports=free_ports(PORT), timeout_s=TIMEOUT_S)


@pytest.mark.java
def test_the_walk_runs_as_it_stands(printed: list[str]) -> None:
    """Every block ends well, and prints what is shown behind it."""
    PAGE.check(printed)
    assert len(PAGE.shown) >= 6
