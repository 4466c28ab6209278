"""Where a page is written: private, whole, and not over anything."""

import os
import stat

import pytest

from tidegate.pipeline.errors import OutputError
from tidegate.pipeline.page.file import check_page, write_page


def test_a_page_is_for_its_owner_alone(tmp_path):
    """Whatever the umask, and nothing is left beside it."""
    before = os.umask(0)
    try:
        write_page(tmp_path / "r.html", "x\ud800\n", overwrite=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "r.html").stat().st_mode) == 0o600
    assert (tmp_path / "r.html").read_bytes() == b"x?\n"
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_nothing_is_replaced_unasked(tmp_path):
    """Not even a link that leads nowhere."""
    (tmp_path / "r.html").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("r.html", "link"):
        with pytest.raises(OutputError, match="is there already"):
            write_page(tmp_path / name, "x", overwrite=False)
    assert (tmp_path / "r.html").read_text() == "mine"
    write_page(tmp_path / "r.html", "x", overwrite=True)
    assert (tmp_path / "r.html").read_text() == "x"


def test_what_cannot_be_written_is_said_before(tmp_path):
    """A directory, or one that is not there."""
    with pytest.raises(OutputError, match="is a directory"):
        check_page(tmp_path, overwrite=True)
    with pytest.raises(OutputError, match="there is no directory"):
        check_page(tmp_path / "no" / "r.html", overwrite=True)
