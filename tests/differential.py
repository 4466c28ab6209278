"""Ask a real Apache Kafka and `tidegate serve` the same: see `--help` and `tests/differing`."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    runpy.run_module("tests.differing", run_name="__main__", alter_sys=True)
