"""The rate as an object: the numbers kept in front of the kernel's rows, and changes of its settings."""

from tidegate.quota.measure.rate import SampledRate
from tidegate.quota.measure.rate_kernel import LONG_AGO_MS


def test_usual_decisions_reach_the_rows_when_they_are_read() -> None:
    """Records that only touched the numbers in front are seen by peeks, measuring and the next sample."""
    rate = SampledRate(samples=11, window_ms=1000, bound=100.0)
    assert [rate.decide(10.0, now_ms) for now_ms in (0, 1, 2)] == [0, 0, 0]
    assert rate.peek(2) == 30.0 / 10.002
    assert rate.last_record_ms() == 2
    assert rate.decide(10.0, 1000) == 0
    assert rate.measure(1000) == 4.0


def test_room_ends_before_the_bound() -> None:
    """The short way answers only where no window can be over the bound; the rest is looked at closely."""
    rate = SampledRate(samples=11, window_ms=1000, bound=100.0)
    rate.decide(0.0, 0)
    assert 899.9 < rate.room < 900.0
    assert (rate.decide(1000.0, 0), rate.decide(1.0, 0)) == (0, 10)


def test_more_samples_find_room() -> None:
    """The rows grow with the settings, and what was recorded stays."""
    rate = SampledRate(samples=1, window_ms=1000)
    rate.record(100.0, 0)
    rate.configure(samples=20, window_ms=1000, bound=10.0)
    for second in range(1, 19):
        rate.record(0.0, second * 1000)
    assert (rate.measure(18_999), rate.bound) == (100.0 / 19.999, 10.0)


def test_a_rate_that_was_never_recorded_says_so() -> None:
    """Measuring is no record."""
    rate = SampledRate(samples=2, window_ms=1000)
    assert rate.measure(0) == 0.0
    assert rate.last_record_ms() == LONG_AGO_MS
