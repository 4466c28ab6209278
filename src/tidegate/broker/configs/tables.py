"""Settings of nodes, client metrics subscriptions and groups, as Kafka defines them.

Follows: Kafka 4.3 `ServerTopicConfigSynonyms`, `DynamicBrokerConfig`, `ClientMetricsConfigs`, `GroupConfig`; every row
is compared with the answer of a real broker (`tests/vectors/described_configs.json`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tidegate.quota.measure.throttle import MAX_INT64
from tidegate.server.settings.kafka_settings import ALLOW_IF_NO_ACL, SUPER_USERS
from tidegate.server.settings.setting import Setting
from tidegate.server.settings.table import SETTINGS
from tidegate.storage.config import text_of
from tidegate.storage.topics.config_synonyms import TOPIC_SYNONYMS
from tidegate.storage.topics.topic_configs import TOPIC_CONFIGS, ConfigType
from tidegate.tls.settings import (
    CIPHER_SUITES,
    PRINCIPAL_RULES,
    SECRET_TLS_SETTINGS,
    TLS_SETTINGS,
)

__all__ = [
    "CLIENT_METRICS_ROWS",
    "GROUP_ROWS",
    "NODE_ROWS",
    "NODE_SYNONYMS",
    "ConfigRow",
]

_LONG_MAX = str(MAX_INT64)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRow:
    """One setting. default: None if it has none. synonym: the node's setting that is the default of a group's."""

    name: str
    type: ConfigType
    default: str | None
    read_only: bool = False
    synonym: str | None = None


NODE_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    names[0]: names for names in TOPIC_SYNONYMS.values() if len(names) > 1
}
"""A setting of the node → itself and the settings that it falls back to."""

_WITHOUT_DEFAULT = frozenset(
    (
        "advertised.listeners",
        "client.quota.callback.class",
        "controller.listener.names",
        "inter.broker.listener.name",
        "log.flush.interval.ms",
        "log.retention.ms",
        "log.roll.ms",
        *(name for name, (default, _) in TLS_SETTINGS.items() if not default and name != CIPHER_SUITES),
    )
)
"""Settings that Kafka describes as null unless they are set; the defaults of their fallbacks apply."""

_OF_AUTHORIZER = frozenset((SUPER_USERS, ALLOW_IF_NO_ACL))
"""Settings that Kafka's authorizer reads, which its brokers do not describe."""

_LISTS = frozenset(
    (
        "advertised.listeners",
        "controller.listener.names",
        "listeners",
        "log.cleanup.policy",
        "log.dirs",
        "sasl.enabled.mechanisms",
        "ssl.enabled.protocols",
        CIPHER_SUITES,
    )
)

_CHANGEABLE = frozenset(
    (
        "listener.security.protocol.map",
        "listeners",
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "producer.id.expiration.ms",
        "sasl.enabled.mechanisms",
        *(name for name in TLS_SETTINGS if name != PRINCIPAL_RULES),
        *(names[0] for names in TOPIC_SYNONYMS.values()),
    )
)
"""Settings that Kafka can change while it runs, and so does not describe as read only."""

_FURTHER_NODE_ROWS = (
    ConfigRow(
        name="log.flush.scheduler.interval.ms", type=ConfigType.LONG, default=_LONG_MAX, read_only=True
    ),
    ConfigRow(name="log.retention.hours", type=ConfigType.INT, default="168", read_only=True),
    ConfigRow(name="log.retention.minutes", type=ConfigType.INT, default=None, read_only=True),
    ConfigRow(name="log.roll.hours", type=ConfigType.INT, default="168", read_only=True),
    ConfigRow(name="log.roll.jitter.hours", type=ConfigType.INT, default="0", read_only=True),
    ConfigRow(name="log.roll.jitter.ms", type=ConfigType.LONG, default=None),
    *(
        ConfigRow(name=f"{kind}.quota.window.{ending}", type=ConfigType.INT, default=default, read_only=True)
        for kind in ("alter.log.dirs.replication", "replication")
        for ending, default in (("num", "11"), ("size.seconds", "1"))
    ),
)


def _type_of(setting: Setting) -> ConfigType:
    if setting.name in _LISTS:
        return ConfigType.LIST
    if setting.name in SECRET_TLS_SETTINGS:
        return ConfigType.PASSWORD
    if setting.name == "client.quota.callback.class":
        return ConfigType.CLASS
    types = {"int": ConfigType.INT, "long": ConfigType.LONG, "bool": ConfigType.BOOLEAN}
    return types.get(setting.type, ConfigType.STRING) if isinstance(setting.type, str) else ConfigType.STRING


def _node_rows() -> Iterator[ConfigRow]:
    for setting in SETTINGS.values():
        if setting.name in _OF_AUTHORIZER:
            continue
        yield ConfigRow(
            name=setting.name,
            type=_type_of(setting),
            default=None if setting.name in _WITHOUT_DEFAULT else text_of(setting.default),
            read_only=setting.name not in _CHANGEABLE,
        )
    yield from _FURTHER_NODE_ROWS
    listed = {row.name for row in _FURTHER_NODE_ROWS} | SETTINGS.keys()
    for topic_name, names in TOPIC_SYNONYMS.items():
        if names[0] not in listed:
            topic = TOPIC_CONFIGS[topic_name]
            yield ConfigRow(name=names[0], type=topic.type, default=topic.default)


NODE_ROWS: Mapping[str, ConfigRow] = {row.name: row for row in sorted(_node_rows(), key=lambda row: row.name)}
"""The node's settings: those with an effect here, the defaults of topics' settings, and Kafka's quota settings."""

CLIENT_METRICS_ROWS: Mapping[str, ConfigRow] = {
    row.name: row
    for row in (
        ConfigRow(name="interval.ms", type=ConfigType.INT, default="300000"),
        ConfigRow(name="match", type=ConfigType.LIST, default=""),
        ConfigRow(name="metrics", type=ConfigType.LIST, default=""),
    )
}


def _group_row(
    name: str, default: str, type_: ConfigType = ConfigType.INT, *, plain: bool = False
) -> ConfigRow:
    return ConfigRow(name=name, type=type_, default=default, synonym=name if plain else f"group.{name}")


GROUP_ROWS: Mapping[str, ConfigRow] = {
    row.name: row
    for row in (
        _group_row("consumer.assignment.interval.ms", "1000"),
        _group_row("consumer.heartbeat.interval.ms", "5000"),
        _group_row("consumer.session.timeout.ms", "45000"),
        _group_row("share.assignment.interval.ms", "1000"),
        _group_row("share.auto.offset.reset", "latest", ConfigType.STRING, plain=True),
        _group_row("share.delivery.count.limit", "5"),
        _group_row("share.heartbeat.interval.ms", "5000"),
        _group_row("share.isolation.level", "read_uncommitted", ConfigType.STRING, plain=True),
        _group_row("share.partition.max.record.locks", "2000"),
        _group_row("share.record.lock.duration.ms", "30000"),
        _group_row("share.renew.acknowledge.enable", "true", ConfigType.BOOLEAN, plain=True),
        _group_row("share.session.timeout.ms", "45000"),
        _group_row("streams.assignment.interval.ms", "1000"),
        _group_row("streams.heartbeat.interval.ms", "5000"),
        _group_row("streams.initial.rebalance.delay.ms", "3000"),
        _group_row("streams.num.standby.replicas", "0"),
        _group_row("streams.session.timeout.ms", "45000"),
    )
}
