"""Parts put together: who used what in all, or by minute. Arrow in, Arrow out, in this process and on Spark alike."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.errors import check_sum
from tidegate.pipeline.rollup.kernel import MEASURES
from tidegate.pipeline.rollup.parts import COUNTS
from tidegate.pipeline.rollup.percentiles import BUCKETS, percentiles
from tidegate.pipeline.schemas import USAGE_MEASURES, USAGE_PEAKS, USAGE_SUMS, usage_parts_schema
from tidegate.pipeline.sums import compact, decoded, key_numbers, name_numbers, pieces

__all__ = ["minute_keys", "put_together", "put_together_batches"]

_FUNCTIONS = {**dict.fromkeys(USAGE_SUMS, np.add), "first_ts_ms": np.minimum, "last_ts_ms": np.maximum,
              **dict.fromkeys(USAGE_PEAKS, np.maximum)}  # fmt: skip

Int64s = npt.NDArray[np.int64]


def minute_keys(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a row of usage by minute is told apart by."""
    return "minute_ms", *by, "node_id"


def put_together(parts: pa.Table, keys: Sequence[str], table: StructType) -> Iterator[pa.Table]:
    """Yield one row per `keys` out of a `compact` table of parts, columns of `table`: sorted, some at a time.

    Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    schema = to_arrow_schema(table)
    for places in pieces(key_numbers(*(_numbers(parts[name]) for name in keys))):
        yield _added_up(decoded(parts.take(places)), keys, schema)


def _numbers(column: pa.ChunkedArray) -> Int64s:
    """Return a number for each value, in the order of these."""
    if not pa.types.is_integer(column.type):
        return name_numbers(column)
    return np.unique(column.to_numpy(), return_inverse=True)[1].reshape(-1)


def _added_up(parts: pa.Table, keys: Sequence[str], schema: pa.Schema) -> pa.Table:
    """Return one row per `keys`, which the parts are sorted by."""
    begins = _begins(parts, keys)
    first = np.flatnonzero(begins)
    columns = {name: parts[name].take(pa.array(first)) for name in keys}
    for name, function in _FUNCTIONS.items():
        values = parts[name].to_numpy()
        if name in USAGE_SUMS:
            values = values.astype(np.int64)
            check_sum(np.add.reduceat(values.astype(np.float64), first).max())
        columns[name] = pa.array(function.reduceat(values, first))
    columns |= _percentile_columns(parts, np.cumsum(begins) - 1, len(first))
    return pa.table({name: columns[name] for name in schema.names}).cast(schema)


def put_together_batches(
    batches: Iterator[pa.RecordBatch], *, by: Sequence[str], keys: Sequence[str], table: StructType
) -> Iterator[pa.RecordBatch]:
    """Do `put_together` for a partition of parts, which has all those of its keys."""
    parts = pa.Table.from_batches(batches, to_arrow_schema(usage_parts_schema(by)))
    for some in put_together(compact(parts), keys, table):
        yield from some.to_batches()


def _begins(table: pa.Table, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows have other keys than the row before."""
    begins = np.zeros(len(table), bool)
    begins[0] = True
    for name in keys:
        column = table[name]
        begins[1:] |= pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy()
    return begins


def _percentile_columns(table: pa.Table, group: Int64s, groups: int) -> dict[str, pa.Array]:
    codes, counts = (table[name].combine_chunks() for name in COUNTS)
    if isinstance(codes, pa.ChunkedArray):
        codes, counts = codes.chunk(0), counts.chunk(0)
    of_row = pc.list_parent_indices(codes).to_numpy()
    key = group[of_row] * (MEASURES * BUCKETS) + pc.list_flatten(codes).to_numpy().astype(np.int64)
    order = np.argsort(key, kind="stable")
    key, count = key[order], pc.list_flatten(counts).to_numpy().astype(np.int64)[order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    key, count = key[first], np.add.reduceat(count, first) if len(first) else count
    of_group, bucket = np.divmod(key, BUCKETS)
    columns = {}
    for place, measure in enumerate(USAGE_MEASURES):
        is_here = of_group % MEASURES == place
        numbers = of_group[is_here] // MEASURES, bucket[is_here], count[is_here]
        for percent, values in percentiles(groups, *numbers).items():
            columns[f"{measure}_p{percent}"] = pa.array(values, pa.int64())
    return columns
