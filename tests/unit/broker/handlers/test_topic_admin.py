"""Tests of CreateTopics, CreatePartitions and DeleteTopics: charges, order, refusals. Texts: the wire vectors."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.storage.logs import append, batch

from tidegate import error_codes
from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, METADATA
from tidegate.broker.new_configs import checked_configs_in_slices
from tidegate.broker.topic_names import INTERNAL_TOPICS
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Answer, Charge
from tidegate.storage.config import MAX_PARTITIONS

ZERO_ID = "00000000-0000-0000-0000-000000000000"


def creation(*topics: tuple[str, int], validate_only: bool = False, **fields: Any) -> dict[str, Any]:
    """Return a CreateTopics request for (name, partitions)."""
    return {
        "topics": [
            {
                "name": name,
                "num_partitions": partitions,
                "replication_factor": fields.get("replicas", 1),
                "assignments": fields.get("assignments", []),
                "configs": fields.get("configs", []),
            }
            for name, partitions in topics
        ],
        "timeout_ms": 1000,
        "validate_only": validate_only,
    }


def growth(*topics: tuple[str, int], validate_only: bool = False, assignments: Any = None) -> dict[str, Any]:
    """Return a CreatePartitions request for (name, count)."""
    return {
        "topics": [{"name": name, "count": count, "assignments": assignments} for name, count in topics],
        "timeout_ms": 1000,
        "validate_only": validate_only,
    }


def deletion(*names: str) -> dict[str, Any]:
    """Return a DeleteTopics request by name, for every version."""
    return {
        "topic_names": list(names),
        "topics": [{"name": name, "topic_id": ZERO_ID} for name in names],
        "timeout_ms": 1000,
    }


def codes(answer: dict[str, Any]) -> dict[str, int]:
    """Return error codes by topic name."""
    parts = next(answer[key] for key in ("topics", "results", "responses") if key in answer)
    return {part["name"]: part["error_code"] for part in parts}


@pytest.mark.parametrize("version", range(2, 8))
def test_topics_are_created(node: Node, version: int) -> None:
    """Every version creates topics and charges one permit per partition, topic by topic."""
    assert codes(node.call(CREATE_TOPICS, version, creation(("a", 2), ("b", 3)))) == {"a": 0, "b": 0}
    assert node.permits.charged == [2, 3]
    assert [len(topic.logs) for topic in node.storage.topics] == [2, 3]


def test_mutations_are_charged_as_such(node: Node) -> None:
    """All three answers go to the controller mutation quota."""
    node.create("a")
    for key, version, request in (
        (CREATE_TOPICS, 7, creation(("b", 1))),
        (CREATE_PARTITIONS, 3, growth(("a", 2))),
        (DELETE_TOPICS, 6, deletion("a")),
    ):
        answer = node.ask(key, version, request)
        assert isinstance(answer, Answer)
        assert answer.charge is Charge.MUTATION


def test_topics_without_permits_are_refused_one_by_one(node: Node) -> None:
    """A topic is admitted whole while nothing is owed; later ones are error 89 without a text (B§5.3, 5.4)."""
    node.permits.mutations = 5
    answer = node.call(CREATE_TOPICS, 7, creation(("a", 3), ("b", 9), ("c", 1), ("a b", 1)))
    assert codes(answer) == {"a": 0, "b": 0, "c": error_codes.THROTTLING_QUOTA_EXCEEDED, "a b": 17}
    refused = answer["topics"][2]
    assert (refused["error_message"], refused["topic_id"], refused["num_partitions"]) == (None, ZERO_ID, -1)
    assert "c" not in node.storage.topics.by_name


def test_failed_topics_are_free(node: Node) -> None:
    """What fails before it is charged costs nothing (B§5.3)."""
    node.create("a")
    node.create("c.d")
    for request in (
        creation(("a", 5)),
        creation(("bad/name", 5)),
        creation(("b", 5), ("b", 5)),
        creation(("b", 5), replicas=3),
        creation(("b", 0)),
        creation(("b", 5), configs=[{"name": "nope", "value": "1"}]),
        creation(("b", 10_001)),
        creation(("c_d", 1)),
    ):
        node.call(CREATE_TOPICS, 7, request)
    assert node.permits.charged == []


def test_validation_alone_is_free_and_creates_nothing(node: Node) -> None:
    """KIP-599 promises validate_only without charge."""
    node.create("a")
    assert codes(node.call(CREATE_TOPICS, 7, creation(("b", 3), validate_only=True))) == {"b": 0}
    assert codes(node.call(CREATE_PARTITIONS, 3, growth(("a", 3), validate_only=True))) == {"a": 0}
    assert node.permits.charged == []
    assert [len(topic.logs) for topic in node.storage.topics] == [1]


def test_validation_is_charged_like_kafka_on_request(tmp_path: Path) -> None:
    """With `tidegate.kafka.exact` validate_only costs what Kafka 4.3 takes for it."""
    node = Node(tmp_path, kafka_exact=True)
    node.create("a")
    node.call(CREATE_TOPICS, 7, creation(("b", 3), validate_only=True))
    node.call(CREATE_PARTITIONS, 3, growth(("a", 3), validate_only=True))
    assert node.permits.charged == [3, 2]
    node.storage.close()


def test_too_many_partitions_at_once(node: Node) -> None:
    """More than 10,000 in one request fail all of it, as on Apache Kafka."""
    answer = node.call(CREATE_TOPICS, 7, creation(("a", 1), ("b", 10_000)))
    assert codes(answer) == {"a": error_codes.POLICY_VIOLATION, "b": error_codes.POLICY_VIOLATION}
    assert answer["topics"][0]["error_message"] == "Excessively large number of partitions per request."


def test_names_that_would_collide_in_metrics(node: Node) -> None:
    """Dots and underscores count as the same, as on Apache Kafka."""
    node.create("a.b")
    answer = node.call(CREATE_TOPICS, 7, creation(("a_b", 1)))
    assert answer["topics"][0]["error_code"] == error_codes.INVALID_TOPIC_EXCEPTION
    assert answer["topics"][0]["error_message"] == "Topic 'a_b' collides with existing topic: a.b"


def test_names_of_one_request_may_collide(node: Node) -> None:
    """They are compared with the topics that were there before, as on Apache Kafka."""
    answer = node.call(CREATE_TOPICS, 7, creation(("a.b", 1), ("a_b", 1)))
    assert codes(answer) == {"a.b": 0, "a_b": 0}
    answer = node.call(CREATE_TOPICS, 7, creation(("a.b", 1), ("a.b_c", 1), ("a_b", 1), ("a_b.c", 1)))
    assert codes(answer) == {"a.b": 36, "a_b": 36, "a.b_c": 0, "a_b.c": 0}


def assigned(*partitions: tuple[int, list[int]]) -> list[dict[str, Any]]:
    """Return a manual assignment."""
    return [{"partition_index": index, "broker_ids": nodes} for index, nodes in partitions]


@pytest.mark.parametrize(
    ("assignments", "code", "text"),
    [
        (assigned((0, [1]), (1, [1])), 0, None),
        (
            assigned((0, [9])),
            39,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (assigned((0, [])), 39, "The manual partition assignment includes an empty replica list."),
        (assigned((0, [1, 1])), 39, "The manual partition assignment includes the broker 1 more than once."),
        (assigned((0, [1]), (2, [1])), 39, "partitions should be a consecutive 0-based integer sequence"),
        (assigned((0, [1]), (0, [1])), 39, "Found multiple manual partition assignments for partition 0"),
        (assigned((0, []), (0, [])), 39, "The manual partition assignment includes an empty replica list."),
    ],
)
def test_manual_assignments(node: Node, assignments: Any, code: int, text: str | None) -> None:
    """The only assignment there is puts every partition on this node."""
    request = creation(("a", -1), replicas=-1, assignments=assignments)
    (topic,) = node.call(CREATE_TOPICS, 7, request)["topics"]
    assert (topic["error_code"], topic["error_message"]) == (code, text)


def test_storage_failure_is_answered(node: Node) -> None:
    """A topic that cannot be made on disk is error 56, and the node goes on."""
    (node.storage.directory / "a-0").write_text("in the way")
    assert codes(node.call(CREATE_TOPICS, 7, creation(("a", 1), ("b", 1)))) == {"a": 56, "b": 0}


@pytest.mark.parametrize("version", range(4))
def test_partitions_are_added(node: Node, version: int) -> None:
    """Every version adds partitions and charges the added ones."""
    node.create("a", 2)
    assert codes(node.call(CREATE_PARTITIONS, version, growth(("a", 5)))) == {"a": 0}
    assert (node.permits.charged, len(node.storage.topics.by_name["a"].logs)) == ([3], 5)


def test_failed_assignment_has_cost_its_permits(node: Node) -> None:
    """CreatePartitions is charged before the assignment is looked at (B§5.3)."""
    node.create("a")
    request = growth(("a", 3), assignments=[{"broker_ids": [9]}, {"broker_ids": [9]}])
    assert codes(node.call(CREATE_PARTITIONS, 3, request)) == {"a": error_codes.INVALID_REPLICA_ASSIGNMENT}
    assert (node.permits.charged, len(node.storage.topics.by_name["a"].logs)) == ([2], 1)


def test_wrong_counts_are_free(node: Node) -> None:
    """Counts that are no increase, unknown and repeated topics cost nothing."""
    node.create("a", 3)
    node.create("b")
    request = growth(("a", 3), ("absent", 2), ("b", 2), ("b", 3))
    assert codes(node.call(CREATE_PARTITIONS, 3, request)) == {"a": 37, "absent": 3, "b": 42}
    node.call(CREATE_PARTITIONS, 3, growth(("b", 3), assignments=[{"broker_ids": [1]}]))
    node.call(CREATE_PARTITIONS, 3, growth(("b", 10_000)))
    assert node.permits.charged == []


def test_growth_without_permits_is_refused(node: Node) -> None:
    """Without permits a topic keeps its partitions: error 89 without a text."""
    node.create("a")
    node.permits.mutations = -1
    (result,) = node.call(CREATE_PARTITIONS, 3, growth(("a", 3)))["results"]
    assert (result["error_code"], result["error_message"]) == (89, None)


@pytest.mark.parametrize("version", range(1, 7))
def test_topics_are_deleted(node: Node, version: int) -> None:
    """Every version deletes by name and charges one permit per partition."""
    node.create("a", 2)
    node.create("b", 3)
    assert codes(node.call(DELETE_TOPICS, version, deletion("a", "absent", "b"))) == {
        "a": 0,
        "absent": 3,
        "b": 0,
    }
    assert node.permits.charged == [2, 3]
    assert node.storage.topics.by_name == {}


def test_deletion_by_id(node: Node) -> None:
    """Version 6 deletes by id and answers the name; naming both ways or none is error 42."""
    topic_id = node.create("a")

    def ask(name: str | None, topic_id: str) -> tuple[Any, ...]:
        request = {"topics": [{"name": name, "topic_id": topic_id}], "timeout_ms": 1000}
        (answer,) = node.call(DELETE_TOPICS, 6, request)["responses"]
        return answer["name"], answer["error_code"], answer["error_message"]

    assert ask("a", topic_id) == ("a", 42, "You may not specify both topic name and topic id.")
    assert ask(None, ZERO_ID) == (None, 42, "Neither topic name nor id were specified.")
    assert ask(None, topic_id) == ("a", 0, None)
    assert ask(None, topic_id) == (None, 100, "This server does not host this topic ID.")


def test_deletion_without_permits_is_refused(node: Node) -> None:
    """Without permits the topic stays: error 89 without a text."""
    node.create("a")
    node.permits.mutations = -1
    (answer,) = node.call(DELETE_TOPICS, 6, deletion("a"))["responses"]
    assert (answer["error_code"], answer["error_message"]) == (89, None)
    assert "a" in node.storage.topics.by_name


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ([("", "-1"), ("..", None), ("..", None)], "Null value not supported for topic configs: ..,.."),
        (
            [("nonsense", ""), ("empty-one", "-1"), ("empty-one", "-1")],
            "Unknown topic config name: empty-one",
        ),
        ([(".", "1"), ("a b", "1"), ("empty-one", "1")], "Unknown topic config name: a b"),
        ([("max.message.bytes", "delete"), ("one", "nonsense")], "Unknown topic config name: one"),
        (
            [("retention.ms", "x"), ("segment.bytes", "y")],
            "Invalid value y for configuration segment.bytes: Not a number of type INT",
        ),
        ([("retention.ms", "x"), ("retention.ms", "1"), ("nope", "1")], "Unknown topic config name: nope"),
    ],
)
def test_first_mistake_in_settings_is_that_of_kafka(
    node: Node, configs: list[tuple[str, str | None]], text: str
) -> None:
    """Missing values, then unknown names by Java's hash, then values as Kafka defines its settings. Seen on 4.3.1."""
    wanted = [{"name": name, "value": value} for name, value in configs]
    (topic,) = node.call(CREATE_TOPICS, 7, creation(("a", 1), configs=wanted))["topics"]
    assert (topic["error_code"], topic["error_message"]) == (error_codes.INVALID_CONFIG, text)


def test_twelve_settings_double_the_table() -> None:
    """`Properties` of twelve are visited as a hash map of thirteen: the order is what Java 17 prints."""
    names = [f"k{number * 7919}" for number in range(12)]

    def first(count: int) -> str:
        wanted = [{"name": name, "value": ""} for name in names[:count]]
        _, text = run_at_once(checked_configs_in_slices(wanted))
        return str(text).rpartition(" ")[2]

    assert (first(11), first(12)) == ("k31676", "k23757")


def test_settings_are_checked_in_slices() -> None:
    """20,000 unknown names are looked at in many steps."""
    wanted = [{"name": f"setting-{number}", "value": "1"} for number in range(20_000)]
    assert sum(1 for _ in checked_configs_in_slices(wanted)) > 20_000


def test_node_is_bounded(node: Node) -> None:
    """The number of partitions is limited, and the answer says by what."""
    (answer,) = node.call(CREATE_TOPICS, 7, creation(("many", MAX_PARTITIONS + 1)))["topics"]
    assert answer["error_code"] == error_codes.POLICY_VIOLATION
    assert answer["error_message"] == (
        f"This node may have at most {MAX_PARTITIONS} partitions (tidegate.max.partitions) and has 0."
    )
    assert node.permits.charged == []


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_a_timeout_that_is_over_fails_the_request_and_is_free(node: Node, timeout_ms: int) -> None:
    """Every topic gets error 7 as often as it is named; nothing is changed or charged."""
    node.create("orders")
    late = {"timeout_ms": timeout_ms}
    created = node.call(CREATE_TOPICS, 7, {**creation(("new", 3), ("orders", 1), ("x", 1), ("x", 1)), **late})
    assert [topic["error_code"] for topic in created["topics"]] == [error_codes.REQUEST_TIMED_OUT] * 4
    grown = node.call(CREATE_PARTITIONS, 3, {**growth(("orders", 5), ("absent", 2)), **late})
    deleted = node.call(DELETE_TOPICS, 6, {**deletion("orders", "absent"), **late})
    assert {*codes(grown).values(), *codes(deleted).values()} == {error_codes.REQUEST_TIMED_OUT}
    assert (node.permits.charged, list(node.storage.topics.by_name)) == ([], ["orders"])
    assert len(node.storage.topics.by_name["orders"].logs) == 1


def test_a_timeout_that_is_over_hides_no_mistake_of_the_form(node: Node) -> None:
    """Where no topic is left to decide about, as of repeated names, these are answered."""
    node.create("orders")
    created = node.call(CREATE_TOPICS, 7, {**creation(("x", 1), ("x", 1)), "timeout_ms": 0})
    grown = node.call(CREATE_PARTITIONS, 3, {**growth(("orders", 5), ("orders", 6)), "timeout_ms": 0})
    deleted = node.call(DELETE_TOPICS, 6, {**deletion("orders", "orders"), "timeout_ms": 0})
    for answer in (created, grown, deleted):
        assert list(codes(answer).values()) == [error_codes.INVALID_REQUEST]


def test_the_log_of_controllers_is_no_topic(node: Node) -> None:
    """`__cluster_metadata` cannot be created, and is not created by being asked about."""
    answer = node.call(CREATE_TOPICS, 7, creation(("__cluster_metadata", 1), ("orders", 1)))
    assert codes(answer) == {"orders": error_codes.NONE, "__cluster_metadata": error_codes.INVALID_REQUEST}
    asked = {
        "topics": [{"topic_id": ZERO_ID, "name": "__cluster_metadata"}],
        "allow_auto_topic_creation": True,
    }
    for _ in range(2):
        found = node.call(METADATA, 12, {**asked, "include_topic_authorized_operations": False})
        assert codes(found) == {"__cluster_metadata": error_codes.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_internal_topics_are_not_created_by_being_asked_about(node: Node, name: str) -> None:
    """Metadata names them internal and creates none (row L41); CreateTopics does."""
    asked = {"topics": [{"topic_id": ZERO_ID, "name": name}], "allow_auto_topic_creation": True}
    asked["include_topic_authorized_operations"] = False
    for _ in range(2):
        (found,) = node.call(METADATA, 12, asked)["topics"]
        assert (found["error_code"], found["is_internal"]) == (error_codes.UNKNOWN_TOPIC_OR_PARTITION, True)
    assert codes(node.call(CREATE_TOPICS, 7, creation((name, 1)))) == {name: error_codes.NONE}
    (found,) = node.call(METADATA, 12, asked)["topics"]
    assert (found["error_code"], found["is_internal"]) == (error_codes.NONE, True)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__cluster_metadata"])
def test_a_topic_of_an_earlier_version_with_such_a_name_stays(tmp_path: Path, name: str) -> None:
    """A data directory in which such a name is an ordinary topic opens; its records are read as before."""
    earlier = Node(tmp_path)
    earlier.create(name)
    append(earlier.log(name), batch(3))
    earlier.storage.close()
    node = Node(tmp_path)
    assert node.log(name).end_offset == 3
    assert codes(node.call(DELETE_TOPICS, 6, deletion(name))) == {name: error_codes.NONE}
    node.storage.close()
