"""Tests of InitProducerId, DescribeCluster and DescribeTopicPartitions."""

import pytest
from tests.unit.broker.node import Node

FIND_COORDINATOR, INIT_PRODUCER_ID, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS = 10, 22, 60, 75


def producer(
    node: Node, version: int, transactional_id: str | None, timeout_ms: int = 1000
) -> tuple[int, int, int]:
    """Return error code, producer id and epoch."""
    request = {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": timeout_ms,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    answer = node.call(INIT_PRODUCER_ID, version, request)
    return answer["error_code"], answer["producer_id"], answer["producer_epoch"]


@pytest.mark.parametrize("version", range(6))
def test_each_producer_has_its_number(node: Node, version: int) -> None:
    """Ids count up, epochs begin at 0."""
    assert [producer(node, version, None) for _ in range(2)] == [(0, 0, 0), (0, 1, 0)]


def test_transactions_are_refused_for_good(node: Node) -> None:
    """A transactional id is error 53; an empty one 42, too long a timeout 50, as on Apache Kafka."""
    assert producer(node, 4, "t") == (53, -1, -1)
    assert producer(node, 4, "") == (42, -1, -1)
    assert producer(node, 4, "t", 900_001) == (50, -1, -1)


def test_a_refused_transactional_id_is_logged(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """The application's own error says only that it is not authorized. The line names settings without transactions."""
    answer = node.call(FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": ["streams-1\n"]})
    assert [found["error_code"] for found in answer["coordinators"]] == [53]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("refused transactional id 'streams-1\\n' of a client from ")
    assert "hint: set processing.guarantee=at_least_once in Kafka Streams" in line


@pytest.mark.parametrize("version", range(3))
def test_cluster_is_this_node(node: Node, version: int) -> None:
    """One broker, which is the controller; controllers' endpoints are elsewhere, and there are no others."""
    request = {
        "include_cluster_authorized_operations": True,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
    }
    answer = node.call(DESCRIBE_CLUSTER, version, request)
    assert (answer["controller_id"], [broker["broker_id"] for broker in answer["brokers"]]) == (1, [1])
    assert (answer["cluster_id"], answer["cluster_authorized_operations"]) == (node.storage.cluster_id, 8096)
    if version:
        answer = node.call(DESCRIBE_CLUSTER, version, {**request, "endpoint_type": 2})
        assert (answer["error_code"], answer["brokers"]) == (114, [])
        answer = node.call(DESCRIBE_CLUSTER, version, {**request, "endpoint_type": 3})
        assert (answer["error_code"], answer["error_message"], answer["brokers"]) == (
            115,
            "Unsupported endpoint type 3",
            [],
        )


def test_partitions_come_page_by_page(node: Node) -> None:
    """The cursor leads through all partitions of all topics exactly once."""
    for name, partitions in (("a", 3), ("b", 1), ("c", 4)):
        node.create(name, partitions)
    seen, cursor = [], None
    for _ in range(10):
        request = {"topics": [], "response_partition_limit": 2, "cursor": cursor}
        answer = node.call(DESCRIBE_TOPIC_PARTITIONS, 0, request)
        page = [
            (topic["name"], part["partition_index"])
            for topic in answer["topics"]
            for part in topic["partitions"]
        ]
        assert len(page) <= 2
        seen += page
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("c", 3)]


def test_unknown_topics_are_described_as_such(node: Node) -> None:
    """Error 3 for a name that could be, 17 for one that could not."""
    request = {
        "topics": [{"name": "absent"}, {"name": "bad name"}],
        "response_partition_limit": 10,
        "cursor": None,
    }
    topics = node.call(DESCRIBE_TOPIC_PARTITIONS, 0, request)["topics"]
    assert [(topic["name"], topic["error_code"]) for topic in topics] == [("absent", 3), ("bad name", 17)]


@pytest.mark.parametrize(
    ("producer_id", "epoch", "code"),
    [
        (-1, -1, 0),
        (5, 5, 0),
        (0, 0, 0),
        (-5, -5, 0),
        (5, -2, 0),
        (5, -1, 42),
        (-1, 5, 42),
        (-2, -1, 42),
        (-1, -2, 42),
    ],
)
def test_producer_id_without_epoch_is_refused(node: Node, producer_id: int, epoch: int, code: int) -> None:
    """One of the two alone is error 42, with a transactional id and without, as Kafka 4.3.1 answers."""
    for transactional_id in (None, "t"):
        request = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": 1000,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }
        answer = node.call(22, 4, request)
        assert answer["error_code"] == (code or (53 if transactional_id else 0))
        assert node.call(22, 2, request)["error_code"] == (53 if transactional_id else 0)
