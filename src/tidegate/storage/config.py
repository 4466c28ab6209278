"""The settings that the embedded storage is opened with, by Kafka's names and defaults."""

from dataclasses import dataclass

__all__ = ["StorageConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Settings of the log, the topics and the handlers; `a.b.c` in Kafka is `a_b_c` here.

    advertised: host and port that clients are told to connect to; None: the address they came in by.
    max_partitions: ours, `tidegate.max.partitions`: most partitions of the node (each holds a file open).
    kafka_exact: ours, `tidegate.kafka.exact`: charge mutation quotas for validate_only too, as Kafka 4.3 does.
    """

    node_id: int = 1
    advertised: tuple[str, int] | None = None
    num_partitions: int = 1
    auto_create_topics_enable: bool = True
    message_max_bytes: int = 1_048_588
    log_message_timestamp_type: str = "CreateTime"
    log_message_timestamp_after_max_ms: int = 3_600_000
    log_segment_bytes: int = 1 << 30
    log_index_interval_bytes: int = 4096
    log_retention_ms: int = 604_800_000
    log_retention_bytes: int = -1
    log_retention_check_interval_ms: int = 300_000
    fetch_max_bytes: int = 57_671_680
    producer_id_expiration_ms: int = 86_400_000
    offset_metadata_max_bytes: int = 4096
    max_partitions: int = 4000
    kafka_exact: bool = False
