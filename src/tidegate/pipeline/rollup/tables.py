"""Parts put together: who used what in all, or by minute. Arrow in, Arrow out, in this process and on Spark alike."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.rollup.merging import merged, plain_counts
from tidegate.pipeline.rollup.percentiles import BUCKETS, percentiles
from tidegate.pipeline.rollup.sums import compact
from tidegate.pipeline.schemas import USAGE_MEASURES, usage_parts_schema

__all__ = ["minute_keys", "put_together", "put_together_batches"]


def minute_keys(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a row of usage by minute is told apart by."""
    return "minute_ms", *by, "node_id"


def put_together(parts: pa.Table, keys: Sequence[str], table: StructType) -> Iterator[pa.Table]:
    """Yield one row per `keys` out of a `compact` table of parts, columns of `table`: sorted, some at a time.

    Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    schema = to_arrow_schema(table)
    for some in merged(parts, keys):
        columns = {name: some[name] for name in some.column_names} | _percentile_columns(some)
        yield pa.table({name: columns[name] for name in schema.names}).cast(schema)


def put_together_batches(
    batches: Iterator[pa.RecordBatch], *, by: Sequence[str], keys: Sequence[str], table: StructType
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `put_together` for a partition that contains all parts of its keys."""
    parts = pa.Table.from_batches(batches, to_arrow_schema(usage_parts_schema(by)))
    for some in put_together(compact(parts), keys, table):
        yield from some.to_batches()


def _percentile_columns(part: pa.Table) -> dict[str, pa.Array]:
    """Return the percentiles of merged rows, whose codes are in order."""
    row, code, count = plain_counts(part)
    columns = {}
    for place, measure in enumerate(USAGE_MEASURES):
        is_here = code // BUCKETS == place
        numbers = row[is_here], code[is_here] % BUCKETS, count[is_here]
        for percent, values in percentiles(len(part), *numbers).items():
            columns[f"{measure}_p{percent}"] = pa.array(values, pa.int64())
    return columns
