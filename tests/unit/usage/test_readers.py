"""Events of several nodes, hours and segments, each node's in order."""

from tests.unit.usage.reading import read_events
from tests.unit.usage.recording import START_MS

from tidegate.server.requests.recorder import Recorder
from tidegate.testing import ManualClock
from tidegate.usage.arrow import gap_table, write_parquet
from tidegate.usage.convert import drain
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.files import HOUR_MS


def test_events_by_node_in_order(tmp_path):
    """A node's events come in the order of their sequence, though they jump between hours and files."""
    for node_id in (2, 1):
        spool = spool_directory(tmp_path, node_id)
        recorder = Recorder(spool, node_id=node_id, clock=ManualClock(), segment_bytes=1280)
        for index in range(40):
            recorder.start(START_MS + index * 7 % 5 * HOUR_MS)
        recorder.close()
        drain(spool, parquet_directory(tmp_path))
    events = [(event["node_id"], event["seq"]) for event in read_events(tmp_path)]
    assert len(events) == 80
    assert events == sorted(events)


def test_one_file_by_any_name(tmp_path):
    """A file that somebody renamed can still be read."""
    path = tmp_path / "renamed.parquet"
    write_parquet(path, gap_table(node_id=4, seq=9, ts_ms=5, lost_events=3))
    assert [(event["node_id"], event["lost_events"]) for event in read_events(path)] == [(4, 3)]


def test_no_events(tmp_path):
    """An empty directory has none."""
    assert list(read_events(tmp_path)) == []
