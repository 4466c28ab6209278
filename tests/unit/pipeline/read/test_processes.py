"""The records of several processes of a broker are read as one: jobs find what they find in one record of the rows."""

from random import Random

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS
from tests.replaying.node import RecordingNode

from tidegate import pipeline
from tidegate.config.quotas_file import parse_quotas_file
from tidegate.usage.process_nodes import node_of_process

BROKER = 3
PROCESSES = 3
QUOTAS = """\
version: 1
quotas:
  - user: {default: true}
    producer_byte_rate: 20KB
    consumer_byte_rate: 20KB
"""


def recorded() -> list[dict]:
    """Return the events of a broker without quotas, each in a millisecond of its own, so that their order is known."""
    rng = Random(4)
    node = RecordingNode(BROKER)
    node.start(START_MS)
    now_ms = START_MS
    for _ in range(900):
        now_ms += rng.randrange(1, 60)
        client = rng.choice("abc")
        send = rng.choice((node.produce, node.fetch))
        send("alice", client, rng.randrange(1, 5000), now_ms, handler_ns=rng.randrange(10**6))
    return node.events


def split(events: list[dict]) -> list[list[dict]]:
    """Return the events as the processes would record them: each all but requests, and some of the requests."""
    rng = Random(5)
    parts = [[] for _ in range(PROCESSES)]
    for event in events:
        is_request = event["kind"] == "request"
        for number in [rng.randrange(PROCESSES)] if is_request else range(PROCESSES):
            parts[number].append(event)
    return [
        [
            {**event, "node_id": node_of_process(BROKER, number), "seq": number * 10_000 + place}
            for place, event in enumerate(part)
        ]
        for number, part in enumerate(parts, 1)
    ]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Return the directories of two records of the same requests: of one process, and of several."""
    one, several = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("several")
    events = recorded()
    write_events(one, events)
    for part in split(events):
        write_events(several, part, rows_per_file=100)
    return one, several


def rows(table) -> list[str]:
    """Return the rows of a table, in an order of their own."""
    return sorted(map(repr, table.to_pylist()))


def test_usage_and_peaks_are_those_of_one_record(records):
    """The same requests, bytes, peaks and percentiles, also by minute and node: the node is the broker."""
    one, several = (pipeline.usage(record, by_minute=True) for record in records)
    assert rows(one.in_all) == rows(several.in_all)
    assert rows(one.by_minute) == rows(several.by_minute)
    assert {row["node_id"] for row in several.by_minute.to_pylist()} == {BROKER}


def test_limits_are_those_of_one_record(records):
    """A limit that throttles nothing is one for the rows of all processes."""
    one, several = (pipeline.limits(record) for record in records)
    assert rows(one.by_entity) == rows(several.by_entity)


def test_a_replay_decides_as_on_one_record(records):
    """Throttle times under a plan are the same; decisions are approximate, because the processes shared limits."""
    plan = parse_quotas_file(QUOTAS)
    found = [pipeline.replay(record, quotas={"tight": plan}, loop="open") for record in records]
    one, several = (
        sorted(
            (row for row in each.by_entity.to_pylist() if row["requests"]),
            key=lambda row: (row["quota_type"], row["entity_user"], row["only_client_id"] or ""),
        )
        for each in found
    )
    assert len(one) == len(several) > 0
    for before, after in zip(one, several, strict=True):
        changed = {name for name in before if before[name] != after[name]}
        assert all("approximate" in name or "exact" in name or "different" in name for name in changed), (
            changed
        )
    throttled = [row for row in several if row["throttled_requests"] > 100]
    assert len(throttled) == 2
    assert all(row["approximate_cluster_wide"] == row["requests"] for row in throttled)
