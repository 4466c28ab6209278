"""Tidegate's descriptions of all settings, shorter than Kafka's (`docs/kafka-differences.md`, D1)."""

from collections.abc import Mapping

from tidegate.server.settings.table import SETTINGS
from tidegate.storage.topics.config_synonyms import TOPIC_SYNONYMS

__all__ = ["BEHIND_TOPICS", "documentation"]

_TEXTS: Mapping[str, str] = {
    # topics
    "cleanup.policy": "delete: old segments are deleted. compact: the last record of each key is kept.",
    "compression.gzip.level": "Compression level of gzip when the broker compresses.",
    "compression.lz4.level": "Compression level of lz4 when the broker compresses.",
    "compression.type": "Compression codec of stored batches; producer: the producer's codec.",
    "compression.zstd.level": "Compression level of zstd when the broker compresses.",
    "delete.retention.ms": "Time that a compacted topic keeps the marker of a deleted key, in ms.",
    "file.delete.delay.ms": "Delay before a deleted segment's files are removed from disk, in ms.",
    "flush.messages": "Number of records after which a partition is synced to disk.",
    "flush.ms": "Age at which records are synced to disk, in ms.",
    "follower.replication.throttled.replicas": "Throttled follower replicas, as partition:broker, or * for all.",
    "index.interval.bytes": "Bytes of records between two entries of the offset index.",
    "leader.replication.throttled.replicas": "Throttled leader replicas, as partition:broker, or * for all.",
    "local.retention.bytes": "Bytes of a tiered partition that stay on local disk; -2: same as retention.bytes.",
    "local.retention.ms": "Time that tiered segments stay on local disk, in ms; -2: same as retention.ms.",
    "max.compaction.lag.ms": "Maximum time that a record stays uncompacted, in ms.",
    "max.message.bytes": "Maximum size of a record batch, in bytes.",
    "message.timestamp.after.max.ms": "How far a record's timestamp may be ahead of the broker's clock, in ms.",
    "message.timestamp.before.max.ms": "How far a record's timestamp may be behind the broker's clock, in ms.",
    "message.timestamp.type": "Timestamp of a batch: CreateTime (the producer's) or LogAppendTime (the broker's).",
    "min.cleanable.dirty.ratio": "Share of uncompacted bytes at which a log is compacted, from 0 to 1.",
    "min.compaction.lag.ms": "Minimum time that a record stays uncompacted, in ms.",
    "min.insync.replicas": "Number of replicas that must store a record before acks=all is answered.",
    "preallocate": "Allocate a new segment's full size on disk at once.",
    "remote.log.copy.disable": "Stop copying segments to tiered storage.",
    "remote.log.delete.on.disable": "Delete a topic's tiered data when its tiered storage is turned off.",
    "remote.storage.enable": "Copy old segments to tiered storage.",
    "retention.bytes": "Size of a partition above which its oldest segments are deleted, in bytes; -1: never.",
    "retention.ms": "Age at which segments are deleted, in ms; -1: never.",
    "segment.bytes": "Size at which a segment file is closed and a new one starts, in bytes.",
    "segment.index.bytes": "Maximum size of an index file, in bytes.",
    "segment.jitter.ms": "Maximum random time subtracted from segment.ms, in ms; spreads the closing of segments.",
    "segment.ms": "Age at which a segment is closed even if it is not full, in ms.",
    "unclean.leader.election.enable": "Allow a replica that lacks records to become leader if no other is left.",
    # the node
    "alter.log.dirs.replication.quota.window.num": "Number of samples that the quota of moves between disks keeps.",
    "alter.log.dirs.replication.quota.window.size.seconds": "Length of a sample of the quota of moves, in seconds.",
    "client.quota.callback.class": "Class that chooses each client's quota. Default: none; the stored quotas apply.",
    "log.flush.scheduler.interval.ms": "Used if log.flush.interval.ms is not set.",
    "log.retention.hours": "log.retention.ms in hours. Used if log.retention.ms and log.retention.minutes are not set.",
    "log.retention.minutes": "log.retention.ms in minutes. Used if log.retention.ms is not set.",
    "log.roll.hours": "log.roll.ms in hours. Used if log.roll.ms is not set.",
    "log.roll.jitter.hours": "log.roll.jitter.ms in hours. Used if log.roll.jitter.ms is not set.",
    "replication.quota.window.num": "Number of samples that replication quotas keep.",
    "replication.quota.window.size.seconds": "Length of a sample of replication quotas, in seconds.",
    # client metrics
    "interval.ms": "How often the subscription's clients send their metrics, in ms.",
    "match": "Clients of the subscription, as selector=pattern, comma-separated.",
    "metrics": "Prefixes of the names of the metrics that clients send, comma-separated.",
    # groups
    "consumer.assignment.interval.ms": "Minimum time between two assignments of a consumer group, in ms.",
    "consumer.heartbeat.interval.ms": "How often members of a consumer group send a heartbeat, in ms.",
    "consumer.session.timeout.ms": "Time without a heartbeat after which a member leaves its consumer group, in ms.",
    "share.assignment.interval.ms": "Minimum time between two assignments of a share group, in ms.",
    "share.auto.offset.reset": "Where a share group starts to read: earliest, latest or by_duration.",
    "share.delivery.count.limit": "Maximum number of times that a record is delivered.",
    "share.heartbeat.interval.ms": "How often members of a share group send a heartbeat, in ms.",
    "share.isolation.level": "read_committed: do not deliver records of uncommitted transactions.",
    "share.partition.max.record.locks": "Maximum number of records of a partition that are locked at a time.",
    "share.record.lock.duration.ms": "Time that a delivered record stays locked for its consumer, in ms.",
    "share.renew.acknowledge.enable": "Allow a consumer to extend the lock of a record.",
    "share.session.timeout.ms": "Time without a heartbeat after which a member leaves its share group, in ms.",
    "streams.assignment.interval.ms": "Minimum time between two assignments of a streams group, in ms.",
    "streams.heartbeat.interval.ms": "How often members of a streams group send a heartbeat, in ms.",
    "streams.initial.rebalance.delay.ms": "Delay before the first rebalance of a streams group, in ms.",
    "streams.num.standby.replicas": "Number of standby replicas of each task.",
    "streams.session.timeout.ms": "Time without a heartbeat after which a member leaves its streams group, in ms.",
}
BEHIND_TOPICS = {names[0]: topic for topic, names in TOPIC_SYNONYMS.items()}
"""Settings of the node that are the defaults of topics' settings → the topics' names of them."""


def documentation(name: str) -> str:
    """Return the description of a setting; as in Kafka, an empty text for a limit of one listener."""
    if name in SETTINGS:
        return SETTINGS[name].doc
    if name in BEHIND_TOPICS:
        return f"Default of {BEHIND_TOPICS[name]} for topics that do not set it."
    return _TEXTS.get(name, "")
