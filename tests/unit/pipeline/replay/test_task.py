"""What the driver holds of a replay is bounded."""

import re

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.chunks import survey_chunk
from tidegate.pipeline.read.ingest import find_files, list_chunks
from tidegate.pipeline.replay import task
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import lay_out

_SWEEP_BYTES = 24


def _laid_out(directory, *, sweeps, gaps=0):
    node = RecordingNode()
    node.start(START_MS)
    for _ in range(sweeps):
        node.expire(START_MS)
    for _ in range(gaps):
        node.gap(START_MS)
    node.produce("alice", "app", 5, START_MS)
    write_events(directory, node.events, rows_per_file=50)
    chunks = list_chunks(find_files(directory))
    surveys = [survey_chunk(chunk) for chunk in chunks]
    return lay_out(chunks, surveys, [Plan(name="p", records=())], cores=1)


def test_sweeps_are_bounded_by_their_bytes(tmp_path, monkeypatch):
    """They are arrays, of any number of files; too many of them are named with the limit and the way out."""
    monkeypatch.setattr(task, "MAX_SWEEP_BYTES", 100 * _SWEEP_BYTES)
    found = _laid_out(tmp_path / "enough", sweeps=100)
    assert len(found.timelines[1].sweeps) == 100
    reason = "more than 100 sweeps of idle sensors (0 MB)"
    with pytest.raises(UsageFilesError, match=f"^{re.escape(reason)}$") as caught:
        _laid_out(tmp_path / "more", sweeps=101)
    assert caught.value.hint == "give fewer hours (--from, --to); replay goes on with --out, --continue"


def test_other_events_have_a_limit_of_their_own(tmp_path, monkeypatch):
    """Sweeps do not count."""
    monkeypatch.setattr(task, "MAX_CONTROL_EVENTS", 20)
    events = 5  # a start and what it says of the windows
    _laid_out(tmp_path / "enough", sweeps=100, gaps=20 - events)
    with pytest.raises(UsageFilesError, match=r"^more than 20 starts, quotas, gaps and the like$") as caught:
        _laid_out(tmp_path / "more", sweeps=0, gaps=21 - events)
    assert "--continue" in caught.value.hint
