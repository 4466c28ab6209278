"""The plain statistics: what their vectors do not reach."""

import math

from tests.vectors.players._stats import Max, SimpleRate, WindowedCount, WindowedSum

from tidegate.quota.measure.stats import Avg


def test_an_average_is_of_the_last_windows_and_nan_without_any() -> None:
    """Two samples of 30 s: after a minute without a record the average is NaN again (B§3.5)."""
    average = Avg(samples=2, window_ms=30_000)
    assert math.isnan(average.measure(0))
    average.record(10.0, 0)
    average.record(20.0, 30_000)
    assert average.measure(30_000) == 15.0
    assert average.measure(60_000) == 20.0
    assert math.isnan(average.measure(90_000))


def test_peeking_restarts_no_sample() -> None:
    """A peek gives what measuring would, and the measuring after it still does."""
    average, alone = Avg(samples=2, window_ms=30_000), Avg(samples=2, window_ms=30_000)
    for stat in (average, alone):
        stat.record(10.0, 0)
    assert math.isnan(average.peek(60_000))
    assert average.peek(59_999) == 10.0
    for stat in (average, alone):
        stat.record(30.0, 29_000)
    assert average.measure(59_000) == alone.measure(59_000) == 20.0


def test_peeking_at_an_empty_rate_makes_no_sample() -> None:
    """Measuring anchors the window, peeking does not."""
    rate = SimpleRate(samples=2, window_ms=1000)
    assert rate.peek(0) == 0.0
    rate.record(10.0, 5000)
    assert rate.measure(5000) == 10.0


def test_largest_sum_and_count() -> None:
    """Each combines samples in its way; a maximum of nothing is NaN, and NaN is larger than everything."""
    largest, total, count = (stat(samples=2, window_ms=1000) for stat in (Max, WindowedSum, WindowedCount))
    assert math.isnan(largest.measure(0))
    for stat in (largest, total, count):
        stat.record(-3.0, 0)
        stat.record(-5.0, 1000)
    assert (largest.measure(1000), total.measure(1000), count.measure(1000)) == (-3.0, -8.0, 2.0)
    largest.record(math.nan, 1000)
    assert math.isnan(largest.measure(1000))
