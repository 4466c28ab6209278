"""Tests of OffsetCommit, OffsetFetch and FindCoordinator."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.storage.node import Node

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10


def commit(node: Node, version: int, offset: int, **fields: Any) -> int:
    """Commit an offset of group g in one partition of `orders`; return the error code."""
    topic = node.storage.topics.by_name["orders"]
    request = {
        "group_id": "g",
        "generation_id_or_member_epoch": fields.get("generation", -1),
        "member_id": fields.get("member_id", ""),
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [
            {
                "name": fields.get("topic", "orders"),
                "topic_id": fields.get("topic_id", topic.topic_id),
                "partitions": [
                    {
                        "partition_index": fields.get("index", 0),
                        "committed_offset": offset,
                        "committed_leader_epoch": 0,
                        "committed_metadata": fields.get("metadata", "m"),
                    }
                ],
            }
        ],
    }
    answer = node.call(OFFSET_COMMIT, version, request)
    return answer["topics"][0]["partitions"][0]["error_code"]


def fetch(node: Node, version: int, partitions: list[int] | None) -> dict[int, int]:
    """Return the committed offsets of group g in `orders` by partition."""
    topic = node.storage.topics.by_name["orders"]
    part = {"name": "orders", "topic_id": topic.topic_id, "partition_indexes": partitions}
    topics = None if partitions is None else [part]
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}
    answer = node.call(OFFSET_FETCH, version, {**group, "groups": [group], "require_stable": False})
    found = answer["topics"] if version < 8 else answer["groups"][0]["topics"]
    return {
        part["partition_index"]: part["committed_offset"] for topic in found for part in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(node: Node, version: int) -> None:
    """A position is kept and found again."""
    node.create("orders", 2)
    assert commit(node, version, 7) == 0
    assert fetch(node, 5, [0, 1, 9]) == {0: 7, 1: -1, 9: -1}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_in_every_version(node: Node, version: int) -> None:
    """Named partitions are answered in every version, all of the group's from 2 on."""
    node.create("orders", 2)
    commit(node, 8, 7, index=1)
    assert fetch(node, version, [0, 1]) == {0: -1, 1: 7}
    if version >= 2:
        assert fetch(node, version, None) == {1: 7}


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    """Committed offsets are on disk when the commit is answered."""
    node = Node(tmp_path)
    node.create("orders")
    commit(node, 8, 7)
    node.storage.close()
    again = Node(tmp_path)
    assert fetch(again, 8, [0]) == {0: 7}
    again.storage.close()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "absent"}, 3),
        ({"index": 4}, 3),
        ({"metadata": "x" * 4097}, 12),
        ({"generation": 3, "member_id": "x"}, 22),
    ],
)
def test_commits_that_are_refused(node: Node, fields: dict[str, Any], code: int) -> None:
    """Refused commits keep nothing."""
    node.create("orders")
    assert commit(node, 8, 7, **fields) == code
    assert fetch(node, 8, None) == {}


def test_member_of_a_known_group_is_unknown(node: Node) -> None:
    """Nobody is a member: error 25 in a group with offsets, as on Apache Kafka."""
    node.create("orders")
    commit(node, 8, 7)
    assert commit(node, 8, 8, generation=3, member_id="x") == 25


def test_unknown_topic_id(node: Node) -> None:
    """From version 10 on topics have ids."""
    node.create("orders")
    assert commit(node, 10, 7, topic_id="11111111-2222-3333-4444-555555555555") == 100


@pytest.mark.parametrize("version", range(7))
def test_this_node_coordinates_groups(node: Node, version: int) -> None:
    """Every version names this node for a group; transactions are refused for good from 1 on."""
    for kind, code in ((0, 0), (1, 53), (9, 42))[: 3 if version else 1]:
        request = {"key": "g", "key_type": kind, "coordinator_keys": ["g"]}
        answer = node.call(FIND_COORDINATOR, version, request)
        found = answer if version < 4 else answer["coordinators"][0]
        assert (found["error_code"], found["node_id"]) == (code, 1 if code == 0 else -1)
