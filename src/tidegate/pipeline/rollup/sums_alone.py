"""Usage without rates and percentiles: only sums, which need no order of rows and no compiled kernel.

Whole columns are added up by numpy. The sums are those of `kernel.add_up`, to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import read_tables
from tidegate.pipeline.read.columns import THROTTLES, numbers_of
from tidegate.pipeline.read.missing import NodeChunk, NodeRows
from tidegate.pipeline.rollup import kernel
from tidegate.pipeline.rollup.cells import (
    ALL_TIME_MS,
    AMOUNTS,
    LATEST_MS,
    SMALL,
    cells_of,
    check_amount,
    check_number,
    groups_of,
    kinds_of,
    usage_columns,
)
from tidegate.pipeline.rollup.groups import with_groups
from tidegate.pipeline.rollup.merging import TIMES, GroupSums, Parts, add_in_place, list_columns
from tidegate.pipeline.rollup.ordered import OutOfOrderError, are_apart, in_order, rows_of_node, sorted_rows
from tidegate.pipeline.schemas import CLIENT, USAGE_PEAKS, USAGE_SUMS, usage_parts_schema, usage_sums
from tidegate.pipeline.threads import mapped
from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["group_sums", "parts_of_sums", "sums_by_step"]

_NOT_ADDED = ("seq", "exempt")
_OF_REQUESTS = ("request_bytes", "response_bytes", "produce_bytes", "handler_ns")
_TAKING_BACK = ("fetch_throttle_ms", "request_throttle_ms")  # a throttled fetch is answered without records
_ENDS_AT_ONCE = 1 << 13  # rows
_FEW_CELLS = 1 << 14
_NOTHING = np.zeros(0, np.int64)

Int64s = npt.NDArray[np.int64]
Sums = dict[str, Int64s]
Numbers = npt.NDArray[np.signedinteger]
Flags = npt.NDArray[np.bool_]


def parts_of_sums(
    rows: NodeRows, *, by: Sequence[str], step_ms: int | None, threads: int
) -> Iterator[pa.Table]:
    """Yield `compact` parts of the rows of a node, as `parts.usage_parts`, without peaks and counts.

    Raises `UsageFilesError` for rows that are no usage record, or too large to be added up.
    """
    yield from _sums(rows, by, step_ms, lambda: Parts(("minute_ms", *by)), threads=threads)


def group_sums(
    rows: NodeRows, *, by: Sequence[str], wanted: Sequence[str], threads: int
) -> Iterator[pa.Table]:
    """Yield the sums `wanted` of the groups of a node, columns `by` and `wanted`. Raises as `parts_of_sums` does."""
    yield from _sums(rows, by, None, lambda: GroupSums(by, wanted), threads=threads)


def _sums(
    rows: NodeRows,
    by: Sequence[str],
    step_ms: int | None,
    make: Callable[[], Parts | GroupSums],
    *,
    threads: int,
) -> Iterator[pa.Table]:
    """Yield the tables that `make` makes of the rows of a node."""
    if are_apart(rows.chunks):
        # Refused rows are read again, in order and with `seq`, so that the error names the row.
        with suppress(OutOfOrderError, UsageFilesError):
            yield from _sums_of_chunks(rows, by, step_ms, make, threads=threads)
            return
    for is_streamed in (True, False):
        together = _NodeSums(rows.node_id, by, step_ms, make())
        with suppress(OutOfOrderError):
            for table in in_order(rows.node_id, rows.chunks, usage_columns(by), by, is_streamed=is_streamed):
                together.add_table(table)
            yield from together.taken()
            return


def sums_by_step(table: pa.Table, *, step_ms: int) -> pa.Table:
    """Return the sums of rows (`usage_columns`) by step: step_ms (its first ms), node_id, `CLIENT`, sums, times.

    Raises `UsageFilesError` as `parts_of_sums` does.
    """
    keys = ("node_id", *CLIENT, *USAGE_SUMS, *TIMES)
    schema = to_arrow_schema(usage_parts_schema())
    found = [pa.schema([schema.field(name) for name in ("minute_ms", *keys)]).empty_table()]
    for node_id in pc.unique(table["node_id"]).to_pylist():
        of_node = table.filter(pc.field("node_id") == node_id).unify_dictionaries().combine_chunks()
        added = _added_up(sorted_rows(of_node, node_id), CLIENT, step_ms)
        if added is not None:
            found.append(_part(*added, node_id).select(found[0].column_names))
    return pa.concat_tables(found).rename_columns(["step_ms", *keys])


def _sums_of_chunks(
    rows: NodeRows,
    by: Sequence[str],
    step_ms: int | None,
    make: Callable[[], Parts | GroupSums],
    *,
    threads: int,
) -> Iterator[pa.Table]:
    """Yield `_sums` of chunks that do not overlap, each chunk by itself.

    Raises `OutOfOrderError` and `UsageFilesError` before it yields any.
    """

    def sums_of(chunk: NodeChunk) -> list[pa.Table]:
        of_chunk = _NodeSums(rows.node_id, by, step_ms, make())
        for table in _tables_of(rows.node_id, chunk, by):
            of_chunk.add_table(table)
        return of_chunk.taken()

    together = make()
    for tables in mapped(sums_of, rows.chunks, threads=threads, ahead=threads):
        for table in tables:
            together.add_part(table)
    yield from together.taken()


def _tables_of(node_id: int, chunk: NodeChunk, by: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a node in a chunk. Raises `OutOfOrderError` where a row may be there twice."""
    columns = usage_columns(by)
    if chunk.last_seq - chunk.first_seq + 1 != chunk.chunk.rows:
        yield from in_order(node_id, [chunk], columns, by, is_streamed=True)
        return
    # Each `seq` in between is there, as the footer of the file says, so it need not be read.
    for table in read_tables(chunk.chunk, [name for name in columns if name not in _NOT_ADDED]):
        yield rows_of_node(with_groups(table, by), node_id)


class _NodeSums:
    """Parts of a node. Tables are added up in place while they have the same cells, as those of a chunk mostly do."""

    def __init__(
        self, node_id: int, by: Sequence[str], step_ms: int | None, parts: Parts | GroupSums
    ) -> None:
        self._node_id, self._by, self._step_ms = node_id, by, step_ms
        self._parts = parts
        self._cells: pa.Table | None = None
        self._sums: Sums = {}

    def add_table(self, table: pa.Table) -> None:
        """Add up the rows of a table. Raises `UsageFilesError`, also where a sum has no room in 64 bits."""
        added = _added_up(table, self._by, self._step_ms)
        if added is None:
            return
        cells, sums = added
        if self._cells is not None and cells.equals(self._cells):
            add_in_place(self._sums, sums)
            return
        self._end_part()
        self._cells, self._sums = cells, sums
        if len(cells) > _FEW_CELLS:
            self._end_part()  # they would take much memory while the next table is added up

    def taken(self) -> list[pa.Table]:
        """Return all parts."""
        self._end_part()
        return self._parts.taken()

    def _end_part(self) -> None:
        if self._cells is not None:
            self._parts.add_part(_part(self._cells, self._sums, self._node_id))
        self._cells, self._sums = None, {}


def _added_up(table: pa.Table, by: Sequence[str], step_ms: int | None) -> tuple[pa.Table, Sums] | None:
    """Return the cells of a table, columns minute_ms and `by`, and their sums; None: no row counts."""
    kind = kinds_of(table)
    counts = kind < kernel.RESTART
    if not counts.any():
        return None
    ts_ms = numbers_of(table, "ts_ms")
    check_number(table, "ts_ms", ts_ms, LATEST_MS, counts)
    names, cell = groups_of(table, by, counts)
    minute_ms = np.full(len(names), ALL_TIME_MS)
    if step_ms is not None:
        cell, of_group, steps = cells_of(cell, ts_ms // step_ms, counts)
        names, minute_ms = names.take(pa.array(of_group)), steps * step_ms
    cells = len(minute_ms)
    sums = _sums_of_cells(table, kind, cell, cells)
    sums["first_ts_ms"], sums["last_ts_ms"] = _ends(cell, ts_ms, counts, cells)
    columns = [minute_ms, *names.columns]
    return pa.table(columns, names=["minute_ms", *names.column_names]), {
        name: sums[name] for name in (*usage_sums(by), *TIMES)
    }


def _part(cells: pa.Table, sums: Sums, node_id: int) -> pa.Table:
    """Return cells and their sums as a part without peaks and counts."""
    rows = len(cells)
    return pa.table(
        {
            "minute_ms": cells["minute_ms"],
            "node_id": np.full(rows, node_id, np.int32),
            **{name: cells[name] for name in cells.column_names[1:]},
            **sums,
            **dict.fromkeys(USAGE_PEAKS, np.full(rows, np.nan)),
            **list_columns(_NOTHING, _NOTHING, _NOTHING, rows=rows),
        }
    )


def _sums_of_cells(table: pa.Table, kind: npt.NDArray[np.int8], cell: Int64s, cells: int) -> Sums:
    """Return the columns `USAGE_SUMS` and `TOPIC_SUMS`, by cell. Raises `UsageFilesError`."""
    amounts = {name: _amount(table, name, kind < kernel.RESTART) for name in AMOUNTS}
    adder = _Adder(cell, cells)
    is_request, is_mutation = kind == kernel.REQUEST, kind == kernel.MUTATION
    is_rejected = is_mutation & numbers_of(table, "rejected") if is_mutation.any() else is_mutation
    throttles_ms = dict(_throttles_ms(table, is_request))
    is_throttled = _any(kind, throttles_ms.values())
    is_delivered = is_request & ~_any(kind, (throttles_ms.get(name) for name in _TAKING_BACK))
    sums = {
        "requests": adder.count(is_request),
        "throttled_requests": adder.count(is_throttled),
        "fetch_bytes": adder.add(amounts["fetch_bytes"], is_delivered),
        "network_ns": adder.add(amounts["network_ns"], is_request | (kind == kernel.NETWORK)),
        "mutations": adder.add(amounts["mutations"], is_mutation & ~is_rejected),
        "rejected_mutations": adder.add(amounts["mutations"], is_rejected),
        **{name: adder.add(throttles_ms.get(name), is_request) for name in THROTTLES},
        **{name: adder.add(amounts[name], is_request) for name in _OF_REQUESTS},
    }
    if "other_topics" in table.column_names:
        has_several = is_request & (numbers_of(table, "other_topics") > 0)
        sums["multi_topic_requests"] = adder.count(has_several)
        sums["multi_topic_bytes"] = adder.add(amounts["produce_bytes"], has_several)
        sums["multi_topic_bytes"] += adder.add(amounts["fetch_bytes"], has_several & is_delivered)
    return sums


def _amount(table: pa.Table, name: str, counts: Flags) -> Numbers | None:
    """Return a column of amounts; None: all are 0."""
    if table[name].null_count == len(table):
        return None
    values = numbers_of(table, name)
    bits = int(np.bitwise_or.reduce(values))
    if not 0 <= bits <= SMALL:
        check_amount(table, name, values, counts)
    return values if bits else None


def _throttles_ms(table: pa.Table, is_request: Flags) -> Iterator[tuple[str, Numbers]]:
    """Yield the columns of throttle times that have any, 0 where none applies."""
    for name in THROTTLES:
        if table[name].null_count < len(table) and (values := numbers_of(table, name)).max() > 0:
            applies = is_request & ~numbers_of(table, "observed_only")
            yield name, np.maximum(values, 0) * applies


def _any(kind: npt.NDArray[np.int8], columns: Iterable[Numbers | None]) -> Flags:
    """Return where a number of any column is not 0."""
    found = np.zeros(len(kind), bool)
    for column in columns:
        if column is not None:
            found |= column != 0
    return found


class _Adder:
    """The cells of rows, and the sums of columns of these rows, by cell."""

    def __init__(self, cell: Int64s, cells: int) -> None:
        self._cell, self._cells = cell, cells

    def count(self, where: Flags) -> Int64s:
        """Return the number of rows."""
        return np.bincount(self._cell if where.all() else self._cell[where], minlength=self._cells)

    def add(self, values: Numbers | None, where: Flags) -> Int64s:
        """Return the sums of values of the rows `where`."""
        sums = np.zeros(self._cells, np.int64)
        if values is not None:
            np.add.at(sums, self._cell, values if where.all() else values * where)
        return sums


def _ends(cell: Int64s, ts_ms: Int64s, counts: Flags, cells: int) -> tuple[Int64s, Int64s]:
    """Return the first and the last time of each cell."""
    if not counts.all():
        cell, ts_ms = cell[counts], ts_ms[counts]
    is_sorted = bool((ts_ms[1:] >= ts_ms[:-1]).all())  # then few rows from each end show all cells
    first, last = np.full(cells, MAX_INT64), np.full(cells, -MAX_INT64)
    for begin in range(0, len(cell), _ENDS_AT_ONCE):
        here = slice(begin, begin + _ENDS_AT_ONCE)
        np.minimum.at(first, cell[here], ts_ms[here])
        if is_sorted and (first < MAX_INT64).all():
            break
    for end in range(len(cell), 0, -_ENDS_AT_ONCE):
        here = slice(max(0, end - _ENDS_AT_ONCE), end)
        np.maximum.at(last, cell[here], ts_ms[here])
        if is_sorted and (last > -MAX_INT64).all():
            break
    return first, last
