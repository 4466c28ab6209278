"""Three nodes in one process: one storage, one controller, quotas defined once and counted by each."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.replaying.kernel import replay_events
from tests.server.whole_node import RawClient, WholeNode, spool_of, whole_node
from tests.unit.storage.logs import batch

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    METADATA,
    PRODUCE,
)
from tidegate.error_codes import INVALID_REQUEST, NOT_LEADER_OR_FOLLOWER, THROTTLING_QUOTA_EXCEEDED
from tidegate.errors import ConfigError
from tidegate.in_slices import run_at_once
from tidegate.pipeline.layout import BYTE_MS, REQUEST_MS
from tidegate.pipeline.replay.plan import in_force_plan
from tidegate.server.settings.config import ServerConfig
from tidegate.server.settings.node_configs import MAX_NODES, node_configs
from tidegate.usage.readers import read_segment
from tidegate.wire import API_BY_KEY, encode_request, read_response

CLIENT = "c1"
NODE = 4
Message = dict[str, Any]


def run(directory: Path, scenario: Callable[[WholeNode], Awaitable[None]], **settings: str) -> None:
    """Run a scenario against three nodes."""

    async def main() -> None:
        async with whole_node(directory, 3, **settings) as nodes:
            await scenario(nodes)

    asyncio.run(main())


async def ask(
    nodes: WholeNode, node_id: int, api_key: int, message: Message, version: int | None = None
) -> Message:
    """Return a node's answer, in the newest version by default, on a connection of its own: others may be muted."""
    api = API_BY_KEY[api_key]
    version = api.max_version if version is None else version
    client = RawClient(nodes.clients[node_id - 1].port)
    frame = await client.ask(encode_request(api_key, version, 1, CLIENT, message)[4:])
    await client.close()
    assert frame is not None
    return read_response(api_key, version, frame, 5 if api.has_tagged_response_header(version) else 4)


async def limit(nodes: WholeNode, node_id: int, key: str, value: float | None) -> None:
    """Have a node alter the quota of the client id."""
    entity = [{"entity_type": "client-id", "entity_name": CLIENT}]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None}]
    message = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    (entry,) = (await ask(nodes, node_id, ALTER_CLIENT_QUOTAS, message))["entries"]
    assert entry["error_code"] == 0


async def create(
    nodes: WholeNode, node_id: int, name: str, partitions: int, version: int = 7
) -> tuple[int, int]:
    """Have a node create a topic; return error code and throttle time in ms."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    message = {"topics": [topic], "timeout_ms": 1000, "validate_only": False}
    found = await ask(nodes, node_id, CREATE_TOPICS, message, version)
    return found["topics"][0]["error_code"], found["throttle_time_ms"]


async def produce(nodes: WholeNode, node_id: int, partition: int, value_bytes: int) -> tuple[int, int]:
    """Send one record to a partition of topic `t`; return error code and throttle time in ms."""
    part = {"index": partition, "records": batch(value=bytes(value_bytes))}
    topic = {"name": "t", "partition_data": [part]}
    message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": [topic]}
    found = await ask(nodes, node_id, PRODUCE, message, 9)
    return found["responses"][0]["partition_responses"][0]["error_code"], found["throttle_time_ms"]


def leader(nodes: WholeNode, partition: int) -> int:
    """Return who leads a partition of topic `t`."""
    first = int(nodes.storage.topics.by_name["t"].topic_id[:8], 16)
    return 1 + (first + partition) % 3


def events(directory: Path, node_id: int) -> list[Message]:
    """Return a node's usage record."""
    spool = spool_of(directory, node_id)
    paths = sorted([*spool.glob("*.closed"), *spool.glob("*.open")])
    return [row for path in paths for row in read_segment(path)]


def requests(directory: Path, node_id: int, api_key: int) -> list[Message]:
    """Return the `request` rows of one API in a node's usage record."""
    return [
        row for row in events(directory, node_id) if (row["kind"], row["api_key"]) == ("request", api_key)
    ]


def check_replay(directory: Path) -> int:
    """Replay each node's record; all throttles are as recorded. Returns how many there are."""
    throttled = 0
    for node_id in (1, 2, 3):
        replayed = replay_events(events(directory, node_id), in_force_plan())
        for event, decision in zip(replayed.events, replayed.decisions, strict=True):
            if event["kind"] not in ("request", "forwarded"):
                continue
            byte_ms = max(event[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "mutation"))
            if event["forwarded"]:
                byte_ms = 0
            assert (decision[BYTE_MS], decision[REQUEST_MS]) == (byte_ms, event["request_throttle_ms"])
            throttled += byte_ms > 0 or event["request_throttle_ms"] > 0
    return throttled


def test_every_node_knows_all_and_the_controller(tmp_path: Path) -> None:
    """Metadata of each has the same brokers, leaders and controller; what one created all have."""

    async def scenario(nodes: WholeNode) -> None:
        assert await create(nodes, 3, "t", 6) == (0, 0)
        message = {
            "topics": None,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        answers = [await ask(nodes, node_id, METADATA, message, 12) for node_id in (1, 2, 3)]
        assert answers[0] == answers[1] == answers[2]
        ports = {broker["node_id"]: broker["port"] for broker in answers[0]["brokers"]}
        assert ports == {number: client.port for number, client in enumerate(nodes.clients, 1)}
        assert len(set(ports.values())) == 3
        assert answers[0]["controller_id"] == 1
        found = [part["leader_id"] for part in answers[0]["topics"][0]["partitions"]]
        assert found == [leader(nodes, partition) for partition in range(6)]

    run(tmp_path, scenario)


def test_three_nodes_admit_three_times_the_bytes(tmp_path: Path) -> None:
    """A quota is each node's own (KIP-13): what one has admitted counts at no other."""

    async def scenario(nodes: WholeNode) -> None:
        await create(nodes, 1, "t", 3)
        await limit(nodes, 2, "producer_byte_rate", 1000.0)
        for partition in range(3):
            assert await produce(nodes, leader(nodes, partition), partition, 9_000) == (0, 0)
        for partition in range(3):
            error_code, throttle_ms = await produce(nodes, leader(nodes, partition), partition, 9_000)
            assert error_code == 0
            assert 7_000 < throttle_ms < 9_000, "18 kB in a window of 10 s, where 1 kB/s is allowed"
        wrong = 1 + leader(nodes, 0) % 3
        assert (await produce(nodes, wrong, 0, 1))[0] == NOT_LEADER_OR_FOLLOWER
        for node in nodes.nodes:
            rates = [
                metric.value
                for metric in node.metrics(node.clock.now_ms())
                if (metric.group, metric.name) == ("Produce", "byte-rate")
            ]
            assert len(rates) == 1
        assert check_replay(tmp_path) >= 3

    run(tmp_path, scenario)


def test_a_callback_knows_who_leads_what(tmp_path: Path) -> None:
    """Cluster metadata reaches the callback of each node: with limits by led partitions a quota is the cluster's."""

    async def scenario(nodes: WholeNode) -> None:
        await limit(nodes, 2, "producer_byte_rate", 3000.0)
        assert await create(nodes, 1, "t", 6) == (0, 0)
        for partition in range(3):
            assert await produce(nodes, leader(nodes, partition), partition, 9_000) == (0, 0)
        for partition in range(3):
            error_code, throttle_ms = await produce(nodes, leader(nodes, partition), partition, 9_000)
            assert error_code == 0
            assert 7_000 < throttle_ms < 9_000, (
                "18 kB in a window of 10 s, where a third of 3 kB/s is allowed"
            )

    run(tmp_path, scenario, client_quota_callback_class="tidegate.callbacks:LimitsByLedPartitions")


def test_mutations_are_counted_by_the_controller_for_all(tmp_path: Path) -> None:
    """Tokens that one node's client has taken are missing at every other; who is asked mutes (B§5.4)."""

    async def scenario(nodes: WholeNode) -> None:
        await limit(nodes, 3, "controller_mutation_rate", 1.0)
        assert await create(nodes, 2, "t", 30) == (0, 0), (
            "no more than there are tokens, or not: it is admitted"
        )
        for node_id in (3, 1, 2):
            error_code, throttle_ms = await create(nodes, node_id, "more", 1)
            assert error_code == THROTTLING_QUOTA_EXCEEDED
            assert 15_000 < throttle_ms < 20_000, "19 tokens are owed"
            assert "more" not in nodes.storage.topics.by_name
        error_code, throttle_ms = await create(nodes, 3, "old", 1, version=5)
        assert error_code == 0, "permissive below version 6"
        assert throttle_ms > 15_000
        topic = {"name": "t", "count": 31, "assignments": None}
        message = {"topics": [topic], "timeout_ms": 1000, "validate_only": False}
        (found,) = (await ask(nodes, 2, CREATE_PARTITIONS, message))["results"]
        assert found["error_code"] == THROTTLING_QUOTA_EXCEEDED
        message = {
            "topics": [{"name": "t", "topic_id": "00000000-0000-0000-0000-000000000000"}],
            "timeout_ms": 1000,
        }
        (found,) = (await ask(nodes, 3, DELETE_TOPICS, message))["responses"]
        assert found["error_code"] == THROTTLING_QUOTA_EXCEEDED
        tokens = {
            node.config["node.id"]: [
                metric.value for metric in node.metrics(node.clock.now_ms()) if metric.name == "tokens"
            ]
            for node in nodes.nodes
        }
        assert len(tokens[1]) == 1
        assert tokens[1][0] < 0
        assert tokens[2] == tokens[3] == []
        muted = [
            (metric.group, metric.value)
            for metric in nodes.nodes[2].metrics(nodes.nodes[2].clock.now_ms())
            if metric.name == "throttle-time" and metric.value > 0
        ]
        assert [group for group, _ in muted] == ["Request"]

    run(tmp_path, scenario)
    at_controller = [
        row
        for row in events(tmp_path, 1)
        if row["api_key"] == CREATE_TOPICS and row["kind"] in ("request", "forwarded")
    ]
    kinds = [row["kind"] for row in at_controller]
    assert kinds == ["forwarded", "forwarded", "request", "forwarded", "forwarded"], "one was asked itself"
    assert [row["mutation_throttle_ms"] > 0 for row in at_controller] == [False, True, True, True, True]
    connections = {row["connection_id"] for row in at_controller}
    assert len(connections) == 5, "each client had a connection of its own"
    for node_id, asked in ((2, 2), (3, 2)):
        rows = requests(tmp_path, node_id, CREATE_TOPICS)
        assert [row["forwarded"] for row in rows] == [True] * asked
        told = [row["mutation_throttle_ms"] for row in at_controller]
        assert [row["mutation_throttle_ms"] for row in rows] == [
            told[number] for number in ((0, 3) if node_id == 2 else (1, 4))
        ]
        assert not [row for row in events(tmp_path, node_id) if row["kind"] == "mutation"]
    assert check_replay(tmp_path) == 6


def test_topics_made_on_the_way_are_charged_at_the_controller(tmp_path: Path) -> None:
    """Metadata asks for permits in its client's name, without a throttle (B§5.5)."""

    async def scenario(nodes: WholeNode) -> None:
        await limit(nodes, 1, "controller_mutation_rate", 0.1)
        for number in range(3):
            topics = [{"topic_id": "00000000-0000-0000-0000-000000000000", "name": f"made-{number}"}]
            message = {
                "topics": topics,
                "allow_auto_topic_creation": True,
                "include_topic_authorized_operations": False,
            }
            found = await ask(nodes, 2, METADATA, message, 12)
            assert found["throttle_time_ms"] == 0
        assert sorted(nodes.storage.topics.by_name) == ["made-0", "made-1"], "1.1 tokens, and then one owed"

    run(tmp_path, scenario)
    rows = [row for row in events(tmp_path, 1) if row["kind"] == "mutation"]
    assert [row["rejected"] for row in rows] == [False, False, True]
    check_replay(tmp_path)


def test_definitions_and_settings_of_all_hold_on_each(tmp_path: Path) -> None:
    """What one node altered all describe; a node describes what it was given itself."""

    async def scenario(nodes: WholeNode) -> None:
        await limit(nodes, 3, "consumer_byte_rate", 5.0)
        for node_id in (1, 2, 3):
            components = [{"entity_type": "client-id", "match_type": 0, "match": CLIENT}]
            found = await ask(
                nodes, node_id, DESCRIBE_CLIENT_QUOTAS, {"components": components, "strict": False}
            )
            assert found["entries"][0]["values"] == [{"key": "consumer_byte_rate", "value": 5.0}]
            resource = {
                "resource_type": NODE,
                "resource_name": str(node_id),
                "configuration_keys": ["node.id"],
            }
            message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
            (result,) = (await ask(nodes, node_id, DESCRIBE_CONFIGS, message))["results"]
            assert [config["value"] for config in result["configs"]] == [str(node_id)]
        configs = [{"name": "max.connections.per.ip", "config_operation": 0, "value": "7"}]
        resource = {"resource_type": NODE, "resource_name": "", "configs": configs}
        message = {"resources": [resource], "validate_only": False}
        (result,) = (await ask(nodes, 2, INCREMENTAL_ALTER_CONFIGS, message))["responses"]
        assert result["error_code"] == 0
        assert [node.config["max.connections.per.ip"] for node in nodes.nodes] == [7, 7, 7]
        assert [node.config["node.id"] for node in nodes.nodes] == [1, 2, 3]

    run(tmp_path, scenario)


def test_a_restart_with_other_numbers_of_nodes_keeps_everything(tmp_path: Path) -> None:
    """Topics, records and quotas are shared, so that one node has what three had, and three again."""

    async def fill(nodes: WholeNode) -> None:
        await create(nodes, 2, "t", 3)
        await limit(nodes, 3, "producer_byte_rate", 1000.0)
        for partition in range(3):
            assert (await produce(nodes, leader(nodes, partition), partition, 10))[0] == 0

    async def look(nodes: WholeNode) -> None:
        logs = nodes.storage.topics.by_name["t"].logs
        assert [log.end_offset for log in logs] == [1, 1, 1]
        entity = [(("client-id", CLIENT),)]
        assert [record.entity for record in nodes.quotas.definitions.records()] == entity

    async def alone() -> None:
        async with whole_node(tmp_path) as node:
            await look(node)
            for partition in range(3):
                assert (await produce(node, 1, partition, 10))[0] == 0

    run(tmp_path, fill)
    run(tmp_path, look)
    asyncio.run(alone())


def test_settings_of_several_nodes() -> None:
    """Ids and ports follow those of the first, listener by listener; memory is shared out."""
    texts = {
        "node.id": "5",
        "listeners": "IN://127.0.0.1:9092,OUT://[::1]:0 , THIRD://localhost:9094",
        "advertised.listeners": "OUT://example.com:7000",
        "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT,THIRD:PLAINTEXT",
    }
    first, second = node_configs(ServerConfig.load(texts), 2)
    assert [listener.address.port for listener in first.listeners] == [9092, 0, 9094]
    assert [listener.address.port for listener in second.listeners] == [9095, 0, 9097]
    advertised = [each.listeners[1].advertised for each in (first, second)]
    assert [(told.host, told.port) for told in advertised if told] == [
        ("example.com", 7000),
        ("example.com", 7003),
    ]
    assert (first["node.id"], second["node.id"]) == (5, 6)
    assert second.given["node.id"] == "6"
    whole = node_configs(ServerConfig.load({}), 1)[0]["queued.max.request.bytes"]
    assert whole == 0, "an eighth of the machine's, which two share"
    assert first["queued.max.request.bytes"] == second["queued.max.request.bytes"] > 0
    for count in (0, MAX_NODES + 1):
        with pytest.raises(ConfigError, match=f"--nodes is {count}, expected 1 to {MAX_NODES}"):
            node_configs(ServerConfig.load({}), count)
    with pytest.raises(ConfigError, match="65536"):
        node_configs(ServerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:65535"}), 2)


def test_nodes_share_the_defaults_of_topics(tmp_path: Path) -> None:
    """They are set for all nodes: logs are shared, and no node could have its own."""

    async def scenario(nodes: WholeNode) -> None:
        def changed(name: str) -> Message:
            config = {"name": "log.retention.ms", "config_operation": 0, "value": "5000"}
            resource = {"resource_type": NODE, "resource_name": name, "configs": [config]}
            return {"resources": [resource], "validate_only": False}

        run_at_once(nodes.storage.topics.create_in_slices("orders", 3, {}))
        (refused,) = (await ask(nodes, 2, INCREMENTAL_ALTER_CONFIGS, changed("2")))["responses"]
        assert refused["error_code"] == INVALID_REQUEST
        assert "Set these for all nodes (--entity-default): [log.retention.ms]" in refused["error_message"]
        (answer,) = (await ask(nodes, 2, INCREMENTAL_ALTER_CONFIGS, changed("")))["responses"]
        assert answer["error_code"] == 0
        assert nodes.storage.topics.by_name["orders"].settings.retention_ms == 5000

    run(tmp_path, scenario)
