"""The settings a topic may have: names, types, defaults and limits, and what they mean for its logs.

All of Kafka's names are taken, so that its tools work; those in `EFFECTIVE` change something here, the others
are kept and described only. Follows: Kafka 4.3 `TopicConfig`, `LogConfig`.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from tidegate.storage.config import StorageConfig
from tidegate.storage.config_synonyms import MIN_INSYNC_REPLICAS, TOPIC_SYNONYMS
from tidegate.storage.topic_settings import TopicSettings

__all__ = [
    "CLUSTER_DEFAULT_SOURCE",
    "DEFAULT_SOURCE",
    "EFFECTIVE",
    "LEAST_INDEX_INTERVAL",
    "MOST_INDEX_INTERVAL",
    "STATIC_SOURCE",
    "TOPIC_CONFIGS",
    "TOPIC_SOURCE",
    "ConfigType",
    "DescribedConfig",
    "TopicConfig",
    "config_problem",
    "default_value",
    "described_configs",
    "plain_value",
    "settings_of",
]

TOPIC_SOURCE, CLUSTER_DEFAULT_SOURCE, STATIC_SOURCE, DEFAULT_SOURCE = 1, 3, 4, 5  # Kafka `ConfigSource`

LEAST_INDEX_INTERVAL, MOST_INDEX_INTERVAL = 4096, 64 * 1024
"""Bytes of records between two entries of an index, whatever `index.interval.bytes` says: an index that is denser takes
memory (32 bytes an entry of the newest segment), and what lies between two entries is walked, on the event loop."""
_LONGEST_NUMBER = 20  # sign and digits of the smallest long
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


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


def _int(name: str, default: int, least: int, most: int = _INT_MAX) -> TopicConfig:
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
        _long("flush.messages", _LONG_MAX, 1),
        _long("flush.ms", _LONG_MAX, 0),
        _list("follower.replication.throttled.replicas", ""),
        _int("index.interval.bytes", 4096, 0),
        _list("leader.replication.throttled.replicas", ""),
        _long("local.retention.bytes", -2, -2),
        _long("local.retention.ms", -2, -2),
        _long("max.compaction.lag.ms", _LONG_MAX, 1),
        _int("max.message.bytes", 1_048_588, 0),
        _long("message.timestamp.after.max.ms", 3_600_000, 0),
        _long("message.timestamp.before.max.ms", _LONG_MAX, 0),
        _string("message.timestamp.type", "CreateTime", "CreateTime", "LogAppendTime"),
        TopicConfig(
            name="min.cleanable.dirty.ratio", type=ConfigType.DOUBLE, default="0.5", least=0.0, most=1.0
        ),
        _long("min.compaction.lag.ms", 0, 0),
        _int("min.insync.replicas", 1, 1),
        _bool("preallocate"),
        _bool("remote.log.copy.disable"),
        _bool("remote.log.delete.on.disable"),
        _bool("remote.storage.enable"),
        _long("retention.bytes", -1, -_LONG_MAX),
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


def config_problem(name: str, value: str | None) -> str | None:
    """Return what Kafka says is wrong with a topic's setting, None where nothing is."""
    config = TOPIC_CONFIGS.get(name)
    if config is None:
        return f"Unknown topic config name: {name}"
    if value is None:
        return f"Null value not supported for topic configs: {name}"
    if config.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE):
        return _number_problem(config, value.strip())
    if config.type is ConfigType.BOOLEAN:
        bad = value.strip().lower() not in ("true", "false")
        return _invalid(config, value, "Expected value to be either true or false") if bad else None
    parts = [part.strip() for part in value.split(",")] if config.type is ConfigType.LIST else [value]
    if config.allowed and any(part not in config.allowed for part in parts):
        return _invalid(config, value, f"String must be one of: {', '.join(config.allowed)}")
    return None


def _number_problem(config: TopicConfig, text: str) -> str | None:
    try:
        number = _java_double(text) if config.type is ConfigType.DOUBLE else _java_number(text, config.type)
    except ValueError:
        return _invalid(config, text, f"Not a number of type {config.type.name}")
    if config.least is not None and not number >= config.least:
        return _invalid(config, text, f"Value must be at least {config.least}")
    if config.most is not None and number > config.most:
        return _invalid(config, text, f"Value must be no more than {config.most}")
    return None


def _java_double(text: str) -> float:
    """Return the number that Java would read, without Python's underscores. Raises `ValueError`."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def _java_number(text: str, kind: ConfigType) -> int:
    """Return the number that Java would read. Raises `ValueError`."""
    if not text.lstrip("+-").isdecimal() or len(text) > _LONGEST_NUMBER:
        raise ValueError(text)
    number = int(text)
    most = _INT_MAX if kind is ConfigType.INT else _LONG_MAX
    if not -most - 1 <= number <= most:
        raise ValueError(text)
    return number


def _invalid(config: TopicConfig, value: str, why: str) -> str:
    return f"Invalid value {value} for configuration {config.name}: {why}"


def default_value(name: str, node: StorageConfig) -> str:
    """Return the value in force where a topic does not set `name` itself."""
    of_node = {
        "flush.messages": node.log_flush_interval_messages,
        "flush.ms": node.log_flush_interval_ms,
        "index.interval.bytes": node.log_index_interval_bytes,
        "max.message.bytes": node.message_max_bytes,
        "message.timestamp.type": node.log_message_timestamp_type,
        "message.timestamp.after.max.ms": node.log_message_timestamp_after_max_ms,
        "retention.bytes": node.log_retention_bytes,
        "retention.ms": node.log_retention_ms,
        "segment.bytes": node.log_segment_bytes,
    }
    return str(of_node.get(name, TOPIC_CONFIGS[name].default))


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
        return ",".join(part.strip() for part in text.split(","))
    return _java_double_text(float(text)) if kind is ConfigType.DOUBLE else text


def _java_double_text(number: float) -> str:
    """Return what Java writes for a number from 0 to 1."""
    if number == 0 or number >= 1e-3:
        return str(number)
    _, digits, exponent = Decimal(str(number)).as_tuple()
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{digits[0]}.{rest}E{int(exponent) + len(digits) - 1}"


def settings_of(configs: Mapping[str, str], node: StorageConfig) -> TopicSettings:
    """Return what a topic's settings, and the node's where it has none, mean for its logs."""

    def number(name: str) -> int:
        return int(configs.get(name, default_value(name, node)))

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
        retention_ms=number("retention.ms"),
        retention_bytes=number("retention.bytes"),
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
    given = node.set_at_start()
    described = []
    for config in TOPIC_CONFIGS.values():
        value, source = default_value(config.name, node), DEFAULT_SOURCE
        behind = TOPIC_SYNONYMS.get(config.name, ())
        if any(name in given for name in behind):
            value, source = given.get(behind[0], value), STATIC_SOURCE
        if config.name == MIN_INSYNC_REPLICAS:
            source = CLUSTER_DEFAULT_SOURCE
        if config.name in configs:
            value, source = configs[config.name], TOPIC_SOURCE
        described.append(DescribedConfig(name=config.name, value=value, source=source, type=config.type))
    return described
