"""Settings of a new topic, checked in Kafka's order, so that the error for several mistakes is the same as Kafka's.

The error names all settings without a value; otherwise the first unknown name in the order of Java's `Properties`;
otherwise the first invalid value in the order in which Kafka defines its settings. Follows: Kafka
`ReplicationControlManager`, `LogConfig`.
"""

from collections.abc import Generator

from tidegate.quota.admin.java_hash import hash_map_place
from tidegate.server.requests.handler import Message
from tidegate.storage.topics.topic_configs import TOPIC_CONFIGS, config_problem

__all__ = ["checked_configs_in_slices"]

_LETTERS_AT_ONCE = 5000  # of names that are hashed between two yields: half a millisecond
_DEFINED = (
    "segment.bytes",
    "segment.ms",
    "segment.jitter.ms",
    "segment.index.bytes",
    "flush.messages",
    "flush.ms",
    "retention.bytes",
    "retention.ms",
    "max.message.bytes",
    "index.interval.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "file.delete.delay.ms",
    "min.cleanable.dirty.ratio",
    "cleanup.policy",
    "unclean.leader.election.enable",
    "min.insync.replicas",
    "compression.type",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.zstd.level",
    "preallocate",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
    "remote.storage.enable",
    "local.retention.ms",
    "local.retention.bytes",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
)
"""The settings of `TOPIC_CONFIGS` as Kafka's `LogConfig` defines and reads them."""


def checked_configs_in_slices(
    wanted: list[Message],
) -> Generator[None, None, tuple[dict[str, str], str | None]]:
    """Return the settings of a new topic (the last value of a repeated name), and Kafka's error text, if any."""
    configs: dict[str, str] = {}
    without_value: list[str] = []
    for config in wanted:
        name, value = config["name"], config["value"]
        if value is None:
            without_value.append(name)
        else:
            configs[name] = value
        yield
    if without_value:
        return {}, f"Null value not supported for topic configs: {','.join(without_value)}"
    unknown = yield from _first_unknown(configs)
    if unknown is not None:
        return {}, config_problem(unknown, "")
    for name in _DEFINED:
        if name not in configs:
            continue
        problem = config_problem(name, configs[name])
        if problem is not None:
            return {}, problem
        yield
    return configs, None


def _first_unknown(configs: dict[str, str]) -> Generator[None, None, str | None]:
    """Return the unknown name that Kafka finds first.

    Kafka iterates over a `ConcurrentHashMap`, whose table doubles one entry earlier than a `HashMap`'s.
    """
    first: tuple[int, str] | None = None
    letters = 0
    for name in configs:
        if name in TOPIC_CONFIGS:
            continue
        place = hash_map_place(name, count=len(configs) + 1)
        if first is None or place < first[0]:
            first = place, name
        letters += len(name) + 1
        if letters > _LETTERS_AT_ONCE:
            letters = 0
            yield
    return None if first is None else first[1]
