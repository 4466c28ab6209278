"""Rows of a node in order of `seq`, as rates are measured in that.

Where chunks overlap (a row lies in the file of its own hour, whenever it was written), rows wait for those before them.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.read.chunks import read_chunk, read_tables
from tidegate.pipeline.read.columns import numbers_of
from tidegate.pipeline.read.missing import NodeChunk
from tidegate.pipeline.read.runs import check_rising
from tidegate.pipeline.rollup.groups import with_groups
from tidegate.pipeline.rollup.sums import release_free_memory
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["OutOfOrderError", "are_apart", "in_order", "rows_of_node", "sorted_rows"]

_ROWS_AT_ONCE = 1 << 17


class OutOfOrderError(Exception):
    """Rows of a chunk that is read in parts are not in order of `seq`."""


def are_apart(chunks: Sequence[NodeChunk]) -> bool:
    """Return whether all rows of each chunk come before the rows of the next chunk."""
    return all(before.last_seq < after.first_seq for before, after in pairwise(chunks))


def in_order(
    node_id: int, chunks: Sequence[NodeChunk], columns: Sequence[str], by: Sequence[str], *, is_streamed: bool
) -> Iterator[pa.Table]:
    """Yield columns of the rows of a node and the columns `by`, in order of `seq`, `_ROWS_AT_ONCE` at the most.

    is_streamed: a chunk that overlaps no other is read in parts. Raises `OutOfOrderError` where it is not in order.
    """
    waiting: list[pa.Table] = []
    reach = -1
    for place, chunk in enumerate(chunks):
        until_seq = chunks[place + 1].first_seq if place + 1 < len(chunks) else MAX_INT64
        if is_streamed and not waiting and reach < chunk.first_seq and chunk.last_seq < until_seq:
            for table in read_tables(chunk.chunk, columns):
                table = rows_of_node(with_groups(table, by), node_id)
                seq = numbers_of(table, "seq")
                if len(seq) and (seq[0] <= reach or not (seq[1:] > seq[:-1]).all()):
                    raise OutOfOrderError
                reach = int(seq[-1]) if len(seq) else reach
                yield table
                del table, seq  # else they are held while the next are read
            continue
        waiting.append(rows_of_node(with_groups(read_chunk(chunk.chunk, columns), by), node_id))
        reach = max(reach, chunk.last_seq)
        if reach < until_seq:
            ready, waiting = waiting, []
        else:
            ready = [each.filter(pc.less(each["seq"], until_seq)) for each in waiting]
            later = (each.filter(pc.greater_equal(each["seq"], until_seq)) for each in waiting)
            waiting = [each for each in later if len(each)]
        rows = sorted_rows(pa.concat_tables(ready).unify_dictionaries().combine_chunks(), node_id)
        del ready
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            yield rows.slice(first, _ROWS_AT_ONCE)
        is_large = len(rows) >= _ROWS_AT_ONCE
        del rows  # else they are held while the next are read
        if is_large:
            release_free_memory()


def rows_of_node(table: pa.Table, node_id: int) -> pa.Table:
    """Return the rows of a node."""
    is_here = numbers_of(table, "node_id") == node_id
    return table if is_here.all() else table.filter(pa.array(is_here))


def sorted_rows(table: pa.Table, node_id: int) -> pa.Table:
    """Return the rows in order of `seq`. Raises `UsageFilesError` where one occurs twice."""
    seq = numbers_of(table, "seq")
    if (seq[:1] < 0).any() or not (seq[1:] > seq[:-1]).all():
        table = table.take(pa.array(np.argsort(seq, kind="stable"))).combine_chunks()
        check_rising(numbers_of(table, "seq"), after=-1, node_id=node_id)
    return table
