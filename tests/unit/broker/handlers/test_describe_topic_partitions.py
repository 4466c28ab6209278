"""Tests of the DescribeTopicPartitions handler."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms

from tidegate.wire import encode_request

DESCRIBE_TOPIC_PARTITIONS = 75


def message(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> dict[str, Any]:
    """Return a request for topics."""
    return {
        "topics": [{"name": name} for name in names],
        "response_partition_limit": limit,
        "cursor": cursor and {"topic_name": cursor[0], "partition_index": cursor[1]},
    }


def told(node: Node, *names: str, **options: Any) -> list[Any]:
    """Return name, error code and partitions of each topic of an answer."""
    answer = node.call(DESCRIBE_TOPIC_PARTITIONS, 0, message(*names, **options))
    return [
        (topic["name"], topic["error_code"], [part["partition_index"] for part in topic["partitions"]])
        for topic in answer["topics"]
    ]


def test_topic_named_often_is_answered_once(node: Node) -> None:
    """In the order of the names, as Kafka 4.3.1 answers."""
    node.create("orders", 3)
    expected = [("a b", 17, []), ("orders", 0, [0, 1, 2]), ("u", 3, [])]
    assert told(node, "orders", "u", "orders", "u", "a b") == expected


def test_an_answer_has_no_more_partitions_than_the_node_says(tmp_path: Path) -> None:
    """`max.request.partition.size.limit`, whatever the client takes; its cursor says where to go on."""
    node = Node(tmp_path, max_request_partition_size_limit=2)
    node.create("orders", 3)
    assert told(node, "orders") == [("orders", 0, [0, 1])]
    assert told(node, "orders", cursor=("orders", 2)) == [("orders", 0, [2])]
    node.storage.close()


def test_cursors_that_cannot_be(node: Node) -> None:
    """Of a topic that is not asked for, or a negative partition: error 42 for every topic, as in Kafka 4.3.1."""
    node.create("orders", 3)
    assert told(node, "orders", cursor=("zzz", 0)) == [("orders", 42, [])]
    assert told(node, "orders", cursor=("orders", -5)) == [("orders", 42, [])]
    assert told(node, cursor=("orders", -5)) == []
    assert told(node, "orders", cursor=("orders", 50)) == [("orders", 0, [])]
    assert told(node, cursor=("nobody", 0)) == [("orders", 0, [0, 1, 2])]


def test_empty_name_needs_a_cursor(node: Node) -> None:
    """Kafka 4.3.1 fails over one without a cursor: error -1 for every topic."""
    node.create("orders", 3)
    assert told(node, "orders", "") == [("orders", -1, []), ("", -1, [])]
    assert told(node, "orders", "", cursor=("", 0)) == [("", 17, []), ("orders", 0, [0, 1, 2])]


def test_cursor_beyond_all_numbers(node: Node) -> None:
    """Kafka's sum of the cursor's partition and the limit overflows, and so does the next cursor."""
    node.create("orders", 3)
    answer = node.call(DESCRIBE_TOPIC_PARTITIONS, 0, message("orders", cursor=("orders", 2**31 - 1)))
    assert (answer["next_cursor"]["topic_name"], answer["next_cursor"]["partition_index"]) == (
        "orders",
        -2147481649,
    )
    assert answer["topics"][0]["partitions"] == []


def test_every_topic_is_told_of_a_wrong_cursor(node: Node) -> None:
    """However many there are."""
    names = [f"n{number}" for number in range(2500)]
    assert told(node, *names, cursor=("zzz", 0)) == [(name, 42, []) for name in names]


@pytest.mark.alone
def test_many_names_are_answered_in_slices(node: Node) -> None:
    """50,000 names that are not there: no step is long, and the answer is in order."""
    names = [f"n{at * 7919 % 50_000}" for at in range(50_000)]
    frame = memoryview(encode_request(DESCRIBE_TOPIC_PARTITIONS, 0, 7, "tester", message(*names))[4:])
    answer, longest_ms = longest_step_ms(lambda: node.begin(frame))
    assert longest_ms < MOST_STEP_MS
    topics = decoded(DESCRIBE_TOPIC_PARTITIONS, 0, answer)["topics"]
    assert [topic["name"] for topic in topics] == sorted(names)
