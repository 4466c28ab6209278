"""Rows of several processes that serve one broker, read as rows of this broker (`tidegate gateway --processes`).

Each process has a record of its own, under a node id of its own. Their rows become those of one node, in the order of
time: `seq` is made of the time, so holes in it mean nothing. What all processes record, such as starts and quotas, is
read of the first. Snapshots are left out, because each has the part of one process.

A row keeps its place among the rows of its process in the same millisecond, of which there are at most 32,768.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.read.columns import Numbers, numbers_of
from tidegate.usage.process_nodes import process_of_node

__all__ = ["PROCESS_COLUMNS", "are_merged", "merged"]

PROCESS_COLUMNS = ("kind", "node_id", "seq", "ts_ms")
"""Columns that `merged` needs."""

_COMMON = pa.array(["start", "quota", "callback", "expire", "snapshot"])
_OF_NONE = pa.array(["snapshot"])
_TIME_SHIFT = 21
_PLACES = (1 << 15) - 1
_PLACE_SHIFT = 6
_CONNECTION_SHIFT = 56


def merged(table: pa.Table) -> pa.Table:
    """Return rows of one process as rows of its broker. The table has `PROCESS_COLUMNS`; other columns stay."""
    if not len(table):
        return table
    found = process_of_node(table["node_id"][0].as_py())
    assert found is not None, "the file is that of a process"
    broker_id, process = found
    kinds = table["kind"].cast(pa.string())
    table = table.filter(pc.invert(pc.is_in(kinds, _OF_NONE if process == 1 else _COMMON)))
    seq, ts_ms = numbers_of(table, "seq"), numbers_of(table, "ts_ms")
    place = (seq & _PLACES) << _PLACE_SHIFT
    changed = {
        "node_id": np.full(len(table), broker_id),
        "seq": (ts_ms << _TIME_SHIFT) | place | process,
    }
    if "connection_id" in table.column_names:
        changed["connection_id"] = numbers_of(table, "connection_id") + (process << _CONNECTION_SHIFT)
    for name, numbers in changed.items():
        at = table.column_names.index(name)
        table = table.set_column(at, table.field(at), pa.array(numbers, table.field(at).type))
    return table


def are_merged(seq: Numbers, ts_ms: Numbers) -> bool:
    """Return whether rows are those of `merged`. A node that counts its rows has smaller numbers."""
    return bool((seq >> _TIME_SHIFT == ts_ms).all())
