"""Totals stay exact, and stay small."""

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.pipeline.watch.totals import Totals
from tidegate.pipeline.watching import WatchHere
from tidegate.quota.admin.definitions import QuotaRecord


def test_names_past_a_bound_are_added_up(tmp_path):
    """A watch that has met more clients than it keeps adds up the smallest; the sum stays exact."""
    node = RecordingNode()
    limit = QuotaRecord(entity=(("client-id", None),), key="producer_byte_rate", value=1e6)
    node.start(START_MS, records=(limit,))
    for client in range(40):
        for _ in range(1 + client % 3):
            node.produce("alice", f"c{client}", 10, START_MS + client)
    write_events(tmp_path, node.events, rows_per_file=25)
    watch = WatchHere(tmp_path, [in_force_plan()], window_ms=300_000)
    watch.totals.most_rows = 10
    while watch.step():
        pass
    found = watch.totals.in_all()
    assert len(found.clients) <= 10
    requests = sum(1 for event in node.events if event["kind"] == "request")
    assert sum(row["requests"] for row in found.clients) == requests
    produced = [row["requests"] for row in found.entities if row["quota_type"] == "Produce"]
    assert sum(produced) == requests


def test_the_window_follows_the_rows(tmp_path):
    """The last minutes are those before the newest row; what is older is in the totals alone."""
    node = RecordingNode()
    node.start(START_MS)
    for minute in range(10):
        node.produce("alice", f"c{minute}", 10, START_MS + minute * 60_000)
    write_events(tmp_path, node.events)
    watch = WatchHere(tmp_path, [in_force_plan()], window_ms=180_000)
    watch.step()
    assert sorted(row["client_id"] for row in watch.totals.in_window().clients) == ["c7", "c8", "c9"]
    assert len(watch.totals.in_all().clients) == 10
    assert {row["only_client_id"] for row in watch.totals.in_window().entities} == {"c7", "c8", "c9"}


def test_nodes_of_one_update_are_those_of_many(tmp_path):
    """What several nodes did is added up at once, and is what it is one after the other."""
    for node_id in (1, 2, 3):
        node = RecordingNode(node_id)
        limit = QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=100.0 * node_id)
        node.start(START_MS, records=(limit,))
        for minute in range(8):
            node.produce("alice", f"c{minute % 3}", 2000, START_MS + minute * 60_000 + node_id)
        write_events(tmp_path, node.events)
    done = WatchHere(tmp_path, [in_force_plan()], window_ms=180_000).step()
    assert len(done) == 3
    at_once, one_by_one = Totals(window_ms=180_000), Totals(window_ms=180_000)
    at_once.add_advances(done)
    for advance in done:
        one_by_one.add_advances([advance])
    for found, expected in (
        (at_once.in_all(), one_by_one.in_all()),
        (at_once.in_window(), one_by_one.in_window()),
    ):
        assert sorted(map(repr, found.entities)) == sorted(map(repr, expected.entities))
        assert sorted(map(repr, found.clients)) == sorted(map(repr, expected.clients))
    assert (at_once.events, at_once.nodes, [*at_once.minutes]) == (
        one_by_one.events, one_by_one.nodes, [*one_by_one.minutes]
    )  # fmt: skip


def test_the_first_throttle_is_that_of_the_least_time(tmp_path):
    """Times of decisions need not be in the order of the rows: the least counts, as in a replay."""
    node = RecordingNode()
    limit = QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=1.0)
    node.start(START_MS, records=(limit,))
    watch = WatchHere(tmp_path, [in_force_plan()], window_ms=180_000)
    written = 0
    for at_ms in (START_MS + 200, START_MS + 189):
        node.produce("alice", "c", 10_000, at_ms)
        write_events(tmp_path, node.events[written:])
        written = len(node.events)
        watch.step()
    (row,) = (row for row in watch.totals.in_all().entities if row["quota_type"] == "Produce")
    assert row["throttled_requests"] == row["recorded_throttled_requests"] == 2
    assert row["first_throttled_ts_ms"] == row["recorded_first_throttled_ts_ms"] == START_MS + 189


@pytest.mark.parametrize("is_imported", [False, True])
def test_the_last_minutes_show_the_limit_that_is_in_force_now(tmp_path, is_imported):
    """The totals since the beginning say that it changed; so too where no quota is known, as after an import."""
    node = RecordingNode()
    node.start(START_MS)
    if is_imported:
        node.events.clear()
    watch = WatchHere(tmp_path, [in_force_plan()], window_ms=180_000, lateness_s=0.0)
    written = 0
    for minute, bound in enumerate((8e6, 3e6)):
        limit = QuotaRecord(entity=(("user", "alice"),), key="producer_byte_rate", value=bound)
        node.quota(limit, START_MS + minute * 60_000)
        node.produce("alice", "c", 10, START_MS + minute * 60_000 + 1)
        write_events(tmp_path, node.events[written:])
        written = len(node.events)
        while watch.step():
            pass
    for found, expected in (
        (watch.totals.in_window(), (3e6, "user", False)),
        (watch.totals.in_all(), (None, None, True)),
    ):
        (row,) = [row for row in found.entities if row["quota_type"] == "Produce"]
        assert (row["bound"], row["bound_of"], row["bound_changed"]) == expected
