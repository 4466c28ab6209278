"""The page about production: its blocks run in one shell, in order, and print what the page shows."""

from pathlib import Path

from tests.e2e.typed_blocks import Page, free_ports, type_blocks

PAGE = Page.read("production.md")
PORT, TIMEOUT_S = 19095, 100.0


def test_the_blocks_run_as_they_stand(tmp_path: Path, kcat: str) -> None:
    """A change is in the audit log, a copy starts with the records, and a held broker can be copied."""
    assert Path(kcat).name == "kcat"
    PAGE.check(type_blocks(PAGE.run, tmp_path, ports=free_ports(PORT), timeout_s=TIMEOUT_S))
    assert len(PAGE.shown) == 2
    assert (tmp_path / "second-backup" / "tidegate.db").is_file()


def test_the_example_of_the_page_adds_up() -> None:
    """The arithmetic of the disk sizes is right."""
    seconds = 7 * 86_400
    records_gb = 5e6 * seconds / 1e9
    segments_gb = 20 * 2**30 / 1e9
    usage_gb = 3 * 2000 * seconds / 1e9
    assert f"{records_gb:,.0f} GB, and 20 × 1.07 GB = {segments_gb:.0f} GB" in PAGE.text
    assert f"= {usage_gb:.1f} GB" in PAGE.text
    total = records_gb + segments_gb + usage_gb
    assert f"together  {total:,.0f} GB" in PAGE.text
    assert f"order {total * 1.2 / 1000:.1f} TB" in PAGE.text
