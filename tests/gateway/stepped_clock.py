"""`tidegate`, run as a script with a wall clock that a test steps: it is ahead by the ms in a file."""

import sys
import time
from pathlib import Path

from tidegate.cli.main import main


def set_step(file: Path, step_ms: int) -> None:
    """Step the wall clock of the processes that read this file."""
    unfinished = file.with_suffix(".tmp")
    unfinished.write_text(str(step_ms))
    unfinished.rename(file)


def follow_steps(file: Path) -> None:
    """Set the wall clock of this process ahead by the time in the file, from now on."""
    own_ns = time.time_ns

    def stepped_ns() -> int:
        return own_ns() + int(file.read_text()) * 1_000_000

    time.time_ns = stepped_ns
    time.time = lambda: stepped_ns() / 1e9


if __name__ == "__main__":
    follow_steps(Path(sys.argv.pop(1)))
    sys.exit(main())
