"""Kafka's settings that have no effect here: those that mean nothing on one node, and those that would be missed.

Settings without effect are named once at the start. Settings that operators rely on (an authorizer class, the
deletion of topics switched off) are refused, unless they have the value that holds here anyway. Together with
`tidegate.server.settings.config.SETTINGS` this is all that Kafka 4.3's `KafkaConfig` knows (`tests/vectors/settings`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tidegate.errors import ConfigError

__all__ = ["check_needed", "is_unused", "without_listener"]

_UNUSED_PREFIXES = (
    # no cluster: no controllers, no replicas, no leaders to choose
    "broker.heartbeat.", "broker.session.", "controlled.shutdown.", "controller.performance.",
    "controller.quorum.", "controller.socket.", "initial.broker.", "internal.metadata.", "leader.imbalance.",
    "metadata.", "replica.", "replication.quota.", "alter.log.dirs.replication.quota.",
    "unclean.leader.election.", "unstable.",
    # not served: tiers, transactions, groups of the newer protocols, delegation tokens, Kerberos, OAuth, telemetry
    "remote.", "log.local.retention.", "follower.fetch.", "transaction.", "transactional.", "add.partitions.to.txn.",
    "group.consumer.", "group.share.", "group.streams.", "share.coordinator.", "share.fetch.", "delegation.token.",
    "sasl.kerberos.", "sasl.login.", "sasl.oauthbearer.", "telemetry.",
    # how the log is kept: segments are rolled without jitter, nothing is compacted or compressed anew
    "compression.", "log.cleaner.", "log.roll.jitter.",
    # threads, queues and metrics of a JVM
    "group.coordinator.", "kafka.metrics.", "metrics.",
)  # fmt: skip
_UNUSED = frozenset(
    (
        "auto.leader.rebalance.enable",
        "background.threads",
        "broker.rack",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "cordoned.log.dirs",
        "default.replication.factor",
        "delete.records.purgatory.purge.interval.requests",
        "early.start.listeners",
        "fetch.purgatory.purge.interval.requests",
        "log.dir.failure.timeout.ms",
        "log.flush.offset.checkpoint.interval.ms",
        "log.flush.start.offset.checkpoint.interval.ms",
        "log.index.size.max.bytes",
        "log.initial.task.delay.ms",
        "log.message.timestamp.before.max.ms",
        "log.preallocate",
        "log.segment.delete.delay.ms",
        "metric.reporters",
        "min.insync.replicas",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.alter.log.dirs.threads",
        "num.replica.fetchers",
        "offsets.commit.timeout.ms",
        "offsets.load.buffer.size",
        "offsets.topic.compression.codec",
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        "offsets.topic.segment.bytes",
        "process.roles",
        "producer.id.expiration.check.interval.ms",
        "producer.purgatory.purge.interval.requests",
        "queued.max.requests",
        "request.timeout.ms",
        "sasl.client.callback.handler.class",
        "sasl.mechanism.controller.protocol",
        "sasl.mechanism.inter.broker.protocol",
        "security.inter.broker.protocol",
        "security.providers",
        "server.max.startup.time.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.connection.setup.timeout.ms",
        "ssl.endpoint.identification.algorithm",
        "ssl.keymanager.algorithm",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Needed:
    """A setting that cannot be done without silently: the texts that say what holds here anyway, and why no other."""

    values: tuple[str, ...]
    why: str


_NO_CLASSES = "Tidegate cannot load Java classes"
_NEEDED: Mapping[str, _Needed] = {
    "alter.config.policy.class.name": _Needed(values=("",), why=_NO_CLASSES),
    "config.providers": _Needed(values=("",), why=f"{_NO_CLASSES}, and would not replace ${{name:path}}"),
    "create.topic.policy.class.name": _Needed(values=("",), why=_NO_CLASSES),
    "delete.topic.enable": _Needed(values=("true",), why="Tidegate cannot turn off the deletion of topics"),
    "principal.builder.class": _Needed(
        values=("", "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"),
        why=_NO_CLASSES,
    ),
    "sasl.login.callback.handler.class": _Needed(values=("",), why=_NO_CLASSES),
    "sasl.login.class": _Needed(values=("",), why=_NO_CLASSES),
    "sasl.server.callback.handler.class": _Needed(values=("",), why=_NO_CLASSES),
    "ssl.engine.factory.class": _Needed(
        values=("", "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory"), why=_NO_CLASSES
    ),
}
_LISTENER = re.compile(r"listener\.name\.[^.]+\.(.+)", re.DOTALL)
_MECHANISM = re.compile(r"(?:plain|gssapi|oauthbearer|scram-sha-256|scram-sha-512)\.(.+)", re.DOTALL)


def without_listener(name: str) -> str:
    """Return the setting that one of a listener, or of a mechanism at a listener, stands before.

    >>> without_listener("listener.name.out.plain.sasl.server.callback.handler.class")
    'sasl.server.callback.handler.class'
    """
    match = _LISTENER.fullmatch(name)
    if match is None:
        return name
    of_mechanism = _MECHANISM.fullmatch(match[1])
    return match[1] if of_mechanism is None else of_mechanism[1]


def is_unused(name: str) -> bool:
    """Return whether a setting, or one of a listener, is Kafka's and means nothing here."""
    name = without_listener(name)
    return name in _NEEDED or name in _UNUSED or name.startswith(_UNUSED_PREFIXES)


def check_needed(texts: Mapping[str, str]) -> None:
    """Raise `ConfigError` for a setting that operators rely on and that Tidegate cannot follow."""
    for name, text in texts.items():
        needed = _NEEDED.get(without_listener(name))
        if needed is not None and text.strip() not in needed.values:
            expected = " or ".join(value or "none" for value in needed.values)
            raise ConfigError(f"{name} is {text!r}, expected {expected}: {needed.why}")
