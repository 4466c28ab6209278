"""What goes beyond Kafka: clients that are observed or exempt, and a longest throttle time, set on a running node."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.replaying.engine import decisions, replay_with_engine
from tests.replaying.kernel import differences, replay_events
from tests.replaying.node import RecordingNode
from tests.server.nodes import (
    CREATE_TOPICS,
    CREATE_TOPICS_VERSION,
    MemoryStore,
    NodeClient,
    RunningNode,
    running_node,
    spool_events,
)
from tests.server.test_dynamic_settings import alter, described, run
from tests.server.whole_node import WholeNode

from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.quota import QuotaRecord
from tidegate.quota.managers.extensions import Extensions
from tidegate.quota.measure.smooth import SmoothMode
from tidegate.server.repeated_lines import RepeatedLines
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.setting_changes import DELETE, SET

OBSERVE, EXEMPT = "tidegate.quota.observe", "tidegate.quota.exempt"
MAX_MS = "tidegate.quota.throttle.max.ms"
QUOTAS = [
    QuotaRecord(entity=(("client-id", "c1"),), key=key, value=value)
    for key, value in (
        ("producer_byte_rate", 100.0),
        ("consumer_byte_rate", 100.0),
        ("controller_mutation_rate", 0.1),
    )
]


def _given(
    directory: Path, scenario: Callable[[RunningNode], Awaitable[None]], settings: dict[str, str]
) -> list[dict[str, Any]]:
    """Run a scenario against a node with byte quotas for c1; return what it recorded."""
    store, events = MemoryStore(), []
    store.records += QUOTAS

    async def main() -> None:
        async with running_node(directory, store, settings) as node:
            await scenario(node)
            events.extend(spool_events(node))

    asyncio.run(main())
    return events


def _requests(events: list[dict[str, Any]], api_key: int) -> list[dict[str, Any]]:
    return [event for event in events if event["kind"] == "request" and event["api_key"] == api_key]


async def _create(client: NodeClient) -> dict[str, Any]:
    topics = [
        {
            "name": f"t{number}",
            "num_partitions": 50,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        for number in range(3)
    ]
    message = {"topics": topics, "timeout_ms": 1, "validate_only": False}
    return await client.ask(CREATE_TOPICS, CREATE_TOPICS_VERSION, message)


async def _use_all(node: RunningNode) -> list[dict[str, Any]]:
    """Go far beyond every byte quota; return the answers."""
    client = await node.connect()
    answers = []
    for _ in range(2):
        client.send_produce(padding=5000)
        answers.append((await client.receive())[1])
        client.send_fetch(max_bytes=7000)
        answers.append((await client.receive())[1])
    answers.append(await _create(client))
    return answers


def test_an_observed_client_is_answered_as_without_quotas(tmp_path, caplog):
    """It waits for nothing, gets its data and its topics; row, metric and log say what would have been."""
    metrics: dict[tuple[str, str], float] = {}

    async def scenario(node: RunningNode) -> None:
        begun = time.monotonic()
        answers = await _use_all(node)
        assert time.monotonic() - begun < 5
        assert [answer["throttle_time_ms"] for answer in answers] == [0] * 5
        fetched = [answer["responses"][0]["partitions"][0]["records"] for answer in answers[1:4:2]]
        assert [len(records) for records in fetched] == [7000, 7000]
        assert {topic["error_code"] for topic in answers[4]["topics"]} == {0}
        for metric in node.node.metrics(node.node.clock.now_ms()):
            metrics[metric.group, metric.name] = metric.value

    with caplog.at_level(logging.WARNING):
        events = _given(tmp_path, scenario, {OBSERVE: "client-id=c1"})
    produced, fetched = _requests(events, 0), _requests(events, 1)
    assert all(event["observed_only"] for event in (*produced, *fetched, *_requests(events, CREATE_TOPICS)))
    assert all(event["produce_throttle_ms"] > 10_000 for event in produced)
    assert (
        fetched[1]["fetch_throttle_ms"] > fetched[0]["fetch_throttle_ms"] > 10_000
    )  # the bytes stay charged
    assert _requests(events, CREATE_TOPICS)[0]["mutation_throttle_ms"] > 10_000
    assert metrics["Produce", "throttle-time"] > 10_000
    assert (metrics["Produce", "queue-size"], metrics["Fetch", "queue-size"]) == (0.0, 0.0)
    assert "observed throttle, not applied: user 'ANONYMOUS', client id 'c1', " in caplog.text
    assert decisions(replay_with_engine(events)) == decisions(events)


def test_the_same_client_is_throttled_where_it_is_not_observed(tmp_path):
    """The other half of the test above."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_produce(padding=5000)
        assert (await client.receive())[1]["throttle_time_ms"] > 10_000

    events = _given(tmp_path, scenario, {OBSERVE: "client-id=c2"})
    assert [event["observed_only"] for event in _requests(events, 0)] == [False]
    assert decisions(replay_with_engine(events)) == decisions(events)


def test_an_exempt_client_is_charged_to_nobody(tmp_path):
    """No bytes, no permits, no time; another client of the same quota finds it unused."""

    async def scenario(node: RunningNode) -> None:
        answers = await _use_all(node)
        assert [answer["throttle_time_ms"] for answer in answers] == [0] * 5
        managers = node.node.managers
        assert [len(manager.sensors) for manager in managers] == [0, 0, 0, 0]

    events = _given(tmp_path, scenario, {EXEMPT: "user=ANONYMOUS,client-id=c1"})
    requests = [event for event in events if event["kind"] == "request"]
    assert {(event["exempt"], event["produce_bytes"], event["fetch_bytes"]) for event in requests} == {
        (True, None, None)
    }
    assert [event for event in events if event["kind"] == "mutation"] == []
    assert decisions(replay_with_engine(events)) == decisions(events)


EXACT = {"tidegate.kafka.exact": "true"}
EXTENSIONS = {
    OBSERVE: "user=a",
    EXEMPT: "all",
    MAX_MS: "300",
    "tidegate.quota.smooth": "all",
    "tidegate.quota.smooth.burst.seconds": "3",
    "tidegate.quota.debt.max.seconds": "1",
}


def _is_plain(node: RunningNode | WholeNode) -> bool:
    """Return whether no extension is in force on a node."""
    found, none = node.node.managers.extensions, Extensions()
    lists = [found.observe, found.exempt, found.smooth]
    numbers = [(each.throttle_max_ms, each.burst_s, each.debt_max_s) for each in (found, none)]
    return not any(each.selects("a", "c1") for each in lists) and numbers[0] == numbers[1]


def test_exact_kafka_has_no_extension(tmp_path):
    """Given in the broker's file, they throttle, charge and record nothing differently; a notice names them."""

    async def scenario(node: RunningNode) -> None:
        assert _is_plain(node)
        client = await node.connect()
        client.send_produce(padding=5000)
        assert (await client.receive())[1]["throttle_time_ms"] > 10_000

    events = _given(tmp_path, scenario, {**EXTENSIONS, **EXACT})
    assert not any(str(event.get("quota_key")).startswith("tidegate.") for event in events)
    assert decisions(replay_with_engine(events)) == decisions(events)
    notices = [line for line in ServerConfig.load({**EXTENSIONS, **EXACT}).notices() if "no effect" in line]
    assert all(any(name in line for line in notices) for name in EXTENSIONS)
    assert not any("tidegate.quota" in line for line in ServerConfig.load(EXTENSIONS).notices())


def test_a_record_of_runs_with_and_without_extensions_is_replayed(tmp_path):
    """A run that follows Kafka exactly, behind one with extensions: engine and pipeline decide both as the node did."""
    told: list[bool] = []

    async def scenario(node: RunningNode) -> None:
        for _ in range(2):
            client = await node.connect()
            client.send_produce(padding=5000)
            told.append((await client.receive())[1]["throttle_time_ms"] > 10_000)

    _given(tmp_path, scenario, EXTENSIONS)
    events = _given(tmp_path, scenario, {**EXTENSIONS, **EXACT})
    assert told == [False, False, True, True]
    assert [event["kind"] for event in events].count("start") == 2
    assert decisions(replay_with_engine(events)) == decisions(events)
    replayed = replay_events(events, in_force_plan())
    assert differences(replayed, replayed.events) == []
    assert sum(result["approximate_requests"] for result in replayed.results) == 0


def test_exact_kafka_ignores_extensions_that_are_set_or_stored(tmp_path, caplog):
    """A change is stored and has no effect; a warning names it, then and at the next start."""

    async def change(node: WholeNode) -> None:
        assert await alter(node.client, *((name, SET, text) for name, text in EXTENSIONS.items())) == (
            0,
            None,
        )
        assert _is_plain(node)

    async def look(node: WholeNode) -> None:
        assert _is_plain(node)

    async def follow(node: WholeNode) -> None:
        assert node.node.managers.extensions.exempt.selects("a", "c1")

    for scenario in (change, look):
        caplog.clear()
        run(tmp_path, scenario, **EXACT)
        (line,) = [each for each in caplog.messages if "tidegate.kafka.exact" in each]
        assert all(name in line for name in EXTENSIONS)
    caplog.clear()
    run(tmp_path, follow)
    assert "tidegate.kafka.exact" not in caplog.text
    run(tmp_path, look, **EXACT)


def test_no_throttle_time_is_longer_than_the_cap(tmp_path):
    """The client is told the cap and muted for it; the row has what the quota asked for."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_produce(padding=30_000)
        assert (await client.receive())[1]["throttle_time_ms"] == 300
        begun = time.monotonic()
        await client.metadata()
        assert 0.25 < time.monotonic() - begun < 5

    events = _given(tmp_path, scenario, {MAX_MS: "300"})
    assert _requests(events, 0)[0]["produce_throttle_ms"] > 100_000
    assert decisions(replay_with_engine(events)) == decisions(events)


def test_settings_change_on_the_running_node(tmp_path):
    """At once, described as changed, with rows in the record; taken back, they leave nothing."""

    async def scenario(node: WholeNode) -> None:
        extensions = node.node.managers.extensions
        assert await alter(
            node.client, (OBSERVE, SET, "user=a;user=b"), (EXEMPT, SET, "all"), (MAX_MS, SET, "9000")
        ) == (0, None)
        assert extensions.observe.selects("a", "")
        assert extensions.exempt.selects("x", "")
        assert extensions.throttle_max_ms == 9000
        value, source, read_only, _ = await described(node.client, OBSERVE)
        assert (value, source, read_only) == ("user=a;user=b", 2, False)
        assert await alter(node.client, (OBSERVE, SET, "user=b"), (EXEMPT, DELETE, None)) == (0, None)
        assert not extensions.observe.selects("a", "")
        assert not extensions.exempt.any
        events = spool_events(node)
        assert [
            (event["quota_key"], event["quota_user"], event["quota_value"])
            for event in events
            if event["kind"] == "quota" and event["quota_key"].startswith("tidegate.")
        ] == [
            (OBSERVE, "a", 1.0),
            (OBSERVE, "b", 1.0),
            (EXEMPT, None, 1.0),
            (MAX_MS, None, 9000.0),
            (OBSERVE, "a", None),
            (EXEMPT, None, None),
        ]

    run(tmp_path, scenario)


def test_settings_survive_a_restart(tmp_path):
    """They are stored with the node's other settings, and stated in the record by its next run."""

    async def change(node: WholeNode) -> None:
        assert await alter(node.client, (OBSERVE, SET, "user=a"), (MAX_MS, SET, "9000")) == (0, None)
        smooth = "tidegate.quota.smooth"
        assert await alter(node.client, (smooth, SET, "user=a"), (f"{smooth}.burst.seconds", SET, "3")) == (
            0,
            None,
        )
        assert await alter(node.client, ("tidegate.quota.debt.max.seconds", SET, "60")) == (0, None)
        assert node.node.managers.extensions.smooth_mode("a", "") == expected

    async def look(node: WholeNode) -> None:
        extensions = node.node.managers.extensions
        assert extensions.observe.selects("a", "")
        assert extensions.throttle_max_ms == 9000
        assert extensions.smooth_mode("a", "") == expected

    expected = SmoothMode(burst_s=3, debt_max_s=60, observed=True)
    run(tmp_path, change)
    run(tmp_path, look)


@pytest.mark.parametrize(
    ("name", "value", "code", "reason"),
    [
        (OBSERVE, "alice", 40, f"{OBSERVE} has 'alice', expected all, none, or entities such as user=alice"),
        (EXEMPT, "user=%zz", 40, f"{EXEMPT} has '%zz'"),
        (MAX_MS, "-1", 42, f"Invalid value -1 for configuration {MAX_MS}: Value must be at least 0"),
        (MAX_MS, "soon", 42, f"Invalid value soon for configuration {MAX_MS}: Not a number of type INT"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path, name, value, code, reason):
    """With setting, value and what was expected; nothing changes."""

    async def scenario(node: WholeNode) -> None:
        found = await alter(node.client, (name, SET, value))
        assert found[0] == code
        assert reason in (found[1] or "")
        assert not node.node.managers.extensions.observe.any

    run(tmp_path, scenario)


def test_a_busy_client_costs_few_log_lines():
    """What an observed client causes is one line in a period, however often it is over its quota."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    handler.addFilter(RepeatedLines(lambda: 0.0))
    logger = logging.getLogger("tidegate.server")
    logger.addHandler(handler)
    try:
        node = RecordingNode()
        node.start(1000, records=(*QUOTAS, QuotaRecord(entity=(), key=OBSERVE, value=1.0)))
        for number in range(20):
            assert node.produce("alice", "c1", 10_000, 2000 + number)["observed_only"]
    finally:
        logger.removeHandler(handler)
    assert len(records) == 1
