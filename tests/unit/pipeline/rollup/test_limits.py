"""Limits of many entities as columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.config.windows import Windows
from tidegate.pipeline.replay.levels import smallest_limit
from tidegate.pipeline.rollup.limits import smallest_limits
from tidegate.quota.managers.quota_type import QuotaType
from tidegate.quota.measure.window import QuotaWindow

_SHARES = st.sampled_from([0.0, 0.5, 1 - 1e-9, 1.0, 1 + 1e-12, 2.0])


@pytest.mark.parametrize(("samples", "window_ms"), [(1, 1000), (2, 999), (7, 333), (11, 1000)])
@given(fetches=st.lists(st.tuples(st.integers(0, 2**31 - 1), _SHARES), max_size=20))
def test_limits_of_fetch_are_those_of_each_entity(samples, window_ms, fetches):
    """Columns of peaks and largest fetches have the limits that each of them has alone, to the last bit."""
    windows = Windows(rate=QuotaWindow(samples=samples, window_ms=window_ms))
    seconds = windows.rate.max_value(1.0) or 1.0
    rows = [
        {
            "quota_type": QuotaType.FETCH.value,
            "peak": share * (largest / seconds),
            "largest_amount": float(largest),
        }
        for largest, share in fetches
    ]
    peak, largest = (np.array([row[name] for row in rows], float) for name in ("peak", "largest_amount"))
    assert smallest_limits(peak, largest, windows).tolist() == [
        smallest_limit([row], windows) for row in rows
    ]
