"""Windows: what is accepted."""

import pytest

from tidegate.errors import ConfigError
from tidegate.quota.measure.window import MAX_SAMPLES, QuotaWindow


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"samples": 0}, f"number of samples must be from 1 to {MAX_SAMPLES}, got 0"),
        (
            {"samples": MAX_SAMPLES + 1},
            f"number of samples must be from 1 to {MAX_SAMPLES}, got {MAX_SAMPLES + 1}",
        ),
        ({"window_ms": 0}, "window of a sample must be from 1 to 2147483647000 ms, got 0"),
        (
            {"window_ms": 2**31 * 1000},
            "window of a sample must be from 1 to 2147483647000 ms, got 2147483648000",
        ),
    ],
)
def test_windows_out_of_range_are_refused(settings: dict, message: str) -> None:
    """The error names the setting, its range and what came."""
    with pytest.raises(ConfigError) as refused:
        QuotaWindow(**settings)
    assert str(refused.value) == message


def test_the_ends_of_the_range_are_accepted() -> None:
    """Kafka's INT `[1,...]`, except for the bound on samples."""
    assert QuotaWindow(samples=1, window_ms=1).samples == 1
    assert QuotaWindow(samples=MAX_SAMPLES, window_ms=(2**31 - 1) * 1000).samples == MAX_SAMPLES


def test_the_most_in_a_window_leaves_one_sample_out() -> None:
    """Q * (n - 1) * (w / 1000), at any width of a sample (B§3.7)."""
    assert QuotaWindow(samples=3, window_ms=500).max_value(100.0) == 100.0
    assert QuotaWindow(samples=1).max_value(100.0) == 0.0
