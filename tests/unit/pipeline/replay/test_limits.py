"""Limits of many sensors at once, next to the same arithmetic in Python."""

from datetime import timedelta
from itertools import product

import numpy as np
import pytest

from tidegate.errors import ArgumentError
from tidegate.pipeline.replay.limits import Tolerance, _between

_COUNTS = (0, 1, 2, 99, 100, 101, 2**53 - 1, 2**53, 2**53 + 1, 2**62 + 1, 2**63 - 1)


def test_a_delay_is_compared_to_the_last_bit():
    """Python compares an integer with a float exactly; numpy would make a float of it."""
    for share in (0.0, 0.01, 0.3, 1 / 3, 1.0):
        pairs = list(product(_COUNTS, _COUNTS))
        delayed, amount = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
        none = np.zeros(len(pairs), np.int64)
        names = ("rejected_mutations", "capped_fetches", "requests", "longest_throttle_ms")
        sums = {"delayed_amount": delayed, "amount": amount} | dict.fromkeys(names, none)
        found = Tolerance(share=share, longest_ms=0).allow(sums)
        assert found.tolist() == [of_amount <= share * whole for of_amount, whole in pairs]


def test_each_kind_of_delay_counts():
    """A row is allowed only where the longest delay, the amount and the cut fetches are."""
    names = (
        "longest_throttle_ms",
        "delayed_amount",
        "rejected_mutations",
        "capped_fetches",
        "amount",
        "requests",
    )
    rows = [(10, 5, 0, 5, 100, 100), (11, 5, 0, 5, 100, 100), (10, 6, 0, 5, 100, 100)]
    rows += [(10, 5, 1, 5, 100, 100), (10, 5, 0, 6, 100, 100)]
    sums = {
        name: np.array(column, np.int64) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    assert Tolerance(share=0.05, longest_ms=10).allow(sums).tolist() == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("share", value) for value in (5, -0.1, float("nan"), "x", True, None)),
        *(("longest_ms", value) for value in (-1, 1.5, 2**31, timedelta(seconds=1), True, None)),
    ],
)
def test_a_tolerance_that_means_nothing_is_refused(name, value):
    """A share is not a percentage, and a length of time is a number of ms."""
    with pytest.raises(ArgumentError, match=f"^{name} must be a (whole )?number from 0 to"):
        Tolerance(**{name: value})


def test_rungs_are_geometric_steps_of_python():
    """To the last bit; the highest is the upper end itself."""
    rng = np.random.default_rng(7)
    high = rng.uniform(1e-6, 1e12, 500)
    low = high * np.where(rng.random(500) < 0.5, 1 / 1024, rng.random(500))
    found = _between(low, high)
    assert (found[-1] == high).all()
    for rung, bounds in enumerate(found.tolist(), start=1):
        pairs = zip(low.tolist(), high.tolist(), strict=True)
        assert bounds == [end * (start / end) ** (1.0 - rung / 10) for start, end in pairs]
