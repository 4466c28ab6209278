"""CPU time and peak resident memory of one command, its output left out.

    python bench/bench_command.py COMMAND [ARGUMENT ...]

Example: `python bench/bench_command.py tidegate usage DIR --sums`. The start of the command is included. Memory is in
MiB, and is that of the command itself, or of the largest of its children. The load is the mean of the last minute.
"""

import os
import subprocess
import sys
import time

USAGE_ERROR = 2


def measure(command: list[str]) -> int:
    """Run a command, print its cost, and return its exit code."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_seconds = used.ru_utime + used.ru_stime
    print(
        f"{' '.join(command)}: {seconds:.2f} s wall, {cpu_seconds:.2f} s CPU, {used.ru_maxrss >> 10} MB; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )
    return process.returncode


def main() -> int:
    """Measure the command that the command line names."""
    if len(sys.argv) == 1:
        print(__doc__, file=sys.stderr)
        return USAGE_ERROR
    return measure(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
