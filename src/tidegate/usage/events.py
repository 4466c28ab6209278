"""Events as plain dicts: events of a segment, and validation of events from other sources.

The Parquet writer decodes complete columns (`segment_table`). This module reads the format row by row, with only the
standard library, and reports what is wrong with a segment. A property test checks that both give the same events.
"""

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tidegate.errors import TidegateError
from tidegate.usage.columns import COLUMN_BY_NAME, COLUMNS, FLAGS, KINDS, NAME_COLUMNS, Column, empty_event
from tidegate.usage.segment import (
    HEADER_BYTES,
    IN_PLACE_OF,
    MARKER,
    NAME_BYTES_MAX,
    PRODUCED,
    QUOTA_VALUE,
    ROW_BYTES,
    ROW_FIELDS,
    TOPIC_NAMES,
    TS_MS_MAX,
    Segment,
    SpoolError,
    load_segment,
)

__all__ = [
    "FLAGS_MAX",
    "Event",
    "EventError",
    "complete_event",
    "read_segment",
    "segment_events",
]

Event = dict[str, Any]
"""One row: every column of `COLUMNS`, by name."""

FLAGS_MAX = sum(FLAGS.values()) | QUOTA_VALUE | PRODUCED
"""All bits that `flags` may have."""

_ROW = struct.Struct("<" + "".join(code for _, code in ROW_FIELDS))
_FIELDS = tuple(name for name, code in ROW_FIELDS if not code.endswith("x"))
_VALUES = {
    kind: tuple(
        (c.name, c.nullable)
        for c in COLUMNS
        if kind in c.kinds and c.name in (*_FIELDS, *IN_PLACE_OF, "produce_bytes") and c.type != "string"
    )
    for kind in KINDS
}
_FLAGS = {kind: tuple(c.name for c in COLUMNS if kind in c.kinds and c.name in FLAGS) for kind in KINDS}


_HAS_VALUE = COLUMN_BY_NAME["quota_value"].kinds
_HAS_TOPIC = COLUMN_BY_NAME["topic"].kinds
_REQUIRED = ("kind", "ts_ms", "seq", "node_id")
_RANGES = {f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64)}
_LARGEST = {"ts_ms": TS_MS_MAX, "seq": 2**63 - 1, "node_id": 2**31 - 1}  # none is below 0


class EventError(TidegateError, ValueError):
    """Raised for an invalid event: its number, from 0, the column, and the expected value."""

    def __init__(self, number: int, column: str, *, found: object, expected: str) -> None:
        super().__init__(f"event {number}: {column} is {found!r}, expected {expected}")
        self.number = number
        self.column = column
        self.found = found
        self.expected = expected


def complete_event(event: Mapping[str, Any], number: int = 0) -> Event:
    """Return an event with all columns: those of `event`, and the others as in `empty_event`.

    Raises `EventError` for a column that is missing, unknown, not of this kind, or not of its type. number: the number
    of the event in its source, for the error.

    >>> complete_event({"kind": "gap", "ts_ms": 5, "seq": 1, "node_id": 1, "lost_events": 3})["lost_events"]
    3
    """
    for name in _REQUIRED:
        if name not in event:
            raise EventError(number, name, found=None, expected="a value in every event")
    kind = event["kind"]
    if kind not in KINDS:
        raise EventError(number, "kind", found=kind, expected=f"one of {', '.join(KINDS)}")
    whole = empty_event(kind)
    for name, value in event.items():
        column = COLUMN_BY_NAME.get(name)
        if column is None:
            raise EventError(number, name, found=value, expected="a column of the usage record")
        if kind in column.kinds:
            if not _fits(column, value):
                raise EventError(number, name, found=value, expected=_expected(column))
            whole[name] = value
        elif value != whole[name]:
            raise EventError(number, name, found=value, expected=f"{whole[name]!r} in rows of kind {kind}")
    return whole


def _fits(column: Column, value: object) -> bool:
    if value is None:
        return column.nullable
    if column.type == "string":
        return isinstance(value, str) and _is_name(value)
    if column.type == "bool":
        return isinstance(value, bool)
    if column.type == "double":
        return isinstance(value, float)
    least, largest = _range(column)
    return type(value) is int and least <= value <= largest


def _is_name(text: str) -> bool:
    try:
        return len(text.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _range(column: Column) -> tuple[int, int]:
    return (0, _LARGEST[column.name]) if column.name in _LARGEST else _RANGES[column.type]


def _expected(column: Column) -> str:
    if column.type == "string":
        text = f"text of at most {NAME_BYTES_MAX} bytes of UTF-8"
    elif column.type in _RANGES:
        text = "a whole number from {} to {}".format(*_range(column))
    else:
        text = {"bool": "True or False", "double": "a float"}[column.type]
    return f"{text}, or None" if column.nullable else text


def read_segment(path: Path) -> Iterator[Event]:
    """Yield the events of the spool segment whose file of rows is `path`, open or closed.

    Raises `SpoolError` if the file is damaged, `OSError` if it cannot be read.
    """
    return segment_events(load_segment(path))


def segment_events(segment: Segment) -> Iterator[Event]:
    """Yield the events of `segment`; a run of rows that a crash of the machine lost is one `gap`."""
    ts_ms = segment.header.opened_ms
    lost = 0
    for place in range(len(segment.rows) // ROW_BYTES):
        event = _row_event(segment, place)
        if event is None:
            lost += 1
            continue
        if lost:
            yield _gap(segment, place - lost, lost, ts_ms)
            lost = 0
        ts_ms = event["ts_ms"]
        yield event
    if lost:
        yield _gap(segment, len(segment.rows) // ROW_BYTES - lost, lost, ts_ms)


def _gap(segment: Segment, place: int, lost_events: int, ts_ms: int) -> Event:
    identity = {"node_id": segment.header.node_id, "seq": segment.header.first_seq + place}
    return empty_event("gap") | identity | {"ts_ms": ts_ms, "lost_events": lost_events}


def _row_event(segment: Segment, place: int) -> Event | None:
    """Return the event of one row; None if a crash lost it."""
    row = dict(zip(_FIELDS, _ROW.unpack_from(segment.rows, place * ROW_BYTES), strict=True))
    if row["marker"] == 0 or (row["marker"] == MARKER and _has_lost_names(segment, row)):
        return None
    kind = _check_row(segment, place, row)
    event = empty_event(kind)
    event["seq"] = segment.header.first_seq + place
    event["node_id"] = segment.header.node_id
    row |= {name: _wrapped(row[place] - 1, "int64") for name, place in IN_PLACE_OF.items()}
    row["produce_bytes"] = row["request_bytes"] if row["flags"] & PRODUCED else -1
    for name, nullable in _VALUES[kind]:
        event[name] = None if nullable and row[name] == -1 else row[name]
    if event["other_topics"] is not None:
        event["other_topics"] = _wrapped(event["other_topics"], COLUMN_BY_NAME["other_topics"].type)
    for name in _FLAGS[kind]:
        event[name] = bool(row["flags"] & FLAGS[name])
    _fill_names(segment, place, row, event)
    return event


def _wrapped(value: int, type_name: str) -> int:
    """Return a number wrapped to the width of its column: a number in a damaged row may be too large.

    >>> _wrapped(-1, "int32"), _wrapped(1 << 32, "int32"), _wrapped(-(1 << 63) - 1, "int64") == (1 << 63) - 1
    (-1, 0, True)
    """
    half = 1 << (int(type_name.removeprefix("int")) - 1)
    return (value + half) % (2 * half) - half


def _has_lost_names(segment: Segment, row: Mapping[str, int]) -> bool:
    return max(row["names"], row["topic"]) >= len(segment.names)


def _check_row(segment: Segment, place: int, row: dict[str, Any]) -> str:
    for name, good, expected in (
        ("marker", row["marker"] == MARKER, f"{MARKER}"),
        ("kind", 1 <= row["kind"] <= len(KINDS), f"a kind from 1 to {len(KINDS)}"),
        ("flags", row["flags"] & ~FLAGS_MAX == 0, f"only flags of {FLAGS_MAX}"),
        ("ts_ms", 0 <= row["ts_ms"] <= TS_MS_MAX, "a time from 1970 to 9999"),
    ):
        if not good:
            raise _error(segment, place, name, row[name], expected)
    return KINDS[row["kind"] - 1]


def _fill_names(segment: Segment, place: int, row: dict[str, Any], event: Event) -> None:
    columns = NAME_COLUMNS[event["kind"]]
    size = len(columns)
    names = segment.names[row["names"]]
    if (row["names"] == 0) != (size == 0) or (size and len(names) != size):
        raise _error(segment, place, "names", row["names"], f"the number of a record of {size} names")
    if size:
        event.update((name, _text(name, text)) for name, text in zip(columns, names, strict=True))
    topic = segment.names[row["topic"]]
    if row["topic"] and len(topic) != TOPIC_NAMES:
        raise _error(segment, place, "topic", row["topic"], f"the number of a record of {TOPIC_NAMES} names")
    if row["topic"] and event["kind"] in _HAS_TOPIC:
        event["topic"] = topic[0]
    if event["kind"] in _HAS_VALUE:
        event["quota_value"] = row["quota_value"] if row["flags"] & QUOTA_VALUE else None


def _text(name: str, text: str | None) -> str | None:
    return text if COLUMN_BY_NAME[name].nullable else text or ""


def _error(segment: Segment, place: int, field: str, found: object, expected: str) -> SpoolError:
    offset = HEADER_BYTES + place * ROW_BYTES
    return SpoolError(segment.path, offset=offset, found=f"{field} {found}", expected=expected)
