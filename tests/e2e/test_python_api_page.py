"""The page about the Python API: its cells are run as they are written."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.unit.kafka_log.samples import QUICK

PAGE = Path(__file__).parents[2] / "docs" / "python-api.md"
CELLS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_the_cells_run_as_written(tmp_path):
    """One after the other in one Python, with a log of a real Kafka: numbers, a forecast and a plot come out."""
    shutil.copy(QUICK, tmp_path / "kafka-request.log.gz")
    (tmp_path / "notebook.py").write_text("\n".join(CELLS), encoding="utf-8")
    command = [sys.executable, "-W", "error", "notebook.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "2702 requests, 5 quota changes" in done.stdout
    assert "platform" in done.stdout
    assert re.search(r"entity_user.*throttled_requests", done.stdout)
    assert (tmp_path / "produced.png").stat().st_size > 1000
    assert done.stderr == ""
