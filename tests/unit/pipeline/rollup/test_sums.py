"""Tables in little memory."""

import math

import pyarrow as pa
import pytest

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.rollup.sums import compact, grouped

_WANTED = {"n": "sum", "longest": "max", "first": "min", "rate": "max"}


def test_narrow_integers_are_the_same():
    """At the edges of each width, with nulls and without any number."""
    edges = [[-128, 127], [-129, 0], [0, 2**15], [-(2**31) - 1, 2**63 - 1, None], [None, None], []]
    for values in edges:
        table = pa.table({"n": pa.array(values, pa.int64()), "t": pa.array(["x"] * len(values), pa.string())})
        assert compact(table).to_pylist() == table.to_pylist()
    assert compact(pa.table({"n": pa.array([-128, 127, None])}))["n"].type == pa.int8()


def test_names_of_a_compact_table_are_one_chunk():
    """However many chunks they came in: to put tables together, the dictionary of each chunk is read."""
    names = pa.chunked_array([["b", "a"], [None], [], ["a"]])
    for given in (names, pa.chunked_array([[]], pa.string()), pa.chunked_array([], pa.string())):
        (found,) = compact(pa.table({"name": given}))["name"].chunks
        assert found.to_pylist() == given.to_pylist()


def test_rows_of_different_keys_are_grouped_as_they_are():
    """With the values and types that they have beside a key which occurs twice; NaN and null stay."""
    rows = [
        {"key": key, "other": "x", "n": n, "longest": n, "first": None, "rate": rate}
        for key, n, rate in (("b", 2, math.nan), ("a", 1, 1.5), (None, 0, None))
    ]
    apart = pa.Table.from_pylist(rows)
    apart = apart.set_column(2, "n", apart["n"].cast(pa.int8()))
    apart = apart.set_column(4, "first", apart["first"].cast(pa.int64()))
    found = grouped(apart, ("key", "other"), _WANTED)
    beside = grouped(pa.concat_tables([apart, apart.slice(0, 1)]), ("key", "other"), _WANTED)
    assert found.schema == beside.schema
    assert repr(found.slice(1).to_pylist()) == repr(beside.slice(1).to_pylist())
    assert repr(found.to_pylist()[0]) == repr(beside.to_pylist()[0] | {"n": 2})


@pytest.mark.parametrize("again", [0, 1])
def test_a_sum_without_room_is_refused(again):
    """The sum is refused where each key occurs once, and where one occurs twice."""
    table = pa.table({"key": ["a", "b", "a"][: 2 + again], "n": [2**62] * (2 + again)})
    with pytest.raises(UsageFilesError, match="64 bits"):
        grouped(table, ("key",), {"n": "sum"})
