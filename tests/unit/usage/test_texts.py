"""What the rows of snapshots and of tags say."""

import json

import pytest

from tidegate.usage.segment import NAME_BYTES_MAX
from tidegate.usage.texts import ends, rows_between, sensor_texts, tags_text


def test_a_state_of_any_length_is_kept_in_parts():
    """Of a name's length at most, and joined they are the whole."""
    state = {"samples": [[number / 3, -number, -number] for number in range(3601)], "current": 5}
    texts = sensor_texts(state)
    assert len(texts) > 1
    assert all(len(text.encode()) <= NAME_BYTES_MAX for text in texts)
    assert json.loads("".join(texts)) == state


@pytest.mark.parametrize(
    "text", ["", "begins", "ends", "ends ", "ends -1", "ends 1x", "ends ²", "ends 9999999999", "{}"]
)
def test_what_is_no_end_is_none(text):
    """Not by halves either."""
    assert rows_between(text) is None


def test_the_end_says_how_many_rows_there_are():
    """None too."""
    assert [rows_between(ends(rows)) for rows in (0, 190_000)] == [0, 190_000]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, "{}"),
        ({"b": "1", "a": "2"}, '{"b":"1","a":"2"}'),
        ({"é": "\ud800"}, r'{"\u00e9":"\ud800"}'),
        ({"a": "x" * (NAME_BYTES_MAX - 8)}, '{"a":"' + "x" * (NAME_BYTES_MAX - 8) + '"}'),
    ],
)
def test_tags_are_kept_exactly(given, kept):
    """Whatever is in them: who shares a limit is told by equal texts."""
    assert tags_text(given) == kept


def test_tags_that_are_too_long_are_told_apart():
    """By a digest of the whole: a name that is cut would make different ones equal."""
    texts = [tags_text({"a": "x" * NAME_BYTES_MAX + end}) for end in ("", "y", "y")]
    assert [len(text) for text in texts] == [77] * 3
    assert texts[0] != texts[1] == texts[2]
