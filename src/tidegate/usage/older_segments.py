"""Spool segments of earlier versions: their rows in the layout of this one.

A broker that was upgraded finds segments that its predecessor left in the spool. The first bytes of a segment name its
layout. All layouts have the same header, row size and names; they differ in the places of fields, so rows are packed
again when a segment is loaded. `seq`, kinds, flags and null values (-1) mean the same in all of them.

Kinds and flags were only ever added, at the end, so a row of an earlier version has the numbers of this one.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["OLDER_LAYOUTS", "upgraded_rows"]

Layout = Sequence[tuple[str, str]]

_FIRST_FIELDS = (
    ("ts_ms", "q"), ("connection_id", "q"), ("request_bytes", "q"), ("response_bytes", "q"), ("produce_bytes", "q"),
    ("fetch_bytes", "q"), ("handler_ns", "q"), ("network_ns", "q"), ("mutations", "q"), ("quota_value", "d"),
    ("lost_events", "q"),
)  # fmt: skip
_SMALL_FIELDS = (
    ("produce_throttle_ms", "i"), ("fetch_throttle_ms", "i"), ("request_throttle_ms", "i"),
    ("mutation_throttle_ms", "i"), ("early_ms", "i"), ("names", "I"), ("api_key", "h"), ("api_version", "h"),
)  # fmt: skip
_TAIL = (("flags", "B"), ("kind", "B"), ("marker", "H"))

OLDER_LAYOUTS: Final[Mapping[bytes, Layout]] = {
    b"TGUSAGE1": (*_FIRST_FIELDS, *_SMALL_FIELDS, ("spare", "8x"), *_TAIL),
    b"TGUSAGE2": (*_FIRST_FIELDS, ("wall_offset_ms", "q"), *_SMALL_FIELDS, *_TAIL),
}
"""By the first bytes of a segment, name and `struct` code of each field of a row, in order."""

_NO_BYTES = -1
_REQUEST = 4  # its number among the kinds, in all versions


def upgraded_rows(magic: bytes, rows: bytes, *, layout: Layout, produced: int) -> bytes:
    """Return rows of an earlier layout in `layout`. rows: whole rows, also such as a crash has lost.

    produced: the bit in `flags` that says that the bytes of a request are charged to the produce quota. Earlier layouts
    had a field for them, with the size of the request.
    """
    before = OLDER_LAYOUTS[magic]
    names = _names(before)
    reader, writer = _struct(before), _struct(layout)
    found = bytearray()
    for values in reader.iter_unpack(rows):
        row = dict(zip(names, values, strict=True))
        if row["kind"] == _REQUEST and row["produce_bytes"] != _NO_BYTES:
            row["flags"] |= produced
        found += writer.pack(*(row.get(name, 0) for name in _names(layout)))
    return bytes(found)


def _struct(layout: Layout) -> struct.Struct:
    return struct.Struct("<" + "".join(code for _, code in layout))


def _names(layout: Layout) -> tuple[str, ...]:
    return tuple(name for name, code in layout if not code.endswith("x"))
