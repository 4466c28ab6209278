"""Every setting of a node: name, type, default, limits and text, each declared once.

Follows: Kafka's broker configuration (names, defaults, validators), B§3.1, B§6.9; those under `tidegate.` are ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.acl import parse_super_users
from tidegate.config.java_numbers import read_number
from tidegate.errors import ConfigError
from tidegate.quota.admin.entity_selection import parse_entities
from tidegate.quota.managers.extensions import (
    DEBT_MAX_S,
    EXEMPT_CLIENTS,
    OBSERVE,
    SMOOTH,
    SMOOTH_BURST_S,
    THROTTLE_MAX_MS,
)
from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64
from tidegate.quota.measure.window import MAX_SAMPLES
from tidegate.server.listening.listener_config import (
    ALLOW_ANONYMOUS,
)
from tidegate.server.listening.sasl_config import ENABLED_MECHANISMS, MAX_REAUTH
from tidegate.server.settings.metrics_settings import (
    METRICS_LISTENER,
    METRICS_TOKEN_FILE,
)
from tidegate.tls.settings import (
    ALLOW_DN_CHANGES,
    ALLOW_SAN_CHANGES,
    TLS_SETTINGS,
)

__all__ = [
    "ALLOW_IF_NO_ACL",
    "AUTHORIZER_CLASS",
    "BEHIND_OTHERS",
    "CALLBACK_CLASS",
    "CALLBACK_SETTINGS",
    "CONNECTION_SETTINGS",
    "KAFKA_EXACT",
    "NO_STATIC_QUOTA",
    "SETTINGS",
    "SHARE_OF_MEMORY",
    "STATIC_QUOTA_SETTINGS",
    "SUPER_USERS",
    "Setting",
    "in_ms",
]

SHARE_OF_MEMORY = 0
"""The value of `queued.max.request.bytes` that stands for a share of the memory that there is for the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting. `type` is int, long, bool, string, entities or principals (both kept as text), or the texts that
    are allowed.
    """

    name: str
    type: str | tuple[str, ...]
    default: Any
    least: int | None = None
    most: int | None = None
    doc: str

    def parse(self, text: str) -> Any:
        """Return the value that `text` stands for. Raises `ConfigError` naming the setting."""
        text = text.strip()
        if isinstance(self.type, tuple):
            if text not in self.type:
                expected = ", ".join(each or "nothing" for each in self.type)
                raise ConfigError(f"{self.name} is {text!r}, expected one of {expected}")
            return text
        if self.type == "string":
            return text
        if self.type == "entities":
            parse_entities(text, setting=self.name)
            return text
        if self.type == "principals":
            parse_super_users(text)
            return text
        if self.type == "bool":
            if text.lower() not in ("true", "false"):
                raise ConfigError(f"{self.name} is {text!r}, expected true or false")
            return text.lower() == "true"
        return self._parse_number(text)

    def _parse_number(self, text: str) -> int:
        limit = MAX_INT32 if self.type == "int" else MAX_INT64
        most = limit if self.most is None else self.most
        least = -limit - 1 if self.least is None else self.least
        try:
            number = read_number(text, limit)
        except ValueError:
            number = least - 1
        if not least <= number <= most:
            raise ConfigError(f"{self.name} is {text!r}, expected a whole number from {least} to {most}")
        return number


def _int(name: str, default: int, least: int | None, doc: str, most: int | None = None) -> Setting:
    return Setting(name=name, type="int", default=default, least=least, most=most, doc=doc)


def _long(name: str, default: int, least: int | None, doc: str) -> Setting:
    return Setting(name=name, type="long", default=default, least=least, doc=doc)


def _bool(name: str, default: bool, doc: str) -> Setting:
    return Setting(name=name, type="bool", default=default, doc=doc)


def _string(name: str, default: str, doc: str) -> Setting:
    return Setting(name=name, type="string", default=default, doc=doc)


def _entities(name: str, doc: str) -> Setting:
    return Setting(name=name, type="entities", default="none", doc=doc)


AUTHORIZER_CLASS = "authorizer.class.name"
KAFKA_EXACT = "tidegate.kafka.exact"
SUPER_USERS = "super.users"
ALLOW_IF_NO_ACL = "allow.everyone.if.no.acl.found"
_AUTHORIZERS = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer",)

NO_STATIC_QUOTA = MAX_INT64
"""Value of `quota.producer.default` and `quota.consumer.default` that limits no client, as in Kafka."""

SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        _string(
            "listeners",
            "PLAINTEXT://127.0.0.1:9092",
            "Addresses that the broker listens on, as NAME://host:port, comma-separated.",
        ),
        _string(
            "advertised.listeners",
            "",
            "Addresses that clients connect to, as NAME://host:port, comma-separated. Default: the addresses "
            "of listeners.",
        ),
        _string(
            "listener.security.protocol.map",
            "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
            "Security protocol of each listener, as NAME:PROTOCOL, comma-separated.",
        ),
        _string(
            "inter.broker.listener.name",
            "",
            "Listener exempt from the broker's connection limits if there are several listeners. Default: "
            "PLAINTEXT.",
        ),
        _string(
            "controller.listener.names",
            "",
            "Names in listeners that belong to a controller, comma-separated. The broker does not open them.",
        ),
        _int("node.id", 1, 0, "Id of this broker."),
        _string(
            "log.dirs",
            "tidegate-data",
            "Data directory: topics, quotas and the usage record. Exactly one directory.",
        ),
        _int("num.partitions", 1, 1, "Default number of partitions of a new topic."),
        _bool("auto.create.topics.enable", True, "Create a topic when a client requests its metadata."),
        _int("message.max.bytes", 1_048_588, 0, "Maximum size of a record batch, in bytes."),
        Setting(
            name="log.message.timestamp.type",
            type=("CreateTime", "LogAppendTime"),
            default="CreateTime",
            doc="Timestamp of a batch: CreateTime (the producer's) or LogAppendTime (the broker's).",
        ),
        _int(
            "log.segment.bytes",
            1 << 30,
            1024 * 1024,
            "Size at which a segment file is closed and a new one starts, in bytes.",
        ),
        _string(
            "log.cleanup.policy",
            "delete",
            "delete: old segments are deleted. compact: all records are kept, as this broker has no log "
            "cleaner.",
        ),
        _int(
            "log.index.interval.bytes", 4096, 0, "Bytes of records between two entries of the offset index."
        ),
        _long(
            "log.flush.interval.messages",
            MAX_INT64,
            1,
            "Number of records after which a partition is synced to disk. With 1, acks=all is answered after "
            "the sync.",
        ),
        _long("log.flush.interval.ms", MAX_INT64, 0, "Age at which records are synced to disk, in ms."),
        _long(
            "log.message.timestamp.after.max.ms",
            3_600_000,
            0,
            "How far a record's timestamp may be ahead of the broker's clock, in ms.",
        ),
        _long("log.retention.ms", 604_800_000, -1, "Age at which segments are deleted, in ms; -1: never."),
        _long(
            "log.retention.bytes",
            -1,
            None,
            "Size of a partition above which its oldest segments are deleted, in bytes; -1: never.",
        ),
        _long(
            "log.retention.check.interval.ms",
            300_000,
            1,
            "How often expired segments are deleted, in ms. The effective range is 100 ms to 1 minute.",
        ),
        _long(
            "log.roll.ms", 604_800_000, 1, "Age at which a segment is closed even if it is not full, in ms."
        ),
        _int(
            "producer.id.expiration.ms",
            86_400_000,
            1,
            "Idle time after which a partition forgets an idempotent producer, in ms.",
        ),
        _int("fetch.max.bytes", 57_671_680, 1024, "Maximum size of a fetch response, in bytes."),
        _int(
            "max.request.partition.size.limit",
            2000,
            1,
            "Maximum number of partitions in a response to DescribeTopicPartitions.",
        ),
        _int(
            "group.min.session.timeout.ms",
            6_000,
            None,
            "Minimum session timeout that a group member may request, in ms.",
        ),
        _int(
            "group.max.session.timeout.ms",
            1_800_000,
            None,
            "Maximum session timeout that a group member may request, in ms.",
        ),
        _int(
            "group.initial.rebalance.delay.ms",
            3_000,
            None,
            "Delay before the first rebalance of an empty group, in ms.",
        ),
        _int(
            "group.max.size",
            MAX_INT32,
            1,
            "Maximum number of members of a group. Values above 1000 act as 1000.",
        ),
        _int(
            "offset.metadata.max.bytes",
            4096,
            None,
            "Maximum length of the metadata of a committed offset, in characters.",
        ),
        _int(
            "offsets.retention.minutes",
            10_080,
            1,
            "Time after which the offsets of a group without members are deleted, in minutes.",
        ),
        _long(
            "offsets.retention.check.interval.ms",
            600_000,
            1,
            "How often expired offsets are deleted, in ms.",
        ),
        _int(
            "max.incremental.fetch.session.cache.slots",
            1000,
            0,
            "Maximum number of incremental fetch sessions.",
        ),
        _int("socket.request.max.bytes", 104_857_600, 1, "Maximum size of a request, in bytes."),
        _int(
            "socket.send.buffer.bytes",
            102_400,
            -1,
            "Send buffer of a socket (SO_SNDBUF), in bytes; -1: the system's default.",
        ),
        _int(
            "socket.receive.buffer.bytes",
            102_400,
            -1,
            "Receive buffer of a socket (SO_RCVBUF), in bytes; -1: the system's default.",
        ),
        _int(
            "socket.listen.backlog.size",
            1000,
            1,
            "Maximum number of connections that wait to be accepted, per group of client addresses (16 groups).",
        ),
        _long(
            "queued.max.request.bytes",
            SHARE_OF_MEMORY,
            -1,
            "Memory for requests, and as much for unread responses, in bytes; 0: an eighth of the memory, "
            "-1: no limit.",
        ),
        _long(
            "connections.max.idle.ms",
            600_000,
            None,
            "Idle time after which a connection is closed, in ms; negative: never.",
        ),
        _int(
            "max.connections",
            MAX_INT32,
            0,
            "Maximum number of connections. For one listener: listener.name.<lower-case "
            "name>.max.connections.",
        ),
        _string(
            ENABLED_MECHANISMS,
            "GSSAPI",
            "Login mechanisms of SASL listeners, comma-separated: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
        ),
        _long(MAX_REAUTH, 0, None, "Time after which a client must log in again, in ms; 0: never."),
        _int("sasl.server.max.receive.size", 524_288, 1, "Maximum size of a request before login, in bytes."),
        _int(
            "connection.failed.authentication.delay.ms",
            100,
            0,
            "Delay before a failed login is answered and its connection closed, in ms.",
        ),
        *(_string(name, default, doc) for name, (default, doc) in TLS_SETTINGS.items()),
        _bool(
            ALLOW_DN_CHANGES,
            False,
            "Allow a new key store, at run time, whose certificate has another distinguished name.",
        ),
        _bool(
            ALLOW_SAN_CHANGES,
            False,
            "Allow a new key store, at run time, whose certificate lacks some of the old one's host names.",
        ),
        _int("max.connections.per.ip", MAX_INT32, 0, "Maximum number of connections from one IP address."),
        _string(
            "max.connections.per.ip.overrides",
            "",
            "Maximum number of connections of single addresses or hosts, as HOST:NUMBER, comma-separated.",
        ),
        _int(
            "max.connection.creation.rate",
            MAX_INT32,
            0,
            "Maximum new connections per second. For one listener: listener.name.<lower-case "
            "name>.max.connection.creation.rate.",
        ),
        _string(
            "quota.producer.default",
            str(NO_STATIC_QUOTA),
            "Produce quota of each client id without its own quota, in bytes per second. Units: K = 1024, M "
            "= 1024², G = 1024³.",
        ),
        _string(
            "quota.producer.override",
            "",
            "Produce quotas of single client ids, as CLIENT_ID:BYTES, comma-separated. Example: billing:4M.",
        ),
        _string(
            "quota.consumer.default",
            str(NO_STATIC_QUOTA),
            "Fetch quota of each client id without its own quota, in bytes per second. Units: K = 1024, M = "
            "1024², G = 1024³.",
        ),
        _string(
            "quota.consumer.override",
            "",
            "Fetch quotas of single client ids, as CLIENT_ID:BYTES, comma-separated. Example: billing:4M.",
        ),
        _int("quota.window.num", 11, 1, "Number of samples that client quotas keep.", MAX_SAMPLES),
        _int("quota.window.size.seconds", 1, 1, "Length of a sample of client quotas, in seconds."),
        _int(
            "controller.quota.window.num",
            11,
            1,
            "Number of samples that controller mutation quotas keep.",
            MAX_SAMPLES,
        ),
        _int(
            "controller.quota.window.size.seconds",
            1,
            1,
            "Length of a sample of controller mutation quotas, in seconds.",
        ),
        _string(
            "client.quota.callback.class",
            "",
            "Class that chooses each client's quota, as package.module:Class. Default: none; the stored "
            "quotas apply.",
        ),
        _string(
            "tidegate.callback.modules",
            "tidegate.callbacks",
            "Packages and modules that a quota callback may be loaded from at run time, comma-separated.",
        ),
        Setting(
            name=AUTHORIZER_CLASS,
            type=("", *_AUTHORIZERS),
            default="",
            doc="Class that authorizes requests. StandardAuthorizer's full name: ACLs apply. Empty: all requests "
            "are allowed.",
        ),
        Setting(
            name=SUPER_USERS,
            type="principals",
            default="",
            doc="Principals that may do everything, as User:NAME, separated by semicolons.",
        ),
        _bool(
            ALLOW_IF_NO_ACL,
            False,
            "Allow all requests for a resource that has no ACL.",
        ),
        _entities(
            OBSERVE,
            "Clients whose throttling is recorded but not applied: all, none, or entities such as "
            "user=A;client-id=B.",
        ),
        _entities(
            EXEMPT_CLIENTS,
            "Clients that no quota applies to: all, none, or entities such as user=A;client-id=B.",
        ),
        _entities(
            SMOOTH,
            "Clients whose byte quotas use a token bucket: all, none, or entities such as user=A;client-id=B.",
        ),
        _int(
            SMOOTH_BURST_S, 1, 1, "Size of the token bucket in smooth mode, in seconds of the client's quota."
        ),
        _int(
            DEBT_MAX_S, 0, 0, "Maximum debt of a token bucket, in seconds of the client's quota; 0: no limit."
        ),
        _int(THROTTLE_MAX_MS, 0, 0, "Maximum throttle time of a request, in ms; 0: no limit."),
        _bool(
            KAFKA_EXACT,
            False,
            "Behave as Kafka 4.3 also where Kafka breaks the promise of a KIP. Turns extensions off.",
        ),
        _int(
            "tidegate.max.partitions",
            4000,
            1,
            "Maximum number of partitions, up to 100000. Each keeps a file open; principals share them "
            "(docs/fair-bounds.md).",
            100_000,
        ),
        _bool(
            ALLOW_ANONYMOUS,
            False,
            "Accept unauthenticated clients on listeners that are not on loopback.",
        ),
        _string(
            METRICS_LISTENER,
            "",
            "Address of the metrics over HTTP, as HOST:PORT or https://HOST:PORT; docs/monitoring.md. Default: none.",
        ),
        _string(
            METRICS_TOKEN_FILE,
            "",
            "File with the bearer token that clients of tidegate.metrics.listener have to send. Default: no token.",
        ),
        _bool("tidegate.usage.enable", True, "Write the usage record."),
        _bool(
            "tidegate.usage.parquet.enable",
            True,
            "Convert the usage record to Parquet, in a second process. If false, rows stay in the spool.",
        ),
        _string("tidegate.usage.dir", "", "Directory of the usage record. Default: `usage` in log.dirs."),
        _long(
            "tidegate.usage.spool.max.bytes",
            1 << 30,
            48 << 20,
            "Size of the spool above which events are dropped and counted, in bytes.",
        ),
        _long(
            "tidegate.usage.segment.ms",
            10_000,
            100,
            "Age at which a spool segment is passed to the Parquet writer, in ms.",
        ),
        _long(
            "tidegate.usage.retention.ms",
            7 * 86_400_000,
            60_000,
            "Age at which usage files are deleted, in ms.",
        ),
    )
}

BEHIND_OTHERS = {
    "log.retention.minutes": ("log.retention.ms", 60_000, -1),
    "log.retention.hours": ("log.retention.ms", 3_600_000, -1),
    "log.roll.hours": ("log.roll.ms", 3_600_000, 1),
    "log.flush.scheduler.interval.ms": ("log.flush.interval.ms", 1, 0),
}
"""A setting → the one that it stands behind, the unit of it in ms, and the least. Those that win are first."""

STATIC_QUOTA_SETTINGS = frozenset(
    name for name in SETTINGS if name.startswith(("quota.producer.", "quota.consumer."))
)

CALLBACK_CLASS = "client.quota.callback.class"
CALLBACK_SETTINGS = "client.quota.callback."
"""Prefix of a quota callback's own settings. The callback is given all settings."""

CONNECTION_SETTINGS = frozenset(
    (
        "max.connection.creation.rate",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
    )
)
"""Settings of connection quotas. They can be changed while the broker runs, as can those of the callback."""


def in_ms(name: str, text: str, unit_ms: int, least: int) -> str:
    """Return a value in another unit as text in ms; negative ones stay. Raises `ConfigError`."""
    number = (_int if unit_ms > 1 else _long)(name, least, least, "").parse(text)
    return str(number if number < 0 else number * unit_ms)
