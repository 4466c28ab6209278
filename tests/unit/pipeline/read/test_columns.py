"""Columns as numbers: what is null, what is empty, and codes that are looked up or sorted."""

import numpy as np
import pyarrow as pa
import pytest

from tidegate.pipeline.read import columns
from tidegate.pipeline.read.columns import is_there, name_places, numbers_of, numbers_of_names, used_codes


@pytest.mark.parametrize("names", [["b", None, "", "a", "b"], [None, None], []])
@pytest.mark.parametrize("is_encoded", [True, False])
def test_a_missing_name_is_the_empty_one(names, is_encoded):
    """Both are at place 0, however the column is encoded, and of no rows there is that name alone."""
    column = pa.chunked_array([pa.array(names, pa.string())])
    table = pa.table({"name": column.dictionary_encode() if is_encoded else column})
    places, found = name_places(table, "name")
    assert [found[int(place)].as_py() for place in places] == [name or "" for name in names]
    assert all(place == 0 for place, name in zip(places.tolist(), names, strict=True) if not name)
    assert numbers_of_names(table, "name", len, np.int8).tolist() == [len(name or "") for name in names]


def test_nulls_are_0_or_false():
    """And which they are is known."""
    table = pa.table({"n": pa.array([5, None], pa.int64()), "f": pa.array([None, True])})
    assert (numbers_of(table, "n").tolist(), numbers_of(table, "f").tolist()) == ([5, 0], [False, True])
    assert is_there(table, "n").tolist() == [True, False]


@pytest.mark.parametrize("values", [[True, None, False], [None, None, None], [False, True, True]])
@pytest.mark.parametrize("chunks", [1, 2])
def test_flags_of_a_part_of_a_column(values, chunks):
    """The part may begin at any bit of a byte."""
    column = pa.chunked_array([pa.array(values * 11, pa.bool_())] * chunks)
    for first in range(20):
        for length in (0, 1, 8, 13):
            part = column.slice(first, length)
            found = numbers_of(pa.table({"flag": part}), "flag")
            assert found.dtype == bool
            assert found.tolist() == [bool(value) for value in part.to_pylist()]


@pytest.mark.parametrize("largest_table", [0, 1 << 22])
def test_codes_that_occur_have_places(monkeypatch, largest_table):
    """The same places whether they are looked up or sorted; of rows that do not count no code is there."""
    monkeypatch.setattr(columns, "_LARGEST_TABLE", largest_table)
    code = np.array([7, 2, 7, 9])
    used, place = used_codes(code, 10)
    assert (used.tolist(), used[place].tolist()) == ([2, 7, 9], code.tolist())
    used, place = used_codes(code, 10, np.array([True, True, True, False]))
    assert (used.tolist(), used[place[:3]].tolist()) == ([2, 7], [7, 2, 7])
