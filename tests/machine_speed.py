"""The speed of this machine now, for bars in processor time: a virtual machine is half as fast for minutes."""

import time

__all__ = ["slowness"]

_REFERENCE_MS = 2.0
"""Processor time of the reference work on the machine of docs/performance.md when nothing else runs on its host."""
_TIMES = 5


def slowness() -> float:
    """Return how many times as long Python code takes now as on the reference machine, at least 1.

    The guest's clocks count the time that the host gives to other guests as the thread's own.
    """
    return max(1.0, min(_reference_ms() for _ in range(_TIMES)) / _REFERENCE_MS)


def _reference_ms() -> float:
    begun_ns = time.thread_time_ns()
    total, last = 0, {}
    for number in range(20_000):
        total += number
        last[number & 255] = total
    return (time.thread_time_ns() - begun_ns) / 1e6
