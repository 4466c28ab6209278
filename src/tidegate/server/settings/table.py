"""Every setting of a node: Kafka's, and those under `tidegate.`, which are not Kafka's."""

from collections.abc import Mapping

from tidegate.quota.managers.extensions import (
    CLUSTER_WIDE,
    DEBT_MAX_S,
    EXEMPT_CLIENTS,
    OBSERVE,
    SMOOTH,
    SMOOTH_BURST_S,
    THROTTLE_MAX_MS,
)
from tidegate.server.listening.listener_config import ALLOW_ANONYMOUS
from tidegate.server.settings.kafka_settings import KAFKA_SETTINGS
from tidegate.server.settings.metrics_settings import METRICS_LISTENER, METRICS_TOKEN_FILE
from tidegate.server.settings.setting import Setting, boolean, entities, integer, long, string

__all__ = [
    "BEHIND_OTHERS",
    "CALLBACK_SETTINGS",
    "CONNECTION_SETTINGS",
    "KAFKA_EXACT",
    "SETTINGS",
    "STATIC_QUOTA_SETTINGS",
]

KAFKA_EXACT = "tidegate.kafka.exact"
_OWN_SETTINGS = (
    string(
        "tidegate.callback.modules",
        "tidegate.callbacks",
        "Packages and modules that a quota callback may be loaded from at run time, comma-separated.",
    ),
    entities(
        OBSERVE,
        "Clients whose throttling is recorded but not applied: all, none, or entities such as "
        "user=A;client-id=B.",
    ),
    entities(
        EXEMPT_CLIENTS,
        "Clients that no quota applies to: all, none, or entities such as user=A;client-id=B.",
    ),
    entities(
        SMOOTH,
        "Clients whose byte quotas use a token bucket: all, none, or entities such as user=A;client-id=B.",
    ),
    entities(
        CLUSTER_WIDE,
        "Quotas that all brokers of a cluster share, in a gateway only: all, none, or entities such as "
        "user=A;client-id=B.",
    ),
    integer(
        SMOOTH_BURST_S, 1, 1, "Size of the token bucket in smooth mode, in seconds of the client's quota."
    ),
    integer(
        DEBT_MAX_S, 0, 0, "Maximum debt of a token bucket, in seconds of the client's quota; 0: no limit."
    ),
    integer(THROTTLE_MAX_MS, 0, 0, "Maximum throttle time of a request, in ms; 0: no limit."),
    boolean(
        KAFKA_EXACT,
        False,
        "Behave exactly like Kafka 4.3, even where it differs from a KIP. Turns extensions off.",
    ),
    integer(
        "tidegate.max.partitions",
        4000,
        1,
        "Maximum number of partitions, up to 100000. Each keeps a file open; principals share them "
        "(docs/fair-bounds.md).",
        100_000,
    ),
    boolean(
        ALLOW_ANONYMOUS,
        False,
        "Accept unauthenticated clients on listeners that are not on loopback.",
    ),
    string(
        METRICS_LISTENER,
        "",
        "Address of the metrics over HTTP, as HOST:PORT or https://HOST:PORT; docs/monitoring.md. Default: none.",
    ),
    string(
        METRICS_TOKEN_FILE,
        "",
        "File with the bearer token that clients of tidegate.metrics.listener have to send. Default: no token.",
    ),
    boolean("tidegate.usage.enable", True, "Write the usage record."),
    boolean(
        "tidegate.usage.parquet.enable",
        True,
        "Convert the usage record to Parquet, in a second process. If false, rows stay in the spool.",
    ),
    string("tidegate.usage.dir", "", "Directory of the usage record. Default: `usage` in log.dirs."),
    long(
        "tidegate.usage.spool.max.bytes",
        1 << 30,
        48 << 20,
        "Size of the spool above which events are dropped and counted, in bytes.",
    ),
    long(
        "tidegate.usage.segment.ms",
        10_000,
        100,
        "Age at which a spool segment is passed to the Parquet writer, in ms.",
    ),
    long(
        "tidegate.usage.retention.ms",
        7 * 86_400_000,
        60_000,
        "Age at which usage files are deleted, in ms.",
    ),
)

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in (*KAFKA_SETTINGS, *_OWN_SETTINGS)}

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
