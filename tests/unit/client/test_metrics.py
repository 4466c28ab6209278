"""Average and maximum of throttle times over the samples of a client."""

import math

from tidegate.client.metrics import ThrottleTimes


def test_before_the_first_response_they_are_not_numbers():
    """Both are NaN."""
    values = ThrottleTimes("fetch", samples=2, window_ms=1000).values()
    assert sorted(values) == ["fetch-throttle-time-avg", "fetch-throttle-time-max"]
    assert all(math.isnan(value) for value in values.values())


def test_old_samples_leave_both():
    """A value counts until its sample is as old as all samples together."""
    clock = iter([0, 1500, 1999, 2000, 3500])
    times = ThrottleTimes("fetch", samples=2, window_ms=1000, now_ms=lambda: next(clock))
    times.record(900)
    times.record(100)
    assert list(times.values().values()) == [500.0, 900.0]
    assert list(times.values().values()) == [100.0, 100.0]
    assert all(math.isnan(value) for value in times.values().values())
