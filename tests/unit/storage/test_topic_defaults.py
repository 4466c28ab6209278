"""Tests of the settings of a node that topics follow. Kafka's texts: `vectors/wire/broker_settings.json`."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.in_slices import whole
from tests.unit.storage.node import StorageNode

from tidegate.server.settings.table import SETTINGS
from tidegate.storage.config import StorageConfig
from tidegate.storage.topics.topic_defaults import TOPIC_DEFAULTS


def test_defaults_that_are_followed_are_settings() -> None:
    """Each field of the storage that can change has its setting; all settings that have an effect can be changed."""
    fields = {name.replace("_", ".") for name in StorageConfig.__dataclass_fields__}
    followed = fields & TOPIC_DEFAULTS.names
    assert followed == SETTINGS.keys() & TOPIC_DEFAULTS.names
    assert {
        "log.retention.ms",
        "message.max.bytes",
        "log.cleanup.policy",
        "producer.id.expiration.ms",
    } <= followed
    assert "min.insync.replicas" not in TOPIC_DEFAULTS.names


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("log.retention.ms", "-1", None),
        ("log.retention.ms", " 5 ", None),
        ("log.retention.ms", "-2", "requirement failed: log.retention.ms must be unlimited (-1) or, greater"),
        (
            "log.roll.jitter.ms",
            "-1",
            "requirement failed: log.roll.jitter.ms must be greater than or equal to 0",
        ),
        (
            "log.segment.bytes",
            "5",
            "Invalid value 5 for configuration log.segment.bytes: Value must be at least 104",
        ),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, text: str, problem: str | None) -> None:
    """In Kafka's words, with the name of the node's setting."""
    found = TOPIC_DEFAULTS.problem(name, text)
    assert (found or "").startswith(problem or "")
    assert (found is None) == (problem is None)


@pytest.mark.parametrize("steps", range(12))
def test_topics_that_are_made_meanwhile_follow(tmp_path: Path, steps: int) -> None:
    """A topic whose creation, growth or alteration overlaps with a change ends with what holds then, in all logs."""
    node = StorageNode(tmp_path)
    topics = node.storage.topics
    node.create("grows")
    node.create("altered", 4)
    works = [
        topics.create_in_slices("new", 3, {}),
        topics.add_partitions_in_slices(topics.by_name["grows"], 3),
        topics.alter_in_slices(topics.by_name["altered"], {"segment.ms": "77"}),
    ]
    for work in works:
        for _ in range(steps):
            next(work, None)
    following = node.storage.follow_in_slices(replace(node.storage.config, log_retention_ms=5000))
    next(following, None)
    for work in works:
        for _ in work:
            next(following, None)
    whole(following)
    for topic in topics:
        assert topic.settings.retention_ms == 5000, topic.name
        assert [log.settings for log in topic.logs] == [topic.settings] * len(topic.logs)
    assert topics.by_name["altered"].settings.segment_ms == 77
    node.storage.close()
