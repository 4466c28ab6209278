"""Parts of usage: the sums, peaks and counts of each chunk of a node's rows, to be merged."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.windows import Windows
from tidegate.pipeline.read.columns import THROTTLES, numbers_of
from tidegate.pipeline.read.missing import NodeRows
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup import kernel
from tidegate.pipeline.rollup.cells import (
    ALL_TIME_MS,
    AMOUNTS,
    FLAGS,
    LATEST_MS,
    SMALL,
    cells_of,
    check_amount,
    check_number,
    groups_of,
    kinds_of,
    usage_columns,
)
from tidegate.pipeline.rollup.kernel import (
    MEASURES,
    SENSORS,
    Marks,
    Sensors,
    UsageKernel,
    UsageRows,
    usage_kernel,
)
from tidegate.pipeline.rollup.merging import COUNTS, TIMES, Parts
from tidegate.pipeline.rollup.ordered import OutOfOrderError, in_order
from tidegate.pipeline.rollup.percentiles import BUCKETS
from tidegate.pipeline.rollup.sums import release_free_memory
from tidegate.pipeline.rollup.sums_alone import parts_of_sums
from tidegate.pipeline.rollup.totals import GROUPS_WITH_TOTALS, Totals, no_sums
from tidegate.pipeline.schemas import CLIENT, EVENTS, TOPIC_SUMS, USAGE_PEAKS, USAGE_SUMS, usage_sums
from tidegate.pipeline.threads import made_ahead, mapped
from tidegate.quota.measure.rate_kernel import FLOAT_SLOTS, INT_SLOTS
from tidegate.quota.measure.throttle import MS_PER_S

__all__ = ["GROUPS_AT_ONCE", "compile_usage_kernel", "usage_parts"]

GROUPS_AT_ONCE = 1 << 17
"""Groups whose sensors, 1 KB for each, fit in memory at a time; the rows are read again for other groups."""

_SUMS = (*USAGE_SUMS, *TOPIC_SUMS, *TIMES)
_MS_PER_MINUTE = 60_000
_FEW_SENSORS = 1 << 8
_FEW_ROWS = 1 << 18  # fewer rows are added up before threads have started
_AHEAD = 1  # tables that wait until their rates are measured, else a core would be idle: 20 MB each
_PARTS_AT_ONCE = 64  # parts, before free memory is returned to the system
_MANY_CELLS = 1 << 14  # a part of so many cells leaves much fragmented memory

Int64s = npt.NDArray[np.int64]
Numbers = dict[str, npt.NDArray[Any]]
Flags = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]


def usage_parts(
    rows: NodeRows,
    *,
    by: Sequence[str],
    with_minutes: bool,
    with_peaks: bool = True,
    threads: int = 1,
    only: Collection[tuple[str | None, ...]] | None = None,
) -> Iterator[pa.Table]:
    """Yield `compact` tables of parts of the rows of a node: minute_ms, node_id, `by`, sums, times, peaks, counts.

    with_peaks: False: only sums; peaks are NaN. threads: number of threads, which does not change the result. only: at
    most `GROUPS_AT_ONCE` groups, for which alone parts are made; None: all. Raises `UsageFilesError` for rows that are
    not of the usage record, or too large to be added up.
    """
    step_ms = _MS_PER_MINUTE if with_minutes else None
    threads = threads if rows.rows > _FEW_ROWS else 1
    if not with_peaks:
        yield from parts_of_sums(rows, by=by, step_ms=step_ms, threads=threads)
        return
    done: dict[int, Flags] = {}  # by table, of its groups
    is_streamed = waits = True
    while waits:
        # New sensors for each pass: groups that found no room in the pass before are measured from their first row on.
        node = _Node(rows.node_id, by, step_ms=step_ms, only=only)
        parts = Parts(("minute_ms", *by))
        tables = in_order(rows.node_id, rows.chunks, usage_columns(by), by, is_streamed=is_streamed)
        try:
            for number, part in enumerate(node.parts_of(tables, done, threads=threads), 1):
                parts.add_part(part)
                if len(part) >= _MANY_CELLS or number % _PARTS_AT_ONCE == 0:
                    release_free_memory()
                del part  # else its memory is held while the next is made
        except OutOfOrderError:
            # Rare: the rows of a file come in another order. Its chunks are read as a whole, and sorted.
            is_streamed, done = False, {}
            continue
        yield from parts.taken()
        waits = only is None and not all(groups.all() for groups in done.values())


def compile_usage_kernel() -> None:
    """Compile the kernel for the types that it meets, by adding up one row, in all and by minute."""
    row = {"kind": "request", "node_id": 0, "seq": 0, "ts_ms": 0}
    table = pa.Table.from_pylist([row], to_arrow_schema(EVENTS))
    for step_ms in (None, _MS_PER_MINUTE):
        for _ in _Node(0, CLIENT, step_ms=step_ms).parts_of([table], {}):
            pass


class _Work(NamedTuple):
    """A table whose groups have their numbers; `starts`: how often the node has started before it.

    names: the groups that occur, columns `by`. place: place of each row's group. number: number of each group on the
    node, -1: it is done already or has to wait. numbers: how many numbers there are.
    """

    table: pa.Table
    kind: npt.NDArray[np.int8]
    names: pa.Table
    place: Int64s
    number: Int64s
    numbers: int
    starts: int


class _Added(NamedTuple):
    """The arrays that the peaks of rows are measured by, and their sums.

    columns: of the part; None: they are in the totals. number: of the group of each cell. used: by kind of sensor and
    group.
    """

    columns: dict[str, Any] | None
    number: Int64s
    rows: UsageRows
    marks: Marks
    used: Flags


class _Node:
    """The groups of a node, and their sensors.

    Several threads add up tables, each table by itself (`_added`); rates are measured in order, because they depend on
    earlier rows. Without steps of time, tables are added to totals while there are few groups.

    step_ms: parts are of steps of time; None: of all time. only: see `usage_parts`.
    """

    def __init__(
        self,
        node_id: int,
        by: Sequence[str],
        *,
        step_ms: int | None = None,
        only: Collection[tuple[str | None, ...]] | None = None,
    ) -> None:
        self._node_id = node_id
        self._only = only
        self._by = by
        self._wanted = {*usage_sums(by), *TIMES}
        self._step_ms = step_ms
        self._numbers: dict[tuple[str, ...], int] = {}
        self._found: tuple[pa.Table, Int64s] | None = None
        self._starts = 0
        self._kernel = usage_kernel()
        self._totals = Totals()
        window = Windows().rate
        least_s = max(0, window.samples - 2) * window.window_ms / MS_PER_S
        self._window = window.samples, window.window_ms, least_s
        self._sensor_of = np.full((SENSORS, _FEW_SENSORS), -1, np.int32)
        self._sensors = 0
        slots = window.samples + 1
        self._floats = np.zeros((_FEW_SENSORS, FLOAT_SLOTS + slots))
        self._ints = np.zeros((_FEW_SENSORS, INT_SLOTS + 2 * slots), np.int64)
        self._start = np.full(_FEW_SENSORS, -1, np.int64)
        self._best = np.zeros(_FEW_SENSORS)

    def parts_of(
        self, tables: Iterable[pa.Table], done: dict[int, Flags], *, threads: int = 1
    ) -> Iterator[pa.Table]:
        """Yield the parts of tables, which come in order of `seq`, for the groups that there is room for.

        done: for each table, by its place, which of its groups an earlier pass has added up; this pass adds its own.
        """
        works = self._numbered(tables, done)
        with made_ahead(works) if threads > 1 else nullcontext(works) as several:
            for added in mapped(self._added, several, threads=threads, ahead=_AHEAD):
                peaks = self._measure(added)
                if added.columns is None:
                    self._totals.add_peaks(added.number, peaks)
                else:
                    yield _part(added.columns, peaks)
                del added
        yield from self._part_of_totals()

    def _numbered(self, tables: Iterable[pa.Table], done: dict[int, Flags]) -> Iterator[_Work]:
        """Yield the tables with rows of groups to add up in this pass, and the numbers of these groups."""
        for place, table in enumerate(tables):
            kind = kinds_of(table)
            counts = kind < kernel.RESTART
            names, group_of_row = groups_of(table, self._by, counts)
            before = done[place] if place in done else self._others(names)
            group = self._find(names, before)
            is_here = group >= 0
            done[place] = is_here | before
            starts = self._starts
            self._starts += int(np.count_nonzero(kind == kernel.RESTART))
            if not is_here.all():
                counts &= is_here[group_of_row]
                kind[~counts & (kind < kernel.RESTART)] = kernel.OTHER
            if counts.any():
                yield _Work(table, kind, names, group_of_row, group, len(self._numbers), starts)
            del table, kind, counts, group_of_row  # else they are held while the next are made

    def _others(self, names: pa.Table) -> Flags:
        """Return for each group whether `only` leaves it out."""
        if self._only is None:
            return np.zeros(len(names), bool)
        return ~TableRows(names).are_of(self._only, self._by)

    def _find(self, names: pa.Table, done: Flags) -> Int64s:
        """Return the numbers of groups; number new groups while there is room.

        -1: the group is done already, or has to wait. Most tables have the groups of the table before, and its numbers.
        """
        if done.any():
            return self._numbers_of(names, done)
        if self._found is None or not names.equals(self._found[0]):
            self._found = names, self._numbers_of(names, done)
        return self._found[1]

    def _numbers_of(self, names: pa.Table, done: Flags) -> Int64s:
        found = np.full(len(names), -1, np.int64)
        wanted = names.filter(pa.array(~done))
        numbers = []
        for key in zip(*(wanted[name].to_pylist() for name in self._by), strict=True):
            number = self._numbers.get(key, -1)
            if number < 0 and len(self._numbers) < GROUPS_AT_ONCE:
                number = self._numbers[key] = len(self._numbers)
            numbers.append(number)
        found[~done] = numbers
        return found

    def _added(self, work: _Work) -> _Added:
        """Add up the rows of a table."""
        table, kind, group_of_row = work.table, work.kind, work.place
        counts = kind < kernel.RESTART
        numbers = {name: numbers_of(table, name) for name in ("ts_ms", *AMOUNTS, *THROTTLES)}
        check_number(table, "ts_ms", numbers["ts_ms"], LATEST_MS, counts)
        groups, is_all = len(work.names), bool((work.number >= 0).all())
        if self._step_ms is not None:
            cell, of_group, steps = cells_of(group_of_row, numbers["ts_ms"] // self._step_ms, counts)
        elif is_all:
            cell, of_group, steps = group_of_row, np.arange(groups), np.full(groups, ALL_TIME_MS)
        else:
            cell, of_group, steps = cells_of(group_of_row, np.full(len(kind), ALL_TIME_MS), counts)
        rows = _rows(table, numbers, kind, cell, work.number[group_of_row])
        cells = len(steps)
        sums = no_sums(cells)
        of_row = len(kind)
        marks = Marks(
            np.empty(of_row, np.int8), np.empty(of_row, np.int32), np.empty((MEASURES, of_row), np.int16)
        )
        used = np.zeros((SENSORS, work.numbers), bool)
        bits = self._kernel.add_up(rows, sums, marks, used, work.starts)[0]
        # `bits` is the OR of all amounts. While it is small, no amount is negative and no sum of a chunk can overflow.
        if not 0 <= bits <= SMALL:
            for name in AMOUNTS:
                check_amount(table, name, numbers[name], counts)
        number = work.number[of_group]
        if self._step_ms is None and is_all and work.numbers <= GROUPS_WITH_TOTALS:
            self._totals.add_sums(number, sums)
            self._totals.count(self._kernel, marks.buckets, rows.group)
            return _Added(None, number, rows, marks, used)
        names = work.names.take(pa.array(of_group))
        counts_of_cells = _lists(*_counted(self._kernel, rows, marks, sums))
        columns = self._columns(names, steps * (self._step_ms or 1), sums, counts_of_cells)
        return _Added(columns, number, rows, marks, used)

    def _columns(
        self, names: pa.Table, minute_ms: Int64s, sums: Int64s, counts: dict[str, pa.Array]
    ) -> dict[str, Any]:
        """Return the columns of a part; those of `USAGE_PEAKS` are filled in later."""
        return {
            "minute_ms": minute_ms,
            "node_id": np.full(len(sums), self._node_id, np.int32),
            **{name: names[name] for name in self._by},
            **{name: sums[:, place] for place, name in enumerate(_SUMS) if name in self._wanted},
            **dict.fromkeys(USAGE_PEAKS),
            **counts,
        }

    def _part_of_totals(self) -> Iterator[pa.Table]:
        """Yield the totals as a part, if there are any."""
        group, sums, peaks, counts = self._totals.taken()
        if len(group):
            known = [*self._numbers]
            keys = zip(*(known[number] for number in group.tolist()), strict=True)
            names = pa.table({name: pa.array(column) for name, column in zip(self._by, keys, strict=True)})
            yield _part(self._columns(names, np.full(len(group), ALL_TIME_MS), sums, counts), peaks)

    def _measure(self, added: _Added) -> Doubles:
        """Return the largest rates of the rows, by cell and kind of sensor."""
        peaks = np.zeros((len(added.number), SENSORS))
        self._make_sensors(added.used)
        cell = np.full(len(self._start), -1, np.int64)
        sensors = Sensors(self._sensor_of, self._floats, self._ints, self._start, cell, self._best)
        has_steps = self._step_ms is not None
        self._kernel.measure(sensors, added.rows, added.marks, peaks, self._window, has_steps)
        return peaks

    def _make_sensors(self, used: Flags) -> None:
        """Add a sensor for each used kind and group that has none."""
        while self._sensor_of.shape[1] < used.shape[1]:
            none = np.full_like(self._sensor_of, -1)
            self._sensor_of = np.concatenate([self._sensor_of, none], axis=1)
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


def _part(columns: dict[str, Any], peaks: Doubles) -> pa.Table:
    return pa.table({**columns, **dict(zip(USAGE_PEAKS, peaks.T, strict=True))})


def _with_room(of_sensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy with room for all possible sensors: the system provides memory only for those that are used."""
    roomy = np.zeros((SENSORS * GROUPS_AT_ONCE, of_sensor.shape[1]), of_sensor.dtype)
    roomy[: len(of_sensor)] = of_sensor
    return roomy


def _rows(
    table: pa.Table, numbers: Numbers, kind: npt.NDArray[np.int8], cell: Int64s, group: Int64s
) -> UsageRows:
    amounts: dict[str, Any] = {name: numbers[name] for name in ("ts_ms", *AMOUNTS)}
    flags: dict[str, Any] = {name: numbers_of(table, name) for name in FLAGS}
    flags["has_several"] = np.zeros(len(kind), bool)
    if "other_topics" in table.column_names:
        flags["has_several"] = numbers_of(table, "other_topics") > 0
    throttles_ms = np.stack([numbers[name] for name in THROTTLES])
    return UsageRows(kind=kind, cell=cell, group=group, throttles_ms=throttles_ms, **amounts, **flags)


def _counted(passes: UsageKernel, rows: UsageRows, marks: Marks, sums: Int64s) -> tuple[Int64s, ...]:
    """Return where the counts of each cell begin and end, and these as the lists of `COUNTS`."""
    cells = len(sums)
    begins, order = np.zeros(cells + 2, np.int64), np.empty(len(rows.kind), np.int32)
    passes.sort_rows(rows.kind, rows.cell, begins, order)
    most = MEASURES * len(order)
    codes, counts, ends = np.empty(most, np.int64), np.empty(most, np.int64), np.zeros(cells + 1, np.int64)
    counted = np.zeros(BUCKETS, np.int64)
    passes.count_buckets(marks.buckets, order, begins, sums, counted, codes, counts, ends[1:])
    return ends, codes[: ends[-1]], counts[: ends[-1]]


def _lists(ends: Int64s, *values: Int64s) -> dict[str, pa.Array]:
    offsets = pa.array(ends.astype(np.int32))
    return {
        # Copies, because a part that waits would hold the room for all.
        name: pa.ListArray.from_arrays(offsets, pa.array(each.copy()))
        for name, each in zip(COUNTS, values, strict=True)
    }
