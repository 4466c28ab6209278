"""What a started Python imports."""

import os
import subprocess

import pytest

from tidegate.child_python import SAFE_PATH_VARIABLE, module_command, safe_path


@pytest.mark.parametrize("way", ["option", "variable"])
def test_no_module_of_the_current_directory_is_imported(tmp_path, way):
    """A package there that is called as one of the standard library does not run."""
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "__init__.py").write_text("raise SystemExit(3)")
    command, environ = module_command("json.tool", "--help"), dict(os.environ)
    if way == "variable":
        command.remove("-P")
        environ[SAFE_PATH_VARIABLE] = "1"
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("before", [None, "0"])
def test_only_what_is_started_meanwhile_has_a_safe_path(before, monkeypatch):
    """What else this process starts later imports as it did before."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    if before is not None:
        monkeypatch.setenv("PYTHONSAFEPATH", before)
    with safe_path():
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert os.environ.get("PYTHONSAFEPATH") == before
