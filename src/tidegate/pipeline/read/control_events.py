"""Events that change what a replay decides, as arrays: number, time and value of each; common values only once.

A controller that sets a quota each second makes a million events in eleven days, which differ only in `seq`, time and
value (decision 0078).
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.layout import Floats, Int32s, Int64s
from tidegate.pipeline.read.columns import codes_of
from tidegate.quota.admin.keys import WINDOW_SETTINGS
from tidegate.quota.managers.extensions import EXTENSION_SETTINGS, MUTATIONS_SHARED

__all__ = [
    "CONTROL_COLUMNS",
    "CONTROL_KINDS",
    "EXTENSION_KEYS",
    "HAS_VALUE",
    "NEXT_TS_MS",
    "NO_EVENTS",
    "SETTING",
    "TAGS_COLUMNS",
    "ControlEvents",
    "Row",
    "control_events",
    "events_together",
]

CONTROL_KINDS = ("start", "quota", "gap", "callback")
CONTROL_COLUMNS = (
    "kind",
    "ts_ms",
    "seq",
    "node_id",
    "quota_user",
    "quota_client_id",
    "quota_ip",
    "quota_key",
    "quota_value",
    "callback",
    "snapshot",
    "lost_events",
)
TAGS_COLUMNS = ("user", "client_id", "tags")
"""Columns of a `tags` row beside `CONTROL_COLUMNS`: a client, and the tags that it is counted under."""

NEXT_TS_MS = "next_ts_ms"
"""Column of a `gap` beside `CONTROL_COLUMNS`: the time of the next row, up to which events may have been lost."""

SETTING, HAS_VALUE = "setting", "has_value"
"""Columns of `ControlEvents.common`: the value of a setting, and whether the event has a value."""

_NAMES = (
    "kind", "quota_user", "quota_client_id", "quota_ip", "quota_key", "callback", "snapshot", *TAGS_COLUMNS,
)  # fmt: skip
_COMMON = pa.schema(
    [
        *((name, pa.string()) for name in _NAMES),
        *((name, pa.int64()) for name in ("lost_events", NEXT_TS_MS)),
        (SETTING, pa.float64()),
        (HAS_VALUE, pa.bool_()),
    ]
)
EXTENSION_KEYS = EXTENSION_SETTINGS | {MUTATIONS_SHARED}
"""Keys of `quota` events that are settings beyond Kafka."""

_SETTINGS = pa.array(sorted({*WINDOW_SETTINGS, *EXTENSION_KEYS}))
_FEW = 64  # events whose common values are not looked for
_EVENT_BYTES = 36  # of the arrays
_COMMON_BYTES = 1 << 10  # of a `Step`

Row = Mapping[str, Any]


class ControlEvents(NamedTuple):
    """Starts, quotas, gaps, answers of a callback, and ends of snapshots, of any nodes and in any order.

    common: the distinct events, apart from `seq`, time and value; place: for each event, its place in `common`.
    value: NaN if the event has none.
    """

    common: pa.Table
    place: Int32s
    node_id: Int64s
    seq: Int64s
    ts_ms: Int64s
    value: Floats

    @property
    def size_bytes(self) -> int:
        """Return the approximate memory of the events as steps."""
        common: int = _COMMON_BYTES * len(self.common) + self.common.nbytes
        return _EVENT_BYTES * len(self.seq) + common

    def of_kinds(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of some kinds, columns of `common` and `seq`, `ts_ms`, `node_id`; by node, in order."""
        is_wanted = pc.is_in(self.common["kind"], pa.array(kinds)).to_numpy()
        if not is_wanted.any():
            return []
        found = np.flatnonzero(is_wanted[self.place])
        found = found[np.lexsort((self.seq[found], self.node_id[found]))]
        rows = self.common.take(pa.array(self.place[found])).to_pylist()
        numbers = zip(
            *(column[found].tolist() for column in (self.node_id, self.seq, self.ts_ms)), strict=True
        )
        return [
            {**row, "node_id": node_id, "seq": seq, "ts_ms": ts_ms}
            for row, (node_id, seq, ts_ms) in zip(rows, numbers, strict=True)
        ]


def control_events(rows: pa.Table | Iterable[Row]) -> ControlEvents:
    """Return rows of `CONTROL_COLUMNS` as events; they may have `TAGS_COLUMNS` and `NEXT_TS_MS`, too."""
    table = rows if isinstance(rows, pa.Table) else _table(rows)
    if not len(table):
        return NO_EVENTS
    value = table["quota_value"]
    is_setting = pc.is_in(table["quota_key"].cast(pa.string()), value_set=_SETTINGS)
    columns = {name: table[name] for name in _COMMON.names if name in table.column_names}
    columns[HAS_VALUE] = value.is_valid()
    # Values of quotas stay apart from `common`: a controller that sets a quota each second then adds no row to it
    # (decision 0078). The value of a setting is part of the step, so it stays.
    columns[SETTING] = pc.if_else(is_setting, value, None)
    common = pa.table(
        {
            field.name: columns[field.name].cast(field.type)
            if field.name in columns
            else pa.nulls(len(table), field.type)
            for field in _COMMON
        }
    )
    common, place = (common, np.arange(len(common))) if len(common) <= _FEW else _alike(common)
    node_id, seq, ts_ms = (
        pc.fill_null(table[name], 0).to_numpy().astype(np.int64) for name in ("node_id", "seq", "ts_ms")
    )
    values: Floats = pc.fill_null(value, math.nan).to_numpy().astype(np.float64)
    return ControlEvents(common, place.astype(np.int32), node_id, seq, ts_ms, values)


def _table(rows: Iterable[Row]) -> pa.Table:
    numbers = {"ts_ms": pa.int64(), "seq": pa.int64(), "node_id": pa.int64(), "quota_value": pa.float64()}
    others = [(field.name, field.type) for field in _COMMON if field.name not in (SETTING, HAS_VALUE)]
    return pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema([*numbers.items(), *others]))


def events_together(parts: Iterable[ControlEvents]) -> ControlEvents:
    """Return all events of several."""
    found = [part for part in parts if len(part.seq)]
    if not found:
        return NO_EVENTS
    first = np.cumsum([0, *(len(part.common) for part in found[:-1])])
    common, again = _alike(pa.concat_tables([part.common for part in found]).combine_chunks())
    place = np.concatenate([part.place + at for part, at in zip(found, first.tolist(), strict=True)])
    return ControlEvents(
        common,
        again[place].astype(np.int32),
        np.concatenate([part.node_id for part in found]),
        np.concatenate([part.seq for part in found]),
        np.concatenate([part.ts_ms for part in found]),
        np.concatenate([part.value for part in found]),
    )


def _alike(common: pa.Table) -> tuple[pa.Table, Int64s]:
    """Return the distinct rows, and the place of each row among them."""
    code = np.zeros(len(common), np.int64)
    for name in common.column_names:
        column = codes_of(common[name])
        if (column != column[0]).any():
            # + 1 makes null (-1) a code of its own. Renumbered after each column, the next product fits into 64 bits.
            code = code * (int(column.max()) + 2) + column + 1
            code = np.unique(code, return_inverse=True)[1].reshape(-1)
    _, first, place = np.unique(code, return_index=True, return_inverse=True)
    return common.take(pa.array(first)).combine_chunks(), place.reshape(-1)


_NO_INTS: Int64s = np.zeros(0, np.int64)
NO_EVENTS = ControlEvents(
    _COMMON.empty_table(), np.zeros(0, np.int32), _NO_INTS, _NO_INTS, _NO_INTS, np.zeros(0, np.float64)
)
"""The events of a chunk without any."""
