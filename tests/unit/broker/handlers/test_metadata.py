"""Tests of the Metadata handler."""

from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms

from tidegate import error_codes
from tidegate.broker.kept_answers import MAX_KEPT_ANSWERS
from tidegate.in_slices import run_at_once
from tidegate.wire import encode_request

METADATA = 3
ZERO_ID = "00000000-0000-0000-0000-000000000000"


def message(*names: str, create: bool = False, operations: bool = False) -> dict[str, Any]:
    """Return a request for topics by name."""
    return {
        "topics": [{"name": name, "topic_id": ZERO_ID} for name in names],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": operations,
        "include_topic_authorized_operations": operations,
    }


@pytest.mark.parametrize("version", range(14))
def test_topic_and_node_are_described(node: Node, version: int) -> None:
    """Every version names this node as broker and as the leader of each partition."""
    topic_id = node.create("orders", 2)
    answer = node.call(METADATA, version, message("orders"))
    (broker,) = answer["brokers"]
    assert (broker["node_id"], broker["host"], broker["port"]) == (1, "127.0.0.1", 9092)
    (topic,) = answer["topics"]
    assert (topic["error_code"], topic["name"]) == (0, "orders")
    assert [(part["partition_index"], part["leader_id"]) for part in topic["partitions"]] == [(0, 1), (1, 1)]
    assert version < 10 or topic["topic_id"] == topic_id


def test_advertised_address_wins(tmp_path: Any) -> None:
    """Clients are told what was configured, not what they came in by."""
    node = Node(tmp_path, endpoints={1: {"PLAINTEXT": ("broker.example", 19092)}})
    (broker,) = node.call(METADATA, 9, message())["brokers"]
    assert (broker["host"], broker["port"]) == ("broker.example", 19092)
    node.storage.close()


def test_all_and_none(node: Node) -> None:
    """Empty is all in version 0 and none later; null is all from version 1 on."""
    node.create("orders")
    node.create("other")

    def names(version: int, topics: list[Any] | None) -> list[str]:
        answer = node.call(METADATA, version, {**message(), "topics": topics})
        return sorted(topic["name"] for topic in answer["topics"])

    assert names(0, []) == names(1, None) == names(12, None) == ["orders", "other"]
    assert names(1, []) == names(12, []) == []


def test_topic_by_id(node: Node) -> None:
    """From 12 on a topic may be asked for by its id; an unknown one is error 100."""
    topic_id = node.create("orders")
    for wanted, name, code in ((topic_id, "orders", 0), ("11111111-2222-3333-4444-555555555555", None, 100)):
        request = {**message(), "topics": [{"name": None, "topic_id": wanted}]}
        (topic,) = node.call(METADATA, 12, request)["topics"]
        assert (topic["error_code"], topic["name"], topic["topic_id"]) == (code, name, wanted)


NO_ID = "00000000-0000-0000-0000-000000000000"
UNKNOWN_ID = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize(("name", "topic_id"), [(None, NO_ID), (None, UNKNOWN_ID), ("orders", UNKNOWN_ID)])
def test_ids_are_refused_before_they_are_served(
    node: Node, version: int, name: str | None, topic_id: str
) -> None:
    """Versions 10 and 11 have the field and may not use it: error 42 for all topics, and no broker, as in Kafka."""
    node.create("orders")
    topics = [{"name": "orders", "topic_id": NO_ID}, {"name": name, "topic_id": topic_id}]
    answer = node.call(METADATA, version, {**message(), "topics": topics})
    refused = {
        "error_code": 42, "is_internal": False, "partitions": [], "topic_authorized_operations": -(2**31),
    }  # fmt: skip
    assert answer["topics"] == [
        {**refused, "name": "orders", "topic_id": NO_ID},
        {**refused, "name": name or "", "topic_id": topic_id},
    ]
    assert (answer["brokers"], answer["cluster_id"], answer["controller_id"]) == ([], None, -1)
    assert answer.get("cluster_authorized_operations", -(2**31)) == -(2**31)


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_without_name_and_id_is_an_unknown_error(node: Node, version: int) -> None:
    """From version 12 on Kafka stumbles over it: error -1, and no broker."""
    answer = node.call(METADATA, version, {**message(), "topics": [{"name": None, "topic_id": NO_ID}]})
    (topic,) = answer["topics"]
    assert (topic["error_code"], topic["name"], answer.get("error_code", -1)) == (-1, "", -1)
    assert (answer["brokers"], answer["cluster_id"], answer["controller_id"]) == ([], None, -1)


@pytest.mark.parametrize("version", [12, 13])
def test_names_beside_ids_say_nothing(node: Node, version: int) -> None:
    """An id goes before the name beside it, and topics without one are left out where others have one."""
    topic_id = node.create("orders")
    node.create("other")
    topics = [
        {"name": "other", "topic_id": NO_ID},
        {"name": "other", "topic_id": topic_id},
        {"name": "orders", "topic_id": UNKNOWN_ID},
    ]
    found = node.call(METADATA, version, {**message(), "topics": topics})["topics"]
    assert {(topic["error_code"], topic["name"], topic["topic_id"]) for topic in found} == {
        (0, "orders", topic_id),
        (100, None, UNKNOWN_ID),
    }
    assert len(found) == 2


def test_absent_topic_is_created_for_the_next_time(node: Node) -> None:
    """The answer is error 3, and the topic is there when the client asks again; it costs its permits (B§5.5)."""
    codes = [node.call(METADATA, 9, message("new", create=True))["topics"][0]["error_code"] for _ in range(2)]
    assert codes == [error_codes.UNKNOWN_TOPIC_OR_PARTITION, 0]
    assert node.permits.charged == [1]


def test_absent_topic_is_not_created_where_nobody_wants_it(node: Node) -> None:
    """Neither against the client's word, nor without permits, nor under a bad name."""
    node.call(METADATA, 9, message("new"))
    node.permits.mutations = -1
    node.call(METADATA, 9, message("new", create=True))
    node.permits.mutations = 5
    (topic,) = node.call(METADATA, 9, message("bad name", create=True))["topics"]
    assert topic["error_code"] == error_codes.INVALID_TOPIC_EXCEPTION
    assert node.storage.topics.by_name == {}


def test_automatic_creation_can_be_switched_off(tmp_path: Any) -> None:
    """With `auto.create.topics.enable=false` nothing is created."""
    node = Node(tmp_path, auto_create_topics_enable=False)
    node.call(METADATA, 9, message("new", create=True))
    assert node.storage.topics.by_name == {}
    node.storage.close()


def test_operations_only_when_asked(node: Node) -> None:
    """The bit sets are there when the client asks for them."""
    node.create("orders")
    for asked, of_topic, of_cluster in ((True, 3576, 8096), (False, -(2**31), -(2**31))):
        answer = node.call(METADATA, 8, message("orders", operations=asked))
        assert answer["topics"][0]["topic_authorized_operations"] == of_topic
        assert answer["cluster_authorized_operations"] == of_cluster


def test_unknown_ids_have_no_operations(node: Node) -> None:
    """Kafka tells them of names that it does not know, and not of ids."""
    wanted = message("absent", operations=True)
    (by_name,) = node.call(METADATA, 12, wanted)["topics"]
    wanted["topics"] = [{"topic_id": "11111111-2222-3333-4444-555555555555", "name": None}]
    (by_id,) = node.call(METADATA, 12, wanted)["topics"]
    assert (by_name["topic_authorized_operations"], by_id["topic_authorized_operations"]) == (3576, -(2**31))


def test_kept_answer_is_never_stale(node: Node) -> None:
    """The answer to the same question changes with the topics."""
    node.create("orders")
    counts = []
    for count in (1, 3):
        if count > 1:
            run_at_once(
                node.storage.topics.add_partitions_in_slices(node.storage.topics.by_name["orders"], count)
            )
        for _ in range(2):
            counts.append(len(node.call(METADATA, 9, message("orders"))["topics"][0]["partitions"]))
    assert counts == [1, 1, 3, 3]


def test_kept_answers_are_bounded(node: Node) -> None:
    """Many different questions do not grow memory, and each has its own answer."""
    for at in range(2 * MAX_KEPT_ANSWERS):
        node.create(f"t{at}")
    for at in range(2 * MAX_KEPT_ANSWERS):
        assert node.call(METADATA, 9, message(f"t{at}"))["topics"][0]["name"] == f"t{at}"


def told(node: Node, version: int, *topics: tuple[str | None, str], create: bool = False) -> list[Any]:
    """Return error code, name and id of the topics of an answer, asked for by (name, id)."""
    request = {**message(create=create), "topics": [{"name": name, "topic_id": key} for name, key in topics]}
    answer = node.call(METADATA, version, request)
    return [(topic["error_code"], topic["name"], topic.get("topic_id")) for topic in answer["topics"]]


def test_topic_named_often_is_answered_once(node: Node) -> None:
    """Each topic once, those that exist first, as Kafka 4.3.1 answers."""
    topic_id = node.create("orders")
    assert told(node, 12, *[("orders", ZERO_ID)] * 5) == [(0, "orders", topic_id)]
    names = ["zz", "orders", "aa", "zz", "b b", "b b"]
    assert told(node, 12, *((name, ZERO_ID) for name in names)) == [
        (0, "orders", topic_id),
        (3, "zz", ZERO_ID),
        (3, "aa", ZERO_ID),
        (17, "b b", ZERO_ID),
    ]
    assert told(node, 12, ("new", ZERO_ID), ("new", ZERO_ID), create=True) == [(3, "new", ZERO_ID)]
    assert node.permits.charged == [1]


def test_ids_named_often_are_answered_once(node: Node) -> None:
    """Each id once, unknown ones first; names without an id are not answered beside them, as in Kafka 4.3.1."""
    topic_id = node.create("orders")
    node.create("others")
    both = [(None, topic_id)] * 3 + [(None, UNKNOWN_ID)] * 3 + [("others", ZERO_ID)]
    assert told(node, 12, *both) == [(100, None, UNKNOWN_ID), (0, "orders", topic_id)]


def test_automatic_creation_checks_for_collisions(node: Node) -> None:
    """A name that differs from another only in a period or underscore is not created, and not charged."""
    node.create("a.b")
    assert told(node, 9, ("a_b", ZERO_ID), create=True)[0][0] == 3
    assert list(node.storage.topics.by_name) == ["a.b"]
    assert node.permits.charged == []


def test_names_of_one_request_may_collide(node: Node) -> None:
    """They are compared with the topics that were there before, as on Apache Kafka."""
    told(node, 9, ("a.b", ZERO_ID), ("a_b", ZERO_ID), create=True)
    assert list(node.storage.topics.by_name) == ["a.b", "a_b"]


@pytest.mark.alone
@pytest.mark.parametrize("names", [["orders"] * 50_000, [f"n{at}" for at in range(50_000)], [""] * 50_000])
def test_many_names_are_answered_in_slices(node: Node, names: list[str]) -> None:
    """50,000 names, the same one or all different: no step is long."""
    node.create("orders", 100)
    frame = memoryview(encode_request(METADATA, 9, 7, "tester", message(*names))[4:])
    answer, longest_ms = longest_step_ms(lambda: node.begin(frame))
    assert longest_ms < MOST_STEP_MS
    assert len(decoded(METADATA, 9, answer)["topics"]) == len(set(names))


@pytest.mark.alone
def test_all_topics_are_answered_in_slices(node: Node) -> None:
    """A node full of partitions is described without a long step."""
    for count, name in ((3000, "large"), *((1, f"t{at}") for at in range(200))):
        node.create(name, count)
    frame = memoryview(encode_request(METADATA, 9, 7, "tester", {**message(), "topics": None})[4:])

    def ask() -> Any:
        node.storage.topics.version += 1  # nothing is kept
        return node.begin(frame)

    answer, longest_ms = longest_step_ms(ask)
    assert longest_ms < MOST_STEP_MS
    assert len(decoded(METADATA, 9, answer)["topics"]) == 201
