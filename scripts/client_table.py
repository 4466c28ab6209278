#!/usr/bin/env python
"""Write the tables of docs/clients.md from what `tests/e2e/clients/long_clients.py` saw; `--run` runs it first."""

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))


def main() -> int:
    """Run the clients if told to, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run all clients first (ten minutes)")
    if parser.parse_args().run:
        long_clients = ROOT / "tests" / "e2e" / "clients" / "long_clients.py"
        subprocess.run([sys.executable, "-m", "pytest", str(long_clients)], cwd=ROOT, check=True)
    from tests.e2e.clients.table import write_table

    write_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
