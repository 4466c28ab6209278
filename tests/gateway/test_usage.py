"""The usage record of a gateway: what a node records of the same requests, a gateway records, too."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.batches import build_batch
from tests.e2e.broker import Broker
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.raw_client import NO_ID, RawClient, fetched
from tests.unit.usage.reading import read_batches

from tidegate.api_keys import FETCH, PRODUCE
from tidegate.cli.main import main
from tidegate.usage.readers import complete_files
from tidegate.wire import encode_request

SIZES = (10, 1_000, 300_000)


def requests_of(usage: Path, api_key: int) -> list[tuple[str, int, int, str | None, int | None]]:
    """Return client id, bytes produced and fetched, and topics of each request, in order."""
    with complete_files(usage) as files:
        rows: list[dict[str, Any]] = [
            row for path in files for batch in read_batches(path) for row in batch.to_pylist()
        ]
    return [
        (row["client_id"], row["produce_bytes"], row["fetch_bytes"], row["topic"], row["other_topics"])
        for row in rows
        if row["kind"] == "request" and row["api_key"] == api_key
    ]


def traffic(port: int, topic: str) -> None:
    """Produce and fetch, in each version that both sides speak."""
    with RawClient(port, "recorded") as client:
        for version in range(3, 13, 3):
            for size in SIZES:
                client.produce(topic, size, version=version)
            client.produce("no-such-topic", 100, version=version)
        client.produce(topic, 10, 20)
        for version in (4, 7, 11, 12):
            for max_bytes in (64 << 20, 200_000):
                client.fetch(topic, max_bytes=max_bytes, version=version)


def test_bytes_are_those_that_a_node_records(
    new_gateway, kafka, create_topic, unique, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Each Produce and Fetch is charged with the bytes that a Tidegate node charges; the commands read the record."""
    gateway = new_gateway()
    create_topic(kafka, unique)
    node = Broker(tmp_path, overrides={"auto.create.topics.enable": "false"}).start()
    try:
        create_topic(node, unique)
        traffic(gateway.port, unique)
        traffic(node.port, unique)
    finally:
        node.close()
    gateway.stop()
    (usage,) = (path for path in gateway.usage_dir.parent.rglob("usage") if path.is_dir())
    for api_key in (PRODUCE, FETCH):
        ours, nodes = (requests_of(each, api_key) for each in (usage, node.data_dir / "usage"))
        assert len(ours) > 5
        assert ours == nodes
    assert main(["usage", str(usage), "--json"]) == 0
    groups = {group["client_id"]: group for group in json.loads(capsys.readouterr().out)["groups"]}
    produced = sum(row[1] for row in requests_of(usage, PRODUCE))
    assert groups["recorded"]["produce_bytes"] == produced > 1_000_000


LARGE, SMALL = 300, 100  # a Fetch of all is short: of a longer one the gateway reads what has been received
THROTTLED = 3_000
LONG = 300_000  # as a response it is forwarded before it is complete
LAST_BY_NAME = 12
SETTLES_S = 20.0


def topics_of(usage: Path, client_id: str) -> list[tuple[int, str | None, int | None]]:
    """Return api key and topics of each Produce and Fetch of a client, in order."""
    return [
        (api_key, topic, others)
        for api_key in (PRODUCE, FETCH)
        for client, _, _, topic, others in requests_of(usage, api_key)
        if client == client_id
    ]


def produced_to(topics: dict[str, list[int]], ids: dict[str, str], *, acks: int = 1) -> dict[str, Any]:
    """Return a Produce of one record of each size to partition 0, 1 and so on of each topic."""
    data = [
        {
            "name": topic,
            "topic_id": ids.get(topic, NO_ID),
            "partition_data": [
                {"index": index, "records": build_batch([(None, bytes(size))])}
                for index, size in enumerate(sizes)
            ],
        }
        for topic, sizes in topics.items()
    ]
    return {"transactional_id": None, "acks": acks, "timeout_ms": 10_000, "topic_data": data}


def traffic_of_topics(port: int, client_id: str) -> None:
    """Produce to the topics a, b and c and fetch from them, by name and by id."""
    with RawClient(port, client_id) as client:
        ids = client.topic_ids("a", "b", "c")
        for version in (3, 8, 9, LAST_BY_NAME, 13):
            for topics in (
                {"a": [SMALL]},
                {"a": [SMALL, SMALL]},
                {"a": [SMALL], "b": [LARGE]},
                {"a": [SMALL, SMALL, SMALL, SMALL], "b": [LARGE]},  # of `a` two partitions exist
                {"b": [SMALL], "none": [LARGE]},
                {"none": [LARGE]},
                {"c": []},
            ):
                client.ask(PRODUCE, version, produced_to(topics, ids))
        for version in (4, 11, LAST_BY_NAME, 13, 15):
            for topics in (
                {"a": 0},
                {"a": 0, "b": 0},
                {"c": 0},
                {"c": 0, "a": 0},
                {"none": 0},
                {"a": 1 << 40},
            ):
                asked = fetched({topic: {0: offset} for topic, offset in topics.items()}, max_wait_ms=0)
                for topic in asked["topics"]:
                    topic["topic_id"] = ids.get(topic["topic"], NO_ID)
                client.ask(FETCH, version, asked)
        client.ask(PRODUCE, 9, produced_to({"c": [LONG]}, ids))
        for version in (11, LAST_BY_NAME, 15):
            asked = fetched({"c": {0: 0}})
            asked["topics"][0]["topic_id"] = ids["c"]
            client.ask(FETCH, version, asked)


def test_topics_are_those_that_a_node_records(
    new_gateway, kafka, create_topic, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """By name and by id, of one topic and of several, of what is stored and what is refused, and of long responses."""
    gateway = new_gateway()
    node = Broker(tmp_path, overrides={"auto.create.topics.enable": "false"}).start()
    try:
        for broker in (kafka, node):
            for topic, partitions in (("a", 2), ("b", 1), ("c", 1)):
                create_topic(broker, topic, partitions)
        deadline = time.monotonic() + SETTLES_S
        while has_unknown_ids(gateway, node):
            assert time.monotonic() < deadline
        for port in (gateway.port, node.port):
            traffic_of_topics(port, "traffic")
    finally:
        node.close()
    with RawClient(gateway.port, "no-answer") as client:
        client.socket.sendall(
            encode_request(PRODUCE, 9, 0, "no-answer", produced_to({"a": [SMALL]}, {}, acks=0))
        )
        assert client.topic_ids("a")
    gateway.stop()
    assert topics_of(gateway.usage_dir, "no-answer") == [(PRODUCE, None, None)]
    ours, nodes = (topics_of(each, "traffic") for each in (gateway.usage_dir, node.data_dir / "usage"))
    assert ours == nodes
    assert {topic for _, topic, _ in ours} == {"a", "b", "c", None}
    assert main(["usage", str(gateway.usage_dir), "--by", "topic", "--json"]) == 0
    groups = {group["topic"]: group for group in json.loads(capsys.readouterr().out)["groups"]}
    assert groups["b"]["produce_bytes"] > LARGE


def has_unknown_ids(gateway: GatewayProcess, node: Broker) -> bool:
    """Produce to the topics by their ids, and to both; return whether the gateway did not know each name."""
    client_id = f"asks-{time.time_ns()}"
    for port in (gateway.port, node.port):
        with RawClient(port, client_id) as client:
            ids = client.topic_ids("a", "b", "c")
            for topic in ids:
                client.ask(PRODUCE, 13, produced_to({topic: [SMALL]}, ids))
    return [topic for _, topic, _ in topics_of(gateway.usage_dir, client_id)] != ["a", "b", "c"]


def test_replay_decides_as_the_gateway_did(
    new_gateway, kafka, create_topic, unique, capsys: pytest.CaptureFixture[str]
):
    """A replay of the quotas in force decides as recorded, for all four quota types, while quotas change."""
    gateway = new_gateway("--override", "tidegate.quota.throttle.max.ms=50")
    create_topic(kafka, unique)
    with RawClient(gateway.port, "admin") as admin, RawClient(gateway.port, "replayed") as client:
        for round_number in range(2):
            rate = 2_000.0 * (round_number + 1)
            admin.set_quotas(
                "replayed",
                producer_byte_rate=rate,
                consumer_byte_rate=rate,
                controller_mutation_rate=0.5,
                request_percentage=0.01 if round_number else None,
            )
            for number in range(10):
                client.produce(unique, THROTTLED)
                client.fetch(unique, max_wait_ms=0)
                client.create_topics((f"{unique}-{round_number}-{number}", 2), validate_only=number % 3 == 0)
    gateway.stop()
    assert main(["replay", str(gateway.usage_dir), "--in-force", "--json"]) == 0
    found = {
        each["quota_type"]: each["plans"][0]
        for each in json.loads(capsys.readouterr().out)["entities"]
        if each["client_id"] == "replayed"
    }
    for quota_type in ("Produce", "Fetch", "Request", "ControllerMutation"):
        of_type = found[quota_type]
        assert of_type["recorded_throttled_requests"] > 3, (quota_type, of_type)
        assert of_type["throttle_ms"] == of_type["recorded_throttle_ms"]
        assert of_type["different_decisions"] == of_type["approximate_requests"] == 0
