"""The spool's format: header, rows, names, and what is refused."""

import struct

import pytest

from tidegate.usage.columns import COLUMNS, KINDS, NAME_COLUMNS
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    HEADER_BYTES,
    IN_PLACE_OF,
    MARKER,
    NAME_BYTES_MAX,
    NAMES_BYTES_MAX,
    NAMES_SUFFIX,
    ROW_BYTES,
    ROW_FIELDS,
    Header,
    SpoolError,
    encode_header,
    encode_names,
    load_segment,
    row_packer,
    row_struct,
    row_tail,
    segment_path,
    segment_paths,
    used_bytes,
)

HEADER = Header(node_id=3, first_seq=1000, opened_ms=1_700_000_000_000)
ROW = row_struct("start").pack(1_700_000_000_000, row_tail("start"))


def write_segment(directory, *, header=None, rows=ROW, names=b""):
    path = segment_path(directory, 1000, CLOSED_SUFFIX)
    path.write_bytes((encode_header(HEADER) if header is None else header) + rows)
    path.with_suffix(NAMES_SUFFIX).write_bytes(names)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_rows_have_one_size(kind):
    """Rows of every kind have the same size, so that a place in the file is a sequence number."""
    assert row_struct(kind).size == ROW_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_packed_by_the_names_of_its_fields(kind):
    """Every field that its kind fills is where the layout has it, and all others are zero; none can be left out."""
    filled = {column.name for column in COLUMNS if kind in column.kinds} - {"kind", "ts_ms"}
    filled |= {IN_PLACE_OF[name] for name in filled & IN_PLACE_OF.keys()}
    filled |= {"names"} if NAME_COLUMNS[kind] else set()
    fields = [name for name, _ in ROW_FIELDS if name in filled]
    values = {name: number for number, name in enumerate(fields, 1)}
    row = bytearray(ROW_BYTES)
    row_packer(kind)(row, 0, 8, {"ts_ms": 1_700_000_000_000, **values})
    layout = struct.Struct("<" + "".join(code for _, code in ROW_FIELDS))
    whole = dict(zip((name for name, _ in ROW_FIELDS if name != "spare"), layout.unpack(row), strict=True))
    found = {name: value for name, value in whole.items() if value}
    tail = {"kind": KINDS.index(kind) + 1, "flags": 8, "marker": MARKER}
    assert found == {"ts_ms": 1_700_000_000_000, **values, **tail}
    for name in fields:
        with pytest.raises(KeyError, match=name):
            row_packer(kind)(row, 0, 0, {"ts_ms": 1, **{n: v for n, v in values.items() if n != name}})


def test_rows_do_not_cross_sectors():
    """A row lies in one disk sector of 512 bytes: it reaches the disk whole or not at all."""
    assert 512 % ROW_BYTES == 0
    assert HEADER_BYTES % ROW_BYTES == 0


def test_load_segment(tmp_path):
    """A segment reads back as header, rows and names; name 0 is no names."""
    path = write_segment(tmp_path, names=encode_names(("alice", None, None, "producer_byte_rate")))
    segment = load_segment(path)
    assert (segment.header, segment.rows) == (HEADER, ROW)
    assert segment.names == [("",) * 6, ("alice", None, None, "producer_byte_rate")]


def test_segments_sort_by_sequence(tmp_path):
    """Segments are listed in the order of their first sequence number, and other files are not."""
    for seq in (9, 10**12, 70):
        segment_path(tmp_path, seq, CLOSED_SUFFIX).touch()
    (tmp_path / "notes.closed").touch()
    assert [int(path.stem) for path in segment_paths(tmp_path, CLOSED_SUFFIX)] == [9, 70, 10**12]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("x" * 40_000, "x" * NAME_BYTES_MAX),
        ("é" * 20_000, "é" * (NAME_BYTES_MAX // 2)),
        ("\ud800", "?"),
        ("", ""),
    ],
    ids=["long", "long-two-bytes", "lone-surrogate", "empty"],
)
def test_hostile_names(tmp_path, text, kept):
    """A name too long is cut between characters, and a lone surrogate becomes a question mark."""
    segment = load_segment(write_segment(tmp_path, names=encode_names((text,) * 6)))
    assert segment.names[1] == (kept,) * 6


def test_names_cut_short_by_a_crash_are_left_out(tmp_path):
    """The record at the end of a names file that was not written whole is not there."""
    whole = encode_names(("a", "b", "c", "d"))
    for size in range(len(whole)):
        path = write_segment(tmp_path, names=whole + whole[:size])
        assert len(load_segment(path).names) == 2


@pytest.mark.parametrize("rows", [0, 1, 5, 600, 1300])
def test_used_bytes_ends_after_the_last_whole_row(rows):
    """The zeros of the pre-sized file and a row without its marker are not part of it."""
    torn = row_struct("start").pack(1, 0)
    data = encode_header(HEADER) + ROW * rows + torn + bytes(ROW_BYTES * 700 + 3)
    assert used_bytes(data) == HEADER_BYTES + rows * ROW_BYTES


def test_used_bytes_without_header():
    """A file that was cut off before its header was written holds nothing."""
    assert used_bytes(b"") == used_bytes(bytes(5000)) == 0


@pytest.mark.parametrize(
    ("header", "offset", "expected"),
    [
        (b"short", 5, "expected a header of 128 bytes"),
        (b"NOTAUSAG" + encode_header(HEADER)[8:], 0, "expected b'TGUSAGE1' to b'TGUSAGE4'$"),
        (encode_header(HEADER)[:9] + b"\x07" + encode_header(HEADER)[10:], 28, "expected CRC-32"),
        (
            encode_header(Header(node_id=3, first_seq=5, opened_ms=0)),
            12,
            "expected the sequence number in the file's name",
        ),
    ],
    ids=["short", "magic", "crc", "name"],
)
def test_bad_header(tmp_path, header, offset, expected):
    """A header that no recorder wrote is named with the place and what was expected."""
    path = write_segment(tmp_path, header=header, rows=b"" if len(header) < HEADER_BYTES else ROW)
    with pytest.raises(SpoolError, match=expected) as caught:
        load_segment(path)
    assert (caught.value.path, caught.value.offset) == (path, offset)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (b"\xff\xff\xff\xff" + bytes(4), "expected a length up to"),
        (encode_names(("a",) * 6)[:-1] + b"b", "expected CRC-32"),
        (encode_names(("a",) * 7), r"expected one of \[1, 2, 3, 4, 5, 6\]"),
    ],
    ids=["length", "crc", "count"],
)
def test_bad_names(tmp_path, names, expected):
    """A names record that no recorder wrote is an error, before memory is taken for it."""
    with pytest.raises(SpoolError, match=expected):
        load_segment(write_segment(tmp_path, names=names))


def test_names_file_too_large(tmp_path):
    """A names file over the bound is refused without being read whole."""
    path = write_segment(tmp_path)
    with path.with_suffix(NAMES_SUFFIX).open("wb") as file:
        file.truncate(NAMES_BYTES_MAX + 1)
    with pytest.raises(SpoolError, match=f"expected at most {NAMES_BYTES_MAX} bytes"):
        load_segment(path)
