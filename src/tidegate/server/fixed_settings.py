"""Error texts for settings that do not change while the broker runs: Kafka's read-only settings and this server's.

Kafka's text for a read-only setting is used only for settings that Kafka does not change either. If Kafka changes a
setting and this server does not, the text says why: the setting has no effect, or is read only at the start.
"""

from collections.abc import Sequence

from tidegate.server.config import BEHIND_OTHERS, SETTINGS, guess
from tidegate.server.unused_settings import is_unused, without_listener

__all__ = ["is_kafkas_or_ours", "text_for_fixed"]

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


def text_for_fixed(names: Sequence[str], changeable: Sequence[str]) -> str:
    """Return the text for settings, at least one, that cannot be changed. changeable: those that can, for a guess.

    >>> text_for_fixed(["num.partitions"], [])
    'Cannot update these configs dynamically: [num.partitions]'
    >>> text_for_fixed(["num.io.threads"], [])
    'These settings have no effect on this server: [num.io.threads]'
    """
    unknown = [name for name in names if not is_kafkas_or_ours(name)]
    read_only = [name for name in names if is_kafkas_or_ours(name) and _base(name) not in _CHANGED_BY_KAFKA]
    unused = [name for name in names if _base(name) in _CHANGED_BY_KAFKA and is_unused(name)]
    if read_only:
        return f"Cannot update these configs dynamically: [{', '.join(read_only)}]"
    if unknown:
        return f"This server has no such settings: [{', '.join(unknown)}]{guess(unknown[0], changeable)}"
    if unused:
        return f"These settings have no effect on this server: [{', '.join(unused)}]"
    return f"This server reads these settings only when it starts: [{', '.join(names)}]"


def is_kafkas_or_ours(name: str) -> bool:
    """Return whether Kafka or this server has a setting of this name, with an effect here or without."""
    return name in SETTINGS or name in BEHIND_OTHERS or is_unused(name) or _base(name) in _CHANGED_BY_KAFKA


def _base(name: str) -> str:
    """Return a setting without its listener, which may be written in capitals."""
    return without_listener(name)
