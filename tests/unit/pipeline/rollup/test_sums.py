"""Tables in little memory."""

import pyarrow as pa

from tidegate.pipeline.rollup.sums import compact


def test_narrow_integers_are_the_same():
    """At the edges of each width, with nulls and without any number."""
    edges = [[-128, 127], [-129, 0], [0, 2**15], [-(2**31) - 1, 2**63 - 1, None], [None, None], []]
    for values in edges:
        table = pa.table({"n": pa.array(values, pa.int64()), "t": pa.array(["x"] * len(values), pa.string())})
        assert compact(table).to_pylist() == table.to_pylist()
    assert compact(pa.table({"n": pa.array([-128, 127, None])}))["n"].type == pa.int8()
