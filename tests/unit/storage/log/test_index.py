"""Tests of the sparse indexes."""

import struct
from pathlib import Path

import pytest

from tidegate.storage.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex

ENTRIES = [(3, 0), (7, 100), (20, 250), (21, 400)]


def filled(path: Path) -> SparseIndex:
    """Return an index with `ENTRIES`."""
    index = SparseIndex(path, OFFSET_ENTRY)
    for key, value in ENTRIES:
        index.add_entry(key, value)
    return index


@pytest.mark.parametrize(
    ("key", "expected"),
    [(0, None), (2, None), (3, (3, 0)), (19, (7, 100)), (20, (20, 250)), (10**6, (21, 400))],
)
def test_floor_is_the_same_in_memory_and_on_disk(
    tmp_path: Path, key: int, expected: tuple[int, int] | None
) -> None:
    """Both searches find the last entry that is not above the key."""
    index = filled(tmp_path / "index")
    index.flush()
    assert index.floor(key) == expected
    assert index.floor_on_disk(key) == expected


def test_file_is_kafkas_format(tmp_path: Path) -> None:
    """An offset index is pairs of big-endian 32-bit numbers, a time index 64 and 32 bits."""
    filled(tmp_path / "index").flush()
    assert (tmp_path / "index").read_bytes() == b"".join(struct.pack(">ii", *entry) for entry in ENTRIES)
    times = SparseIndex(tmp_path / "timeindex", TIME_ENTRY)
    times.add_entry(1_700_000_000_000, 5)
    times.flush()
    assert (tmp_path / "timeindex").read_bytes() == struct.pack(">qi", 1_700_000_000_000, 5)


def test_flush_appends_only_what_is_new(tmp_path: Path) -> None:
    """Flushing again writes nothing twice."""
    index = filled(tmp_path / "index")
    index.flush()
    index.add_entry(30, 500)
    index.flush()
    index.flush()
    assert (tmp_path / "index").stat().st_size == 5 * OFFSET_ENTRY.size


def test_load_gives_back_what_was_flushed(tmp_path: Path) -> None:
    """A new index reads the entries of the file."""
    filled(tmp_path / "index").flush()
    again = SparseIndex(tmp_path / "index", OFFSET_ENTRY)
    again.load()
    assert (len(again), again.last()) == (4, ENTRIES[-1])


def test_load_stops_at_nonsense_and_flush_removes_it(tmp_path: Path) -> None:
    """Entries that do not grow, and half an entry, are ignored and cut off."""
    good = struct.pack(">iiii", 1, 0, 5, 80)
    (tmp_path / "index").write_bytes(good + struct.pack(">ii", 4, 90) + b"xyz")
    index = SparseIndex(tmp_path / "index", OFFSET_ENTRY)
    index.load()
    index.flush()
    assert (tmp_path / "index").read_bytes() == good


def test_kept_entries_are_what_stays_on_disk(tmp_path: Path) -> None:
    """Forgetting the end of an index shortens its file with the next flush."""
    index = filled(tmp_path / "index")
    index.flush()
    index.truncate(index.values_below(250))
    index.flush()
    assert (tmp_path / "index").stat().st_size == 2 * OFFSET_ENTRY.size


def test_closed_index_is_searched_on_disk(tmp_path: Path) -> None:
    """Nothing stays in memory of a segment that is closed, and nothing is lost."""
    index = filled(tmp_path / "index")
    index.forget_memory()
    assert (len(index), index.floor_on_disk(20)) == (0, (20, 250))


def test_absent_file_finds_nothing(tmp_path: Path) -> None:
    """An index without a file is empty."""
    index = SparseIndex(tmp_path / "index", OFFSET_ENTRY)
    index.load()
    assert (len(index), index.floor_on_disk(5)) == (0, None)
