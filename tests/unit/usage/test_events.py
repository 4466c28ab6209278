"""Decoding a segment row by row: crashes become gaps, anything else that does not fit is one clear error."""

import pytest
from tests.unit.usage.recording import START_MS, client, erase, open_recorder, patch, record, spool_directory

from tidegate.usage.events import read_segment
from tidegate.usage.segment import (
    CLOSED_SUFFIX,
    HEADER_BYTES,
    NAMES_SUFFIX,
    ROW_BYTES,
    SpoolError,
    segment_paths,
)


@pytest.fixture
def segment(tmp_path):
    """A closed segment of ten requests of ten clients, one ms apart."""
    recorder = open_recorder(tmp_path)
    for index in range(10):
        record(recorder, client(recorder, f"app-{index}"), START_MS + index, index)
    recorder.close()
    (path,) = segment_paths(spool_directory(tmp_path, 1), CLOSED_SUFFIX)
    return path


def test_lost_rows_become_gaps(segment):
    """Each run of rows that did not reach the disk is one gap, in its place and time."""
    erase(segment, 0, 1, 5)
    events = list(read_segment(segment))
    kinds = [(event["kind"], event["lost_events"], event["ts_ms"] - START_MS) for event in events]
    assert kinds[:1] == [("gap", 2, 0)]
    assert kinds[1:5] == [("request", None, 2), ("request", None, 3), ("request", None, 4), ("gap", 1, 4)]
    assert [event["seq"] - START_MS * 1000 for event in events] == [0, 2, 3, 4, 5, 6, 7, 8, 9]


def test_torn_row_in_the_middle_is_lost(segment):
    """A row without its marker does not count, whatever else it holds."""
    patch(segment, 4, marker=0)
    assert [event["kind"] for event in read_segment(segment)].count("gap") == 1


def test_row_whose_names_are_lost_is_lost(segment):
    """Rows can reach the disk before their names: what cannot be told is a gap."""
    names = segment.with_suffix(NAMES_SUFFIX)
    names.write_bytes(names.read_bytes()[:-1])
    *events, last = read_segment(segment)
    assert [event["client_id"] for event in events] == [f"app-{index}" for index in range(9)]
    assert (last["kind"], last["lost_events"], last["ts_ms"]) == ("gap", 1, START_MS + 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"marker": 1}, r"found 'marker 1', expected 42330"),
        ({"kind": 0}, r"found 'kind 0', expected a kind from 1 to 8"),
        ({"kind": 9}, r"found 'kind 9', expected a kind from 1 to 8"),
        ({"flags": 0x40}, r"found 'flags 64', expected flags out of 143"),
        ({"ts_ms": -1}, r"found 'ts_ms -1', expected a time from 1970 to 9999"),
        ({"ts_ms": 2**62}, r"expected a time from 1970 to 9999"),
        ({"names": 0}, r"found 'names 0', expected the number of a record of 6 names"),
        ({"kind": 2}, r"found 'names 4', expected the number of a record of 4 names"),
        ({"kind": 1}, r"found 'names 4', expected the number of a record of 0 names"),
    ],
)
def test_bad_row(segment, fields, message):
    """The error names the file, the byte and what was expected there."""
    patch(segment, 3, **fields)
    with pytest.raises(SpoolError, match=message) as caught:
        list(read_segment(segment))
    assert caught.value.offset == HEADER_BYTES + 3 * ROW_BYTES
    assert str(caught.value).startswith(f"{segment} at byte 512: found ")
