"""Parts of usage: the sums, peaks and counts of each chunk of a node's rows, to be merged.

Rows are taken in order of `seq`, as rates are measured in that. Where chunks overlap (a row lies in the file of its
own hour, whenever it was written), rows wait for those before them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.windows import Windows
from tidegate.pipeline.errors import DAMAGED_HINT, UsageFilesError, check_sum
from tidegate.pipeline.read.chunks import read_chunk
from tidegate.pipeline.read.columns import THROTTLES, name_places, numbers_of, numbers_of_names, used_codes
from tidegate.pipeline.read.missing import NodeChunk, NodeRows
from tidegate.pipeline.read.runs import check_rising
from tidegate.pipeline.rollup import kernel
from tidegate.pipeline.rollup.groups import source_columns, with_groups
from tidegate.pipeline.rollup.kernel import MEASURES, SENSORS, Marks, Sensors, UsageRows, usage_kernel
from tidegate.pipeline.rollup.merging import COUNTS, TIMES, Parts
from tidegate.pipeline.rollup.percentiles import BUCKETS
from tidegate.pipeline.rollup.sums import give_back
from tidegate.pipeline.schemas import (
    CLIENT,
    EVENTS,
    TOPIC_SUMS,
    USAGE_PEAKS,
    USAGE_SUMS,
    usage_parts_schema,
    usage_sums,
)
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS, INT_SLOTS
from tidegate.quota.measure.throttle import MAX_INT64, MS_PER_S

__all__ = [
    "ALL_TIME_MS",
    "GROUPS_AT_ONCE",
    "compile_usage_kernel",
    "sums_by_step",
    "usage_columns",
    "usage_parts",
]

ALL_TIME_MS = 0
"""`minute_ms` of a part that is of all minutes together."""
GROUPS_AT_ONCE = 1 << 17
"""Groups whose sensors, 1 KB for each, are held at a time; for others the rows are read again."""

_KINDS = {
    "request": kernel.REQUEST, "network": kernel.NETWORK, "mutation": kernel.MUTATION,
    "start": kernel.RESTART, "callback": kernel.RESTART,
}  # fmt: skip
_AMOUNTS = (
    "request_bytes",
    "response_bytes",
    "produce_bytes",
    "fetch_bytes",
    "handler_ns",
    "network_ns",
    "mutations",
)
_FLAGS = ("rejected", "observed_only", "exempt")
_COLUMNS = ("kind", "node_id", "seq", "ts_ms", *_AMOUNTS, *THROTTLES, *_FLAGS)
_SUMS = (*USAGE_SUMS, *TOPIC_SUMS, *TIMES)
_MS_PER_MINUTE = 60_000
_SMALL = 1 << 32  # the sum of as many such numbers as a chunk can have rows has room
_FEW_SENSORS = 1 << 8
_ROWS_AT_ONCE = 1 << 18
_MANY_CELLS = 1 << 14  # leave much memory in pieces
_LATEST_MS = 2**53

Int64s = npt.NDArray[np.int64]
Numbers = dict[str, npt.NDArray[Any]]
Flags = npt.NDArray[np.bool_]


def usage_columns(by: Sequence[str] = CLIENT) -> list[str]:
    """Return the columns of the usage record that usage by the columns `by` is made of."""
    return [*_COLUMNS, *source_columns(by)]


def usage_parts(rows: NodeRows, *, by: Sequence[str], with_minutes: bool) -> Iterator[pa.Table]:
    """Yield `compact` tables of parts of the rows of a node: minute_ms, node_id, `by`, sums, times, peaks, counts.

    Raises `UsageFilesError` for rows that are no usage record, or too large to be added up.
    """
    done: dict[int, Flags] = {}  # by table, of its groups
    waits = True
    while waits:
        # New sensors for each pass: groups that found no room in the pass before are measured from their first row on.
        node = _Node(rows.node_id, by, step_ms=_MS_PER_MINUTE if with_minutes else None)
        parts = Parts(("minute_ms", *by))
        for place, table in enumerate(_in_order(rows.node_id, rows.chunks, by)):
            done[place], part = node.parts(table, done.get(place))
            if part is not None:
                parts.add_part(part)
                if len(part) >= _MANY_CELLS:
                    give_back()
            del table, part  # else its chunk is held while the next is read
        yield from parts.taken()
        waits = not all(groups.all() for groups in done.values())


def _in_order(node_id: int, chunks: Sequence[NodeChunk], by: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a node in order of `seq`, `_ROWS_AT_ONCE` at the most."""
    waiting: list[pa.Table] = []
    reach = -1
    for place, chunk in enumerate(chunks):
        table = with_groups(read_chunk(chunk.chunk, usage_columns(by)), by)
        is_here = pc.equal(table["node_id"], node_id)
        waiting.append(table if pc.all(is_here).as_py() else table.filter(is_here))
        reach = max(reach, chunk.last_seq)
        until_seq = chunks[place + 1].first_seq if place + 1 < len(chunks) else MAX_INT64
        if reach < until_seq:
            ready, waiting = waiting, []
        else:
            ready = [each.filter(pc.less(each["seq"], until_seq)) for each in waiting]
            later = (each.filter(pc.greater_equal(each["seq"], until_seq)) for each in waiting)
            waiting = [each for each in later if len(each)]
        rows = _sorted(pa.concat_tables(ready).unify_dictionaries().combine_chunks(), node_id)
        del table, ready
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            yield rows.slice(first, _ROWS_AT_ONCE)
        is_large = len(rows) >= _ROWS_AT_ONCE
        del rows  # else they are held while the next are read
        if is_large:
            give_back()


def _sorted(table: pa.Table, node_id: int) -> pa.Table:
    """Return the rows in order of `seq`. Raises `UsageFilesError` where one occurs twice."""
    seq = numbers_of(table, "seq")
    if (seq[:1] < 0).any() or not (seq[1:] > seq[:-1]).all():
        table = table.take(pa.array(np.argsort(seq, kind="stable"))).combine_chunks()
        check_rising(numbers_of(table, "seq"), after=-1, node_id=node_id)
    return table


def sums_by_step(table: pa.Table, *, step_ms: int) -> pa.Table:
    """Return what rows (`usage_columns`) add up to by step of time: step_ms (first ms), node_id, `CLIENT`, sums, times.

    Needs no rows before, as nothing is measured. Raises `UsageFilesError` as `usage_parts` does.
    """
    keys = ("node_id", *CLIENT, *USAGE_SUMS, *TIMES)
    schema = to_arrow_schema(usage_parts_schema())
    found = [pa.schema([schema.field(name) for name in ("minute_ms", *keys)]).empty_table()]
    for node_id in pc.unique(table["node_id"]).to_pylist():
        of_node = table.filter(pc.field("node_id") == node_id).unify_dictionaries().combine_chunks()
        node = _Node(node_id, CLIENT, step_ms=step_ms, with_peaks=False)
        _, part = node.parts(_sorted(of_node, node_id), None)
        if part is not None:
            found.append(part.select(found[0].column_names))
    return pa.concat_tables(found).rename_columns(["step_ms", *keys])


def compile_usage_kernel() -> None:
    """Compile the kernel for the types that it meets, by adding up one row."""
    row = {"kind": "request", "node_id": 0, "seq": 0, "ts_ms": 0}
    table = pa.Table.from_pylist([row], to_arrow_schema(EVENTS))
    _Node(0, CLIENT).parts(table, None)


class _Node:
    """The groups of a node, and their sensors.

    step_ms: parts are of steps of time; None: of all time. with_peaks: and percentiles; else there are sums alone.
    """

    def __init__(
        self, node_id: int, by: Sequence[str], *, step_ms: int | None = None, with_peaks: bool = True
    ) -> None:
        self._node_id = node_id
        self._by = by
        self._wanted = {*usage_sums(by), *TIMES}
        self._step_ms = step_ms
        self._numbers: dict[tuple[str, ...], int] = {}
        self._with_peaks = with_peaks
        self._starts = 0
        window = Windows().rate
        least_s = max(0, window.samples - 2) * window.window_ms / MS_PER_S
        self._window = window.samples, window.window_ms, least_s
        self._sensor_of = np.full((SENSORS, _FEW_SENSORS), -1, np.int32)
        self._sensors = 0
        self._room = GROUPS_AT_ONCE if with_peaks else MAX_INT64
        slots = window.samples + 1
        self._floats = np.zeros((_FEW_SENSORS, FLOAT_SLOTS + slots))
        self._ints = np.zeros((_FEW_SENSORS, INT_SLOTS + 2 * slots), np.int64)
        self._start = np.full(_FEW_SENSORS, -1, np.int64)
        self._best = np.zeros(_FEW_SENSORS)

    def parts(self, table: pa.Table, done: Flags | None) -> tuple[Flags, pa.Table | None]:
        """Add up some groups of a table, in order of `seq`; return which have been, and their parts if there are any.

        done: which groups of the same table have been before; None: none.
        """
        if not len(table):
            return np.ones(0, bool), None
        kind = numbers_of_names(table, "kind", lambda name: _KINDS.get(name, kernel.OTHER), np.int8)
        counts = kind < kernel.RESTART
        numbers = {name: numbers_of(table, name) for name in ("ts_ms", *_AMOUNTS, *THROTTLES)}
        _check(table, "ts_ms", numbers["ts_ms"], _LATEST_MS, counts)
        names, group_of_row = self._groups(table, counts)
        group = self._find(names, np.zeros(len(names), bool) if done is None else done)
        is_here = group >= 0
        if not is_here.all():
            counts &= is_here[group_of_row]
            kind[~counts & (kind < kernel.RESTART)] = kernel.OTHER
        done = is_here if done is None else done | is_here
        if not counts.any():
            self._starts += int((kind == kernel.RESTART).sum())
            return done, None
        if self._step_ms is not None:
            cell, groups, steps = _cells(group_of_row, numbers["ts_ms"] // self._step_ms, counts)
        elif is_here.all():
            cell, groups, steps = group_of_row, np.arange(len(names)), np.full(len(names), ALL_TIME_MS)
        else:
            cell, groups, steps = _cells(group_of_row, np.full(len(kind), ALL_TIME_MS), counts)
        rows = _rows(table, numbers, kind, cell, group[group_of_row])
        return done, self._added_up(table, rows, names.take(pa.array(groups)), steps * (self._step_ms or 1))

    def _groups(self, table: pa.Table, counts: npt.NDArray[np.bool_]) -> tuple[pa.Table, Int64s]:
        """Return the groups that occur, columns `by`, and the place of each row among them."""
        code, sizes, dictionaries = np.zeros(len(table), np.int64), [], []
        for name in self._by:
            places, names = name_places(table, name)
            code = code * len(names) + places
            sizes.append(len(names))
            dictionaries.append(names)
        used, place = used_codes(code, int(np.prod(sizes)), counts)
        columns = []
        for size, names in zip(reversed(sizes), reversed(dictionaries), strict=True):
            used, of_name = np.divmod(used, size)
            columns.append(names.take(pa.array(of_name)))
        return pa.table(columns[::-1], names=list(self._by)), place

    def _find(self, names: pa.Table, done: Flags) -> Int64s:
        """Return the numbers of groups, those that are not known with one of their own while there is room.

        -1: has been added up, or has to wait.
        """
        found = np.full(len(names), -1, np.int64)
        wanted = names.filter(pa.array(~done))
        numbers = []
        for key in zip(*(wanted[name].to_pylist() for name in self._by), strict=True):
            number = self._numbers.get(key, -1)
            if number < 0 and len(self._numbers) < self._room:
                number = self._numbers[key] = len(self._numbers)
            numbers.append(number)
        found[~done] = numbers
        while self._sensor_of.shape[1] < len(self._numbers):
            more = np.full_like(self._sensor_of, -1)
            self._sensor_of = np.concatenate([self._sensor_of, more], axis=1)
        return found

    def _make_sensors(self, used: Flags) -> None:
        """Add a sensor for each used kind and group that has none."""
        for kind, is_used in enumerate(used):
            made = np.flatnonzero(is_used & (self._sensor_of[kind, : len(is_used)] < 0))
            self._sensor_of[kind, made] = np.arange(self._sensors, self._sensors + len(made))
            self._sensors += len(made)
        if self._sensors > len(self._floats):
            self._floats, self._ints = map(_with_room, (self._floats, self._ints))
        more = self._sensors - len(self._start)
        if more > 0:
            more = max(more, len(self._start) // 4)
            self._start = np.concatenate([self._start, np.full(more, -1)])
            self._best = np.concatenate([self._best, np.zeros(more)])

    def _added_up(self, table: pa.Table, rows: UsageRows, names: pa.Table, minutes: Int64s) -> pa.Table:
        """Return the part of the rows; names, minutes: those of each cell."""
        cells = len(minutes)
        sums = np.zeros((cells, kernel.SUMS), np.int64)
        sums[:, kernel.FIRST_TS_MS], sums[:, kernel.LAST_TS_MS] = MAX_INT64, -MAX_INT64
        marked = len(rows.kind) if self._with_peaks else 0
        marks = Marks(
            np.empty(marked, np.int8), np.empty(marked, np.int32), np.empty((MEASURES, marked), np.int16)
        )
        used = np.zeros((SENSORS, len(self._numbers)), bool)
        bits, self._starts = usage_kernel().add_up(rows, sums, marks, used, self._starts)
        # `bits` is the OR of all amounts. While it is small, no amount is negative and no sum of a chunk can overflow.
        if not 0 <= bits <= _SMALL:
            _check_amounts(table, rows)
        columns = {
            "minute_ms": minutes,
            "node_id": np.full(cells, self._node_id, np.int32),
            **{name: names[name] for name in self._by},
            **{name: sums[:, place] for place, name in enumerate(_SUMS) if name in self._wanted},
        }
        if self._with_peaks:
            self._make_sensors(used)
            columns |= self._peaks(rows, marks, cells) | _counted(rows, marks, sums)
        return pa.table(columns)

    def _peaks(self, rows: UsageRows, marks: Marks, cells: int) -> dict[str, Any]:
        """Return the columns of peaks."""
        peaks = np.zeros((cells, SENSORS))
        cell = np.full(len(self._start), -1, np.int64)
        sensors = Sensors(self._sensor_of, self._floats, self._ints, self._start, cell, self._best)
        has_steps = self._step_ms is not None
        usage_kernel().measure(sensors, rows, marks, peaks, self._window, has_steps)
        return {name: peaks[:, place] for place, name in enumerate(USAGE_PEAKS)}


def _with_room(of_sensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return an array with room for all sensors there can be: memory is taken as they are used."""
    roomy = np.zeros((SENSORS * GROUPS_AT_ONCE, of_sensor.shape[1]), of_sensor.dtype)
    roomy[: len(of_sensor)] = of_sensor
    return roomy


def _check(table: pa.Table, name: str, values: Int64s, largest: int, counts: Flags) -> None:
    """Raise where a number makes no sense, in a row that counts."""
    if values.min() >= 0 and values.max() <= largest:
        return
    impossible = counts & ((values < 0) | (values > largest))
    if impossible.any():
        at = int(np.argmax(impossible))
        row = f"seq {table['seq'][at]} of node {table['node_id'][at]}"
        raise UsageFilesError(
            f"{name} must be from 0 to {largest}, got {values[at]} in {row}", hint=DAMAGED_HINT
        )


def _check_amounts(table: pa.Table, rows: UsageRows) -> None:
    """Raise where an amount makes no sense, or all together have no room in 64 bits."""
    counts = rows.kind < kernel.RESTART
    for name in _AMOUNTS:
        values = getattr(rows, name)
        _check(table, name, values, MAX_INT64, counts)
        check_sum(values.sum(where=counts, dtype=np.float64))


def _rows(
    table: pa.Table, numbers: Numbers, kind: npt.NDArray[np.int8], cell: Int64s, group: Int64s
) -> UsageRows:
    amounts: dict[str, Any] = {name: numbers[name] for name in ("ts_ms", *_AMOUNTS)}
    flags: dict[str, Any] = {name: numbers_of(table, name) for name in _FLAGS}
    flags["has_several"] = np.zeros(len(kind), bool)
    if "other_topics" in table.column_names:
        flags["has_several"] = numbers_of(table, "other_topics") > 0
    throttles_ms = np.stack([numbers[name] for name in THROTTLES])
    return UsageRows(kind=kind, cell=cell, group=group, throttles_ms=throttles_ms, **amounts, **flags)


def _cells(group: Int64s, step: Int64s, counts: npt.NDArray[np.bool_]) -> tuple[Int64s, Int64s, Int64s]:
    """Return the cell of each row, and of each cell its group and step."""
    first = int(step[counts].min())
    step = np.where(counts, step - first, 0)
    steps, place = used_codes(step, int(step.max()) + 1, counts)
    groups = int(group.max()) + 1
    used, cell = used_codes(place * groups + group, len(steps) * groups, counts)
    of_step, of_group = np.divmod(used, groups)
    return cell, of_group, steps[of_step] + first


def _counted(rows: UsageRows, marks: Marks, sums: Int64s) -> dict[str, pa.Array]:
    """Return the columns `COUNTS`."""
    cells = len(sums)
    begins, order = np.zeros(cells + 2, np.int64), np.empty(len(rows.kind), np.int32)
    usage_kernel().sort_rows(rows.kind, rows.cell, begins, order)
    most = MEASURES * len(order)
    codes, counts, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(cells + 1, np.int64)
    counted = np.zeros(BUCKETS, np.int64)
    usage_kernel().count_buckets(marks.buckets, order, begins, sums, counted, codes, counts, ends[1:])
    offsets = pa.array(ends.astype(np.int32))
    return {
        name: pa.ListArray.from_arrays(offsets, pa.array(values[: ends[-1]]))
        for name, values in zip(COUNTS, (codes, counts), strict=True)
    }
