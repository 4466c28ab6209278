"""The stopwatch of tests takes off what a stalled machine costs, and nothing else."""

import os
import signal
import subprocess
import sys
import time

from tests.stopwatch import Stopwatch

STOPPED_S = 0.5
MEASURE = """
import sys
from tests.stopwatch import Stopwatch
with Stopwatch() as watch:
    print("begun", flush=True)
    sys.stdin.readline()
print(watch.took_s, watch.stalled_s)
"""


def test_waiting_for_another_process_counts() -> None:
    """A slow broker is slow."""
    with Stopwatch() as watch:
        time.sleep(0.2)
    assert watch.took_s + watch.stalled_s >= 0.2
    assert watch.took_s > watch.stalled_s


def test_a_stalled_process_does_not_count() -> None:
    """Whoever measures was stopped, and everything else may have been."""
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(STOPPED_S)
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        took_s, stalled_s = map(float, process.stdout.readline().split())
    assert stalled_s >= STOPPED_S - 0.05
    assert took_s + stalled_s >= 0.1 + STOPPED_S
