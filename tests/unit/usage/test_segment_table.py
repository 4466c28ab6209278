"""Segments as Arrow tables."""

import pytest
from tests.unit.usage.recording import erase, patch, recorded_segment

from tidegate.usage.columns import KINDS
from tidegate.usage.events import read_segment
from tidegate.usage.segment import NAMES_SUFFIX, SpoolError, load_segment
from tidegate.usage.segment_table import segment_table


def test_table_equals_the_plain_reading(tmp_path):
    """Whole columns and row by row give the same events."""
    path = recorded_segment(tmp_path)
    assert segment_table(load_segment(path)).to_pylist() == list(read_segment(path))


def test_lost_rows_become_the_same_gaps(tmp_path):
    """Rows that a crash lost give the same gaps as in the plain reader, also where their names are lost."""
    path = recorded_segment(tmp_path)
    erase(path, 0, 1, 5, 8)
    assert segment_table(load_segment(path)).to_pylist() == list(read_segment(path))
    path.with_suffix(NAMES_SUFFIX).write_bytes(b"")
    assert segment_table(load_segment(path)).to_pylist() == list(read_segment(path))
    assert segment_table(load_segment(path)).column("lost_events").to_pylist() == [10]


@pytest.mark.parametrize(
    "fields",
    [
        {"marker": 3, "names": 99},
        {"kind": len(KINDS) + 1},
        {"marker": 3},
        {"ts_ms": -5},
        {"flags": 64},
        {"names": 0},
    ],
)
def test_bad_rows_are_the_plain_readers_error(tmp_path, fields):
    """The plain reader raises the error for a bad row."""
    path = recorded_segment(tmp_path)
    patch(path, 3, **fields)
    with pytest.raises(SpoolError, match=f"at byte 512: found '{next(iter(fields))} "):
        segment_table(load_segment(path))
