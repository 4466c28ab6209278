"""The settings a topic may have: names, types, defaults and limits, and what they mean for its logs.

All of Kafka's names are taken, so that its tools work; those in `EFFECTIVE` change something here, the others
are kept and described only. Follows: Kafka 4.3 `TopicConfig`, `LogConfig`.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.config.java_numbers import double_text, read_double, read_number
from tidegate.errors import ConfigError
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64, MIN_INT64
from tidegate.storage.config import StorageConfig
from tidegate.storage.topics.config_synonyms import MIN_INSYNC_REPLICAS, TOPIC_SYNONYMS
from tidegate.storage.topics.topic_settings import TopicSettings

__all__ = [
    "CLUSTER_DEFAULT_SOURCE",
    "DEFAULT_SOURCE",
    "EFFECTIVE",
    "LEAST_INDEX_INTERVAL",
    "MOST_INDEX_INTERVAL",
    "NODE_SOURCE",
    "STATIC_SOURCE",
    "TOPIC_CONFIGS",
    "TOPIC_SOURCE",
    "ConfigType",
    "DescribedConfig",
    "TopicConfig",
    "check_given",
    "config_problem",
    "default_value",
    "described_configs",
    "plain_value",
    "settings_of",
    "value_problem",
]

TOPIC_SOURCE, NODE_SOURCE, CLUSTER_DEFAULT_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = range(1, 6)
"""Follows: Kafka `ConfigSource`."""

LEAST_INDEX_INTERVAL, MOST_INDEX_INTERVAL = 4096, 64 * 1024
"""Bytes of records between two entries of an index, whatever `index.interval.bytes` says: an index that is denser takes
memory (32 bytes an entry of the newest segment), and what lies between two entries is walked, on the event loop."""
_GZIP_LEVEL = "compression.gzip.level"
_THROTTLED_REPLICAS = ("follower.replication.throttled.replicas", "leader.replication.throttled.replicas")
_IN_HOURS, _HOUR_MS = ".hours", 3_600_000
_WHOLE = re.compile(r"[-+]?[0-9]{1,19}")
_REPLICA = re.compile("[0-9]+:[0-9]+")


class ConfigType(enum.IntEnum):
    """Types as DescribeConfigs numbers them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One setting: its type, Kafka's default, the smallest number or the values allowed."""

    name: str
    type: ConfigType
    default: str
    least: float | None = None
    most: float | None = None
    allowed: tuple[str, ...] = ()


def _long(name: str, default: int, least: int) -> TopicConfig:
    return TopicConfig(name=name, type=ConfigType.LONG, default=str(default), least=least)


def _int(name: str, default: int, least: int, most: int = MAX_INT32) -> TopicConfig:
    return TopicConfig(name=name, type=ConfigType.INT, default=str(default), least=least, most=most)


def _bool(name: str) -> TopicConfig:
    return TopicConfig(name=name, type=ConfigType.BOOLEAN, default="false")


def _list(name: str, default: str, *allowed: str) -> TopicConfig:
    return TopicConfig(name=name, type=ConfigType.LIST, default=default, allowed=allowed)


def _string(name: str, default: str, *allowed: str) -> TopicConfig:
    return TopicConfig(name=name, type=ConfigType.STRING, default=default, allowed=allowed)


TOPIC_CONFIGS: Mapping[str, TopicConfig] = {
    config.name: config
    for config in (
        _list("cleanup.policy", "delete", "compact", "delete"),
        _int("compression.gzip.level", -1, -1, 9),
        _int("compression.lz4.level", 9, 1, 17),
        _string("compression.type", "producer", "uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        _int("compression.zstd.level", 3, -131_072, 22),
        _long("delete.retention.ms", 86_400_000, 0),
        _long("file.delete.delay.ms", 60_000, 0),
        _long("flush.messages", MAX_INT64, 1),
        _long("flush.ms", MAX_INT64, 0),
        _list("follower.replication.throttled.replicas", ""),
        _int("index.interval.bytes", 4096, 0),
        _list("leader.replication.throttled.replicas", ""),
        _long("local.retention.bytes", -2, -2),
        _long("local.retention.ms", -2, -2),
        _long("max.compaction.lag.ms", MAX_INT64, 1),
        _int("max.message.bytes", 1_048_588, 0),
        _long("message.timestamp.after.max.ms", 3_600_000, 0),
        _long("message.timestamp.before.max.ms", MAX_INT64, 0),
        _string("message.timestamp.type", "CreateTime", "CreateTime", "LogAppendTime"),
        TopicConfig(name="min.cleanable.dirty.ratio", type=ConfigType.DOUBLE, default="0.5", least=0, most=1),
        _long("min.compaction.lag.ms", 0, 0),
        _int("min.insync.replicas", 1, 1),
        _bool("preallocate"),
        _bool("remote.log.copy.disable"),
        _bool("remote.log.delete.on.disable"),
        _bool("remote.storage.enable"),
        _long("retention.bytes", -1, MIN_INT64),
        _long("retention.ms", 604_800_000, -1),
        _int("segment.bytes", 1 << 30, 1024 * 1024),
        _int("segment.index.bytes", 10 * 1024 * 1024, 4),
        _long("segment.jitter.ms", 0, 0),
        _long("segment.ms", 604_800_000, 1),
        _bool("unclean.leader.election.enable"),
    )
}

EFFECTIVE = frozenset(
    (
        "cleanup.policy",
        "flush.messages",
        "flush.ms",
        "index.interval.bytes",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.type",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.ms",
    )
)
"""Settings that change what the log does."""


def config_problem(name: str, value: str) -> str | None:
    """Return what Kafka says is wrong with a topic's setting, None where nothing is."""
    config = TOPIC_CONFIGS.get(name)
    return f"Unknown topic config name: {name}" if config is None else value_problem(config, value)


def value_problem(config: TopicConfig, value: str) -> str | None:
    """Return what Kafka says is wrong with a value of a setting, None where nothing is."""
    text = value.strip()
    if config.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
        return _number_problem(config, value)
    if config.type is ConfigType.BOOLEAN:
        bad = text.lower() not in ("true", "false")
        return _invalid(config, value, "Expected value to be either true or false") if bad else None
    if config.type is ConfigType.LIST:
        return _list_problem(config, _list_of(text))
    return _choice_problem(config, text)


def _number_problem(config: TopicConfig, value: str) -> str | None:
    number: float
    try:
        if config.type is ConfigType.DOUBLE:
            number = read_double(value.strip())
        else:
            number = read_number(value.strip(), MAX_INT32 if config.type is ConfigType.INT else MAX_INT64)
    except ValueError:
        return _invalid(config, value, f"Not a number of type {config.type.name}")
    text = double_text(number) if config.type is ConfigType.DOUBLE else str(number)
    too_small = config.least is not None and number < config.least
    too_large = config.most is not None and number > config.most
    if config.name == _GZIP_LEVEL and (too_small or too_large or number == 0):
        return _invalid(config, text, "Value must be between 1 and 9 or equal to -1")
    if too_small:
        return _invalid(config, text, f"Value must be at least {config.least}")
    return _invalid(config, text, f"Value must be no more than {config.most}") if too_large else None


def _list_problem(config: TopicConfig, parts: list[str]) -> str | None:
    if config.name in _THROTTLED_REPLICAS:
        if parts == ["*"] or all(not part or _REPLICA.fullmatch(part) for part in parts):
            return None
        text = (
            f"{config.name} must be the literal '*' or a list of replicas in the following format: "
            "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        )
        return _invalid(config, f"[{', '.join(parts)}]", text)
    for part in parts:
        if not part:
            return f"Configuration '{config.name}' values must not be empty."
        problem = _choice_problem(config, part)
        if problem is not None:
            return problem
    return None


def _choice_problem(config: TopicConfig, text: str) -> str | None:
    if config.allowed and text not in config.allowed:
        return _invalid(config, text, f"String must be one of: {', '.join(config.allowed)}")
    return None


def _list_of(text: str) -> list[str]:
    """Return the parts of a list, none where there is no text."""
    return [part.strip() for part in text.split(",")] if text else []


def _invalid(config: TopicConfig, value: str, why: str) -> str:
    return f"Invalid value {value} for configuration {config.name}: {why}"


def default_value(name: str, node: StorageConfig) -> str:
    """Return the value in force where a topic does not set `name` itself."""
    of_node = {
        "cleanup.policy": plain_value("cleanup.policy", node.log_cleanup_policy),
        "flush.messages": node.log_flush_interval_messages,
        "flush.ms": node.log_flush_interval_ms,
        "index.interval.bytes": node.log_index_interval_bytes,
        "max.message.bytes": node.message_max_bytes,
        "message.timestamp.type": node.log_message_timestamp_type,
        "message.timestamp.after.max.ms": node.log_message_timestamp_after_max_ms,
        "retention.bytes": node.log_retention_bytes,
        "retention.ms": node.log_retention_ms,
        "segment.bytes": node.log_segment_bytes,
        "segment.ms": node.log_roll_ms,
    }
    if name in of_node:
        return str(of_node[name])
    text = None if name in EFFECTIVE else _given_behind(name, node)
    return TOPIC_CONFIGS[name].default if text is None else plain_value(name, text)


def check_given(given: Mapping[str, str]) -> None:
    """Refuse settings of a node that no topic could have, also where they have no effect. Raises `ConfigError`."""
    for name, names in TOPIC_SYNONYMS.items():
        for behind in set(names) & given.keys():
            text = given[behind]
            if behind == names[0]:
                problem = config_problem(name, text)
            else:
                problem = None if _WHOLE.fullmatch(text.strip()) else "expected a whole number"
            if problem is not None:
                raise ConfigError(f"{behind} is {text!r}, which is invalid for topics: {problem}")


def _given_behind(name: str, node: StorageConfig) -> str | None:
    """Return the node's value for a topic setting that has no effect here; None if the node does not set it."""
    for given in (node.of_node, node.of_all, node.given or {}):
        for behind in TOPIC_SYNONYMS.get(name, ()):
            if behind in given:
                return str(int(given[behind]) * _HOUR_MS) if behind.endswith(_IN_HOURS) else given[behind]
    return None


def plain_value(name: str, text: str) -> str:
    """Return a value of a topic's setting as Kafka describes it: read and written again.

    >>> plain_value("retention.ms", " +007 "), plain_value("preallocate", "TRUE")
    ('7', 'true')
    """
    kind, text = TOPIC_CONFIGS[name].type, text.strip()
    if kind in (ConfigType.INT, ConfigType.LONG):
        return str(int(text))
    if kind is ConfigType.BOOLEAN:
        return text.lower()
    if kind is ConfigType.LIST:
        return ",".join(_list_of(text))
    return double_text(read_double(text)) if kind is ConfigType.DOUBLE else text


def settings_of(configs: Mapping[str, str], node: StorageConfig) -> TopicSettings:
    """Return what a topic's settings, and the node's where it has none, mean for its logs."""

    def number(name: str) -> int:
        return int(configs.get(name, default_value(name, node)))

    policies = _list_of(configs.get("cleanup.policy", node.log_cleanup_policy).strip())
    deletes, compacted = "delete" in policies, "compact" in policies
    return TopicSettings(
        max_message_bytes=number("max.message.bytes"),
        segment_bytes=number("segment.bytes"),
        segment_ms=number("segment.ms"),
        index_interval_bytes=min(
            max(number("index.interval.bytes"), LEAST_INDEX_INTERVAL), MOST_INDEX_INTERVAL
        ),
        log_append_time=configs.get("message.timestamp.type", node.log_message_timestamp_type)
        == "LogAppendTime",
        timestamp_after_max_ms=number("message.timestamp.after.max.ms"),
        compacted=compacted,
        only_compacted=compacted and not deletes,
        retention_ms=number("retention.ms") if deletes else -1,
        retention_bytes=number("retention.bytes") if deletes else -1,
        flush_messages=number("flush.messages"),
        flush_ms=number("flush.ms"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedConfig:
    """A setting in force and where it comes from, as the protocol numbers it."""

    name: str
    value: str
    source: int
    type: ConfigType


def described_configs(configs: Mapping[str, str], node: StorageConfig) -> list[DescribedConfig]:
    """Return every setting of a new topic that sets `configs` itself, as CreateTopics answers them.

    Values are the texts that were given, where some were.
    """
    sources = (
        (node.of_node, NODE_SOURCE),
        (node.of_all, CLUSTER_DEFAULT_SOURCE),
        (node.set_at_start(), STATIC_SOURCE),
    )
    described = []
    for config in TOPIC_CONFIGS.values():
        value, source = default_value(config.name, node), DEFAULT_SOURCE
        behind = TOPIC_SYNONYMS.get(config.name, ())
        for given, of_them in sources:
            if any(name in given for name in behind):
                value, source = given.get(behind[0], value), of_them
                break
        if config.name == MIN_INSYNC_REPLICAS:
            source = CLUSTER_DEFAULT_SOURCE
        if config.name in configs:
            value, source = configs[config.name], TOPIC_SOURCE
        described.append(DescribedConfig(name=config.name, value=value, source=source, type=config.type))
    return described
