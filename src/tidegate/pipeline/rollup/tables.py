"""Parts put together: who used what in all, or by minute. Arrow in, Arrow out, in this process and on Spark alike."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.rollup.groups import UNKNOWN_TOPIC
from tidegate.pipeline.rollup.merging import merged, plain_counts
from tidegate.pipeline.rollup.percentiles import BUCKETS, percentiles
from tidegate.pipeline.rollup.sums import compact
from tidegate.pipeline.schemas import TOPIC_SUMS, USAGE_MEASURES, USAGE_PEAKS

__all__ = ["minute_keys", "most_bytes", "put_together", "topic_totals"]


def minute_keys(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a row of usage by minute is told apart by."""
    return "minute_ms", *by, "node_id"


def put_together(parts: pa.Table, *, keys: Sequence[str], table: StructType) -> Iterator[pa.Table]:
    """Yield one row per `keys` out of a table of parts, columns of `table`: sorted, some at a time.

    Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    schema = to_arrow_schema(table)
    for some in merged(compact(parts), keys):
        columns = {name: some[name] for name in some.column_names} | _percentile_columns(some)
        columns |= {name: _measured(some[name]) for name in USAGE_PEAKS}
        yield pa.table({name: columns[name] for name in schema.names}).cast(schema)


def most_bytes(table: pa.Table, *, by: Sequence[str], top: int) -> pa.Table:
    """Return the `top` rows of usage with most bytes, then requests, in this order."""
    if not len(table):
        return table
    all_bytes = table.append_column("bytes", pc.add(table["produce_bytes"], table["fetch_bytes"]))
    order = [("bytes", "descending"), ("requests", "descending"), *((name, "ascending") for name in by)]
    return table.take(pc.select_k_unstable(all_bytes, min(top, len(table)), sort_keys=order))


def topic_totals(groups: pa.Table) -> pa.Table:
    """Return a row for the unknown topic and one for all others: with the sums of requests and of `TOPIC_SUMS`."""
    is_unknown = pc.equal(groups["topic"], UNKNOWN_TOPIC)
    rows = []
    for some in (groups.filter(is_unknown), groups.filter(pc.invert(is_unknown))):
        row = some.slice(0, 1)
        for name in ("requests", *TOPIC_SUMS) if len(some) else ():
            total = pa.array([pc.sum(some[name]).as_py()], pa.int64())
            row = row.set_column(row.column_names.index(name), name, total)
        rows.append(row)
    return pa.concat_tables(rows)


def _measured(peaks: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return peaks, null where no rate was measured."""
    return pc.if_else(pc.is_nan(peaks), pa.scalar(None, pa.float64()), peaks)


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
