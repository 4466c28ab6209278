"""`Lateness` measures how long a stopped process was late, and does not count time in which it only waits."""

import os
import signal
import subprocess
import sys
import time

from tests.e2e.lateness import Lateness

STOPPED_S = 0.5
MEASURE = """
import sys, time
from tests.e2e.lateness import Lateness
with Lateness() as lateness:
    begun_s = time.monotonic()
    print("begun", flush=True)
    sys.stdin.readline()
    print(lateness.ms_since(begun_s) / 1000, time.monotonic() - begun_s)
"""


def test_waiting_for_another_process_is_not_lateness() -> None:
    """A slow broker is slow. In one of ten tries at least the machine is not late itself."""
    late_s = []
    with Lateness() as lateness:
        for _ in range(10):
            begun_s = time.monotonic()
            time.sleep(0.2)
            late_s.append(lateness.ms_since(begun_s) / 1000)
    assert min(late_s) < 0.1, late_s


def test_a_stop_is_lateness() -> None:
    """A delay counts also if it is asked for before the watching thread has woken up."""
    with subprocess.Popen(
        [sys.executable, "-c", MEASURE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGSTOP)
        process.stdin.write("\n")
        process.stdin.flush()
        time.sleep(STOPPED_S)
        os.kill(process.pid, signal.SIGCONT)
        late_s, took_s = map(float, process.stdout.readline().split())
    assert STOPPED_S - 0.2 <= late_s <= took_s
