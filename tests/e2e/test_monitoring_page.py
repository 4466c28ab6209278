"""The walk of docs/monitoring.md runs as it stands: its blocks in one shell, printing what is shown behind them."""

from pathlib import Path

from tests.e2e.typed_blocks import Page, free_ports, type_blocks

PAGE = Page.read("monitoring.md")
PORT, METRICS_PORT, TIMEOUT_S = 19095, 19404, 120.0


def test_the_walk_runs_as_it_stands(tmp_path: Path, kcat: str) -> None:
    """Every block ends well, and prints what is shown behind it."""
    PAGE.check(
        type_blocks(
            PAGE.run, tmp_path, ports=free_ports(PORT) | free_ports(METRICS_PORT), timeout_s=TIMEOUT_S
        )
    )
    assert len(PAGE.shown) == 3
