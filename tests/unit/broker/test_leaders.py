"""What a broker of three answers about partitions and groups that another one leads or coordinates."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.broker.test_cluster import THREE
from tests.unit.storage.logs import batch

from tidegate import error_codes
from tidegate.api_keys import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
)
from tidegate.wire import API_BY_KEY

TOPIC = "orders"
PARTITIONS = 6


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Return node 2 of three, with a topic of six partitions."""
    node = Node(tmp_path, node_id=2, endpoints=THREE)
    node.create(TOPIC, PARTITIONS)
    return node


def leaders(node: Node) -> list[int]:
    """Return the leader of each partition."""
    topic = node.storage.topics.by_name[TOPIC]
    return [node.cluster.leader(topic, number) for number in range(PARTITIONS)]


def named(node: Node, version: int, by_id_since: int) -> dict[str, str]:
    """Return how a request of a version names the topic."""
    topic = node.storage.topics.by_name[TOPIC]
    return {"topic_id": topic.topic_id} if version >= by_id_since else {"name": TOPIC}


@pytest.mark.parametrize("version", [3, 9, 10, 13])
def test_what_is_produced_elsewhere_is_refused_with_its_leader(node: Node, version: int) -> None:
    """Each partition by itself; from version 10 on with the leader and its address (KIP-951)."""
    parts = [{"index": number, "records": batch()} for number in range(PARTITIONS)]
    message = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 1000,
        "topic_data": [{**named(node, version, 13), "partition_data": parts}],
    }
    found = node.call(PRODUCE, version, message)
    for leader, part in zip(leaders(node), found["responses"][0]["partition_responses"], strict=True):
        log = node.storage.topics.by_name[TOPIC].logs[part["index"]]
        assert part["error_code"] == (0 if leader == 2 else error_codes.NOT_LEADER_OR_FOLLOWER)
        assert log.end_offset == (1 if leader == 2 else 0)
        if version >= 10:
            expected = (-1, -1) if leader == 2 else (leader, 0)
            current = part["current_leader"]
            assert (current["leader_id"], current["leader_epoch"]) == expected
    if version >= 10:
        endpoints = [(one["node_id"], one["host"], one["port"]) for one in found["node_endpoints"]]
        assert endpoints == [(1, "host", 9092), (3, "host", 9094)]


def test_a_known_request_is_one_for_a_partition_that_the_node_leads(node: Node) -> None:
    """Sent again and again to the wrong broker, a batch is refused again and again."""
    for number, leader in enumerate(leaders(node)):
        part = {"name": TOPIC, "partition_data": [{"index": number, "records": batch()}]}
        message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": [part]}
        for _ in range(3):
            found = node.call(PRODUCE, 9, message)
            (answered,) = found["responses"][0]["partition_responses"]
            assert answered["error_code"] == (0 if leader == 2 else error_codes.NOT_LEADER_OR_FOLLOWER)
        assert node.storage.topics.by_name[TOPIC].logs[number].end_offset == (3 if leader == 2 else 0)


@pytest.mark.parametrize("version", [4, 12, 15, 16, 18])
def test_what_is_fetched_elsewhere_is_refused_with_its_leader(node: Node, version: int) -> None:
    """At once, though the client would wait; from version 16 on with the leader and its address (KIP-951)."""
    message: dict[str, Any] = {
        "replica_id": -1,
        "max_wait_ms": 10_000,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    wanted = [
        {
            "partition": number,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
        for number in range(PARTITIONS)
    ]
    name = named(node, version, 13)
    topic = name if "topic_id" in name else {"topic": TOPIC}
    found = node.call(FETCH, version, {**message, "topics": [{**topic, "partitions": wanted}]})
    for leader, part in zip(leaders(node), found["responses"][0]["partitions"], strict=True):
        assert part["error_code"] == (0 if leader == 2 else error_codes.NOT_LEADER_OR_FOLLOWER)
        if version >= 12:
            told = version >= 16 and leader != 2
            assert part["current_leader"]["leader_id"] == (leader if told else -1)
    if version >= 16:
        assert [(one["node_id"], one["port"]) for one in found["node_endpoints"]] == [(1, 9092), (3, 9094)]


def test_offsets_are_listed_by_the_leader(node: Node) -> None:
    """Error 6 for each partition that another broker leads."""
    wanted = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        for number in range(PARTITIONS)
    ]
    message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": TOPIC, "partitions": wanted}]}
    (topic,) = node.call(LIST_OFFSETS, 7, message)["topics"]
    for leader, part in zip(leaders(node), topic["partitions"], strict=True):
        expected = (0, 0) if leader == 2 else (error_codes.NOT_LEADER_OR_FOLLOWER, -1)
        assert (part["error_code"], part["offset"]) == expected


def test_a_group_has_one_coordinator_that_all_nodes_name(node: Node) -> None:
    """By the hash of its name over 50 partitions, as in Kafka; the others answer error 16."""
    groups = [f"group-{number}" for number in range(12)]
    found = node.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": groups})["coordinators"]
    coordinators = {one["key"]: one["node_id"] for one in found}
    assert set(coordinators.values()) == {1, 2, 3}
    assert node.cluster.coordinator("") == 1, "hash 0"
    assert node.cluster.coordinator("polygenelubricants") == 1, "hash -2**31, which Kafka takes for 0"
    assert node.cluster.coordinator("hello") == 2, "hash 99162322"
    assert node.cluster.coordinator("Hello World!") == 3, "hash -969099747"
    for group, coordinator in coordinators.items():
        one = node.call(FIND_COORDINATOR, 3, {"key": group, "key_type": 0})
        assert (one["node_id"], one["port"]) == (coordinator, 9091 + coordinator)
        committed = {
            "partition_index": 0,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        commit = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": TOPIC, "partitions": [committed]}],
        }
        expected = 0 if coordinator == 2 else error_codes.NOT_COORDINATOR
        (topic,) = node.call(OFFSET_COMMIT, 8, commit)["topics"]
        assert topic["partitions"][0]["error_code"] == expected
        asked = [{"name": TOPIC, "partition_indexes": [0]}]
        offset = 5 if coordinator == 2 else -1
        oldest = node.call(OFFSET_FETCH, 1, {"group_id": group, "topics": asked})["topics"][0]["partitions"][
            0
        ]
        assert (oldest["error_code"], oldest["committed_offset"]) == (expected, offset)
        older = node.call(OFFSET_FETCH, 7, {"group_id": group, "topics": asked, "require_stable": False})
        assert (older["error_code"], len(older["topics"])) == (expected, 1 if coordinator == 2 else 0)
        groups_asked = [{"group_id": group, "topics": asked, "member_id": None, "member_epoch": -1}]
        (newer,) = node.call(OFFSET_FETCH, 9, {"groups": groups_asked, "require_stable": False})["groups"]
        assert (newer["error_code"], len(newer["topics"])) == (expected, 1 if coordinator == 2 else 0)


def test_brokers_cannot_be_chosen_nor_replicas_had(node: Node) -> None:
    """Which broker leads follows from the topic's id; as many replicas as brokers are refused in our words."""
    wanted = {"name": "chosen", "num_partitions": -1, "replication_factor": -1, "configs": []}
    chosen = [{"partition_index": 0, "broker_ids": [3]}]
    replicated = {**wanted, "num_partitions": 1, "assignments": []}
    topics = [
        {**wanted, "assignments": chosen},
        {**replicated, "name": "three", "replication_factor": 3},
        {**replicated, "name": "four", "replication_factor": 4},
    ]
    version = API_BY_KEY[CREATE_TOPICS].max_version
    found = node.call(CREATE_TOPICS, version, {"topics": topics, "timeout_ms": 1000, "validate_only": False})
    answered = [(one["error_code"], one["error_message"]) for one in found["topics"]]
    assert answered[0] == (39, "This server chooses the broker of each partition itself.")
    assert answered[1] == (38, "This server keeps one replica of each partition.")
    assert answered[2][0] == 38
    assert "only 3 broker(s) are registered" in answered[2][1]
    more = {"name": TOPIC, "count": PARTITIONS + 1, "assignments": [{"broker_ids": [1]}]}
    found = node.call(CREATE_PARTITIONS, 3, {"topics": [more], "timeout_ms": 1000, "validate_only": False})
    assert found["results"][0]["error_code"] == error_codes.INVALID_REPLICA_ASSIGNMENT


def test_leaders_stay_over_a_restart_and_change_with_the_number_of_brokers(tmp_path: Path) -> None:
    """They follow from the topic's id and how many brokers there are; with one, it leads all."""
    node = Node(tmp_path, node_id=1, endpoints=THREE)
    for number in range(8):
        node.create(f"topic-{number}", PARTITIONS)
    node.create(TOPIC, PARTITIONS)
    before = leaders(node)
    node.storage.close()
    again = Node(tmp_path, node_id=2, endpoints=THREE)
    assert leaders(again) == before
    again.storage.close()
    alone = Node(tmp_path, node_id=1)
    assert leaders(alone) == [1] * PARTITIONS
    alone.storage.close()
