"""Merging of parts of usage: one row for each group and step of time, and in all.

Arrow in, Arrow out, in this process and on Spark alike.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.pipeline.errors import check_sum
from tidegate.pipeline.read.columns import codes_of
from tidegate.pipeline.rollup.groups import UNKNOWN_TOPIC
from tidegate.pipeline.rollup.kernel import CODES
from tidegate.pipeline.rollup.percentiles import BUCKETS, percentiles
from tidegate.pipeline.rollup.sums import (
    Numbers,
    aggregated,
    compact,
    decoded,
    grouped,
    key_numbers,
    name_numbers,
    pieces,
    plain,
    together,
    with_places,
)
from tidegate.pipeline.schemas import TOPIC_SUMS, USAGE_MEASURES, USAGE_PEAKS, USAGE_SUMS

__all__ = [
    "BYTES_AND_REQUESTS",
    "COUNTS",
    "TIMES",
    "GroupSums",
    "Parts",
    "add_in_place",
    "list_columns",
    "merge_parts",
    "merged",
    "minute_keys",
    "most_bytes",
    "plain_counts",
    "sums_together",
    "topic_totals",
]

TIMES = ("first_ts_ms", "last_ts_ms")
COUNTS = ("codes", "counts")
"""List columns of a part: codes (a measure and its bucket), and how often each was counted."""

_FUNCTIONS = {**dict.fromkeys((*USAGE_SUMS, *TOPIC_SUMS), np.add), **dict.fromkeys(USAGE_PEAKS, np.maximum),
              **dict(zip(TIMES, (np.minimum, np.maximum), strict=True))}  # fmt: skip
_BYTES_HELD = 1 << 22
_ROWS_HELD = 1 << 20
_ROWS_AT_ONCE = 1 << 17
_FEW_BYTES = 1 << 18  # to compact so few takes longer than to merge them
_MANY_KEYS = 1 << 21

Int64s = npt.NDArray[np.int64]


class Parts:
    """Parts of one node. They are merged when there are many, so that memory grows with groups and not with rows."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._most = _BYTES_HELD

    def add_part(self, part: pa.Table) -> None:
        """Add some."""
        self._tables.append(compact(part) if part.nbytes > _FEW_BYTES else with_places(part))
        self._bytes += self._tables[-1].nbytes
        if self._bytes > self._most:
            self._merge_some()
            # Twice the size after merging: rows that do not merge are not sorted each time.
            self._most = max(self._most, 2 * self._bytes)

    def taken(self) -> list[pa.Table]:
        """Return all, `compact`."""
        if len(self._tables) > 1:
            self._merge_some()
        return [compact(table) for table in self._tables]

    def _merge_some(self) -> None:
        found = merged(together(self._tables), self._keys, in_order=False)
        self._tables = [compact(some) for some in found]
        self._bytes = sum(table.nbytes for table in self._tables)


class GroupSums:
    """Sums of groups, merged when there are many, like `Parts`. keys, wanted: the columns of groups and sums."""

    def __init__(self, keys: Sequence[str], wanted: Sequence[str]) -> None:
        self._keys, self._wanted = keys, dict.fromkeys(wanted, "sum")
        self._tables: list[pa.Table] = []
        self._rows = 0
        self._most = _ROWS_HELD

    def add_part(self, part: pa.Table) -> None:
        """Add a table of groups and their sums."""
        self._tables.append(decoded(part.select([*self._keys, *self._wanted])))
        self._rows += len(part)
        if self._rows > self._most:
            self._merge_some()
            self._most = max(self._most, 2 * self._rows)

    def taken(self) -> list[pa.Table]:
        """Return one row per group."""
        if len(self._tables) > 1:
            self._merge_some()
        return self._tables

    def _merge_some(self) -> None:
        self._tables = [aggregated(pa.concat_tables(self._tables), self._keys, self._wanted)]
        self._rows = len(self._tables[0])


def merged(parts: pa.Table, keys: Sequence[str], *, in_order: bool = True) -> Iterator[pa.Table]:
    """Yield one row per `keys` out of a `compact` table of parts, its columns: sorted, some at a time.

    Other columns than keys and sums are those of the first part. in_order: False: rows come in any order, because it
    takes long to sort names. Raises `UsageFilesError` if a sum exceeds 64 bits.
    """
    weight = pc.list_value_length(parts[COUNTS[0]]).to_numpy()
    number = key_numbers(_numbers(parts[name], in_order=in_order) for name in keys)
    for places in pieces(number, weight):
        yield decoded(_merged(parts.take(places), number[places.to_numpy()]))


def sums_together(parts: pa.Table, *, keys: Sequence[str], table: StructType) -> Iterator[pa.Table]:
    """Yield one row per `keys`, with the columns of `table`; the others are sums. In any order, some at a time.

    Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    found = grouped(parts, keys, dict.fromkeys((name for name in table.names if name not in keys), "sum"))
    for batch in found.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield plain(pa.Table.from_batches([batch]), table)


def add_in_place(sums: Mapping[str, Int64s], more: Mapping[str, Int64s]) -> None:
    """Add the sums and times of the same cells to `sums`. Raises `UsageFilesError` where one has no room in 64 bits."""
    for name, values in sums.items():
        if _FUNCTIONS[name] is np.add:
            # Checked in doubles, because a sum of integers would wrap without an error.
            check_sum((values.astype(np.float64) + more[name]).max())
        _FUNCTIONS[name](values, more[name], out=values)


def plain_counts(part: pa.Table) -> tuple[Int64s, Int64s, Int64s]:
    """Return the lists of a part as columns: row, code and count."""
    codes, counts = (part[name].combine_chunks() for name in COUNTS)
    if isinstance(codes, pa.ChunkedArray):
        codes, counts = codes.chunk(0), counts.chunk(0)
    lists = (pc.list_parent_indices(codes), pc.list_flatten(codes), pc.list_flatten(counts))
    row, code, count = (column.to_numpy().astype(np.int64) for column in lists)
    return row, code, count


def list_columns(row: Int64s, code: Int64s, count: Int64s, *, rows: int) -> dict[str, pa.Array]:
    """Return the columns `COUNTS` of `rows` rows. row: for each count, the place of its row, increasing."""
    offsets = pa.array(np.searchsorted(row, np.arange(rows + 1)).astype(np.int32))
    return {
        name: pa.ListArray.from_arrays(offsets, pa.array(column))
        for name, column in zip(COUNTS, (code, count), strict=True)
    }


def _merged(parts: pa.Table, number: Numbers) -> pa.Table:
    """Return one row for each number. number: of each part, rising."""
    begins = np.diff(number, prepend=-1) != 0
    first = np.flatnonzero(begins)
    columns = _added(parts.drop_columns([*COUNTS]), first)
    row, code, count = plain_counts(parts)
    key, count = _added_up((np.cumsum(begins) - 1)[row] * CODES + code, count, len(first) * CODES)
    lists = list_columns(*np.divmod(key, CODES), count, rows=len(first))
    return pa.table({**columns, **lists}).select(parts.column_names)


def _added(parts: pa.Table, first: Int64s) -> dict[str, pa.Array]:
    """Return columns without `COUNTS`, added up. first: the first of the parts that make up each row."""
    columns = {name: parts[name] for name in parts.column_names}
    for name, column in columns.items():
        if name not in _FUNCTIONS:
            columns[name] = column.take(pa.array(first))
            continue
        values = column.to_numpy()
        if _FUNCTIONS[name] is np.add:
            values = values.astype(np.int64)
            # Checked in doubles, because a sum of integers would wrap without an error.
            check_sum(np.add.reduceat(values.astype(np.float64), first).max())
        columns[name] = pa.array(_FUNCTIONS[name].reduceat(values, first))
    return columns


def _added_up(key: Int64s, count: Int64s, keys: int) -> tuple[Int64s, Int64s]:
    """Return each key that occurs, in order, and its sum of counts. Keys are below `keys`."""
    if keys <= _MANY_KEYS:  # sums in doubles are exact: no record has 2**53 rows
        sums = np.bincount(key, count, minlength=1).astype(np.int64)
        used = np.flatnonzero(np.bincount(key, minlength=1))
        return used, sums[used]
    order = np.argsort(key, kind="stable")
    key, count = key[order], count[order]
    differs = np.flatnonzero(np.diff(key, prepend=-1))
    return key[differs], np.add.reduceat(count, differs) if len(differs) else count


def _numbers(column: pa.ChunkedArray, *, in_order: bool) -> Numbers:
    """Return a number for each value, equal for equal values. in_order: the numbers are in the order of the values."""
    if pa.types.is_integer(column.type):
        return np.unique(column.to_numpy(), return_inverse=True)[1].reshape(-1)
    return name_numbers(column) if in_order else 1 + codes_of(column)


def minute_keys(by: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that identify a row of usage by minute."""
    return "minute_ms", *by, "node_id"


def merge_parts(parts: pa.Table, *, keys: Sequence[str], table: StructType) -> Iterator[pa.Table]:
    """Yield one row per `keys` out of a table of parts, columns of `table`: sorted, some at a time.

    Raises `UsageFilesError` where a sum has no room in 64 bits.
    """
    schema = to_arrow_schema(table)
    for some in merged(compact(parts), keys):
        columns = {name: some[name] for name in some.column_names} | _percentile_columns(some)
        for name in USAGE_PEAKS:  # null where no rate was measured
            columns[name] = pc.if_else(pc.is_nan(some[name]), pa.scalar(None, pa.float64()), some[name])
        yield pa.table({name: columns[name] for name in schema.names}).cast(schema)


BYTES_AND_REQUESTS = ("produce_bytes", "fetch_bytes", "requests")
"""Columns that `most_bytes` needs, beside those of the groups."""


def most_bytes(table: pa.Table, *, by: Sequence[str], top: int) -> pa.Table:
    """Return the `top` rows of usage with most bytes, then requests, in this order."""
    if not len(table):
        return table
    all_bytes = table.append_column("bytes", pc.add(table["produce_bytes"], table["fetch_bytes"]))
    order = [("bytes", "descending"), ("requests", "descending"), *((name, "ascending") for name in by)]
    return table.take(pc.select_k_unstable(all_bytes, min(top, len(table)), sort_keys=order))


def topic_totals(groups: pa.Table) -> pa.Table:
    """Return a row for the unknown topic and one for all others, with the sums of requests and of `TOPIC_SUMS`."""
    is_unknown = pc.equal(groups["topic"], UNKNOWN_TOPIC)
    rows = []
    for some in (groups.filter(is_unknown), groups.filter(pc.invert(is_unknown))):
        row = some.slice(0, 1)
        for name in ("requests", *TOPIC_SUMS) if len(some) else ():
            total = pa.array([pc.sum(some[name]).as_py()], pa.int64())
            row = row.set_column(row.column_names.index(name), name, total)
        rows.append(row)
    return pa.concat_tables(rows)


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
