"""The cluster as a node sees it: one broker by default, and three as handlers describe them."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.broker.node import Node

from tidegate.api_keys import CREATE_TOPICS, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS, METADATA
from tidegate.in_slices import run_at_once
from tidegate.quota.managers.callback import ClusterNode

ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}
THREE = {
    node_id: {"PLAINTEXT": ("host", 9091 + node_id), "OTHER": ("host", 9191 + node_id)}
    for node_id in (1, 2, 3)
}


def test_one_broker_leads_every_partition_and_is_the_controller(tmp_path: Any) -> None:
    """A node without an advertised address is where the client found it."""
    node = Node(tmp_path, node_id=7)
    node.create("orders", 3)
    assert node.cluster.controller_id == 7
    assert {node.cluster.leader(node.storage.topics.by_name["orders"], number) for number in range(3)} == {7}
    found = node.call(METADATA, 12, ALL_TOPICS)
    assert [(broker["node_id"], broker["port"]) for broker in found["brokers"]] == [(7, 9092)]
    assert node.cluster.metadata().partitions_led_by(7) == 3


def test_three_brokers_lead_the_partitions_of_a_topic_in_turn(tmp_path: Any) -> None:
    """All nodes say the same; each listener has its own ports."""
    node = Node(tmp_path, node_id=2, endpoints=THREE)
    for number in range(8):
        node.create(f"topic-{number}", 4)
    found = node.call(METADATA, 12, ALL_TOPICS)
    assert [(broker["node_id"], broker["port"]) for broker in found["brokers"]] == [
        (1, 9092),
        (2, 9093),
        (3, 9094),
    ]
    assert found["controller_id"] == 1
    firsts = set()
    for described in found["topics"]:
        leaders = [partition["leader_id"] for partition in described["partitions"]]
        assert [(leader - leaders[0]) % 3 for leader in leaders] == [0, 1, 2, 0]
        assert [partition["replica_nodes"] for partition in described["partitions"]] == [
            [id_] for id_ in leaders
        ]
        topic = node.storage.topics.by_name[described["name"]]
        assert leaders == [node.cluster.leader(topic, number) for number in range(4)]
        firsts.add(leaders[0])
    assert len(firsts) > 1, "topics begin with different brokers"
    paged = node.call(
        DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": [], "response_partition_limit": 100, "cursor": None}
    )
    by_name = {topic["name"]: topic["partitions"] for topic in found["topics"]}
    for topic in paged["topics"]:
        expected = [partition["leader_id"] for partition in by_name[topic["name"]]]
        assert [partition["leader_id"] for partition in topic["partitions"]] == expected
    cluster = node.call(
        DESCRIBE_CLUSTER, 1, {"include_cluster_authorized_operations": False, "endpoint_type": 1}
    )
    assert [(broker["broker_id"], broker["port"]) for broker in cluster["brokers"]] == [
        (1, 9092),
        (2, 9093),
        (3, 9094),
    ]


def test_a_callback_is_told_every_listener_and_every_leader(tmp_path: Any) -> None:
    """Each node gives the same picture, with the partitions that each broker leads."""
    node = Node(tmp_path, node_id=3, endpoints=THREE)
    node.create("orders", 5)
    metadata = node.cluster.metadata()
    assert len(metadata.nodes) == 6
    assert ClusterNode(2, "host", 9193) in metadata.nodes
    assert metadata.topics == {"orders"}
    assert sorted(metadata.partitions_led_by(node_id) for node_id in (1, 2, 3)) == [1, 2, 2]
    topic = node.storage.topics.by_name["orders"]
    assert metadata.leaders["orders", 4] == node.cluster.leader(topic, 4)


@pytest.mark.parametrize(
    ("node_ids", "text"),
    [
        ([2], "This server chooses the broker of each partition itself."),
        ([], "The manual partition assignment includes an empty replica list."),
        ([2, 9, 7], "The manual partition assignment includes broker 7, but no such broker is registered."),
        ([3, 1, 3], "The manual partition assignment includes the broker 3 more than once."),
        ([9, 3, 3], "The manual partition assignment includes the broker 3 more than once."),
        ([3, 3, 0], "The manual partition assignment includes broker 0, but no such broker is registered."),
    ],
)
def test_assignments_are_to_brokers_of_the_cluster(
    tmp_path: Any, node_ids: Sequence[int], text: str | None
) -> None:
    """Of several mistakes the one with the smallest id is told, as Kafka looks at them in order."""
    node = Node(tmp_path, endpoints=THREE)
    assert run_at_once(node.cluster.assignment_problem_in_slices(node_ids)) == text
    wanted = {
        "name": "t", "num_partitions": -1, "replication_factor": -1, "configs": [],
        "assignments": [{"partition_index": 0, "broker_ids": list(node_ids)}],
    }  # fmt: skip
    (result,) = node.call(CREATE_TOPICS, 7, {"topics": [wanted], "timeout_ms": 1, "validate_only": True})[
        "topics"
    ]
    assert result["error_message"] == text
