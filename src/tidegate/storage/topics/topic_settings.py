"""Effective settings of a topic for its logs, ready for the append path."""

from dataclasses import dataclass, field

from tidegate.quota.measure.throttle import MAX_INT64

__all__ = ["NEVER", "TopicSettings"]

NEVER = MAX_INT64  # Kafka's default of `flush.messages` and `flush.ms`


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """Settings of one topic, its own or the node's. Names and defaults follow: Kafka `TopicConfig`."""

    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    index_interval_bytes: int = 4096
    log_append_time: bool = False
    timestamp_after_max_ms: int = 3_600_000
    only_compacted: bool = False
    """True if the policy is compact alone: records are deleted neither by retention nor on request."""
    compacted: bool = False
    """True if the policy includes compaction."""
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    flush_messages: int = NEVER
    flush_ms: int = NEVER
    max_batch_bytes: int = field(init=False)
    """The largest batch that is both a message and a segment."""

    def __post_init__(self) -> None:
        """Work out what the append path asks for."""
        object.__setattr__(self, "max_batch_bytes", min(self.max_message_bytes, self.segment_bytes))

    @property
    def flushes(self) -> bool:
        """Return whether appends are ever synced before their segment is closed."""
        return self.flush_messages != NEVER or self.flush_ms != NEVER
