"""Tidegate's descriptions of all settings, one sentence each.

Kafka's own texts are longer (`docs/kafka-differences.md`, D1).
"""

from collections.abc import Mapping

from tidegate.server.config import SETTINGS
from tidegate.storage.config_synonyms import TOPIC_SYNONYMS

__all__ = ["documentation"]

_TEXTS: Mapping[str, str] = {
    # topics
    "cleanup.policy": "what happens to old records: delete drops whole segments, compact keeps the last of each key",
    "compression.gzip.level": "level of gzip, where the broker compresses",
    "compression.lz4.level": "level of lz4, where the broker compresses",
    "compression.type": "codec of stored batches; producer: as they came",
    "compression.zstd.level": "level of zstd, where the broker compresses",
    "delete.retention.ms": "how long a compacted topic keeps the mark of a deleted key",
    "file.delete.delay.ms": "how long a deleted segment stays on disk under another name",
    "flush.messages": "records after which a partition is synced to disk",
    "flush.ms": "age at which records are synced to disk",
    "follower.replication.throttled.replicas": "followers whose replication is throttled, partition:broker, or *",
    "index.interval.bytes": "bytes of records between two entries of the offset index",
    "leader.replication.throttled.replicas": "leaders whose replication is throttled, partition:broker, or *",
    "local.retention.bytes": "most bytes of a tiered partition that stay on this disk; -2: as retention.bytes",
    "local.retention.ms": "how long segments of a tiered partition stay on this disk; -2: as retention.ms",
    "max.compaction.lag.ms": "longest time that a record may stay uncompacted",
    "max.message.bytes": "largest record batch that is taken",
    "message.timestamp.after.max.ms": "how far in the future a time stamp may lie",
    "message.timestamp.before.max.ms": "how far in the past a time stamp may lie",
    "message.timestamp.type": "whose time stamp counts: CreateTime, the producer's, or LogAppendTime, the broker's",
    "min.cleanable.dirty.ratio": "share of uncompacted bytes at which a log is compacted",
    "min.compaction.lag.ms": "shortest time that a record stays uncompacted",
    "min.insync.replicas": "replicas that must have a record before acks=all is answered",
    "preallocate": "whether a new segment takes its whole size on disk at once",
    "remote.log.copy.disable": "whether nothing more is copied to tiered storage",
    "remote.log.delete.on.disable": "whether tiered data go when tiered storage is switched off",
    "remote.storage.enable": "whether old segments go to tiered storage",
    "retention.bytes": "bytes of a partition at which its oldest segments are deleted; -1: never",
    "retention.ms": "age at which segments are deleted; -1: never",
    "segment.bytes": "bytes at which a segment is closed and a new one begun",
    "segment.index.bytes": "largest size of an index file",
    "segment.jitter.ms": "at most so much is taken off segment.ms by chance, so that not all segments roll at once",
    "segment.ms": "age at which a segment is closed though it is not full",
    "unclean.leader.election.enable": "whether a replica that lacks records may become leader when no other is left",
    # the node
    "alter.log.dirs.replication.quota.window.num": "samples kept for the quota of moves between disks",
    "alter.log.dirs.replication.quota.window.size.seconds": "seconds in one sample of that quota",
    "client.quota.callback.class": "class that decides which quota a client has; none: the stored quotas",
    "log.flush.scheduler.interval.ms": "log.flush.interval.ms, where that is not set",
    "log.retention.hours": "log.retention.ms in hours, where that is not set",
    "log.retention.minutes": "log.retention.ms in minutes, where that is not set",
    "log.roll.hours": "log.roll.ms in hours, where that is not set",
    "log.roll.jitter.hours": "log.roll.jitter.ms in hours, where that is not set",
    "replication.quota.window.num": "samples kept for replication quotas",
    "replication.quota.window.size.seconds": "seconds in one sample of replication quotas",
    # client metrics
    "interval.ms": "how often the clients of the subscription send their metrics",
    "match": "which clients the subscription is for, selector=pattern",
    "metrics": "prefixes of the metrics that are sent",
    # groups
    "consumer.assignment.interval.ms": "shortest time between two assignments of a consumer group",
    "consumer.heartbeat.interval.ms": "how often the members of a consumer group send a heartbeat",
    "consumer.session.timeout.ms": "silence after which a member of a consumer group is taken for gone",
    "share.assignment.interval.ms": "shortest time between two assignments of a share group",
    "share.auto.offset.reset": "where a share group begins: earliest, latest or by_duration",
    "share.delivery.count.limit": "how often a record is delivered at most",
    "share.heartbeat.interval.ms": "how often the members of a share group send a heartbeat",
    "share.isolation.level": "read_committed leaves out records of transactions that did not commit",
    "share.partition.max.record.locks": "most records of a partition that are out at a time",
    "share.record.lock.duration.ms": "how long a delivered record is kept for its consumer",
    "share.renew.acknowledge.enable": "whether a consumer may keep a record for longer",
    "share.session.timeout.ms": "silence after which a member of a share group is taken for gone",
    "streams.assignment.interval.ms": "shortest time between two assignments of a streams group",
    "streams.heartbeat.interval.ms": "how often the members of a streams group send a heartbeat",
    "streams.initial.rebalance.delay.ms": "how long a new streams group waits for more members",
    "streams.num.standby.replicas": "standby replicas of each task",
    "streams.session.timeout.ms": "silence after which a member of a streams group is taken for gone",
}
_BEHIND_TOPICS = {names[0]: topic for topic, names in TOPIC_SYNONYMS.items()}


def documentation(name: str) -> str:
    """Return the sentence that says what a setting means; as in Kafka none for a limit of one listener."""
    if name in SETTINGS:
        return SETTINGS[name].doc
    if name in _BEHIND_TOPICS:
        return f"{_BEHIND_TOPICS[name]} of topics that do not set it"
    return _TEXTS.get(name, "")
