"""The command that installs an extra, by the place that Tidegate was installed from."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate
from tidegate.errors import install_hint

_PIP = f"{sys.executable} -m pip install"


def installed_hint(site: Path, direct_url: dict | None) -> str:
    """Return the hint of a Tidegate in `site`, with this record of where pip installed it from."""
    shutil.copytree(
        Path(tidegate.__file__).parent,
        site / "tidegate",
        ignore=lambda at, names: {*names} - {"__init__.py", "errors.py"},
    )
    about = site / "tidegate-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate\nVersion: 0\n")
    if direct_url is not None:
        (about / "direct_url.json").write_text(json.dumps(direct_url))
    program = "from tidegate.errors import install_hint; print(install_hint('pipeline'))"
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(
        command, env={"PYTHONPATH": str(site)}, capture_output=True, text=True, check=True
    ).stdout.removesuffix("\n")


def test_a_checkout_is_named() -> None:
    """In an editable installation."""
    root = Path(tidegate.__file__).parents[2]
    assert install_hint("pipeline") == f"{_PIP} -e '{root}[pipeline]'"


def test_a_directory_is_named_as_long_as_it_is_there(tmp_path: Path) -> None:
    """After `pip install DIR`; without the directory the command is for a clone."""
    for name, is_there in (("a clone", True), ("gone", False)):
        source = tmp_path / name
        if is_there:
            source.mkdir()
        hint = installed_hint(tmp_path / f"site of {name}", {"url": source.as_uri(), "dir_info": {}})
        assert hint == (
            f"{_PIP} 'tidegate[pipeline] @ {source.as_uri()}'"
            if is_there
            else f"in a clone of Tidegate, run: {_PIP} '.[pipeline]'"
        )


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (
            {"url": "https://x.example/t.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            f"{_PIP} 'tidegate[pipeline] @ git+https://x.example/t.git@c0ffee'",
        ),
        (
            {"url": "https://x.example/tidegate-0-py3-none-any.whl", "archive_info": {}},
            f"{_PIP} 'tidegate[pipeline] @ https://x.example/tidegate-0-py3-none-any.whl'",
        ),
        (None, f"in a clone of Tidegate, run: {_PIP} '.[pipeline]'"),
    ],
)
def test_a_repository_or_an_archive_is_named(tmp_path: Path, direct_url: dict | None, command: str) -> None:
    """As pip recorded it; without a record the command is for a clone."""
    assert installed_hint(tmp_path / "site", direct_url) == command
