"""Arithmetic of cluster-wide quotas, with numbers of any size."""

import math

from hypothesis import example, given
from hypothesis import strategies as st

from tidegate.gateway.shares import Usage, divide_limit
from tidegate.quota import UNLIMITED

numbers = st.floats(min_value=0.0, max_value=UNLIMITED)
usages = st.builds(Usage, rate=numbers, demand=numbers, claim=numbers)
unbounded = st.floats(min_value=0.0, allow_nan=False)
TINY = 5e-324


@example(limit=TINY, own=[Usage(), Usage()], others=Usage(), idle=0)  # half of it is 0
@example(limit=1.0, own=[Usage(demand=1.7e308)], others=Usage(demand=1.7e308), idle=0)  # the sum is infinite
@example(limit=1.0, own=[Usage()], others=Usage(demand=math.inf, claim=math.inf), idle=0)
@given(
    limit=st.floats(min_value=TINY, max_value=UNLIMITED),
    own=st.lists(usages, min_size=1, max_size=4),
    others=st.one_of(usages, st.builds(Usage, rate=unbounded, demand=unbounded, claim=unbounded)),
    idle=st.integers(0, 64_000),
)
def test_parts_are_from_0_to_1_whatever_is_reported(
    limit: float, own: list[Usage], others: Usage, idle: int
) -> None:
    """Each part is a number above 0 and at most 1, and all that is granted together is at most the unused rate."""
    parts = divide_limit(limit, own, others=others, idle_sensors=idle)
    assert len(parts) == len(own)
    assert all(0.0 < part.by_demand <= 1.0 and 0.0 <= part.granted <= 1.0 for part in parts)
    assert sum(part.granted for part in parts) <= 1.0 + 1e-9
