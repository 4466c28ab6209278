"""Tests of settings that are changed by resource, through the handlers of both APIs."""

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms
from tests.unit.storage.logs import append, batch

from tidegate.api_keys import ALTER_CONFIGS, CREATE_TOPICS, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS
from tidegate.broker.config_alterations import MAX_VALUE_BYTES
from tidegate.broker.resource_rights import CLIENT_METRICS, GROUP, NODE, TOPIC
from tidegate.error_codes import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    INVALID_TOPIC_EXCEPTION,
    KAFKA_STORAGE_ERROR,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tidegate.server.settings.setting_changes import APPEND, DELETE, SET, SUBTRACT
from tidegate.storage.errors import StorageError
from tidegate.wire import encode_request

LIST = "follower.replication.throttled.replicas"
Outcome = tuple[int, str | None]


def alter(
    node: Node,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    name: str = "orders",
    validate_only: bool = False,
) -> Outcome:
    """Change settings by IncrementalAlterConfigs; return error and text."""
    configs = [{"name": key, "config_operation": how, "value": value} for key, how, value in changes]
    return ask(node, INCREMENTAL_ALTER_CONFIGS, 1, kind, name, configs, validate_only=validate_only)


def replace(node: Node, kind: int = TOPIC, name: str = "orders", **texts: str) -> Outcome:
    """Replace settings by AlterConfigs; return error and text."""
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in texts.items()]
    return ask(node, ALTER_CONFIGS, 2, kind, name, configs)


def ask(
    node: Node,
    api_key: int,
    version: int,
    kind: int,
    name: str,
    configs: list[dict[str, Any]],
    *,
    validate_only: bool = False,
) -> Outcome:
    """Return error and text of the answer for one resource."""
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    message = {"resources": [resource], "validate_only": validate_only}
    (answer,) = node.call(api_key, version, message)["responses"]
    return answer["error_code"], answer["error_message"]


def described(node: Node, key: str) -> tuple[str, int]:
    """Return value and source of a setting of `orders`."""
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configuration_keys": [key]}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    (config,) = node.call(DESCRIBE_CONFIGS, 4, message)["results"][0]["configs"]
    return config["value"], config["config_source"]


def test_settings_of_a_topic_are_in_force_at_once_and_kept(tmp_path: Path) -> None:
    """For the next append, also after a restart; a setting that goes is the node's again."""
    node = Node(tmp_path)
    node.create("orders", 3)
    append(node.log("orders", 2), batch())
    assert alter(node, ("max.message.bytes", SET, "60"), ("retention.ms", SET, "5")) == (NONE, None)
    assert described(node, "max.message.bytes") == ("60", 1)
    assert {log.settings.max_batch_bytes for log in node.storage.topics.by_name["orders"].logs} == {60}
    assert alter(node, ("retention.ms", DELETE, None)) == (NONE, None)
    assert described(node, "retention.ms") == ("604800000", 5)
    node.storage.close()
    node = Node(tmp_path)
    assert node.storage.topics.by_name["orders"].configs == {"max.message.bytes": "60"}
    assert node.log("orders").settings.max_message_bytes == 60
    node.storage.close()


def test_what_is_replaced_is_all_that_is_set(node: Node) -> None:
    """AlterConfigs gives everything else back to its default; without settings, everything."""
    node.create("orders", 1, retention_ms="5", segment_ms="7")
    assert replace(node, retention_ms="6") == (NONE, None)
    assert node.storage.topics.by_name["orders"].configs == {"retention.ms": "6"}
    assert replace(node) == (NONE, None)
    assert node.storage.topics.by_name["orders"].configs == {}


def test_flush_settings_change_for_records_that_are_there(node: Node) -> None:
    """Records that were not to be synced are, when a flush interval is set."""
    node.create("orders")
    append(node.log("orders"), batch())
    alter(node, ("flush.messages", SET, "1"))
    node.round()
    assert node.log("orders").recovery_point == 1


def test_lists_are_appended_to_and_subtracted_from(tmp_path: Path) -> None:
    """From the value in force, as Kafka does: what is there is not appended, of equal parts the first goes."""
    node = Node(tmp_path, kafka_exact=True)
    node.create("orders")
    assert alter(node, ("cleanup.policy", APPEND, "compact,delete")) == (NONE, None)
    assert described(node, "cleanup.policy") == ("delete,compact", 1)
    assert alter(node, ("cleanup.policy", SUBTRACT, "delete")) == (NONE, None)
    assert described(node, "cleanup.policy") == ("compact", 1)
    assert alter(node, (LIST, SET, "0:1,1:1,0:1"), ("retention.ms", SET, "5")) == (NONE, None)
    assert alter(node, (LIST, SUBTRACT, "0:1")) == (NONE, None)
    assert described(node, LIST)[0] == "1:1,0:1"
    text = "Can't APPEND to key retention.ms because its type is not LIST."
    assert alter(node, ("retention.ms", APPEND, "6")) == (INVALID_CONFIG, text)
    node.storage.close()


def test_of_several_settings_that_are_no_lists_the_first_in_kafkas_order_is_named(node: Node) -> None:
    """The order is that of a hash map; names too long to order them in a short step are taken as requested."""
    node.create("orders")
    others = [(f"unknown.{number}", SET, "1") for number in range(20)]
    for wanted, *changes in (
        ("", ("missing", SUBTRACT, "compact"), ("", SUBTRACT, "compact")),
        ("retention.ms", ("retention.ms", APPEND, "5"), ("retention.bytes", SUBTRACT, "5")),
        ("retention.ms", ("retention.bytes", SUBTRACT, "5"), ("retention.ms", SUBTRACT, "5")),
        ("retention.bytes", ("retention.ms", APPEND, "5"), ("retention.bytes", APPEND, "5"), *others),
        ("x" * 5001, ("x" * 5001, APPEND, "5"), ("", SUBTRACT, "5")),
    ):
        verb = next("APPEND" if how == APPEND else "SUBTRACT" for name, how, _ in changes if name == wanted)
        text = f"Can't {verb} to key {wanted} because its type is not LIST."
        assert alter(node, *changes) == (INVALID_CONFIG, text)


def test_a_list_has_a_bound(node: Node) -> None:
    """A value that could not be described is refused, and the one before stays."""
    node.create("orders")
    parts = ",".join(f"{number}:1" for number in range(3000))
    assert alter(node, (LIST, SET, parts)) == (NONE, None)
    more = ",".join(f"{number}:2" for number in range(3000))
    code, text = alter(node, (LIST, APPEND, more))
    assert (code, text) == (INVALID_CONFIG, f"{LIST} would be longer than {MAX_VALUE_BYTES} bytes.")
    assert described(node, LIST)[0] == parts


def test_mistakes_are_refused_in_kafkas_words_and_change_nothing(node: Node) -> None:
    """Settings are looked at before it is asked whether there is such a topic."""
    node.create("orders")
    bad = "Invalid value x for configuration retention.ms: Not a number of type LONG"
    assert alter(node, ("retention.ms", SET, "x")) == (INVALID_CONFIG, bad)
    assert alter(node, ("retention.ms", SET, "x"), name="missing") == (INVALID_CONFIG, bad)
    unknown = UNKNOWN_TOPIC_OR_PARTITION, "The topic 'missing' does not exist."
    assert alter(node, ("retention.ms", SET, "5"), name="missing") == unknown
    assert replace(node, name="missing") == unknown
    assert replace(node, nonsense="1") == (INVALID_CONFIG, "Unknown topic config name: nonsense")
    assert alter(node, name="") == (INVALID_REQUEST, "Default topic resources are not allowed.")
    code, text = alter(node, name="a b")
    assert (code, (text or "").startswith("Topic name is invalid: ")) == (INVALID_TOPIC_EXCEPTION, True)
    assert alter(node, ("retention.ms", SET, "5"), validate_only=True) == (NONE, None)
    assert node.storage.topics.by_name["orders"].configs == {}


def test_compaction_is_accepted(tmp_path: Path) -> None:
    """By both APIs, for new topics and for those that are there, as in Kafka."""
    node = Node(tmp_path)
    node.create("orders")
    assert alter(node, ("cleanup.policy", SET, "compact")) == (NONE, None)
    assert node.storage.topics.by_name["orders"].settings.only_compacted
    assert alter(node, ("cleanup.policy", APPEND, "delete")) == (NONE, None)
    assert not node.storage.topics.by_name["orders"].settings.only_compacted
    assert replace(node, cleanup_policy="delete, compact") == (NONE, None)
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "0",
               "min.compaction.lag.ms": "1", "max.compaction.lag.ms": "2"}  # fmt: skip
    new = {
        "name": "new",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in configs.items()],
    }
    message = {"topics": [new], "timeout_ms": 1000, "validate_only": False}
    (answer,) = node.call(CREATE_TOPICS, 5, message)["topics"]
    assert (answer["error_code"], answer["error_message"]) == (NONE, None)
    assert configs.items() <= {config["name"]: config["value"] for config in answer["configs"]}.items()
    node.storage.close()


def test_groups_and_subscriptions_have_no_settings_here(node: Node) -> None:
    """Unknown ones are refused as by Kafka, known ones by saying so; what is not there can be deleted."""
    cannot = "This server does not change {}."
    assert alter(node, ("x", SET, "1"), kind=GROUP) == (INVALID_CONFIG, "Unknown group config name: x")
    text = "Unknown client metrics configuration: x"
    assert alter(node, ("x", SET, "1"), kind=CLIENT_METRICS) == (INVALID_REQUEST, text)
    assert alter(node, ("x", DELETE, None), kind=GROUP) == (NONE, None)
    assert alter(node, ("root", SET, "INFO"), kind=8, name="1") == (
        INVALID_REQUEST,
        cannot.format("levels of loggers"),
    )
    not_a_node = INVALID_REQUEST, "Node id must be an integer, but it is: x"
    assert alter(node, kind=8, name="x") == not_a_node
    timeout = ("consumer.session.timeout.ms", SET, "50000")
    assert alter(node, timeout, kind=GROUP) == (
        INVALID_REQUEST,
        cannot.format("settings of one group: set group.* for all groups in its configuration file"),
    )
    assert replace(node, CLIENT_METRICS, interval_ms="1000") == (
        INVALID_REQUEST,
        cannot.format("subscriptions to client metrics"),
    )
    assert replace(node, 8, "1", root="INFO") == (INVALID_REQUEST, "Unknown resource type 8")


def test_settings_of_a_node_are_replaced(node: Node) -> None:
    """What was changed before and is not named is what it was at the start."""
    assert alter(node, ("max.connections", SET, "1000"), kind=NODE, name="1") == (NONE, None)
    assert replace(node, NODE, "1", **{"max.connections.per.ip": "7"}) == (NONE, None)
    assert node.settings.of_node(1) == {"max.connections.per.ip": "7"}
    assert replace(node, NODE, "") == (NONE, None)
    assert node.settings.of_node(1) == {"max.connections.per.ip": "7"}
    text = "Unexpected broker id, expected 1, but received 2"
    assert replace(node, NODE, "2") == (INVALID_REQUEST, text)


def test_a_resource_that_is_named_twice_is_refused(node: Node) -> None:
    """Each time; what else is asked for is done. Kafka does not answer."""
    node.create("orders")
    node.create("others")
    config = [{"name": "retention.ms", "value": "5"}]
    names = ("orders", "others", "orders")
    resources = [{"resource_type": TOPIC, "resource_name": name, "configs": config} for name in names]
    found = node.call(ALTER_CONFIGS, 2, {"resources": resources, "validate_only": False})["responses"]
    text = "Each resource must appear at most once."
    assert [(each["error_code"], each["error_message"]) for each in found] == [
        (INVALID_REQUEST, text),
        (NONE, None),
        (INVALID_REQUEST, text),
    ]
    assert node.storage.topics.by_name["orders"].configs == {}


def test_settings_of_all_nodes_are_replaced_unless_kafka_is_followed_exactly(tmp_path: Path) -> None:
    """Kafka 4.3 has `min.insync.replicas` among them, which must not go; mistakes are answered first."""
    for exact in (False, True):
        node = Node(tmp_path / str(exact), kafka_exact=exact)
        text = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
        expected = (INVALID_CONFIG, text) if exact else (NONE, None)
        assert replace(node, NODE, "", **{"max.connections": "1000"}) == expected
        assert node.settings.of_all() == ({} if exact else {"max.connections": "1000"})
        code, _ = replace(node, NODE, "", **{"max.connections": "x"})
        assert code == INVALID_REQUEST
        node.storage.close()


def test_what_cannot_be_kept_is_not_in_force(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Error 56, and no line in the audit log."""
    node.create("orders")
    caplog.set_level(logging.INFO, "tidegate.audit")

    def fail(*_: object, **__: object) -> None:
        raise StorageError("no room")

    monkeypatch.setattr(node.storage.store, "put_topic", fail)
    code, text = alter(node, ("retention.ms", SET, "5"))
    assert (code, text) == (
        KAFKA_STORAGE_ERROR,
        "The settings could not be stored; nothing was changed.",
    )
    assert described(node, "retention.ms") == ("604800000", 5)
    assert caplog.messages == ["cannot change topic 'orders': no room"]


def test_two_changes_of_a_topic_do_not_lose_one_another(node: Node) -> None:
    """Each is decided by what the other has left, however their slices come."""
    node.create("orders", 3)
    frames = []
    for key in ("retention.ms", "segment.ms"):
        config = {"name": key, "config_operation": SET, "value": "5"}
        resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": [config]}
        message = {"resources": [resource], "validate_only": False}
        encoded = encode_request(INCREMENTAL_ALTER_CONFIGS, 1, 7, "tester", message)
        frames.append(memoryview(bytearray(encoded[4:])))
    works = [node.begin(frame) for frame in frames]
    while works:
        for work in list(works):
            try:
                next(work)
            except StopIteration:
                works.remove(work)
    assert node.storage.topics.by_name["orders"].configs == {"retention.ms": "5", "segment.ms": "5"}


@pytest.mark.alone
def test_a_topic_of_many_partitions_is_changed_in_slices(node: Node) -> None:
    """No step is long."""
    node.create("orders", 500)
    config = {"name": "retention.ms", "config_operation": SET, "value": "5"}
    resource = {"resource_type": TOPIC, "resource_name": "orders", "configs": [config]}
    message = {"resources": [resource], "validate_only": False}
    encoded = encode_request(INCREMENTAL_ALTER_CONFIGS, 1, 7, "tester", message)
    frame = memoryview(bytearray(encoded[4:]))
    _, longest_ms = longest_step_ms(lambda: node.begin(frame))
    assert longest_ms < MOST_STEP_MS
