"""What entities used over time, and the limits meanwhile."""

import pytest
from tests.replaying.callbacks import quota_groups
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.pipeline.page.findings import run_jobs
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.rollup.history import Entity, EntityUse
from tidegate.quota import QuotaRecord

ALICE = Entity(quota_type="Produce", user="alice", client_id=None)


def _limit(user, bound, key="producer_byte_rate"):
    return QuotaRecord(entity=(("user", user),), key=key, value=bound)


def _found(directory):
    with open_usage(directory) as files:
        return run_jobs(jobs_here(files), [], rows=files.rows)


def _use(found, entity) -> EntityUse:
    [use] = [use for use in found.history.uses if use.entity == entity]
    return use


@pytest.fixture
def usage(tmp_path):
    """Alice with two client ids under one limit, which changes; bob, and a second node that alice uses less."""
    node = RecordingNode(1)
    node.start(START_MS, records=[_limit("alice", 1000.0)])
    for second in range(10):
        node.produce("alice", "a", 300, START_MS + 1000 * second)
        node.produce("alice", "b", 200, START_MS + 1000 * second + 1)
        node.produce("bob", "a", 7, START_MS + 1000 * second + 2)
    node.quota(_limit("alice", 2000.0), START_MS + 5 * 60_000)
    node.produce("alice", "a", 100, START_MS + 5 * 60_000)
    write_events(tmp_path, node.events, rows_per_file=4)
    other = RecordingNode(2)
    other.start(START_MS, records=[_limit("alice", 1000.0)])
    other.produce("alice", "a", 999, START_MS)
    write_events(tmp_path, other.events)
    return tmp_path


def test_those_who_share_a_limit_are_added_up(usage):
    """By step of time, on the node where they used most; the peak is their busiest second together."""
    use = _use(_found(usage), ALICE)
    assert use.node_id == 1
    assert sum(use.amounts.values()) == 10 * 500 + 100
    assert max(use.peaks.values()) == 500


def test_who_belongs_elsewhere_is_not(usage):
    """Bob shares a client id with alice, and no limit."""
    found = _found(usage)
    [bob] = [use for use in found.history.uses if sum(use.amounts.values()) == 70]
    assert bob.entity.user in ("bob", None)


def test_the_limit_changes_when_it_was_changed(usage):
    """Its own time and value each."""
    use = _use(_found(usage), ALICE)
    assert [bound for _, bound in use.limits] == [1000.0, 2000.0]
    assert use.limits[1][0] == START_MS + 5 * 60_000


def test_steps_are_few_and_cover_all(usage):
    """At most 200, from the first to the end."""
    history = _found(usage).history
    assert history.step_ms == 2000
    assert history.first_ms <= START_MS < START_MS + 5 * 60_000 < history.end_ms
    assert (history.end_ms - history.first_ms) // history.step_ms <= 200


def test_a_callback_leaves_the_limits_out(tmp_path):
    """The stored definitions say nothing then; usage is told by client id, the decisions by what it said."""
    node = RecordingNode(1)
    node.start(START_MS)
    node.exchange(quota_groups(), "a:Groups", START_MS)
    node.produce("alice", "a", 300, START_MS)
    write_events(tmp_path, node.events)
    found = _found(tmp_path)
    assert found.callback == "client.quota.callback.class=a:Groups"
    assert {row["entity_tags"] for row in found.replayed["in force"]} == {'{"group":"etl"}'}
    [use] = found.history.uses
    assert use.entity == Entity(quota_type="Produce", user=None, client_id="a")
    assert use.limits == []


def test_nothing_has_no_history(tmp_path):
    """A node that only started."""
    node = RecordingNode()
    node.start(START_MS)
    write_events(tmp_path, node.events)
    found = _found(tmp_path)
    assert found.history.uses == []
    assert found.nodes == [1]


def test_a_record_without_its_start_shows_who_used_most(tmp_path):
    """Which quotas were in force is not known, and nothing is decided."""
    node = RecordingNode()
    node.produce("alice", "a", 300, START_MS)
    node.fetch("alice", "b", 200, START_MS)
    write_events(tmp_path, node.events)
    uses = _found(tmp_path).history.uses
    assert [(use.entity.quota_type, use.entity.client_id) for use in uses] == [
        ("Produce", "a"),
        ("Fetch", "b"),
    ]
    assert [sum(use.amounts.values()) for use in uses] == [300, 200]
