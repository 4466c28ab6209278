"""Makes `run` and `players` importable, as they are when `run.py` is started as a program."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
