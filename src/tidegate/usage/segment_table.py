"""A closed segment of the spool as an Arrow table, whole columns at a time.

Most segments have no lost and no bad row, so their columns are converted without a look at single rows. A bad row is
left to the plain reader of `events`, which knows where in the file it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from tidegate.usage.arrow import ARROW_TYPES, Array, names_array, numbers_array, table_schema
from tidegate.usage.columns import COLUMNS, FLAGS, KINDS, NAME_COLUMNS, Column
from tidegate.usage.events import FLAGS_MAX, segment_events
from tidegate.usage.segment import (
    IN_PLACE_OF,
    MARKER,
    PRODUCED,
    QUOTA_VALUE,
    ROW_FIELDS,
    TOPIC_NAMES,
    TS_MS_MAX,
    Names,
    Segment,
)

__all__ = ["segment_table"]

_NUMPY_CODES = {"q": "<i8", "d": "<f8", "i": "<i4", "h": "<i2", "I": "<u4", "H": "<u2", "B": "u1", "4x": "V4"}
_ROW = np.dtype([(name, _NUMPY_CODES[code]) for name, code in ROW_FIELDS])

_ROWS_AT_ONCE = 2048  # 256 KB: they fit into a core's own cache

Fields = Mapping[str, Array]
Filled = Array | bool


def segment_table(segment: Segment) -> pa.Table:
    """Return the events of `segment` as `segment_events` yields them. Raises `SpoolError`."""
    rows = np.frombuffer(segment.rows, dtype=_ROW)
    places = np.arange(len(rows), dtype=np.int64)
    fields = _fields(rows)
    lost = fields["marker"] == 0
    numbers = np.maximum(fields["names"], fields["topic"])
    lost |= (fields["marker"] == MARKER) & (numbers >= len(segment.names))
    has_lost = bool(lost.any())
    if not _are_good(segment, _fields(rows[~lost]) if has_lost else fields):
        # The plain reader knows where in the file the mistake is, and raises.
        for _ in segment_events(segment):
            pass
    if has_lost:
        rows, places = _with_gaps(segment, rows, lost)
        fields = _fields(rows)
    filled = {kinds: _filled(fields["kind"], kinds) for kinds in {column.kinds for column in COLUMNS}}
    columns = [_column(segment, column, fields, places, filled[column.kinds]) for column in COLUMNS]
    return pa.Table.from_arrays(columns, schema=table_schema())


def _fields(rows: Array) -> Fields:
    """Return each field of the rows as an array of its own, copied while the rows lie in the processor's cache."""
    fields = {name: np.empty(len(rows), _ROW[name]) for name, code in ROW_FIELDS if not code.endswith("x")}
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[first : first + _ROWS_AT_ONCE]
        for name, values in fields.items():
            values[first : first + _ROWS_AT_ONCE] = block[name]
    return fields


def _are_good(segment: Segment, fields: Fields) -> bool:
    """Return whether no row breaks the format: then there is nothing for the plain reader to complain of."""
    sizes = np.array([0, *(len(names) for names in segment.names[1:])])
    expected = np.array([-1, *(len(NAME_COLUMNS[kind]) for kind in KINDS)])
    kinds = fields["kind"]
    if not ((fields["marker"] == MARKER) & (kinds >= 1) & (kinds <= len(KINDS))).all():
        return False
    good = (fields["ts_ms"] >= 0) & (fields["ts_ms"] <= TS_MS_MAX)
    good &= (fields["flags"] & ~np.uint8(FLAGS_MAX) == 0) & (sizes[fields["names"]] == expected[kinds])
    good &= (fields["topic"] == 0) | (sizes[fields["topic"]] == TOPIC_NAMES)
    return bool(good.all())


def _with_gaps(segment: Segment, rows: Array, lost: Array) -> tuple[Array, Array]:
    """Return rows and their places, with one `gap` row in the place of each run of lost rows."""
    starts = np.flatnonzero(lost & ~np.concatenate(([False], lost[:-1])))
    ends = np.flatnonzero(lost & ~np.concatenate((lost[1:], [False]))) + 1
    rows = rows.copy()
    for start, end in zip(starts, ends, strict=True):
        ts_ms = rows["ts_ms"][start - 1] if start else segment.header.opened_ms
        rows[start] = np.zeros((), dtype=_ROW)
        rows["kind"][start] = KINDS.index("gap") + 1
        rows["ts_ms"][start], rows["lost_events"][start] = ts_ms, end - start
    kept = ~lost
    kept[starts] = True
    return rows[kept], np.flatnonzero(kept)


def _filled(kinds: Array, by: Sequence[str]) -> Filled:
    """Return which rows are of the kinds `by`; True or False where all or none are, as nearly always."""
    there = np.flatnonzero(np.bincount(kinds, minlength=1))
    codes = _codes(by)
    if np.isin(there, codes).all():
        return True
    if not np.isin(there, codes).any():
        return False
    return np.isin(np.arange(len(KINDS) + 1), codes)[kinds]


def _codes(kinds: Sequence[str]) -> list[int]:
    return [KINDS.index(kind) + 1 for kind in kinds]


def _column(segment: Segment, column: Column, fields: Fields, places: Array, filled: Filled) -> pa.Array:
    """Return a column; `filled` says which rows are of a kind that fills it."""
    if column.name == "kind":
        return names_array(fields["kind"] - 1, KINDS)
    if column.name == "seq":
        return numbers_array(segment.header.first_seq + places, pa.int64())
    if column.name == "node_id":
        return numbers_array(np.full(len(places), segment.header.node_id), pa.int32())
    if column.name == "topic":
        return _names_column(segment.names, column, fields["topic"], filled)
    if column.type == "string":
        return _names_column(segment.names, column, fields["names"], filled)
    if column.type == "bool":
        return numbers_array((fields["flags"] & FLAGS[column.name] != 0) & filled, pa.bool_())
    return _number_column(column, fields, filled)


def _number_column(column: Column, fields: Fields, filled: Filled) -> pa.Array:
    values = _where(filled, _numbers(column.name, fields))
    null = None
    if column.name == "quota_value":
        null = ~(filled & (fields["flags"] & QUOTA_VALUE != 0))
    elif column.nullable:
        null = ~(filled & (values != -1))
    return numbers_array(values, ARROW_TYPES[column.type], null)


def _numbers(name: str, fields: Fields) -> Array:
    """Return the numbers of a column in every row, -1 for null."""
    if name == "produce_bytes":
        return np.where(fields["flags"] & PRODUCED != 0, fields["request_bytes"], -1)
    return fields[IN_PLACE_OF[name]] - 1 if name in IN_PLACE_OF else fields[name]


def _names_column(names: Sequence[Names], column: Column, numbers: Array, filled: Filled) -> pa.Array:
    """Return a column of names, each different one once in the dictionary."""
    places = {len(part): part.index(column.name) for part in NAME_COLUMNS.values() if column.name in part}
    values: dict[str, int] = {"": 0}
    indices = np.zeros(len(names), dtype=np.int32)
    if column.name == "topic":
        places[TOPIC_NAMES] = 0
        indices[0] = -1  # no topic
    for number, record in enumerate(names[1:], 1):
        if len(record) in places:
            text = record[places[len(record)]]
            indices[number] = -1 if text is None else values.setdefault(text, len(values))
    found = np.zeros(len(numbers), np.int32) if filled is False else _where(filled, indices[numbers])
    null = ~(filled & (found != -1)) if column.nullable else None
    return names_array(found, list(values), null)


def _where(filled: Filled, values: Array) -> Array:
    """Return the values where they are filled, else 0."""
    if filled is True:
        return values
    return np.zeros_like(values) if filled is False else np.where(filled, values, 0)
