"""Tests of topic settings: checks, defaults, meaning."""

import pytest

from tidegate.errors import ConfigError
from tidegate.storage.config import StorageConfig
from tidegate.storage.topics.topic_configs import (
    EFFECTIVE,
    TOPIC_CONFIGS,
    check_given,
    config_problem,
    default_value,
    described_configs,
    plain_value,
    settings_of,
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "-1"),
        ("retention.ms", " 604800000 "),
        ("cleanup.policy", "compact,delete"),
        ("min.cleanable.dirty.ratio", "0.25"),
        ("preallocate", "TRUE"),
        ("compression.type", "zstd"),
        ("leader.replication.throttled.replicas", "0:1,1:1"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", "0:1,"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "delete,delete"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("min.cleanable.dirty.ratio", "0x1p-1"),
        ("min.cleanable.dirty.ratio", "1f"),
        ("compression.type", " gzip "),
        ("compression.gzip.level", "-1"),
        ("retention.bytes", "-9223372036854775808"),
    ],
)
def test_good_values(name: str, value: str) -> None:
    """Values within type and limits have no problem."""
    assert config_problem(name, value) is None


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("nope", "1", "Unknown topic config name: nope"),
        (
            "retention.ms",
            "abc",
            "Invalid value abc for configuration retention.ms: Not a number of type LONG",
        ),
        ("retention.ms", "9223372036854775808", None),
        ("min.cleanable.dirty.ratio", "0.2_5", None),
        ("retention.ms", "1_000", None),
        (
            "max.message.bytes",
            "-1",
            "Invalid value -1 for configuration max.message.bytes: Value must be at least 0",
        ),
        ("segment.bytes", "2147483648", None),
        ("min.cleanable.dirty.ratio", "nan", None),
        ("min.cleanable.dirty.ratio", "1.5", None),
        ("preallocate", "yes", None),
        ("compression.type", "brotli", None),
        ("cleanup.policy", "delete,sometimes", None),
        ("message.timestamp.type", "createtime", None),
        ("retention.ms", " ", "Invalid value   for configuration retention.ms: Not a number of type LONG"),
        ("cleanup.policy", ",", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "cleanup.policy",
            "delete,bad",
            "Invalid value bad for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "min.cleanable.dirty.ratio",
            "1e300",
            "Invalid value 1.0E300 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "leader.replication.throttled.replicas",
            "1:1,abc",
            "Invalid value [1:1, abc] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_bad_values(name: str, value: str, problem: str | None) -> None:
    """Everything else is refused, naming the setting; where Kafka's text is known, with it."""
    found = config_problem(name, value)
    assert found is not None
    assert name in found
    assert problem is None or found == problem


def test_topic_wins_over_node() -> None:
    """A topic's own setting counts before the node's, the node's before the default."""
    node = StorageConfig(message_max_bytes=5000, log_segment_bytes=1 << 21)
    settings = settings_of({"max.message.bytes": "77", "message.timestamp.type": "LogAppendTime"}, node)
    assert (settings.max_message_bytes, settings.segment_bytes, settings.log_append_time) == (
        77,
        1 << 21,
        True,
    )


def test_description_names_the_source() -> None:
    """Each setting is described once, with where its value comes from."""
    node = StorageConfig(message_max_bytes=5000)
    described = {config.name: config for config in described_configs({"segment.ms": "9"}, node)}
    assert described.keys() == TOPIC_CONFIGS.keys()
    assert (described["segment.ms"].value, described["segment.ms"].source) == ("9", 1)
    assert (described["max.message.bytes"].value, described["max.message.bytes"].source) == ("5000", 4)
    assert (described["flush.ms"].value, described["flush.ms"].source) == ("9223372036854775807", 5)


def test_what_the_node_was_given_is_described_though_it_has_no_effect() -> None:
    """As of Apache Kafka 4.3.1: the value of the node's setting stands behind a topic's, whatever is done with it."""
    given = {
        "compression.type": "gzip",
        "log.cleaner.min.cleanable.ratio": "0.30",
        "log.preallocate": "TRUE",
        "log.roll.jitter.hours": "2",
        "min.insync.replicas": "2",
    }
    node = StorageConfig(given=given, log_roll_ms=7_200_000)
    values = {name: default_value(name, node) for name in TOPIC_CONFIGS}
    assert values["compression.type"] == "gzip"
    assert values["min.cleanable.dirty.ratio"] == "0.3"
    assert values["preallocate"] == "true"
    assert values["segment.jitter.ms"] == "7200000"
    assert values["segment.ms"] == "7200000"
    assert values["min.insync.replicas"] == "1", "there is one, and acks=all is that one's"
    assert settings_of({}, node).segment_ms == 7_200_000
    assert settings_of({"segment.ms": "5"}, node).segment_ms == 5


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"compression.type": "brotli"},
            "compression.type is 'brotli', which is invalid for topics: Invalid value brotli",
        ),
        ({"log.cleanup.policy": "delete,shrink"}, "String must be one of: compact, delete"),
        ({"log.index.size.max.bytes": "2"}, "Value must be at least 4"),
        (
            {"log.roll.jitter.hours": "some"},
            "log.roll.jitter.hours is 'some', which is invalid for topics: expected",
        ),
    ],
)
def test_what_no_topic_could_have_is_refused_at_the_start(given: dict[str, str], told: str) -> None:
    """As by Kafka, also where it has no effect here: it would be described."""
    with pytest.raises(ConfigError) as refused:
        check_given(given)
    assert told in str(refused.value)
    check_given({"compression.type": "zstd", "log.roll.jitter.hours": "3", "log.retention.hours": "-1"})


def test_new_topics_show_the_texts_that_were_given() -> None:
    """As Apache Kafka 4.3.1 answers CreateTopics: the node's text where it set the setting, though to the default."""
    given = {
        "log.segment.bytes": "1073741824",
        "log.retention.hours": "24",
        "log.index.interval.bytes": "4096 ",
    }
    node = StorageConfig(given=given, log_retention_ms=86_400_000)
    described = {
        config.name: (config.value, config.source)
        for config in described_configs({"flush.ms": "007", "preallocate": "TRUE"}, node)
    }
    assert described["segment.bytes"] == ("1073741824", 4)
    assert described["retention.ms"] == ("86400000", 4)
    assert described["index.interval.bytes"] == ("4096 ", 4)
    assert (described["flush.ms"], described["preallocate"]) == (("007", 1), ("TRUE", 1))
    assert described["segment.ms"] == ("604800000", 5)


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("retention.bytes", " +5000 ", "5000"),
        ("flush.ms", "007", "7"),
        ("preallocate", "TRUE", "true"),
        ("cleanup.policy", "delete, compact", "delete,compact"),
        ("min.cleanable.dirty.ratio", "1e-4", "1.0E-4"),
        ("min.cleanable.dirty.ratio", "0.00025", "2.5E-4"),
        ("min.cleanable.dirty.ratio", "1", "1.0"),
        ("min.cleanable.dirty.ratio", "0.001", "0.001"),
        ("follower.replication.throttled.replicas", "*", "*"),
        ("compression.type", "zstd", "zstd"),
    ],
)
def test_values_are_described_as_kafka_reads_them(name: str, text: str, plain: str) -> None:
    """DescribeConfigs shows a topic's value read and written again."""
    assert plain_value(name, text) == plain


def test_effective_settings_exist() -> None:
    """What is said to have an effect is a setting."""
    assert TOPIC_CONFIGS.keys() >= EFFECTIVE


@pytest.mark.parametrize(("given", "in_force"), [("0", 4096), ("5000", 5000), ("2147483647", 65_536)])
def test_index_interval_has_bounds(given: str, in_force: int) -> None:
    """What lies between two entries can be walked on the event loop, and the entries fit into memory."""
    settings = settings_of({"index.interval.bytes": given}, StorageConfig())
    assert settings.index_interval_bytes == in_force


@pytest.mark.parametrize(
    ("policy", "expires"), [("delete", True), ("compact,delete", True), ("compact", False), ("", False)]
)
def test_nothing_expires_where_nothing_may_be_deleted(policy: str, expires: bool) -> None:
    """Retention is in force for topics whose clean-up policy has `delete`, as in Kafka."""
    configs = {"cleanup.policy": policy, "retention.ms": "5", "retention.bytes": "7"}
    settings = settings_of(configs, StorageConfig())
    assert (settings.retention_ms, settings.retention_bytes) == ((5, 7) if expires else (-1, -1))
