"""Work in slices: what was made of many elements is let go of some at a time."""

import pytest

from tidegate.in_slices import release, release_messages


@pytest.mark.parametrize("sizes", [(99_000,), (100,) * 990, (1, 5_000, 0, 94_999)])
def test_many_elements_are_released_some_at_a_time(sizes):
    """However they are spread over lists and tables, a step frees 500 of them, and all go."""
    containers = [dict.fromkeys(range(size)) if size % 2 else [None] * size for size in sizes]
    left = sum(sizes)
    for _ in release(*containers):
        before, left = left, sum(map(len, containers))
        assert before - left == 500
    assert not any(containers)


def test_few_elements_are_left():
    """What an ordinary request was made of goes by itself."""
    items, table = [1] * 499, {"a": 1}
    assert list(release(items, table)) == []
    assert (len(items), len(table)) == (499, 1)


def _message(topics: int, partitions: int) -> list[dict]:
    return [
        {"name": f"t{at}", "partitions": [{"index": index, "replicas": [1]} for index in range(partitions)]}
        for at in range(topics)
    ]


@pytest.mark.parametrize(
    ("topics", "partitions"), [(20_000, 0), (1, 20_000), (100, 200)], ids=["wide", "deep", "both"]
)
def test_messages_are_released_with_all_that_is_in_them(topics, partitions):
    """A step takes 500 of them from their lists, on whatever level; in the end every list is empty."""
    messages = _message(topics, partitions)
    inner = [message["partitions"] for message in messages]
    innermost = [part["replicas"] for parts in inner for part in parts]
    lists = [messages, *inner, *innermost]
    left = sum(map(len, lists))
    steps = 0
    for _ in release_messages(messages):
        before, left = left, sum(map(len, lists))
        assert before - left == 500
        steps += 1
    assert steps == (topics + 2 * topics * partitions) // 500
    assert not any(lists)
