"""The settings that have Kafka's names: types, defaults, limits and texts.

Follows: Kafka's broker configuration (names, defaults, validators), B§3.1, B§6.9.
"""

from typing import Final

from tidegate.quota.measure.throttle import MAX_INT32, MAX_INT64
from tidegate.quota.measure.window import MAX_SAMPLES
from tidegate.server.listening.sasl_config import ENABLED_MECHANISMS, MAX_REAUTH
from tidegate.server.settings.setting import Setting, boolean, integer, long, string
from tidegate.tls.settings import ALLOW_DN_CHANGES, ALLOW_SAN_CHANGES, TLS_SETTINGS

__all__ = [
    "ALLOW_IF_NO_ACL",
    "AUTHORIZER_CLASS",
    "CALLBACK_CLASS",
    "KAFKA_SETTINGS",
    "NO_STATIC_QUOTA",
    "SHARE_OF_MEMORY",
    "SUPER_USERS",
]

SHARE_OF_MEMORY = 0
"""The value of `queued.max.request.bytes` that stands for a share of the memory that there is for the process."""

AUTHORIZER_CLASS = "authorizer.class.name"
SUPER_USERS = "super.users"
ALLOW_IF_NO_ACL = "allow.everyone.if.no.acl.found"
_AUTHORIZERS = ("org.apache.kafka.metadata.authorizer.StandardAuthorizer",)

NO_STATIC_QUOTA = MAX_INT64
"""Value of `quota.producer.default` and `quota.consumer.default` that limits no client, as in Kafka."""
CALLBACK_CLASS = "client.quota.callback.class"

KAFKA_SETTINGS: Final = (
    string(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "Addresses that the broker listens on, as NAME://host:port, comma-separated.",
    ),
    string(
        "advertised.listeners",
        "",
        "Addresses that clients connect to, as NAME://host:port, comma-separated. Default: the addresses "
        "of listeners.",
    ),
    string(
        "listener.security.protocol.map",
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener, as NAME:PROTOCOL, comma-separated.",
    ),
    string(
        "inter.broker.listener.name",
        "",
        "Listener exempt from the broker's connection limits if there are several listeners. Default: "
        "PLAINTEXT.",
    ),
    string(
        "controller.listener.names",
        "",
        "Names in listeners that belong to a controller, comma-separated. The broker does not open them.",
    ),
    integer("node.id", 1, 0, "Id of this broker."),
    string(
        "log.dirs",
        "tidegate-data",
        "Data directory: topics, quotas and the usage record. Exactly one directory.",
    ),
    integer("num.partitions", 1, 1, "Default number of partitions of a new topic."),
    boolean("auto.create.topics.enable", True, "Create a topic when a client requests its metadata."),
    integer("message.max.bytes", 1_048_588, 0, "Maximum size of a record batch, in bytes."),
    Setting(
        name="log.message.timestamp.type",
        type=("CreateTime", "LogAppendTime"),
        default="CreateTime",
        doc="Timestamp of a batch: CreateTime (the producer's) or LogAppendTime (the broker's).",
    ),
    integer(
        "log.segment.bytes",
        1 << 30,
        1024 * 1024,
        "Size at which a segment file is closed and a new one starts, in bytes.",
    ),
    string(
        "log.cleanup.policy",
        "delete",
        "delete: old segments are deleted. compact: all records are kept, as this broker has no log cleaner.",
    ),
    integer("log.index.interval.bytes", 4096, 0, "Bytes of records between two entries of the offset index."),
    long(
        "log.flush.interval.messages",
        MAX_INT64,
        1,
        "Number of records after which a partition is synced to disk. With 1, acks=all is answered after "
        "the sync.",
    ),
    long("log.flush.interval.ms", MAX_INT64, 0, "Age at which records are synced to disk, in ms."),
    long(
        "log.message.timestamp.after.max.ms",
        3_600_000,
        0,
        "How far a record's timestamp may be ahead of the broker's clock, in ms.",
    ),
    long("log.retention.ms", 604_800_000, -1, "Age at which segments are deleted, in ms; -1: never."),
    long(
        "log.retention.bytes",
        -1,
        None,
        "Size of a partition above which its oldest segments are deleted, in bytes; -1: never.",
    ),
    long(
        "log.retention.check.interval.ms",
        300_000,
        1,
        "How often expired segments are deleted, in ms. The effective range is 100 ms to 1 minute.",
    ),
    long("log.roll.ms", 604_800_000, 1, "Age at which a segment is closed even if it is not full, in ms."),
    integer(
        "producer.id.expiration.ms",
        86_400_000,
        1,
        "Idle time after which a partition forgets an idempotent producer, in ms.",
    ),
    integer("fetch.max.bytes", 57_671_680, 1024, "Maximum size of a fetch response, in bytes."),
    integer(
        "max.request.partition.size.limit",
        2000,
        1,
        "Maximum number of partitions in a response to DescribeTopicPartitions.",
    ),
    integer(
        "group.min.session.timeout.ms",
        6_000,
        None,
        "Minimum session timeout that a group member may request, in ms.",
    ),
    integer(
        "group.max.session.timeout.ms",
        1_800_000,
        None,
        "Maximum session timeout that a group member may request, in ms.",
    ),
    integer(
        "group.initial.rebalance.delay.ms",
        3_000,
        None,
        "Delay before the first rebalance of an empty group, in ms.",
    ),
    integer(
        "group.max.size",
        MAX_INT32,
        1,
        "Maximum number of members of a group. Values above 1000 act as 1000.",
    ),
    integer(
        "offset.metadata.max.bytes",
        4096,
        None,
        "Maximum length of the metadata of a committed offset, in characters.",
    ),
    integer(
        "offsets.retention.minutes",
        10_080,
        1,
        "Time after which the offsets of a group without members are deleted, in minutes.",
    ),
    long(
        "offsets.retention.check.interval.ms",
        600_000,
        1,
        "How often expired offsets are deleted, in ms.",
    ),
    integer(
        "max.incremental.fetch.session.cache.slots",
        1000,
        0,
        "Maximum number of incremental fetch sessions.",
    ),
    integer("socket.request.max.bytes", 104_857_600, 1, "Maximum size of a request, in bytes."),
    integer(
        "socket.send.buffer.bytes",
        102_400,
        -1,
        "Send buffer of a socket (SO_SNDBUF), in bytes; -1: the system's default.",
    ),
    integer(
        "socket.receive.buffer.bytes",
        102_400,
        -1,
        "Receive buffer of a socket (SO_RCVBUF), in bytes; -1: the system's default.",
    ),
    integer(
        "socket.listen.backlog.size",
        1000,
        1,
        "Maximum number of connections that wait to be accepted, per group of client addresses (16 groups).",
    ),
    long(
        "queued.max.request.bytes",
        SHARE_OF_MEMORY,
        -1,
        "Memory for requests, in bytes; unread responses may use as much again. 0: an eighth of the memory, "
        "-1: no limit.",
    ),
    long(
        "connections.max.idle.ms",
        600_000,
        None,
        "Idle time after which a connection is closed, in ms; negative: never.",
    ),
    integer(
        "max.connections",
        MAX_INT32,
        0,
        "Maximum number of connections. For one listener: listener.name.<lower-case name>.max.connections.",
    ),
    string(
        ENABLED_MECHANISMS,
        "GSSAPI",
        "Login mechanisms of SASL listeners, comma-separated: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512.",
    ),
    long(MAX_REAUTH, 0, None, "Time after which a client must log in again, in ms; 0: never."),
    integer("sasl.server.max.receive.size", 524_288, 1, "Maximum size of a request before login, in bytes."),
    integer(
        "connection.failed.authentication.delay.ms",
        100,
        0,
        "Delay before a failed login is answered and its connection closed, in ms.",
    ),
    *(string(name, default, doc) for name, (default, doc) in TLS_SETTINGS.items()),
    boolean(
        ALLOW_DN_CHANGES,
        False,
        "Allow a new key store, at run time, whose certificate has another distinguished name.",
    ),
    boolean(
        ALLOW_SAN_CHANGES,
        False,
        "Allow a new key store, at run time, whose certificate lacks some of the old one's host names.",
    ),
    integer("max.connections.per.ip", MAX_INT32, 0, "Maximum number of connections from one IP address."),
    string(
        "max.connections.per.ip.overrides",
        "",
        "Maximum number of connections of single addresses or hosts, as HOST:NUMBER, comma-separated.",
    ),
    integer(
        "max.connection.creation.rate",
        MAX_INT32,
        0,
        "Maximum new connections per second. For one listener: listener.name.<lower-case "
        "name>.max.connection.creation.rate.",
    ),
    string(
        "quota.producer.default",
        str(NO_STATIC_QUOTA),
        "Produce quota of each client id without its own quota, in bytes per second. Units: K = 1024, M "
        "= 1024², G = 1024³.",
    ),
    string(
        "quota.producer.override",
        "",
        "Produce quotas of single client ids, as CLIENT_ID:BYTES, comma-separated. Example: billing:4M.",
    ),
    string(
        "quota.consumer.default",
        str(NO_STATIC_QUOTA),
        "Fetch quota of each client id without its own quota, in bytes per second. Units: K = 1024, M = "
        "1024², G = 1024³.",
    ),
    string(
        "quota.consumer.override",
        "",
        "Fetch quotas of single client ids, as CLIENT_ID:BYTES, comma-separated. Example: billing:4M.",
    ),
    integer("quota.window.num", 11, 1, "Number of samples that client quotas keep.", MAX_SAMPLES),
    integer("quota.window.size.seconds", 1, 1, "Length of a sample of client quotas, in seconds."),
    integer(
        "controller.quota.window.num",
        11,
        1,
        "Number of samples that controller mutation quotas keep.",
        MAX_SAMPLES,
    ),
    integer(
        "controller.quota.window.size.seconds",
        1,
        1,
        "Length of a sample of controller mutation quotas, in seconds.",
    ),
    string(
        CALLBACK_CLASS,
        "",
        "Class that chooses each client's quota, as package.module:Class. Default: none; the stored "
        "quotas apply.",
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
    boolean(
        ALLOW_IF_NO_ACL,
        False,
        "Allow all requests for a resource that has no ACL.",
    ),
)
