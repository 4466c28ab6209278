"""Tests of creating, growing and deleting topics in slices, of repeated names and of what happens at the same time."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms, whole
from tests.unit.storage.logs import append, batch
from tests.unit.storage.positions import commit, put, stored_offsets

from tidegate.server.requests.handler import Answer
from tidegate.storage.groups.committed_offsets import CommittedOffset
from tidegate.wire import encode_request

METADATA, CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 3, 19, 20, 37
ZERO_ID = "00000000-0000-0000-0000-000000000000"
TAKEN_ID = "The provided topic name maps to an ID that was already supplied."


def topic(name: str, partitions: int = 1) -> dict[str, Any]:
    """Return a topic to create."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


def creation(*topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    """Return a CreateTopics request."""
    return {"topics": list(topics), "timeout_ms": 1000, "validate_only": validate_only}


def growth(*counts: tuple[str, int]) -> dict[str, Any]:
    """Return a CreatePartitions request."""
    topics = [{"name": name, "count": count, "assignments": None} for name, count in counts]
    return {"topics": topics, "timeout_ms": 1000, "validate_only": False}


def deletion(*names: str) -> dict[str, Any]:
    """Return a DeleteTopics request."""
    topics = [{"name": name, "topic_id": ZERO_ID} for name in names]
    return {"topics": topics, "topic_names": list(names), "timeout_ms": 1000}


def work(node: Node, api_key: int, version: int, message: dict[str, Any]) -> Any:
    """Begin a request."""
    return node.begin(memoryview(encode_request(api_key, version, 7, "tester", message)[4:]))


def codes(api_key: int, version: int, answer: Any, field: str) -> list[Any]:
    """Return name, error code and text of each part of an answer."""
    assert isinstance(answer, Answer)
    return [
        (part["name"], part["error_code"], part["error_message"])
        for part in decoded(api_key, version, answer)[field]
    ]


def test_repeated_names_fail_once(node: Node) -> None:
    """Neither created, charged nor counted against the partitions of a request, as Kafka 4.3.1 answers."""
    message = creation(topic("a"), topic("b"), topic("a", 9000), topic("a", 9000))
    found = codes(CREATE_TOPICS, 7, whole(work(node, CREATE_TOPICS, 7, message)), "topics")
    assert sorted(found) == [("a", 42, "Duplicate topic name."), ("b", 0, None)]
    assert node.permits.charged == [1]
    grown = whole(work(node, CREATE_PARTITIONS, 3, growth(("b", 4), ("u", 1), ("b", 5), ("u", 2))))
    assert sorted(codes(CREATE_PARTITIONS, 3, grown, "results")) == [
        ("b", 42, "Duplicate topic name."),
        ("u", 42, "Duplicate topic name."),
    ]
    for version in (5, 6):
        deleted = whole(work(node, DELETE_TOPICS, version, deletion("b", "u", "b", "u")))
        assert sorted(codes(DELETE_TOPICS, version, deleted, "responses")) == [
            ("b", 42, "Duplicate topic name."),
            ("u", 42, "Duplicate topic name."),
        ]
    assert list(node.storage.topics.by_name) == ["b"]


def test_topic_named_and_given_by_id_is_not_deleted(node: Node) -> None:
    """One answer where the id was given once, two where it was repeated, as Kafka 4.3.1 answers."""
    topic_id = node.create("orders")
    by_name, by_id = {"name": "orders", "topic_id": ZERO_ID}, {"name": None, "topic_id": topic_id}
    for topics, expected in (
        ([by_name, by_id], [("orders", 42, TAKEN_ID)]),
        ([by_name, by_id, by_id], [(None, 42, "Duplicate topic id."), ("orders", 42, TAKEN_ID)]),
    ):
        answer = whole(work(node, DELETE_TOPICS, 6, {"topics": topics, "timeout_ms": 1000}))
        assert codes(DELETE_TOPICS, 6, answer, "responses") == expected
    assert list(node.storage.topics.by_name) == ["orders"]


def test_name_is_taken_while_a_topic_is_created(node: Node) -> None:
    """The topic is not there before it is complete, and a second of its name is error 36 already."""
    first = work(node, CREATE_TOPICS, 7, creation(topic("orders", 50)))
    for _ in range(20):
        next(first)
    assert node.storage.topics.by_name == {}
    assert node.storage.topics.bound.free == 4000 - 50
    second = codes(
        CREATE_TOPICS, 7, whole(work(node, CREATE_TOPICS, 7, creation(topic("orders", 2)))), "topics"
    )
    assert second == [("orders", 36, "Topic 'orders' already exists.")]
    described = whole(
        work(
            node,
            METADATA,
            9,
            {
                "topics": [{"name": "orders", "topic_id": ZERO_ID}],
                "allow_auto_topic_creation": True,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
    )
    assert decoded(METADATA, 9, described)["topics"][0]["error_code"] == 3
    assert codes(CREATE_TOPICS, 7, whole(first), "topics") == [("orders", 0, None)]
    assert len(node.storage.topics.by_name["orders"].logs) == 50
    assert node.storage.topics.bound.free == 4000 - 50


def test_creation_that_is_broken_off_leaves_nothing(node: Node, tmp_path: Path) -> None:
    """Work that is closed takes back what it has done, and the name is free again."""
    first = work(node, CREATE_TOPICS, 7, creation(topic("orders", 50)))
    for _ in range(20):
        next(first)
    first.close()
    node.round()
    assert list((tmp_path / "data").glob("orders-*")) == []
    assert node.storage.topics.bound.free == 4000
    assert node.create("orders", 2)


def test_what_a_crash_ends_is_completed(node: Node, tmp_path: Path) -> None:
    """A topic being created or grown has all of its partitions after the next start, one being deleted none."""
    node.create("grown", 2)
    node.create("deleted", 20)
    under_way = [
        work(node, CREATE_TOPICS, 7, creation(topic("created", 50))),
        work(node, CREATE_PARTITIONS, 3, growth(("grown", 40))),
        work(node, DELETE_TOPICS, 6, deletion("deleted")),
    ]
    for one in under_way:
        for _ in range(20):
            next(one)
    shutil.copytree(tmp_path / "data", tmp_path / "crashed")
    again = Node(tmp_path / "crashed")
    topics = again.storage.topics.by_name
    assert {name: len(found.logs) for name, found in topics.items()} == {"created": 50, "grown": 40}
    again.round()
    assert list((tmp_path / "crashed").glob("*deleted*")) == []
    again.storage.close()
    for one in under_way:
        whole(one)


def test_partitions_come_all_at_once_and_one_change_at_a_time(node: Node) -> None:
    """While a topic grows another growth and its deletion wait."""
    node.create("orders", 2)
    first = work(node, CREATE_PARTITIONS, 3, growth(("orders", 40)))
    for _ in range(20):
        next(first)
    assert len(node.storage.topics.by_name["orders"].logs) == 2
    second = work(node, CREATE_PARTITIONS, 3, growth(("orders", 40)))
    third = work(node, DELETE_TOPICS, 6, deletion("orders"))
    for _ in range(20):
        next(second)
        next(third)
    assert codes(CREATE_PARTITIONS, 3, whole(first), "results") == [("orders", 0, None)]
    assert codes(CREATE_PARTITIONS, 3, whole(second), "results") == [
        ("orders", 37, "Topic already has 40 partition(s).")
    ]
    assert codes(DELETE_TOPICS, 6, whole(third), "responses") == [("orders", 0, None)]
    assert node.storage.topics.bound.free == 4000


def test_deleted_topic_is_gone_at_once(node: Node) -> None:
    """From the first step on nothing is appended to any of its logs, and nobody finds it."""
    node.create("orders", 30)
    logs = list(node.storage.topics.by_name["orders"].logs)
    append(logs[29], batch())
    first = work(node, DELETE_TOPICS, 6, deletion("orders"))
    while node.storage.topics.by_name:
        next(first)
    assert all(log.deleted for log in logs)
    assert node.storage.topics.is_taken("orders")
    whole(first)
    assert not node.storage.topics.is_taken("orders")


@pytest.mark.alone
def test_offsets_of_a_deleted_topic_are_forgotten_in_slices(node: Node) -> None:
    """20,000 positions in a topic go with it without a long step, others stay."""
    node.create("orders")
    node.create("others")
    for name in ("orders", "others"):
        positions = [
            CommittedOffset(
                group_id=f"g{number}",
                topic=name,
                partition=0,
                offset=1,
                leader_epoch=0,
                metadata="",
                commit_ms=1,
            )
            for number in range(20_000 if name == "orders" else 1)
        ]
        node.storage.store.groups.apply([commit(at) for at in positions])
        put(node.storage.offsets, positions)
    _, longest_ms = longest_step_ms(lambda: work(node, DELETE_TOPICS, 6, deletion("orders")), times=1)
    assert longest_ms < 20.0  # once only, so that the bar is what nothing may exceed
    assert [at.topic for at in stored_offsets(node.storage.store, "g0")] == ["others"]
    assert not stored_offsets(node.storage.store, "g19999")
    assert [at.topic for page in node.storage.offsets.pages("g0") for at in page] == ["others"]
    assert "g19999" not in node.storage.offsets


@pytest.mark.alone
def test_large_topics_take_no_long_step(node: Node) -> None:
    """3,000 partitions are created, doubled in part and deleted without a long step."""
    for api_key, version, message in (
        (CREATE_TOPICS, 7, creation(topic("orders", 1000))),
        (CREATE_PARTITIONS, 3, growth(("orders", 2000))),
        (DELETE_TOPICS, 6, deletion("orders")),
    ):
        steps: list[float] = []
        for attempt in range(3):
            renamed = {**message, "topics": [{**message["topics"][0], "name": f"orders{attempt}"}]}
            _, longest_ms = longest_step_ms(
                lambda request=renamed, key=api_key, at=version: work(node, key, at, request), times=1
            )
            steps.append(longest_ms)
        assert min(steps) < MOST_STEP_MS
    assert node.storage.topics.by_name == {}


@pytest.mark.alone
def test_many_topics_are_checked_in_slices(node: Node) -> None:
    """10,000 topics in one request, all right or all the same, are validated without a long step."""
    for topics in ([topic(f"t{at}") for at in range(3000)], [topic("same")] * 10_000):
        message = creation(*topics, validate_only=True)
        answer, longest_ms = longest_step_ms(lambda request=message: work(node, CREATE_TOPICS, 7, request))
        assert longest_ms < MOST_STEP_MS
        assert isinstance(answer, Answer)
