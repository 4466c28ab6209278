"""Work in slices: what was made of many elements is let go of some at a time."""

import pytest

from tidegate.in_slices import release


@pytest.mark.parametrize("sizes", [(99_000,), (100,) * 990, (1, 5_000, 0, 94_999)])
def test_many_elements_are_released_some_at_a_time(sizes):
    """However they are spread over lists and tables, a step frees a thousand of them, and all go."""
    containers = [dict.fromkeys(range(size)) if size % 2 else [None] * size for size in sizes]
    left = sum(sizes)
    for _ in release(*containers):
        before, left = left, sum(map(len, containers))
        assert before - left == 1_000
    assert not any(containers)


def test_few_elements_are_left():
    """What an ordinary request was made of goes by itself."""
    items, table = [1] * 500, {"a": 1}
    assert list(release(items, table)) == []
    assert (len(items), len(table)) == (500, 1)
