"""Arrays that grow."""

import numpy as np
import pytest

from tidegate.pipeline.replay.state.tables import with_room


@pytest.mark.parametrize(
    ("rows", "likely", "found"),
    [
        (100, 0, 128),
        (129, 0, 129),
        (100, 99, 128),
        (100, 800, 800),
        (100, 801, 128),
        (64, 800, 64),
    ],
)
def test_a_column_gets_its_likely_size_once_an_eighth_of_it_is_needed(rows, likely, found):
    """Else it doubles. Its rows stay, and the new ones are 0."""
    column = np.arange(128).reshape(64, 2)
    grown = with_room(column, rows, likely)
    assert grown.shape == (found, 2)
    assert (grown[:64] == column).all()
    assert not grown[64:].any()
