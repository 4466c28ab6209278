"""The page about a broker for tests (`docs/test-broker.md`) is run as it stands."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "test-broker.md"
_BLOCK = re.compile(r"^```python\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_fixture_of_the_page_serves_a_test(tmp_path):
    """Both blocks, pasted into files of these names, make a test that passes."""
    files = {match[1]: match[2] for match in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))}
    assert set(files) == {"conftest.py", "test_orders.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "--basetemp=run",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (log,) = (tmp_path / "run").rglob("broker.log")
    assert "stopping: received SIGTERM" in log.read_text()
