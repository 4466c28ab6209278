"""Tests of APIs that tell what little there is of partitions and settings; recorded answers: `test_wire_vectors.py`."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.broker.test_cluster import THREE
from tests.unit.storage.logs import NOW_MS, append, batch

from tidegate import error_codes
from tidegate.api_keys import (
    ALTER_PARTITION_REASSIGNMENTS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    ELECT_LEADERS,
    LIST_CONFIG_RESOURCES,
    LIST_PARTITION_REASSIGNMENTS,
    OFFSET_FOR_LEADER_EPOCH,
)
from tidegate.broker.handlers import partition_logs


@pytest.fixture
def of_three(tmp_path: Path) -> Node:
    """Return node 2 of three, with a topic of three partitions."""
    node = Node(tmp_path, node_id=2, endpoints=THREE)
    node.create("orders", 3)
    return node


def own(node: Node) -> int:
    """Return the partition of `orders` that a node of three leads."""
    topic = node.storage.topics.by_name["orders"]
    return next(index for index in range(3) if node.cluster.leads(topic, index))


# --- DescribeProducers


def producers(node: Node, *indexes: int, name: str = "orders") -> list[dict[str, Any]]:
    """Return what is answered for partitions of a topic."""
    topics = [{"name": name, "partition_indexes": list(indexes)}]
    found: list[dict[str, Any]] = node.call(DESCRIBE_PRODUCERS, 0, {"topics": topics})["topics"][0][
        "partitions"
    ]
    return found


def test_producers_are_described_with_their_last_batch(node: Node) -> None:
    """Epoch, sequence and time are those of the newest batch."""
    node.create("orders")
    for sequence in (0, 2):
        data = batch(2, producer_id=7, producer_epoch=1, base_sequence=sequence, time_ms=NOW_MS + sequence)
        append(node.log("orders"), data)
    assert producers(node, 0)[0]["active_producers"] == [
        {
            "producer_id": 7,
            "producer_epoch": 1,
            "last_sequence": 3,
            "last_timestamp": NOW_MS + 2,
            "coordinator_epoch": -1,
            "current_txn_start_offset": -1,
        }
    ]
    assert [found["error_code"] for found in producers(node, 1, 0, 0)] == [3, 0, 0]
    (invalid,) = producers(node, 0, name="a b")
    assert invalid["error_code"] == error_codes.INVALID_TOPIC_EXCEPTION
    assert invalid["error_message"].startswith("Topic name is invalid: 'a b' contains")


def test_an_answer_has_a_bound(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition with more producers than there is room for gets error 42, the others are answered."""
    monkeypatch.setattr(partition_logs, "MAX_PRODUCERS_ANSWERED", 5)
    node.create("orders", 2)
    for number in range(2):
        append(node.log("orders"), batch(producer_id=number, producer_epoch=0, base_sequence=0))
    found = producers(node, 0, 0, 0, 1)
    assert [(part["error_code"], len(part["active_producers"])) for part in found] == [
        (0, 2),
        (0, 2),
        (42, 0),
        (0, 0),
    ]


# --- DescribeLogDirs


def directories(node: Node, topics: Any, version: int = 5) -> dict[str, Any]:
    """Return what is answered for topics and their partitions."""
    wanted = topics and [{"topic": name, "partitions": list(indexes)} for name, indexes in topics.items()]
    (result,) = node.call(DESCRIBE_LOG_DIRS, version, {"topics": wanted})["results"]
    return result  # type: ignore[no-any-return]


def test_partitions_are_described_with_their_size(node: Node) -> None:
    """Null asks for all; what is not there is left out, what is named again is there once."""
    node.create("orders", 2)
    append(node.log("orders", 1), data := batch())
    everything = directories(node, None)
    assert everything["log_dir"] == os.path.abspath(node.storage.directory)
    sizes = [
        (part["partition_index"], part["partition_size"]) for part in everything["topics"][0]["partitions"]
    ]
    assert sizes == [(0, 0), (1, len(data))]
    assert 0 < everything["usable_bytes"] <= everything["total_bytes"]
    some = directories(node, {"orders": (1, 1, 7), "missing": (0,)})
    assert [(topic["name"], len(topic["partitions"])) for topic in some["topics"]] == [("orders", 1)]
    assert directories(node, {})["topics"] == []


def test_a_directory_that_is_gone_is_an_error(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error 56, as in Kafka."""

    def fail(_: object) -> None:
        raise OSError

    monkeypatch.setattr(os, "statvfs", fail)
    found = directories(node, None)
    assert (found["error_code"], found["total_bytes"]) == (error_codes.KAFKA_STORAGE_ERROR, -1)


def test_each_node_describes_the_partitions_that_it_leads(of_three: Node) -> None:
    """Three nodes share a directory, and no partition is there twice."""
    (topic,) = directories(of_three, None)["topics"]
    assert [part["partition_index"] for part in topic["partitions"]] == [own(of_three)]


# --- ListConfigResources


def resources(node: Node, *kinds: int) -> tuple[int, list[tuple[int, str]]]:
    """Return error, and type and name of each resource."""
    answer = node.call(LIST_CONFIG_RESOURCES, 1, {"resource_types": list(kinds)})
    found = [(each["resource_type"], each["resource_name"]) for each in answer["config_resources"]]
    return answer["error_code"], found


def test_resources_are_listed_by_type(of_three: Node) -> None:
    """All nodes of a cluster; a type that has no settings fails as a whole."""
    nodes = [(kind, name) for kind in (8, 4) for name in ("1", "2", "3")]
    assert resources(of_three) == (0, [*nodes, (2, "orders")])
    assert resources(of_three, 2, 2) == (0, [(2, "orders")])
    assert resources(of_three, 16, 32) == (0, [])
    assert resources(of_three, 2, 3) == (error_codes.UNSUPPORTED_VERSION, [])
    answer = of_three.call(LIST_CONFIG_RESOURCES, 0, {})
    assert (answer["error_code"], answer["config_resources"]) == (0, [])


# --- ElectLeaders, reassignments, OffsetForLeaderEpoch


def test_elections_of_all_and_of_unknown_types(node: Node) -> None:
    """Null asks for all topics, each without partitions; an unknown type fails every partition, and nothing of none."""
    node.create("orders", 2)
    everything = {"election_type": 1, "topic_partitions": None, "timeout_ms": 1000}
    answer = node.call(ELECT_LEADERS, 2, everything)
    assert answer["replica_election_results"] == [{"topic": "orders", "partition_result": []}]
    answer = node.call(ELECT_LEADERS, 2, {"election_type": 2, "topic_partitions": [], "timeout_ms": 1000})
    assert (answer["error_code"], answer["replica_election_results"]) == (0, [])
    some = [{"topic": "orders", "partitions": [0]}]
    answer = node.call(ELECT_LEADERS, 2, {**everything, "election_type": 2, "topic_partitions": some})
    (result,) = answer["replica_election_results"][0]["partition_result"]
    assert answer["error_code"] == result["error_code"] == error_codes.INVALID_REQUEST
    assert result["error_message"] == "Unknown election type 2"


def reassigned(node: Node, *replicas: list[int] | None, index: int = 0) -> list[tuple[int, str | None]]:
    """Return error and text of assignments of a partition of `orders`."""
    parts = [{"partition_index": index, "replicas": each} for each in replicas]
    topics = [{"name": "orders", "partitions": parts}]
    message = {"timeout_ms": 1000, "allow_replication_factor_change": True, "topics": topics}
    answer = node.call(ALTER_PARTITION_REASSIGNMENTS, 1, message)
    return [
        (part["error_code"], part["error_message"])
        for topic in answer["responses"]
        for part in topic["partitions"]
    ]


def test_a_partition_stays_where_it_is(of_three: Node) -> None:
    """On its own broker it may be; other brokers, several, unknown and repeated ones are refused."""
    index = own(of_three)
    assert reassigned(of_three, [2], None, index=index) == [(0, None), (85, None)]
    found = reassigned(of_three, [1], [1, 2], [], [9], [2, 2], index=index)
    assert [code for code, _ in found] == [error_codes.INVALID_REPLICA_ASSIGNMENT] * 5
    texts = [text for _, text in found]
    assert texts[:2] == ["This server chooses the broker of each partition itself."] * 2
    assert texts[2] == "The manual partition assignment includes an empty replica list."
    nothing = {"timeout_ms": 1000, "allow_replication_factor_change": False, "topics": []}
    answer = of_three.call(ALTER_PARTITION_REASSIGNMENTS, 1, nothing)
    assert (answer["error_message"], answer["allow_replication_factor_change"]) == ("", True)
    everything = {"timeout_ms": 0, "topics": None}
    assert of_three.call(LIST_PARTITION_REASSIGNMENTS, 0, everything)["topics"] == []


def test_epochs_of_another_brokers_partition(of_three: Node) -> None:
    """Error 6 for the partitions of others."""
    parts = [{"partition": index, "current_leader_epoch": -1, "leader_epoch": 0} for index in range(3)]
    message = {"replica_id": -1, "topics": [{"topic": "orders", "partitions": parts}]}
    answer = of_three.call(OFFSET_FOR_LEADER_EPOCH, 3, message)
    codes = [part["error_code"] for part in answer["topics"][0]["partitions"]]
    assert codes == [0 if index == own(of_three) else 6 for index in range(3)]
