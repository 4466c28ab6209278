"""A hundred thousand requests to a real Apache Kafka and to `tidegate serve`, in parts: `make e2e-long`."""

from collections.abc import Callable

import pytest
from tests.differing.compare import Comparison

pytestmark = pytest.mark.java
SEEDS, COUNT = range(100, 150), 2000


@pytest.mark.parametrize("seed", SEEDS)
def test_a_hundred_thousand_requests_are_answered_alike(
    seed: int, compare: Callable[[int, int], Comparison]
) -> None:
    """No difference that is not declared in one of the fifty parts."""
    compare(seed, COUNT)
