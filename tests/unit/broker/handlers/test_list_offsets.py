"""Tests of the ListOffsets handler."""

from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.storage.logs import NOW_MS, append, batch, batch_of, timed_batch

from tidegate.server.requests.handler import Wait
from tidegate.wire import encode_request

LIST_OFFSETS = 2


def ask(
    node: Node, version: int, time_ms: int, *, topic: str = "orders", index: int = 0, epoch: int = -1
) -> Any:
    """Return (error code, time, offset) for one partition."""
    part = {"partition_index": index, "current_leader_epoch": epoch, "timestamp": time_ms}
    request = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [{"name": topic, "partitions": [part]}],
        "timeout_ms": 1000,
    }
    (answer,) = node.call(LIST_OFFSETS, version, request)["topics"][0]["partitions"]
    return answer["error_code"], answer["timestamp"], answer["offset"]


@pytest.fixture
def filled(node: Node) -> Node:
    """Return a node with records at three times."""
    node.create("orders")
    for delta in (0, 20, 10):
        append(node.log("orders"), batch(2, time_ms=NOW_MS + delta))
    return node


@pytest.mark.parametrize("version", range(1, 12))
def test_ends_are_answered_in_every_version(filled: Node, version: int) -> None:
    """-1 is the end, -2 the start."""
    assert ask(filled, version, -1) == (0, -1, 6)
    assert ask(filled, version, -2) == (0, -1, 0)


@pytest.mark.parametrize(
    ("time_ms", "since", "expected"),
    [
        (-3, 7, (0, NOW_MS + 20, 2)),
        (-4, 8, (0, -1, 0)),
        (-5, 9, (0, -1, -1)),
        (-6, 11, (0, -1, -1)),
        (-7, 12, (0, -1, -1)),
    ],
)
def test_places_exist_from_their_version_on(filled: Node, time_ms: int, since: int, expected: Any) -> None:
    """Before its version a place is error 35."""
    for version in range(1, 12):
        assert ask(filled, version, time_ms) == (expected if version >= since else (35, -1, -1))


@pytest.mark.parametrize("topic", ["orders", "absent"])
def test_unknown_isolation_level_is_an_unknown_error(filled: Node, topic: str) -> None:
    """Kafka stumbles over it before it looks at any partition: error -1 for each."""
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    for level, code in ((2, -1), (-1, -1), (1, 0 if topic == "orders" else 3)):
        request = {
            "replica_id": -1,
            "isolation_level": level,
            "topics": [{"name": topic, "partitions": [part]}],
        }
        (answer,) = filled.call(LIST_OFFSETS, 5, request)["topics"][0]["partitions"]
        assert answer["error_code"] == code


def test_unknown_isolation_level_is_answered_as_it_was_asked(filled: Node) -> None:
    """Kafka's answer to a request that failed names each partition as often as the request does."""
    parts = [{"partition_index": index, "current_leader_epoch": -1, "timestamp": -1} for index in (0, 0, 7)]
    topics = [{"name": "orders", "partitions": some} for some in (parts, [], parts[:1])]
    answer = filled.call(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": 2, "topics": topics})
    assert [
        (topic["name"], [(part["partition_index"], part["error_code"]) for part in topic["partitions"]])
        for topic in answer["topics"]
    ] == [("orders", [(0, -1), (0, -1), (7, -1)]), ("orders", []), ("orders", [(0, -1)])]


def test_times_are_looked_up(filled: Node) -> None:
    """The first record not older than the time, nothing past the last one."""
    assert ask(filled, 5, NOW_MS - 1) == (0, NOW_MS, 0)
    assert ask(filled, 5, NOW_MS + 1) == (0, NOW_MS + 20, 2)
    assert ask(filled, 5, NOW_MS + 21) == (0, -1, -1)


def test_errors(filled: Node) -> None:
    """Unknown partitions, epochs ahead of ours and below it: only -1 is none, as on Apache Kafka."""
    assert ask(filled, 5, -1, index=3) == (3, -1, -1)
    assert ask(filled, 5, -1, topic="absent") == (3, -1, -1)
    assert ask(filled, 5, -1, epoch=1) == (75, -1, -1)
    assert ask(filled, 5, -1, epoch=-2) == (74, -1, -1)


def test_empty_log(node: Node) -> None:
    """Without records start and end are the same and no time is found."""
    node.create("orders")
    assert [ask(node, 7, time_ms) for time_ms in (-1, -2, -3, 0)] == [
        (0, -1, 0),
        (0, -1, 0),
        (0, -1, -1),
        (0, -1, -1),
    ]


def ask_all(node: Node, *topics: tuple[str, list[tuple[int, int]]]) -> list[Any]:
    """Return topics with (index, error code, offset) for several partitions, given as (index, time)."""
    request = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": index, "current_leader_epoch": -1, "timestamp": time_ms}
                    for index, time_ms in parts
                ],
            }
            for name, parts in topics
        ],
        "timeout_ms": 1000,
    }
    return [
        (
            topic["name"],
            [(part["partition_index"], part["error_code"], part["offset"]) for part in topic["partitions"]],
        )
        for topic in node.call(LIST_OFFSETS, 5, request)["topics"]
    ]


def test_partition_named_twice_is_refused_once(node: Node) -> None:
    """Error 42 after the other partitions, whether known or not, in one topic or in two, as Kafka 4.3.1 answers."""
    node.create("orders", 3)
    assert ask_all(node, ("orders", [(0, -1), (0, -1), (1, -1)])) == [("orders", [(1, 0, 0), (0, 42, -1)])]
    assert ask_all(node, ("orders", [(0, -1), (1, -1)]), ("orders", [(0, -1), (2, -1)])) == [
        ("orders", [(1, 0, 0), (2, 0, 0), (0, 42, -1)])
    ]
    assert ask_all(node, ("orders", [(9, -1), (9, -1)]), ("absent", [(0, -3), (0, -3)])) == [
        ("orders", [(9, 42, -1)]),
        ("absent", [(0, 42, -1)]),
    ]
    assert ask_all(node, ("orders", [(0, -1)]), ("absent", [(1, -1)]), ("orders", [(2, -1)])) == [
        ("orders", [(0, 0, 0), (2, 0, 0)]),
        ("absent", [(1, 3, -1)]),
    ]


def test_damaged_log_is_a_storage_error(node: Node) -> None:
    """Error 56 where the log's file does not hold what it should."""
    node.create("orders")
    append(node.log("orders"), batch())
    path = node.log("orders").segments[0].path
    path.write_bytes(bytes(path.stat().st_size))
    assert ask(node, 5, NOW_MS)[0] == 56


def test_compressed_batches_are_looked_into(node: Node) -> None:
    """Offset and time are those of the record; where there are no records error -1, and the partition stays."""
    node.create("orders")
    append(node.log("orders"), timed_batch([NOW_MS, NOW_MS + 9, NOW_MS + 5], codec=4))
    append(node.log("orders"), batch_of(b"nonsense", [NOW_MS + 20], codec=1))
    append(node.log("orders"), timed_batch([NOW_MS + 30, NOW_MS + 40], codec=3))
    assert ask(node, 5, NOW_MS + 1) == (0, NOW_MS + 9, 1)
    assert ask(node, 5, NOW_MS + 15) == (-1, -1, -1)
    assert ask(node, 5, NOW_MS + 31) == (0, NOW_MS + 40, 5)
    assert ask(node, 7, -3) == (0, NOW_MS + 40, 5)
    assert not node.log("orders").damaged


def test_a_lookup_waits_for_its_thread(node: Node) -> None:
    """The request waits for the thread rather than turning round; it goes on when the loop is told."""
    node.create("orders")
    append(node.log("orders"), timed_batch([NOW_MS, NOW_MS + 9], codec=4))
    part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": NOW_MS + 5}
    message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [part]}]}
    message["timeout_ms"] = 1000
    steps = list(node.begin(memoryview(encode_request(LIST_OFFSETS, 5, 7, "tester", message)[4:])))
    waits = [step for step in steps if isinstance(step, Wait)]
    assert waits[0].charged_ns > 0, "the thread's time is the request's"
