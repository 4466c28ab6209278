"""The usage tables against plain Python, on random logs."""

from collections import defaultdict
from random import Random

import pytest
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.server.test_several_nodes import CLIENT, create, limit, requests
from tests.server.test_several_nodes import events as events_of_node
from tests.server.test_several_nodes import run as run_nodes

from tidegate.api_keys import CREATE_TOPICS
from tidegate.pipeline.read.ingest import find_files, read_events
from tidegate.pipeline.rollup import usage_by_minute, usage_in_all
from tidegate.pipeline.schemas import usage_by_minute_schema, usage_schema
from tidegate.quota import QuotaRecord

_THROTTLES = [f"{kind}_throttle_ms" for kind in ("produce", "fetch", "request", "mutation")]
_PEAKS = {"produce_bytes": "peak_produce_bytes_per_second", "fetch_bytes": "peak_fetch_bytes_per_second"}


def _amounts(event):
    """Return what one event adds to every sum, by the words of docs/usage-record.md."""
    amounts = defaultdict(int)
    if event["kind"] == "mutation":
        amounts["rejected_mutations" if event["rejected"] else "mutations"] = event["mutations"]
        return amounts
    amounts["network_ns"] = event["network_ns"] or 0
    if event["kind"] == "request":
        amounts["requests"] = 1
        throttles = {name: 0 if event["observed_only"] else event[name] for name in _THROTTLES}
        amounts["throttled_requests"] = int(max(throttles.values()) > 0)
        for name in ("request_bytes", "response_bytes", "handler_ns"):
            amounts[name] = event[name]
        amounts["produce_bytes"] = event["produce_bytes"] or 0
        taken_back = max(throttles["fetch_throttle_ms"], throttles["request_throttle_ms"]) > 0
        amounts["fetch_bytes"] = 0 if taken_back else event["fetch_bytes"] or 0
        for name in _THROTTLES:
            amounts[name] = max(0, throttles[name])
    return amounts


def _rolled_up(events, key, columns):
    """Return a row per key: sums, and the largest sums of one second on one node."""
    sums = defaultdict(lambda: defaultdict(int))
    seconds = defaultdict(lambda: defaultdict(int))
    for event in events:
        if event["kind"] in {"request", "network", "mutation"}:
            for name, amount in _amounts(event).items():
                sums[key(event)][name] += amount
                if name in _PEAKS:
                    seconds[key(event), _PEAKS[name]][event["ts_ms"] // 1000, event["node_id"]] += amount
            sums[key(event)]["requests"] += 0
    for (entity, peak), by_second in seconds.items():
        sums[entity][peak] = max(by_second.values())
    return {entity: {name: row[name] for name in columns} for entity, row in sums.items()}


def _found(table, keys, columns):
    rows = [row.asDict() for row in table.collect()]
    found = {tuple(row[key] for key in keys): {name: row[name] for name in columns} for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.fixture(scope="module")
def events(tmp_path_factory, spark, request):
    """Random logs of two nodes, as events and as a table."""
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    rng = Random(seed)
    directory = tmp_path_factory.mktemp("usage")
    events = []
    for node_id in (1, 2):
        node = RecordingNode(node_id)
        node.start(START_MS, records=random_records(rng, at_most=8))
        now_ms = random_traffic(node, rng, events=1000)
        node.quota(QuotaRecord(entity=(("user", "alice"),), key="tidegate.quota.observe", value=1.0), now_ms)
        random_traffic(node, rng, events=500, now_ms=now_ms)
        write_events(directory, node.events, rows_per_file=400)
        events += node.events
    return events, read_events(spark.session, find_files(directory))


def test_usage_by_minute_is_what_plain_python_counts(events):
    """Every sum and peak of every minute, node and client."""
    rows, table = events
    keys = usage_by_minute_schema().names[:4]
    columns = usage_by_minute_schema().names[4:]

    def minute_of(event):
        return event["ts_ms"] // 60_000 * 60_000, event["node_id"], event["user"], event["client_id"]

    assert _found(usage_by_minute(table), keys, columns) == _rolled_up(rows, minute_of, columns)


def test_usage_by_client_is_what_plain_python_counts(events):
    """Every sum and peak of every client."""
    rows, table = events
    columns = [name for name in usage_schema().names[2:] if not name.endswith("ts_ms")]
    expected = _rolled_up(rows, lambda event: (event["user"], event["client_id"]), columns)
    assert _found(usage_in_all(table), ("user", "client_id"), columns) == expected


def test_tables_have_their_schemas(events):
    """Names, order and types are those of `schemas`."""
    for table, schema in (
        (usage_by_minute(events[1]), usage_by_minute_schema()),
        (usage_in_all(events[1]), usage_schema()),
    ):
        assert [(f.name, f.dataType) for f in table.schema] == [(f.name, f.dataType) for f in schema]


def test_a_forwarded_request_is_counted_once(tmp_path, spark):
    """By the node that answers it, with what its client was told; the controller's record has a row of another kind."""
    told = []

    async def scenario(nodes):
        await limit(nodes, 1, "controller_mutation_rate", 1.0)
        await limit(nodes, 1, "request_percentage", 0.0001)
        for node_id in (2, 3, 1, 3):
            told.append((await create(nodes, node_id, f"t{len(told)}", 30))[1])

    run_nodes(tmp_path, scenario)
    for node_id in (1, 2, 3):
        write_events(tmp_path / "parquet", events_of_node(tmp_path, node_id))
    rows = [row for node_id in (1, 2, 3) for row in requests(tmp_path, node_id, CREATE_TOPICS)]
    assert [row["node_id"] for row in rows] == [1, 2, 3, 3]
    assert [row["forwarded"] for row in rows] == [False, True, True, True]
    kinds = [row["kind"] for row in events_of_node(tmp_path, 1) if row["api_key"] == CREATE_TOPICS]
    assert kinds.count("forwarded") == 3
    table = read_events(spark.session, find_files(tmp_path / "parquet"))
    (usage,) = usage_in_all(table.where(table.api_key == CREATE_TOPICS)).collect()
    assert (usage["client_id"], usage["requests"]) == (CLIENT, 4)
    assert usage["request_bytes"] == sum(row["request_bytes"] for row in rows)
    assert usage["handler_ns"] == sum(row["handler_ns"] for row in rows)
    assert usage["mutations"] + usage["rejected_mutations"] == 4 * 30
    assert usage["throttled_requests"] == sum(ms > 0 for ms in told) >= 3
    answered = [max(row["mutation_throttle_ms"], row["request_throttle_ms"]) for row in rows]
    assert sorted(answered) == sorted(told)
    assert any(row["mutation_throttle_ms"] and row["request_throttle_ms"] for row in rows)
