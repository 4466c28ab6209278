"""The settings that the embedded storage is opened with, by Kafka's names and defaults."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidegate.storage.topics.topic_settings import NEVER

__all__ = [
    "MAX_PARTITIONS",
    "PRODUCER_ID_EXPIRATION_MS",
    "StorageConfig",
    "text_of",
]

MAX_PARTITIONS: Final = 4000
"""Default of `tidegate.max.partitions`. Source: what Kafka recommends at most per broker."""

PRODUCER_ID_EXPIRATION_MS: Final = 86_400_000
"""Silence after which a producer id is forgotten: the default of Kafka's `producer.id.expiration.ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Settings of the log, the topics and the handlers: the field `a_b_c` is Kafka's `a.b.c`.

    kafka_exact: ours, `tidegate.kafka.exact`: charge mutation quotas for validate_only too, as Kafka 4.3 does.
    max_partitions: ours, `tidegate.max.partitions`: most partitions of the node; each holds a file open.
    given: the texts of the node's settings that were set at the start, by name, for DescribeConfigs; None: the fields
        that are not at their default.
    of_node, of_all: the texts of those that were changed since, for the node itself and for all nodes; those of the
        node win. The fields have what is in force.
    """

    num_partitions: int = 1
    auto_create_topics_enable: bool = True
    message_max_bytes: int = 1_048_588
    log_message_timestamp_type: str = "CreateTime"
    log_message_timestamp_after_max_ms: int = 3_600_000
    log_cleanup_policy: str = "delete"
    log_retention_ms: int = 604_800_000
    log_retention_bytes: int = -1
    log_retention_check_interval_ms: int = 300_000
    log_roll_ms: int = 604_800_000
    log_segment_bytes: int = 1 << 30
    log_index_interval_bytes: int = 4096
    log_flush_interval_messages: int = NEVER
    log_flush_interval_ms: int = NEVER
    producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS
    fetch_max_bytes: int = 57_671_680
    max_request_partition_size_limit: int = 2000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    max_incremental_fetch_session_cache_slots: int = 1000
    kafka_exact: bool = False
    max_partitions: int = MAX_PARTITIONS
    given: Mapping[str, str] | None = None
    of_node: Mapping[str, str] = field(default_factory=dict)
    of_all: Mapping[str, str] = field(default_factory=dict)

    def set_at_start(self) -> Mapping[str, str]:
        """Return the texts of the settings that were set, by name."""
        if self.given is not None:
            return self.given
        values = {each.name: (getattr(self, each.name), each.default) for each in dataclasses.fields(self)}
        values = {name: pair for name, pair in values.items() if name not in ("given", "of_node", "of_all")}
        changed = {name: value for name, (value, default) in values.items() if value != default}
        return {name.replace("_", "."): text_of(value) for name, value in changed.items()}


def text_of(value: Any) -> str:
    """Return a setting's value as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
