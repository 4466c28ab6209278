"""The segment that is being written."""

import tracemalloc

import pytest

from tidegate.usage.events import read_segment
from tidegate.usage.open_segment import NAMES_FULL, OpenSegment
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    NAME_BYTES_MAX,
    NAMES_BYTES_MAX,
    NAMES_MAX,
    OPEN_SUFFIX,
    ROW_BYTES,
    Header,
    load_segment,
    row_struct,
    row_tail,
    segment_path,
)

HEADER = Header(node_id=3, first_seq=1000, opened_ms=5)


@pytest.fixture
def segment(tmp_path):
    """An open segment with room for seven rows."""
    return OpenSegment(tmp_path, HEADER, 8 * ROW_BYTES)


def finish(segment, rows):
    segment.close_files((rows + 1) * ROW_BYTES)
    assert segment.hand_over() == 0


def test_size_is_taken_at_once(tmp_path, segment):
    """The file has its size and its blocks from the start, and is the owner's only."""
    status = segment_path(tmp_path, 1000, OPEN_SUFFIX).stat()
    assert (status.st_size, status.st_mode & 0o777) == (8 * ROW_BYTES, 0o600)
    assert status.st_blocks * 512 >= 8 * ROW_BYTES
    finish(segment, 0)


def test_handed_over_without_what_was_not_used(tmp_path, segment):
    """What the writer gets ends after the last row."""
    segment.write(row_struct("start").pack(77, row_tail("start")), ROW_BYTES)
    finish(segment, 1)
    path = segment_path(tmp_path, 1000, CLOSED_SUFFIX)
    assert path.stat().st_size == 2 * ROW_BYTES
    assert [(event["kind"], event["ts_ms"], event["seq"]) for event in read_segment(path)] == [
        ("start", 77, 1000)
    ]


def test_without_rows_nothing_is_handed_over(tmp_path, segment):
    """A segment without rows leaves no files."""
    finish(segment, 0)
    assert list(tmp_path.iterdir()) == []


def test_names_are_numbered_once(tmp_path, segment):
    """The same names keep their number, and they are on disk before the number is known."""
    alice, bob = ("alice",) * 6, ("bob",) * 6
    assert [segment.name_index(names) for names in (alice, bob, alice)] == [1, 2, 1]
    assert load_segment(segment_path(tmp_path, 1000, OPEN_SUFFIX)).names[1:] == [alice, bob]
    finish(segment, 0)


def test_names_are_bounded_in_number(segment):
    """Past the bound the table is full, for new names only."""
    numbers = [segment.name_index((str(index), None, None, "k")) for index in range(NAMES_MAX + 2)]
    assert numbers == [*range(1, NAMES_MAX + 1), NAMES_FULL, NAMES_FULL]
    assert segment.name_index(("7", None, None, "k")) == 8
    finish(segment, 0)


def test_names_are_bounded_in_bytes(tmp_path, segment):
    """Long names fill the table sooner, and the file stays within its bound."""
    index = 0
    while segment.name_index((f"{index}" + "x" * NAME_BYTES_MAX, None, None, "k")) != NAMES_FULL:
        index += 1
    assert index == NAMES_BYTES_MAX // (NAME_BYTES_MAX + 5 * 4 + 5)
    (names,) = tmp_path.glob("*.names")
    assert names.stat().st_size <= NAMES_BYTES_MAX
    finish(segment, 0)


@pytest.mark.parametrize("name", ["{index:x}", "{index}" + "\U0001f600" + "x" * 8000])
def test_memory_for_names_is_bounded_in_bytes(segment, name):
    """Many short names, or long ones that take four bytes a character: as much as the file, and 200 bytes a name."""
    tracemalloc.start()
    index = 0
    while segment.name_index((name.format(index=index), None, None, "k")) != NAMES_FULL:
        index += 1
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < NAMES_BYTES_MAX + 200 * NAMES_MAX
    finish(segment, 0)
