"""For how long a session is used before the next login (KIP-368)."""

import pytest

from tidegate.client.connection import session_use_s


@pytest.mark.parametrize(
    ("lifetime_ms", "use_s"),
    [(3_600_000, 3_060), (10_000, 8.5), (5_000, 4), (2_000, 1), (1_000, 0.5), (1, 0.0005)],
)
def test_a_second_of_a_session_is_left(lifetime_ms: int, use_s: float):
    """15 % are left where that is more, and a half of a session of less than two seconds."""
    assert session_use_s(lifetime_ms) == pytest.approx(use_s)
