"""The spool's format on disk: a segment is a file of fixed-width rows, and a file of names that the rows refer to.

    <first seq>.open      rows, being written: a header of one row's size, then rows, then zeros
    <first seq>.closed    rows, complete: renamed from `.open`, ready for the Parquet writer
    <first seq>.bad       rows that the writer could not read, kept for inspection
    <first seq>.names     the strings of that segment, one record per client, quota entity, …, counted from 1

A row has 128 bytes, little endian. Its fields are those of `COLUMNS`, sorted by width; its `seq` is that of the first
row plus its number. Rows begin at multiples of 128, so that no row spans two disk sectors, and end with a marker, which
a row that was cut short by `kill -9` does not have. A crash of the machine, or cutting the file, may lose rows: those
without a marker before the last row with one (in a closed file: any), and those whose names are missing. Readers make a
`gap` of them. Any other mistake is a `SpoolError`. Segments of earlier versions are read, too (`older_segments`).

The lag is stored in a column that rows of requests do not use (`IN_PLACE_OF`), increased by one: 0 means that there is
none. So is the number of other topics. A topic is stored as the number of its record of names. `produce_bytes` is not
stored: it is `request_bytes` if `flags` has `PRODUCED`. The fields from `END_FIELDS[0]` on are the same in most rows of
a connection, so they are packed once.
"""

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from tidegate.errors import TidegateError
from tidegate.usage.columns import COLUMNS, KINDS, NAME_COLUMNS
from tidegate.usage.older_segments import OLDER_LAYOUTS, upgraded_rows

__all__ = [
    "BAD_SUFFIX",
    "CLOSED_SUFFIX",
    "END_FIELDS",
    "HEADER_BYTES",
    "IN_PLACE_OF",
    "MARKER",
    "NAMES_BYTES_MAX",
    "NAMES_MAX",
    "NAMES_SUFFIX",
    "NAME_BYTES_MAX",
    "OPEN_SUFFIX",
    "PRODUCED",
    "QUOTA_VALUE",
    "ROW_BYTES",
    "ROW_FIELDS",
    "SEGMENT_BYTES_MAX",
    "TOPIC_NAMES",
    "TS_MS_MAX",
    "Header",
    "Names",
    "Segment",
    "SpoolError",
    "encode_header",
    "encode_names",
    "load_segment",
    "opened_ms",
    "row_end_struct",
    "row_packer",
    "row_struct",
    "row_tail",
    "segment_path",
    "segment_paths",
    "topic_names",
    "used_bytes",
]

OPEN_SUFFIX = ".open"
CLOSED_SUFFIX = ".closed"
BAD_SUFFIX = ".bad"
NAMES_SUFFIX = ".names"

MARKER = 0xA55A
"""Last two bytes of every complete row."""
QUOTA_VALUE = 0x80
"""Bit in `flags` of a `quota` row that has a value (any double is a value, NaN too: B§6.8)."""
PRODUCED = 0x20
"""Bit in `flags` of a `request` row whose bytes are charged to the produce quota."""
SEGMENT_BYTES_MAX = 256 << 20
"""Largest file of rows that is written or read."""
NAME_BYTES_MAX = 32_767
"""Longest name kept, in bytes of UTF-8 (what an int16 length in the protocol can carry); longer is cut."""
NAMES_MAX = 65_535
"""Most records in one names file; the next one begins a new segment."""
NAMES_BYTES_MAX = 8 << 20
"""Largest names file; what does not fit begins a new segment."""
TS_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999, the last year that a date in a path can have."""

_CODES = {"int64": "q", "double": "d", "int32": "i", "int16": "h"}
_IMPLIED = ("seq", "node_id", "produce_bytes")  # they follow from the row's number, the header and `PRODUCED`
IN_PLACE_OF = {"lag": "mutations", "lag_bytes": "lost_events", "other_topics": "wall_offset_ms"}
"""Column → the column in which it is stored, increased by one: 0 is null. No kind of row fills both."""
END_FIELDS = ("fetch_bytes", "connection_id")
"""The last of the widest fields."""
_TAIL = (("flags", "B"), ("kind", "B"), ("marker", "H"))


def _row_fields() -> tuple[tuple[str, str], ...]:
    without = {*_IMPLIED, *IN_PLACE_OF}
    numbers = [(c.name, _CODES[c.type]) for c in COLUMNS if c.type in _CODES and c.name not in without]
    places = {name: place for place, name in enumerate(END_FIELDS, 1)}

    def order(field: tuple[str, str]) -> tuple[int, int]:
        return -struct.calcsize(field[1]), places.get(field[0], 0)

    return (("spare", "4x"), ("topic", "I"), *sorted([*numbers, ("names", "I")], key=order), *_TAIL)


ROW_FIELDS = _row_fields()
"""Name and `struct` code of each field of a row, in order."""
ROW_BYTES = struct.calcsize("<" + "".join(code for _, code in ROW_FIELDS))
HEADER_BYTES = ROW_BYTES
assert ROW_BYTES == 128, "rows must divide a disk sector of 512 bytes"

_FAMILY = b"TGUSAGE"
_MAGIC = _FAMILY + b"4"
_MAGIC_WITHOUT_TOPICS = _FAMILY + b"3"  # the same layout with nothing where the topic is
_HEADER = struct.Struct("<8siqq")  # magic, node_id, first_seq, opened_ms; followed by the CRC-32 of these
_RECORD = struct.Struct("<II")  # length and CRC-32 of a names record
_LENGTH = struct.Struct("<i")  # of one name; -1 is null
_ZEROS = bytes(512 * ROW_BYTES)
TOPIC_NAMES = 2
"""Names in the record of a topic: it and null. No other record has as many, so the size says what a record is."""
_NAMES_IN_RECORDS = sorted({len(names) for names in NAME_COLUMNS.values()} - {0} | {TOPIC_NAMES})
_RECORD_BYTES_MAX = _NAMES_IN_RECORDS[-1] * (_LENGTH.size + NAME_BYTES_MAX)

Names = tuple[str | None, ...]
"""One record: the names of a row, as `NAME_COLUMNS` has them for its kind."""


_NO_NAMES: Names = ("",) * 6  # the names with number 0


class SpoolError(TidegateError):
    """Raised for a damaged spool file: the place, the value, and the expected value."""

    def __init__(self, path: Path, *, offset: int, found: object, expected: str) -> None:
        super().__init__(f"{path} at byte {offset}: found {found!r}, expected {expected}")
        self.path = path
        self.offset = offset
        self.found = found
        self.expected = expected


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Header of a segment: its node, the `seq` of its first row, and when it was opened."""

    node_id: int
    first_seq: int
    opened_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A segment as read: the bytes of its rows up to the last complete one, and its names (0 is none)."""

    path: Path
    header: Header
    rows: bytes
    names: Sequence[Names]


def row_struct(kind: str, zero: Sequence[str] = (), end: str | None = None) -> struct.Struct:
    """Return the layout to pack rows of `kind` with; `zero` and what the kind does not fill is written as zeros.

    The last three fields are packed as one, `row_tail(kind)` plus the flags; with `end`, all from that field on, as
    `row_end_struct` packs them.
    """
    codes = _codes(kind, zero)
    if end is None:
        return struct.Struct("<" + "".join(codes.values()))
    first = list(codes.values())[: list(codes).index(end)]
    return struct.Struct("<" + "".join(first) + f"{row_end_struct(kind, end).size}s")


def row_end_struct(kind: str, end: str) -> struct.Struct:
    """Return the layout of a row's fields from `end` on."""
    codes = _codes(kind, ())
    return struct.Struct("<" + "".join(list(codes.values())[list(codes).index(end) :]))


def row_packer(kind: str) -> Callable[[bytearray, int, int, dict[str, float]], None]:
    """Return a function that packs a row of `kind` into a buffer, at a place, with `flags` and its fields by name."""
    in_order = itemgetter(*[name for name, code in _codes(kind, ()).items() if not code.endswith("x")])
    pack_into, tail = row_struct(kind).pack_into, row_tail(kind)

    def pack(rows: bytearray, at: int, flags: int, values: dict[str, float]) -> None:
        values["tail"] = tail | flags
        pack_into(rows, at, *in_order(values))

    return pack


def _codes(kind: str, zero: Sequence[str]) -> dict[str, str]:
    """Return the code of each field, the last three as one, `tail`."""
    filled = {column.name for column in COLUMNS if kind in column.kinds} - set(zero)
    filled |= {IN_PLACE_OF[name] for name in filled & IN_PLACE_OF.keys()}
    if NAME_COLUMNS[kind]:
        filled.add("names")
    fields = ROW_FIELDS[: -len(_TAIL)]
    codes = {name: code if name in filled else f"{struct.calcsize(code)}x" for name, code in fields}
    return codes | {"tail": "I"}


def row_tail(kind: str) -> int:
    """Return marker, kind and no flags as the last field of a row."""
    return MARKER << 16 | KINDS.index(kind) + 1 << 8


def topic_names(topic: str) -> Names:
    """Return the record of a topic."""
    return topic, None


def segment_path(directory: Path, first_seq: int, suffix: str) -> Path:
    """Return the path of a segment's file; names sort as the sequence does."""
    return directory / f"{first_seq:020d}{suffix}"


def segment_paths(directory: Path, suffix: str) -> list[Path]:
    """Return the segment files with `suffix` in `directory`, in order."""
    return sorted(path for path in directory.glob(f"*{suffix}") if path.stem.isdigit())


def encode_header(header: Header) -> bytes:
    """Return the first `HEADER_BYTES` of a file of rows."""
    fields = _HEADER.pack(_MAGIC, header.node_id, header.first_seq, header.opened_ms)
    return (fields + zlib.crc32(fields).to_bytes(4, "little")).ljust(HEADER_BYTES, b"\0")


def encode_names(names: Iterable[str | None]) -> bytes:
    """Return one record of a names file; names over `NAME_BYTES_MAX` are cut, lone surrogates become `?`."""
    payload = b"".join(_encode_name(name) for name in names)
    return _RECORD.pack(len(payload), zlib.crc32(payload)) + payload


def _encode_name(name: str | None) -> bytes:
    if name is None:
        return _LENGTH.pack(-1)
    data = name[:NAME_BYTES_MAX].encode("utf-8", "replace")
    if len(data) > NAME_BYTES_MAX:
        # The cut may split a character: `ignore` drops its first bytes.
        data = data[:NAME_BYTES_MAX].decode("utf-8", "ignore").encode()
    return _LENGTH.pack(len(data)) + data


def used_bytes(data: bytes | memoryview) -> int:
    """Return the size of a file of rows up to its last row with a marker, 0 where there is no header."""
    if len(data) < HEADER_BYTES or not any(data[:HEADER_BYTES]):
        return 0
    end = len(data) - len(data) % ROW_BYTES
    while end > HEADER_BYTES:  # skip blocks of zeros quickly, then look row by row
        start = max(HEADER_BYTES, end - len(_ZEROS))
        if data[start:end] != _ZEROS[: end - start]:
            break
        end = start
    while end > HEADER_BYTES and not any(data[end - 2 : end]):
        end -= ROW_BYTES
    return end


def opened_ms(path: Path) -> int:
    """Return the time of the first row of the segment whose file of rows is `path`. Raises `SpoolError`, `OSError`."""
    with path.open("rb") as file:
        return _decode_header(path, file.read(HEADER_BYTES))[1].opened_ms


def load_segment(path: Path) -> Segment:
    """Return the segment whose file of rows is `path`. Raises `SpoolError` or `OSError`.

    Rows whose names file is gone have no names: they count as lost.
    """
    data = _read_bounded(path, SEGMENT_BYTES_MAX)
    magic, header = _decode_header(path, data)
    is_closed = (
        path.suffix == CLOSED_SUFFIX
    )  # then its size says how many rows it had: what is missing is lost
    end = len(data) - len(data) % ROW_BYTES if is_closed else used_bytes(data)
    rows = data[HEADER_BYTES:end]
    if magic in OLDER_LAYOUTS:
        rows = upgraded_rows(magic, rows, layout=ROW_FIELDS, produced=PRODUCED)
    try:
        names = _decode_names(path.with_suffix(NAMES_SUFFIX))
    except FileNotFoundError:
        if not path.exists():
            raise
        names = [_NO_NAMES]
    return Segment(path=path, header=header, rows=rows, names=names)


def _read_bounded(path: Path, bytes_max: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(bytes_max + 1)
    if len(data) > bytes_max:
        raise SpoolError(path, offset=bytes_max, found="more bytes", expected=f"at most {bytes_max} bytes")
    return data


def _decode_header(path: Path, data: bytes) -> tuple[bytes, Header]:
    """Return the first bytes, which name the layout of the rows, and the header."""
    if len(data) < HEADER_BYTES:
        raise SpoolError(
            path, offset=len(data), found="the end", expected=f"a header of {HEADER_BYTES} bytes"
        )
    fields = data[: _HEADER.size]
    magic, node_id, first_seq, opened_ms = _HEADER.unpack(fields)
    if magic not in (_MAGIC, _MAGIC_WITHOUT_TOPICS, *OLDER_LAYOUTS):
        is_newer = magic[: len(_FAMILY)] == _FAMILY and magic[len(_FAMILY) :].isalnum()
        expected = f"{min(OLDER_LAYOUTS)!r} to {_MAGIC!r}"
        expected += "; a newer version of Tidegate wrote this file" if is_newer else ""
        raise SpoolError(path, offset=0, found=magic, expected=expected)
    crc = int.from_bytes(data[_HEADER.size : _HEADER.size + 4], "little")
    if crc != zlib.crc32(fields):
        raise SpoolError(path, offset=_HEADER.size, found=crc, expected=f"CRC-32 {zlib.crc32(fields)}")
    if str(first_seq) != (path.stem.lstrip("0") or "0"):
        raise SpoolError(path, offset=12, found=first_seq, expected="the sequence number in the file's name")
    return magic, Header(node_id=node_id, first_seq=first_seq, opened_ms=opened_ms)


def _decode_names(path: Path) -> list[Names]:
    data = _read_bounded(path, NAMES_BYTES_MAX)
    names: list[Names] = [_NO_NAMES]
    at = 0
    while at + _RECORD.size <= len(data):
        size, crc = _RECORD.unpack_from(data, at)
        if size > _RECORD_BYTES_MAX:
            raise SpoolError(path, offset=at, found=size, expected=f"a length up to {_RECORD_BYTES_MAX}")
        end = at + _RECORD.size + size
        if end > len(data):
            break  # cut short by a crash: no row refers to it
        names.append(_decode_record(path, at, data[at + _RECORD.size : end], crc))
        at = end
    return names


def _decode_record(path: Path, offset: int, payload: bytes, crc: int) -> Names:
    if zlib.crc32(payload) != crc:
        raise SpoolError(path, offset=offset, found=crc, expected=f"CRC-32 {zlib.crc32(payload)}")
    names: list[str | None] = []
    at = 0
    try:
        while at < len(payload):
            (size,) = _LENGTH.unpack_from(payload, at)
            at += _LENGTH.size
            names.append(None if size < 0 else payload[at : at + size].decode())
            at += max(size, 0)
    except (struct.error, UnicodeDecodeError) as error:
        raise SpoolError(path, offset=offset + at, found=str(error), expected="names in UTF-8") from error
    if len(names) not in _NAMES_IN_RECORDS or at != len(payload):
        raise SpoolError(
            path, offset=offset, found=f"{len(names)} names", expected=f"one of {_NAMES_IN_RECORDS}"
        )
    return tuple(names)
