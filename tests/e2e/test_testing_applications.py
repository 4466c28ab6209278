"""The page about tests of applications (`docs/testing-applications.md`) is run as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing-applications.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_tests_of_the_page_pass(tmp_path):
    """The Python blocks, pasted into files of these names, are tests that pass."""
    files = {match[1]: match[2] for match in _BLOCK.finditer(PAGE)}
    assert set(files) == {"test_orders.py", "test_payments.py", "test_with_unittest.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--strict-markers"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), env.get("PYTHONPATH")]))
    # Where Tidegate is installed, pytest finds the plugin by itself (`test_pytest_plugin`).
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *options,
            "-p",
            "no:tidegate",
            "-p",
            "tidegate.testing.pytest_plugin",
        ],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_page_names_what_is_there():
    """Fixtures, attributes and rows that the page names exist."""
    from tidegate.testing import Broker, pytest_plugin

    table = PAGE.split("### The running broker\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)", row)}
    assert names == {name for name in vars(Broker) if not name.startswith("_")} - {"pid"}
    fixtures = re.findall(r"^\| `(tidegate_\w+)` \|", PAGE, re.MULTILINE)
    assert [name for name in fixtures if not hasattr(pytest_plugin, name)] == []
    assert len(fixtures) == 3
    differences = (ROOT / "docs" / "kafka-differences.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"\brow ([A-Z]\d+)", PAGE))
    assert rows
    assert [row for row in rows if f"\n| {row} |" not in differences] == []
