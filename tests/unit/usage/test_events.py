"""Events row by row, of a segment (crashes become gaps) and of anybody: what does not fit is one clear error."""

import re

import pytest
from tests.unit.usage.recording import START_MS, client, erase, open_recorder, patch, record, spool_directory

from tidegate.usage.columns import KINDS, empty_event
from tidegate.usage.events import EventError, complete_event, read_segment
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
        record(recorder, client(f"app-{index}"), START_MS + index, index)
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
        ({"kind": 0}, rf"found 'kind 0', expected a kind from 1 to {len(KINDS)}"),
        ({"kind": len(KINDS) + 1}, rf"found 'kind {len(KINDS) + 1}', expected a kind from 1 to {len(KINDS)}"),
        ({"flags": 0x40}, r"found 'flags 64', expected only flags of 191"),
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


_GAP = {"kind": "gap", "ts_ms": 5, "seq": 1, "node_id": 1}
_CLIENT = {"kind": "network", "ts_ms": 5, "seq": 1, "node_id": 1}


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        ({"kind": "gap", "ts_ms": 5, "seq": 1}, "node_id is None, expected a value in every event"),
        (_GAP | {"kind": "gaps"}, "kind is 'gaps', expected one of start, quota, mutation, "),
        (_GAP | {"kind": []}, "kind is [], expected one of start"),
        (_GAP | {"lost": 1}, "lost is 1, expected a column of the usage record"),
        (_GAP | {"user": "alice"}, "user is 'alice', expected '' in rows of kind gap"),
        (_GAP | {"mutations": 0}, "mutations is 0, expected None in rows of kind gap"),
        (_GAP | {"ts_ms": -1}, "ts_ms is -1, expected a whole number from 0 to 253402300799999"),
        (_GAP | {"node_id": True}, "node_id is True, expected a whole number from 0 to 2147483647"),
        (
            _GAP | {"lost_events": 2**63},
            f"lost_events is {2**63}, expected a whole number from {-(2**63)} to",
        ),
        (_GAP | {"lost_events": 1.0}, "lost_events is 1.0, expected a whole number from"),
        (_CLIENT | {"api_key": 2**15}, "api_key is 32768, expected a whole number from -32768 to 32767"),
        (_CLIENT | {"user": None}, "user is None, expected text of at most 32767 bytes of UTF-8"),
        (_CLIENT | {"user": "\ud800"}, "user is '\\ud800', expected text of at most"),
        (_CLIENT | {"user": "u" * 32_768}, "expected text of at most 32767 bytes of UTF-8"),
        (_CLIENT | {"exempt": 1}, "exempt is 1, expected True or False"),
        (_GAP | {"kind": "quota", "quota_value": 1}, "quota_value is 1, expected a float, or None"),
    ],
)
def test_what_is_no_event_is_refused(event, sentence):
    """It is said which event, which column, what was found and what was expected."""
    with pytest.raises(EventError, match=re.escape(sentence)) as raised:
        complete_event(event, 7)
    assert str(raised.value).startswith("event 7: ")
    assert raised.value.number == 7


def test_an_event_is_made_whole():
    """What it does not say is as in any event of its kind; the one that was given stays as it was."""
    event = dict(_CLIENT, user="alice")
    assert complete_event(event) == empty_event("network") | event
    assert len(event) == 5
