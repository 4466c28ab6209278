"""The clocks: which of them can be stepped."""

import time

import pytest

from tidegate.clock import SystemClock
from tidegate.testing import ManualClock


def test_engine_time_begins_at_the_wall_clock():
    """Who looks at either sees the same time, as long as nobody steps the wall clock."""
    clock = SystemClock()
    assert clock.wall_ms() == pytest.approx(time.time() * 1000, abs=1000)
    assert clock.now_ms() == pytest.approx(clock.wall_ms(), abs=1000)


def test_engine_time_is_the_monotonic_clocks():
    """It goes on from where it was begun, in this process or another of the machine, whatever the wall clock does."""
    clock = SystemClock(engine_offset_ns=10**18)
    before_ns = time.monotonic_ns()
    now_ms = clock.now_ms()
    assert before_ns <= now_ms * 10**6 - 10**18 + 10**6
    assert now_ms * 10**6 - 10**18 <= time.monotonic_ns()
    assert clock.wall_ms() > 2 * now_ms - 10**12  # not moved along: the year 2001 is long over


def test_a_manual_clock_is_set_back_by_its_wall_clock_alone():
    """Engine time and the monotonic clock never step back, in tests as little as in life."""
    clock = ManualClock(start_ms=5000)
    clock.advance(10)
    clock.step_wall(-3000)
    assert (clock.now_ms(), clock.wall_ms(), clock.monotonic_ns()) == (5010, 2010, 10_000_000)
    with pytest.raises(ValueError, match="got -1; hint: step_wall"):
        clock.advance(-1)
