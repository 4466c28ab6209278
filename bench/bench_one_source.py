"""Time the sampled rate in the forms between which `docs/decisions/0001` chooses, in ns of CPU time a decision.

object: the kernel's algorithm written as a class with slots, which numba cannot compile
flat: the kernel's functions over two Python lists, as numba compiles them
used: `SampledRate`, the kernel with four numbers kept in front of it

Forms take turns, and the best of many runs counts, without the loop around the calls.
"""

import math
import time
from collections.abc import Callable

from tidegate.quota import SampledRate
from tidegate.quota.measure.rate_kernel import CERTAINTY, WHOLE, rate_configure, rate_decide, rate_state
from tidegate.quota.measure.throttle import MAX_INT64, narrow_to_int32, rate_throttle_ms

CALLS, RUNS, CALLS_PER_MS = 50_000, 20, 1000
SAMPLES, WINDOW_MS = 11, 1000
START_MS = 1_700_000_000_000

Decide = Callable[[float, int], int]


class ObjectRate:
    """The algorithm of `quota.measure.rate_kernel` with attributes for indices; the clock does not step back."""

    __slots__ = (
        "_bound", "_calm", "_due_ms", "_exact", "_last_ms", "_lasts", "_oldest_ms", "_others", "_room",
        "_slot", "_start_ms", "_starts", "_total", "_used", "_values",
    )  # fmt: skip

    def __init__(self, bound: float) -> None:
        self._bound = bound
        self._calm = bound * ((SAMPLES - 2) * WINDOW_MS / 1000.0) * CERTAINTY
        self._values = [0.0] * (SAMPLES + 1)
        self._starts = [0] * (SAMPLES + 1)
        self._lasts = [0] * (SAMPLES + 1)
        self._due_ms = self._last_ms = self._start_ms = self._oldest_ms = self._slot = self._used = 0
        self._total = self._others = 0.0
        self._room = self._exact = -math.inf

    def decide(self, value: float, now_ms: int) -> int:
        """Record and return the throttle time."""
        if now_ms >= self._due_ms:
            self._begin_sample(now_ms)
            self._look_through(now_ms)
        self._last_ms = now_ms
        self._total = total = self._total + value
        if total <= self._room:
            return 0
        return self._verdict(total, now_ms)

    def _verdict(self, total: float, now_ms: int) -> int:
        if -self._exact <= total <= self._exact and total + WHOLE - WHOLE == total:
            total += self._others
        else:
            self._values[self._slot] = total
            total = 0.0
            for value in self._values:
                total += value
        window_ms = max(now_ms - self._oldest_ms, 1)
        missing = SAMPLES - 1 - window_ms // WINDOW_MS
        if missing > 0:
            window_ms += missing * WINDOW_MS
        rate = total / (window_ms / 1000.0)
        if rate <= self._bound:
            return 0
        return narrow_to_int32(rate_throttle_ms(rate, self._bound, window_ms))

    def _begin_sample(self, now_ms: int) -> None:
        if self._used:
            if now_ms - self._start_ms < WINDOW_MS:
                return
            slot = self._slot
            self._values[slot] = self._total
            self._starts[slot], self._lasts[slot] = self._start_ms, self._last_ms
            self._slot = (slot + 1) % (SAMPLES + 1)
        self._used = max(self._used, self._slot + 1)
        self._start_ms, self._total = now_ms, 0.0

    def _look_through(self, now_ms: int) -> None:
        others = size = 0.0
        whole = True
        oldest_ms, first_last_ms = self._start_ms, MAX_INT64
        for slot in range(self._used):
            if slot == self._slot:
                continue
            if self._lasts[slot] <= now_ms - SAMPLES * WINDOW_MS:
                self._values[slot] = 0.0
                self._starts[slot] = self._lasts[slot] = now_ms
            first_last_ms = min(first_last_ms, self._lasts[slot])
            oldest_ms = min(oldest_ms, self._starts[slot])
            others += self._values[slot]
            size += abs(self._values[slot])
            whole = whole and self._values[slot].is_integer()
        self._others, self._oldest_ms = others, oldest_ms
        self._exact = 2.0**51 - size if whole else -1.0
        self._room = self._calm - size if self._calm >= size else -math.inf
        self._due_ms = min(self._start_ms + WINDOW_MS, first_last_ms + SAMPLES * WINDOW_MS)


def time_method_ns(decide: Decide, value: float, times_ms: list[int]) -> float:
    """Return the ns of one call of a method, with the loop around it."""
    begin_ns = time.process_time_ns()
    for now_ms in times_ms:
        decide(value, now_ms)
    return (time.process_time_ns() - begin_ns) / len(times_ms)


def time_flat_ns(rows: tuple[list[float], list[int]], value: float, times_ms: list[int]) -> float:
    """Return the ns of one call of the kernel's function, with the loop around it."""
    floats, ints = rows
    begin_ns = time.process_time_ns()
    for now_ms in times_ms:
        rate_decide(floats, ints, value, now_ms)
    return (time.process_time_ns() - begin_ns) / len(times_ms)


def time_loop_ns(times_ms: list[int]) -> float:
    """Return the ns of the loop alone."""
    begin_ns = time.process_time_ns()
    for _now_ms in times_ms:
        pass
    return (time.process_time_ns() - begin_ns) / len(times_ms)


def compare(bound: float, value: float) -> tuple[float, float, float]:
    """Return the ns of one decision in the three forms."""
    as_object, used = ObjectRate(bound), SampledRate(samples=SAMPLES, window_ms=WINDOW_MS, bound=bound)
    rows = rate_state(SAMPLES)
    rate_configure(*rows, bound, SAMPLES, WINDOW_MS, MAX_INT64)
    runs = []
    for run in range(RUNS):
        begin_ms = START_MS + run * CALLS // CALLS_PER_MS
        times_ms = [begin_ms + at // CALLS_PER_MS for at in range(CALLS)]
        runs.append(
            (
                time_method_ns(as_object.decide, value, times_ms),
                time_flat_ns(rows, value, times_ms),
                time_method_ns(used.decide, value, times_ms),
                time_loop_ns(times_ms),
            )
        )
    best = [min(column) for column in zip(*runs, strict=True)]
    return best[0] - best[3], best[1] - best[3], best[2] - best[3]


def main() -> None:
    """Print the table."""
    print(f"{'ns a decision':<20}{'object':>8}{'flat':>8}{'ratio':>7}{'used':>8}{'ratio':>7}")
    for name, bound, value in (
        ("within its quota", 1e12, 1000.0),
        ("over, whole bytes", 1e6, 1000.0),
        ("over, fractions", 1e6, 1000.3),
    ):
        plain, flat, used = compare(bound, value)
        print(f"{name:<20}{plain:>8.0f}{flat:>8.0f}{flat / plain:>7.2f}{used:>8.0f}{used / plain:>7.2f}")


if __name__ == "__main__":
    main()
