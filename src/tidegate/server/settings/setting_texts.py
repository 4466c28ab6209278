"""Texts about settings that are changed on a running broker: warnings in the log, and errors for read-only settings.

Kafka's text for a read-only setting is used only for settings that Kafka does not change either. If Kafka changes a
setting and this server does not, the text says why: the setting has no effect, or is read only at the start.
"""

import logging
from collections.abc import Iterable, Sequence

from tidegate.config.java_numbers import read_number
from tidegate.errors import ConfigError
from tidegate.quota import EXTENSION_SETTINGS
from tidegate.quota.connections.limits import PER_IP_OVERRIDES, parse_per_ip_overrides
from tidegate.quota.managers.extensions import CLUSTER_WIDE
from tidegate.quota.measure.throttle import MAX_INT32
from tidegate.server.listening.sasl_config import JAAS
from tidegate.server.settings.config import guess
from tidegate.server.settings.kafka_settings import CALLBACK_CLASS
from tidegate.server.settings.table import BEHIND_OTHERS, CALLBACK_SETTINGS, KAFKA_EXACT, SETTINGS
from tidegate.server.settings.unused_settings import is_unused, without_listener
from tidegate.tls.settings import SECRET_TLS_SETTINGS

__all__ = [
    "is_beyond_kafka",
    "is_kafkas_or_ours",
    "is_secret_setting",
    "text_for_fixed",
    "warn_of_ignored",
    "warn_of_refusing",
]

_log = logging.getLogger("tidegate.server")

_LIMITS = ("max.connections", "max.connections.per.ip")
_SECRETS = (*SECRET_TLS_SETTINGS, JAAS)
_NAMES = """
    background.threads config.providers cordoned.log.dirs follower.fetch.last.tiered.offset.enable
    follower.replication.throttled.rate group.consumer.assignment.interval.ms
    group.coordinator.cached.buffer.max.bytes group.share.assignment.interval.ms
    group.streams.assignment.interval.ms leader.replication.throttled.rate listener.security.protocol.map listeners
    log.cleaner.backoff.ms log.cleaner.dedupe.buffer.size log.cleaner.io.buffer.load.factor
    log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second log.cleaner.threads metric.reporters
    min.insync.replicas num.io.threads num.network.threads num.recovery.threads.per.data.dir num.replica.fetchers
    principal.builder.class remote.fetch.max.wait.ms remote.list.offsets.request.timeout.ms
    remote.log.index.file.cache.total.size.bytes remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.follower.thread.pool.size
    remote.log.reader.threads replica.alter.log.dirs.io.max.bytes.per.second sasl.enabled.mechanisms
    sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds
    sasl.login.refresh.window.factor sasl.login.refresh.window.jitter sasl.mechanism.inter.broker.protocol
    share.coordinator.cached.buffer.max.bytes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.keymanager.algorithm ssl.protocol
    ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    transaction.partition.verification.enable
"""
_CHANGED_BY_KAFKA = frozenset(_NAMES.split())
"""Settings that Kafka changes while it runs and this server does not. Source: Kafka 4.3.1
`DynamicBrokerConfig.ALL_DYNAMIC_CONFIGS`."""


def is_beyond_kafka(name: str) -> bool:
    """Return whether Kafka has no such setting, or does not change it on a running broker.

    >>> is_beyond_kafka("tidegate.quota.observe"), is_beyond_kafka("max.connections")
    (True, False)
    """
    return name in EXTENSION_SETTINGS or name.startswith(CALLBACK_SETTINGS)


def is_secret_setting(name: str) -> bool:
    """Return whether the value may not be shown: a password, or a setting that only a quota callback can read.

    >>> is_secret_setting("listener.name.in.ssl.key.password"), is_secret_setting("max.connections")
    (True, False)
    """
    is_callbacks = name.startswith(CALLBACK_SETTINGS) and name != CALLBACK_CLASS
    return is_callbacks or any(name == secret or name.endswith(f".{secret}") for secret in _SECRETS)


def warn_of_ignored(names: Iterable[str]) -> None:
    """Log which of these settings have no effect where Kafka is followed exactly."""
    ignored = sorted(filter(is_beyond_kafka, names))
    if ignored:
        _log.warning("ignored %s: no effect with %s=true", ", ".join(ignored), KAFKA_EXACT)


def warn_of_refusing(settings: Iterable[tuple[str, str]], data_dir: str) -> None:
    """Log which of these settings, names and texts, refuse clients that could change them back, and the way back."""
    for name, text in settings:
        if _refuses(name, text):
            _log.warning(
                "%s=%s rejects connections, including those of admin clients; hint: to undo the change, stop the "
                "broker and run `tidegate settings %s --reset %s`",
                name,
                text,
                data_dir,
                name,
            )


def _refuses(name: str, text: str) -> bool:
    """Return whether a setting refuses every connection of an address, or all."""
    try:
        if name == PER_IP_OVERRIDES:
            return 0 in parse_per_ip_overrides(text).values()
        return name in _LIMITS and read_number(text.strip(), MAX_INT32) == 0
    except (ConfigError, ValueError):
        return False  # it is not in force


def text_for_fixed(names: Sequence[str], changeable: Sequence[str]) -> str:
    """Return the text for settings, at least one, that cannot be changed. changeable: those that can, for a guess.

    >>> text_for_fixed(["num.partitions"], [])
    'Cannot update these configs dynamically: [num.partitions]'
    >>> text_for_fixed(["num.io.threads"], [])
    'These settings have no effect on this server: [num.io.threads]'
    >>> text_for_fixed(["tidegate.quota.cluster.wide"], [])
    'Only a gateway has cluster-wide quotas: [tidegate.quota.cluster.wide]'
    """
    unknown = [name for name in names if not is_kafkas_or_ours(name)]
    read_only = [
        name for name in names if is_kafkas_or_ours(name) and without_listener(name) not in _CHANGED_BY_KAFKA
    ]
    unused = [name for name in names if without_listener(name) in _CHANGED_BY_KAFKA and is_unused(name)]
    if CLUSTER_WIDE in names:
        return f"Only a gateway has cluster-wide quotas: [{CLUSTER_WIDE}]"
    if read_only:
        return f"Cannot update these configs dynamically: [{', '.join(read_only)}]"
    if unknown:
        return f"This server has no such settings: [{', '.join(unknown)}]{guess(unknown[0], changeable)}"
    if unused:
        return f"These settings have no effect on this server: [{', '.join(unused)}]"
    return f"This server reads these settings only when it starts: [{', '.join(names)}]"


def is_kafkas_or_ours(name: str) -> bool:
    """Return whether Kafka or this server has a setting of this name, with an effect here or without."""
    return (
        name in SETTINGS
        or name in BEHIND_OTHERS
        or is_unused(name)
        or without_listener(name) in _CHANGED_BY_KAFKA
    )
