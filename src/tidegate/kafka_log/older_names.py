"""Names of fields that older brokers write into their request log where Kafka 4.3 writes others.

Compared over all messages of 2.8.2, 3.3.2, 3.6.2, 3.9.1, 4.0.0 and 4.3.1 (`scripts/KafkaSchemas.java` prints them).
Fields of fixed size are left out where the importer does not read them.
"""

from collections.abc import Mapping
from typing import Any

from tidegate.api_keys import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_LOG_DIRS,
    ELECT_LEADERS,
    FETCH,
    LIST_CONFIG_RESOURCES,
)
from tidegate.wire.definitions import Direction

__all__ = ["with_current_names"]

_OLDER: Mapping[tuple[int, Direction], Mapping[str, str]] = {
    # up to 2.8
    (FETCH, "response"): {
        "responses.partitionResponses": "partitions",
        "responses.partitionResponses.partition": "partitionIndex",
        "responses.partitionResponses.recordSetSizeInBytes": "recordsSizeInBytes",
    },
    (DESCRIBE_LOG_DIRS, "request"): {"topics.partitionIndex": "partitions"},
    (ELECT_LEADERS, "request"): {"topicPartitions.partitionId": "partitions"},
    # up to 3.4 (KIP-890 added version 4)
    (ADD_PARTITIONS_TO_TXN, "request"): {
        "transactionalId": "v3AndBelowTransactionalId",
        "topics": "v3AndBelowTopics",
    },
    (ADD_PARTITIONS_TO_TXN, "response"): {
        "results": "resultsByTopicV3AndBelow",
        "results.results": "resultsByPartition",
    },
    # up to 4.0 (KIP-1142)
    (LIST_CONFIG_RESOURCES, "response"): {
        "clientMetricsResources": "configResources",
        "clientMetricsResources.name": "resourceName",
    },
}
"""Path of a field, in older names, to its name in Kafka 4.3."""


def with_current_names(api_key: int, direction: Direction, message: Any) -> Any:
    """Return a message of the log with the names of Kafka 4.3; the same object where its API has no older ones.

    >>> with_current_names(43, "request", {"topicPartitions": [{"topic": "t", "partitionId": [0]}]})
    {'topicPartitions': [{'topic': 't', 'partitions': [0]}]}
    """
    older = _OLDER.get((api_key, direction))
    return message if older is None else _renamed(message, older, "")


def _renamed(value: Any, older: Mapping[str, str], path: str) -> Any:
    if isinstance(value, list):
        return [_renamed(each, older, path) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        older.get(path + name, name): _renamed(each, older, f"{path}{name}.") for name, each in value.items()
    }
