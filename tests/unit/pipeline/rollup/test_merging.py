"""The usage tables against plain Python, on random logs."""

from collections import defaultdict
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.oracles.sampled_rate import PortedRate
from tests.replaying.files import write_events
from tests.replaying.logs import START_MS, random_records, random_traffic
from tests.replaying.node import RecordingNode
from tests.server.test_several_nodes import CLIENT, create, limit, requests
from tests.server.test_several_nodes import events as events_of_node
from tests.server.test_several_nodes import run as run_nodes

from tidegate.api_keys import CREATE_TOPICS
from tidegate.pipeline.errors import UsageFilesError
from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.read.missing import NodeRows, chunk_evidence, coverage_of
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.rollup import parts
from tidegate.pipeline.rollup.merging import merge_parts, minute_keys
from tidegate.pipeline.rollup.parts import usage_parts
from tidegate.pipeline.rollup.percentiles import PERCENTS, bucket_of, largest_of
from tidegate.pipeline.rollup.sums import compact, together
from tidegate.pipeline.schemas import CLIENT as CLIENT_KEYS
from tidegate.pipeline.schemas import USAGE_MEASURES, usage_by_minute_schema, usage_schema
from tidegate.quota import QuotaRecord
from tidegate.quota.managers.request import PERCENT_PER_NS
from tidegate.usage.arrow import arrow_schema

_THROTTLES = [f"{kind}_throttle_ms" for kind in ("produce", "fetch", "request", "mutation")]
_PEAKS = {"produce_bytes": "peak_produce_bytes_per_second", "fetch_bytes": "peak_fetch_bytes_per_second"}
_PERCENT = "peak_request_percent"


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


def _measured(events):
    """Yield what each event makes some sensor measure: event, peak, rate. A start of the node makes all new."""
    rates = {}
    for event in events:
        if event["kind"] in {"start", "callback"}:
            rates = {}
        if event["kind"] not in {"request", "network"}:
            continue
        amounts = _amounts(event)
        charged = [(peak, amounts[name]) for name, peak in _PEAKS.items() if amounts[name]]
        if not event["exempt"]:
            charged += [(_PERCENT, amounts["handler_ns"] * PERCENT_PER_NS)]
        for peak, amount in charged:
            key = peak, event["user"], event["client_id"]
            rate = rates.setdefault(key, PortedRate(samples=11, window_ms=1000, bound=1.0))
            if peak == _PERCENT:
                rate.record((event["network_ns"] or 0) * PERCENT_PER_NS, event["ts_ms"])
                if event["kind"] == "network":
                    continue
            rate.record(amount, event["ts_ms"])
            yield event, peak, rate.measure(event["ts_ms"])


def _counted(events, key):
    """Return sums, peaks and percentiles by key."""
    rows = defaultdict(lambda: defaultdict(int))
    values = defaultdict(lambda: {measure: [] for measure in USAGE_MEASURES})
    for event in events:
        if event["kind"] in {"request", "network", "mutation"}:
            row, amounts = rows[key(event)], _amounts(event)
            for name, amount in amounts.items():
                row[name] += amount
            times = row["first_ts_ms"] or event["ts_ms"], row["last_ts_ms"]
            row["first_ts_ms"], row["last_ts_ms"] = (
                min(times[0], event["ts_ms"]),
                max(times[1], event["ts_ms"]),
            )
            if event["kind"] == "request":
                throttle_ms = max(amounts[name] for name in _THROTTLES)
                of_request = event["handler_ns"], throttle_ms, event["request_bytes"]
                for measure, value in zip(USAGE_MEASURES, of_request, strict=True):
                    values[key(event)][measure].append(value)
    for node_id in (1, 2):
        for event, peak, rate in _measured(event for event in events if event["node_id"] == node_id):
            rows[key(event)][peak] = max(rows[key(event)][peak], rate)
    for entity, row in rows.items():
        for measure in USAGE_MEASURES:
            ordered = sorted(values[entity][measure])
            for percent in PERCENTS:
                place = -(-len(ordered) * percent // 100) - 1
                row[f"{measure}_p{percent}"] = largest_of(bucket_of(ordered[place])) if ordered else None
    return rows


def _found(directory, keys, table, by=CLIENT_KEYS):
    """Return the rows of a table, by key."""
    with open_usage(directory) as files:
        coverage = coverage_of(chunk_evidence(chunk) for chunk in files.chunks)
        found = [
            compact(part)
            for node_id, chunks in coverage.nodes.items()
            for part in usage_parts(
                NodeRows(node_id=node_id, chunks=chunks), by=by, with_minutes="minute_ms" in keys
            )
        ]
    tables = list(merge_parts(together(found), keys=keys, table=table))
    assert {tuple(some.schema.names) for some in tables} <= {tuple(table.names)}
    rows = [row for some in tables for row in some.to_pylist()]
    assert [tuple(row[key] for key in keys) for row in rows] == sorted(
        {tuple(row[key] for key in keys) for row in rows}
    )
    return {tuple(row[key] for key in keys): row for row in rows}


def _expected(rows, keys, table):
    return {
        key: {name: row[name] for name in table.names if name not in keys} | dict(zip(keys, key, strict=True))
        for key, row in rows.items()
    }


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """Random logs of two nodes, as events and as files: over hours, with steps back in time and starts."""
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
    return events, directory


@pytest.mark.parametrize("groups_at_once", [1, 3, parts.GROUPS_AT_ONCE])
def test_usage_by_minute_is_what_plain_python_counts(events, monkeypatch, groups_at_once):
    """Every sum, peak and percentile of every minute, node and client; however many sensors are held at a time."""
    monkeypatch.setattr(parts, "GROUPS_AT_ONCE", groups_at_once)
    rows, directory = events
    keys, table = minute_keys(CLIENT_KEYS), usage_by_minute_schema()

    def minute_of(event):
        return event["ts_ms"] // 60_000 * 60_000, event["user"], event["client_id"], event["node_id"]

    assert _found(directory, keys, table) == _expected(_counted(rows, minute_of), keys, table)


def test_usage_by_client_is_what_plain_python_counts(events):
    """Every sum, peak and percentile of every client; out of parts by minute, too."""
    rows, directory = events
    expected = _counted(rows, lambda event: (event["user"], event["client_id"]))
    assert _found(directory, CLIENT_KEYS, usage_schema()) == _expected(expected, CLIENT_KEYS, usage_schema())


def _with_topics(events, rng):
    """Return the events as a mix of versions and APIs has them: known and unknown topics, several topics, none."""
    found = []
    for event in events:
        if event["kind"] == "request":
            topics = [(name, others) for name in ("orders", "clicks") for others in (0, 0, 2)]
            topic, others = rng.choice([*topics, (None, 0), (None, None)])
            event = event | {"api_key": rng.choice([0, 1, 3])}
            if event["api_key"] < 2:
                event |= {"topic": topic, "other_topics": others}
        found.append(event)
    return found


def _topic_of(event):
    if event["kind"] != "request" or event["api_key"] > 1:
        return "(other requests)"
    return event["topic"] or ("(unknown)" if event["other_topics"] is None else "(no records)")


def test_usage_by_topic_is_what_plain_python_counts(events, tmp_path):
    """Sums of each topic, which requests have records of others, and what has no topic or an unknown one."""
    by_topic = _with_topics(events[0], Random(3))
    for node_id in (1, 2):
        write_events(tmp_path, [each for each in by_topic if each["node_id"] == node_id], rows_per_file=400)
    table = usage_schema(("topic",))
    expected = _counted(by_topic, lambda event: (_topic_of(event),))
    for event in by_topic:
        if event["kind"] == "request" and event["other_topics"]:
            amounts, row = _amounts(event), expected[_topic_of(event),]
            row["multi_topic_requests"] += 1
            row["multi_topic_bytes"] += amounts["produce_bytes"] + amounts["fetch_bytes"]
    found = _found(tmp_path, ("topic",), table, by=("topic",))
    assert len(found) == 5
    peaks = {*_PEAKS.values(), _PERCENT}  # sensors are of a topic here, not of a client
    for key, row in _expected(expected, ("topic",), table).items():
        assert {name: found[key][name] for name in table.names if name not in peaks} == {
            name: row[name] for name in table.names if name not in peaks
        }
    with open_usage(tmp_path) as files:
        usage = jobs_here(files).usage(out=None, top=1, by=("topic",))
    assert usage.topics == TopicCounts(
        multi_topic_requests=sum(row["multi_topic_requests"] for row in expected.values()),
        multi_topic_bytes=sum(row["multi_topic_bytes"] for row in expected.values()),
        unknown_requests=expected["(unknown)",]["requests"],
    )
    assert usage.topics.unknown_requests > 0


def test_groups_may_be_of_any_names(events):
    """A sensor is that of the whole group: more than of any of its clients."""
    rows, directory = events
    found = _found(directory, ("listener",), usage_schema(("listener",)), by=("listener",))
    by_client = _counted(rows, lambda event: (event["user"], event["client_id"]))
    (usage,) = found.values()
    assert usage["requests"] == sum(row["requests"] for row in by_client.values())
    assert usage["peak_produce_bytes_per_second"] >= max(
        row["peak_produce_bytes_per_second"] for row in by_client.values()
    )


def test_files_whose_rows_alternate_are_added_up_in_order(events, tmp_path):
    """As where a clock was set back between two hours; one file has what the other has nowhere."""
    rows, _ = events
    of_node = [event for event in rows if event["node_id"] == 1]
    apart = [[], []]
    for place, event in enumerate(of_node):
        apart[0 if event["kind"] == "mutation" else place % 2].append(event)
    for place, part in enumerate(apart):
        table = pa.Table.from_pylist(part, schema=arrow_schema())
        (tmp_path / str(place)).mkdir()
        pq.write_table(table, tmp_path / str(place) / f"rows-{place}.parquet")
    expected = _counted(of_node, lambda event: (event["user"], event["client_id"]))
    assert _found(tmp_path, CLIENT_KEYS, usage_schema()) == _expected(expected, CLIENT_KEYS, usage_schema())


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [("request_bytes", 2**62, "does not fit into 64 bits"),
     ("handler_ns", -1, r"handler_ns must be from 0 to \d+, got -1 in seq \d+ of node 1"),
     ("ts_ms", 2**62, r"ts_ms must be from 0 to \d+, got \d+ in seq \d+ of node 1"),
     ("ts_ms", -1, r"ts_ms must be from 0 to \d+, got -1 in seq \d+ of node 1"),
     ("kind", "requset", "unknown kind 'requset' in 1 rows")],
)  # fmt: skip
def test_rows_that_make_no_sense_are_refused(tmp_path, column, value, reason):
    """Not added up, and not passed over."""
    node = RecordingNode()
    node.start(START_MS)
    for _ in range(3):
        node.produce("alice", "c1", 10, START_MS)
    for event in node.events[-3 if column == "request_bytes" else -1 :]:
        event[column] = value
    (tmp_path / "x").mkdir()
    pq.write_table(pa.Table.from_pylist(node.events, schema=arrow_schema()), tmp_path / "x" / "rows.parquet")
    with pytest.raises(UsageFilesError, match=reason):
        _found(tmp_path, CLIENT_KEYS, usage_schema())


def test_a_forwarded_request_is_counted_once(tmp_path):
    """By the node that answers it, with what its client was told; the controller's record has a row of another kind."""
    told = []

    async def scenario(nodes):
        await limit(nodes, 1, "controller_mutation_rate", 1.0)
        await limit(nodes, 1, "request_percentage", 0.0001)
        for node_id in (2, 3, 1, 3):
            told.append((await create(nodes, node_id, f"t{len(told)}", 30))[1])

    run_nodes(tmp_path, scenario)
    for node_id in (1, 2, 3):
        events = [row for row in events_of_node(tmp_path, node_id) if row["api_key"] == CREATE_TOPICS]
        write_events(tmp_path / "parquet", events)
    rows = [row for node_id in (1, 2, 3) for row in requests(tmp_path, node_id, CREATE_TOPICS)]
    assert [row["node_id"] for row in rows] == [1, 2, 3, 3]
    assert [row["forwarded"] for row in rows] == [False, True, True, True]
    kinds = [row["kind"] for row in events_of_node(tmp_path, 1) if row["api_key"] == CREATE_TOPICS]
    assert kinds.count("forwarded") == 3
    (usage,) = _found(tmp_path / "parquet", CLIENT_KEYS, usage_schema()).values()
    assert (usage["client_id"], usage["requests"]) == (CLIENT, 4)
    assert usage["request_bytes"] == sum(row["request_bytes"] for row in rows)
    assert usage["handler_ns"] == sum(row["handler_ns"] for row in rows)
    assert usage["mutations"] + usage["rejected_mutations"] == 4 * 30
    assert usage["throttled_requests"] == sum(ms > 0 for ms in told) >= 3
    answered = [max(row["mutation_throttle_ms"], row["request_throttle_ms"]) for row in rows]
    assert sorted(answered) == sorted(told)
    assert any(row["mutation_throttle_ms"] and row["request_throttle_ms"] for row in rows)
