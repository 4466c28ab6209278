"""What the driver holds of a replay is bounded."""

import pickle
import re

import numpy as np
import pytest
from tests.replaying.files import find_files, write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.ingest import list_chunks, open_usage
from tidegate.pipeline.read.survey import survey_chunk
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay import task
from tidegate.pipeline.replay.limits import levels_of
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import lay_out
from tidegate.quota.admin.definitions import QuotaRecord

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
    assert (
        caught.value.hint
        == "give fewer hours (--from, --to); a replay can continue with --out and --continue"
    )


def test_other_events_have_a_limit_of_their_own(tmp_path, monkeypatch):
    """Sweeps do not count; what repeats itself takes little."""
    monkeypatch.setattr(task, "MAX_CONTROL_BYTES", 12 << 10)
    _laid_out(tmp_path / "enough", sweeps=100, gaps=90)
    reason = "505 starts, quotas, gaps and the like take more than 0 MB"
    with pytest.raises(UsageFilesError, match=f"^{reason}$") as caught:
        _laid_out(tmp_path / "more", sweeps=0, gaps=500)
    assert "--continue" in caught.value.hint


def test_a_task_gets_what_its_own_nodes_need(tmp_path):
    """The clients of its partitions, and what happened to their nodes: no other's."""
    for node_id in range(1, 9):
        node = RecordingNode(node_id)
        node.start(START_MS)
        node.expire(START_MS + node_id)
        node.produce("alice", f"of-{node_id}", 5, START_MS)
        write_events(tmp_path, node.events)
    chunks = list_chunks(find_files(tmp_path))
    surveys = [survey_chunk(chunk) for chunk in chunks]
    layout = lay_out(chunks, surveys, [Plan(name="p", records=())], cores=4)
    assert layout.task.tasks == 4
    for groups in (1, 2, 3, 4):
        found = layout.members(groups)
        assert sorted(number for group in found for number in group) == list(range(8))
        for group, members in enumerate(found):
            tasks = {int(layout.task.task[number]) for number in members}
            assert {task * groups // 4 for task in tasks} == {group}
            for each in members.values():
                assert each.client_ids.to_pylist() == [f"of-{each.node_id}"]
                assert each.timeline.sweeps[:, 1].tolist() == [START_MS + each.node_id]
    assert len(pickle.dumps(layout.members(4)[0])) < len(pickle.dumps(layout.members(1)[0])) / 2


@pytest.mark.parametrize(("searches", "most"), [(True, 2), (False, 4)])
def test_a_search_holds_fewer_clients(tmp_path, monkeypatch, searches, most):
    """Each has the sensors of all plans of the search."""
    monkeypatch.setattr(task, "CLIENTS_PER_PARTITION", 16)
    monkeypatch.setattr(task, "CLIENTS_PER_SHARE", 4)
    node = RecordingNode()
    node.start(START_MS)
    for number in range(8):
        node.produce("alice", f"app{number}", 5, START_MS)
    write_events(tmp_path, node.events)
    with open_usage(tmp_path) as files:
        surveys = [survey_chunk(chunk) for chunk in files.chunks]
        layout = lay_out(files.chunks, surveys, [levels_of("client-id")], cores=1, searches=searches)
    assert layout.shares == 2
    assert np.diff(layout.task.first_client).max() == most


@pytest.mark.parametrize(("key", "partitions"), [("client-id", 3), ("user", 1)])
def test_many_clients_are_several_partitions(tmp_path, monkeypatch, key, partitions):
    """So that the sensors of some are held at a time; those who share a quota stay together."""
    monkeypatch.setattr(task, "CLIENTS_PER_PARTITION", 2)
    node = RecordingNode()
    node.start(START_MS)
    for number in range(5):
        node.produce("alice", f"app{number}", 5, START_MS)
    write_events(tmp_path, node.events)
    plan = Plan(name="p", records=(QuotaRecord(entity=((key, None),), key="producer_byte_rate", value=1.0),))
    with open_usage(tmp_path) as files:
        surveys = [survey_chunk(chunk) for chunk in files.chunks]
        found = lay_out(files.chunks, surveys, [plan], cores=1)
        entities = jobs_here(files).replay([plan], out=None).entities
    assert (len(found.node_id), int(found.task.task.max())) == (partitions, 0)
    by_client_id = {row["only_client_id"]: row["requests"] for row in entities}
    assert key == "user" or by_client_id == {f"app{number}": 1 for number in range(5)}
