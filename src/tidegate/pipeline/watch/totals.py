"""The totals of a watch: overall, and of the last minutes. Each advance of a node is added once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched, unmatched_entries
from tidegate.pipeline.rollup.entities import TOGETHER, by_entity_table
from tidegate.pipeline.rollup.sums import grouped
from tidegate.pipeline.schemas import CLIENT, REPLAY_BY_CLIENT, USAGE_SUMS
from tidegate.pipeline.watch.arrivals import Arrivals, LateFile
from tidegate.pipeline.watch.node import MAX_MISSING, Advance, read_table, table_bytes
from tidegate.pipeline.watch.processes import EVERY_SEQ, without
from tidegate.quota.measure.throttle import UNLIMITED

__all__ = ["Found", "Totals"]

MAX_ROWS = 200_000
"""Rows of a table of totals; further ones, with fewest requests, are added up under no name."""
MAX_LATE_FILES = 100
"""Files with late rows that are named; rows of further ones are counted."""

_MINUTE_MS = 60_000
_REPLAY_KEYS = (
    "plan",
    "quota_type",
    "entity_user",
    "entity_client_id",
    "entity_tags",
    "node_id",
    *CLIENT,
)
_IN_ORDER = {
    "bound": "last",
    "bound_of": "last",
    "bound_changed": "last",
}
_NULLS = {"bound": UNLIMITED, "bound_of": ""}
_REPLAY_SUMS = {**TOGETHER, **_IN_ORDER}
_USAGE_SUMS = {**dict.fromkeys(USAGE_SUMS, "sum"), "first_ts_ms": "min", "last_ts_ms": "max"}
_REPLAY_SCHEMA = to_arrow_schema(REPLAY_BY_CLIENT)
_NAMES = ("entity_user", "entity_client_id", "entity_tags", *CLIENT)

Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Rows of `REPLAY_BY_ENTITY`, and usage by client, those with most bytes first."""

    entities: Sequence[Row]
    clients: Sequence[Row]


@dataclass(slots=True, kw_only=True)
class Totals:
    """The sums of a watch. window_ms: length of the last minutes. nodes: last `seq` and time of each.

    waiting: number of held rows of each node. most_rows: largest number of rows of a table of totals. missing: by node,
    the ranges of `seq` without rows so far; for processes, also the range behind the last row taken. before_ms: by
    broker, the time before which the rows of its processes were taken. late_events: number of rows in missing ranges
    that arrived afterwards and were left out; late_files: their number by file, for the first files.
    """

    window_ms: int
    most_rows: int = MAX_ROWS
    replay: pa.Table | None = None
    usage: pa.Table | None = None
    minutes: dict[int, dict[str, pa.Table]] = field(default_factory=dict)
    nodes: dict[int, tuple[int, int]] = field(default_factory=dict)
    events: int = 0
    waiting: dict[int, int] = field(default_factory=dict)
    updates: int = 0
    missing: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    before_ms: dict[int, int] = field(default_factory=dict)
    late_events: int = 0
    late_files: dict[str, int] = field(default_factory=dict)

    def add_advances(self, advances: Sequence[Advance]) -> None:
        """Add what came of the next rows."""
        self.updates += 1
        self.waiting |= {advance.node_id: advance.waiting for advance in advances}
        for advance in advances:
            self._add_taken(advance)
        done = [advance for advance in advances if advance.last_seq >= 0]
        if not done:
            return
        self.events += sum(advance.events for advance in done)
        self.nodes |= {advance.node_id: (advance.last_seq, advance.last_ts_ms) for advance in done}
        for advance in done:
            known = self.missing.get(advance.node_id, [])
            self.missing[advance.node_id] = [*known, *advance.missing][-MAX_MISSING:]
        replay = pa.concat_tables([advance.replay for advance in done])
        usage = pa.concat_tables([advance.usage for advance in done])
        self.replay = _replay_sums(_joined(self.replay, replay), self.most_rows)
        self.usage = _usage_sums(_joined(self.usage, usage), self.most_rows)
        self._add_minutes({"replay": _under_latest_limits(replay), "usage": usage})

    def find_late(self, arrivals: Arrivals) -> bool:
        """Count the rows that have arrived too late. Return whether there are any. Raises `UsageFilesError`."""
        last_seq = {node_id: seq for node_id, (seq, _) in self.nodes.items()}
        late = arrivals.late(self.missing, last_seq, self.before_ms)
        self.add_late(late)
        return bool(late)

    def add_late(self, files: Sequence[LateFile]) -> None:
        """Count rows that arrived too late. Their ranges no longer count as missing: a compacted copy adds nothing."""
        for file in files:
            self.late_events += file.rows
            if file.path in self.late_files or len(self.late_files) < MAX_LATE_FILES:
                self.late_files[file.path] = self.late_files.get(file.path, 0) + file.rows
            self._cut_missing(file.node_id, [(file.first_seq, file.last_seq)])

    def in_all(self) -> Found:
        """Return what was found since the beginning."""
        return _found(self.replay, self.usage)

    def in_window(self) -> Found:
        """Return the results of the last minutes before the newest row, with the present limits."""
        of_minutes = self.minutes.values()
        tables = {name: [of[name] for of in of_minutes if name in of] for name in _SUMS}
        found = {
            name: sums(pa.concat_tables(tables[name]), self.most_rows)
            for name, sums in _SUMS.items()
            if tables[name]
        }
        return _found(found.get("replay"), found.get("usage"))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with tables as bytes."""
        state: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        tables = {name: state[name] for name in ("replay", "usage") if state[name] is not None}
        minutes = {
            minute_ms: {name: table_bytes(table) for name, table in of_minute.items()}
            for minute_ms, of_minute in self.minutes.items()
        }
        return state | {name: table_bytes(table) for name, table in tables.items()} | {"minutes": minutes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a state that `__getstate__` returned."""
        for name, value in state.items():
            is_table = name in ("replay", "usage") and value is not None
            setattr(self, name, read_table(value) if is_table else value)
        self.minutes = {
            minute_ms: {name: read_table(data) for name, data in of_minute.items()}
            for minute_ms, of_minute in state["minutes"].items()
        }

    @property
    def last_ts_ms(self) -> int:
        """Return the time of the newest row."""
        return max((ts_ms for _, ts_ms in self.nodes.values()), default=0)

    def unmatched(self, plans: Sequence[Plan]) -> list[Unmatched]:
        """Return the entities of the plans that match no client so far."""
        if self.usage is None:
            return []
        named = self.usage.filter(pc.is_valid(self.usage["user"]))
        users, client_ids = (named[name].combine_chunks() for name in CLIENT)
        return unmatched_entries(plans, users=users, client_ids=client_ids)

    def of_update(self, advances: Sequence[Advance]) -> Found:
        """Return the results of one update alone, with the present limits."""
        replay = _under_latest_limits(pa.concat_tables([advance.replay for advance in advances]))
        usage = pa.concat_tables([advance.usage for advance in advances])
        return _found(_replay_sums(replay, self.most_rows), _usage_sums(usage, self.most_rows))

    def _add_taken(self, advance: Advance) -> None:
        """Remember which rows of the processes of a broker were taken."""
        for process, taken in advance.taken.items():
            self._cut_missing(process, taken)
        if advance.before_ms is not None:
            self.before_ms[advance.node_id] = advance.before_ms

    def _cut_missing(self, node_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        missing = self.missing.get(node_id, [EVERY_SEQ])
        self.missing[node_id] = without(missing, ranges)[-MAX_MISSING:]

    def _add_minutes(self, tables: Mapping[str, pa.Table]) -> None:
        """Add rows of replay and usage to their minutes, and keep only the last minutes."""
        arrived = {name: pc.unique(table["minute_ms"]).to_pylist() for name, table in tables.items()}
        last_ms = max((*self.minutes, *chain.from_iterable(arrived.values())), default=0)
        first_ms = last_ms - self.window_ms + _MINUTE_MS
        minutes = {minute_ms: of for minute_ms, of in self.minutes.items() if minute_ms >= first_ms}
        for name, table in tables.items():
            for minute_ms in (minute_ms for minute_ms in arrived[name] if minute_ms >= first_ms):
                of_minute = minutes.setdefault(minute_ms, {})
                rows = table.filter(pc.field("minute_ms") == minute_ms)
                of_minute[name] = _SUMS[name](_joined(of_minute.get(name), rows), self.most_rows)
        self.minutes = dict(sorted(minutes.items()))


def _found(replay: pa.Table | None, usage: pa.Table | None) -> Found:
    entities = [] if replay is None else by_entity_table(replay).to_pylist()
    if usage is None:
        return Found(entities=entities, clients=[])
    most = usage.append_column("bytes", pc.add(usage["produce_bytes"], usage["fetch_bytes"]))
    order = [("bytes", "descending"), ("requests", "descending"), *((name, "ascending") for name in CLIENT)]
    return Found(entities=entities, clients=most.sort_by(order).drop_columns(["bytes"]).to_pylist())


def _joined(before: pa.Table | None, after: pa.Table) -> pa.Table:
    return after if before is None else pa.concat_tables([before, after.select(before.column_names)])


def _under_latest_limits(table: pa.Table) -> pa.Table:
    """Return rows with the present limit of each client, in place of its limits since the beginning."""
    for name in ("bound", "bound_of"):
        table = table.set_column(table.column_names.index(name), name, table[f"latest_{name}"])
    unchanged = pa.repeat(pa.scalar(False), len(table))
    return table.set_column(table.column_names.index("bound_changed"), "bound_changed", unchanged)


def _replay_sums(table: pa.Table, most_rows: int) -> pa.Table:
    """Return the sums of decisions by client. The last row has the limit of the whole time, which may be null."""
    for name, stands_for_null in _NULLS.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, pc.fill_null(table[name], stands_for_null))
    found = grouped(table, _REPLAY_KEYS, _REPLAY_SUMS)
    for name, stands_for_null in _NULLS.items():
        values = pc.if_else(pc.equal(found[name], stands_for_null), None, found[name])
        found = found.set_column(found.column_names.index(name), name, values)
    return _bounded(found.select(_REPLAY_SCHEMA.names).cast(_REPLAY_SCHEMA), _replay_sums, most_rows)


def _usage_sums(table: pa.Table, most_rows: int) -> pa.Table:
    return _bounded(grouped(table, CLIENT, _USAGE_SUMS), _usage_sums, most_rows)


def _bounded(table: pa.Table, sums: Callable[[pa.Table, int], pa.Table], most_rows: int) -> pa.Table:
    """Return the table. If it has more than `most_rows`, add up the rows with fewest requests under no name."""
    if len(table) <= most_rows:
        return table
    table = table.sort_by([("requests", "descending")])
    rest = table.slice(most_rows // 2)
    for name in set(_NAMES) & set(table.column_names):
        rest = rest.set_column(rest.column_names.index(name), name, pa.nulls(len(rest), pa.string()))
    return sums(pa.concat_tables([table.slice(0, most_rows // 2), rest]), len(table))


_SUMS = {"replay": _replay_sums, "usage": _usage_sums}
