"""DescribeTopicPartitions (key 75), version 0. KIP-966.

Topics by name, all of them when none is named, in the order of their names; at most `response_partition_limit`
partitions in one answer, and a cursor that says where the next one begins.
"""

from bisect import bisect_left

from tidegate.server.handler import Answer, Handler, Message, Request
from tidegate.storage import error_codes
from tidegate.storage.handlers.addresses import TOPIC_OPERATIONS, ZERO_ID
from tidegate.storage.handlers.metadata import partition_message
from tidegate.storage.storage import Storage
from tidegate.storage.topic_names import name_problem

__all__ = ["DESCRIBE_TOPIC_PARTITIONS", "MAX_PARTITIONS_PER_ANSWER", "describe_topic_partitions_handler"]

DESCRIBE_TOPIC_PARTITIONS = 75
MAX_PARTITIONS_PER_ANSWER = 2000  # Kafka's `max.request.partition.size.limit`


def describe_topic_partitions_handler(storage: Storage) -> Handler:
    """Return the handler that describes the topics of `storage` page by page."""

    def handle(request: Request) -> Answer:
        body = request.body()
        names = sorted({topic["name"] for topic in body["topics"]} or storage.topics.by_name)
        cursor = body["cursor"]
        first_name, first_partition = (cursor["topic_name"], cursor["partition_index"]) if cursor else ("", 0)
        left = max(min(body["response_partition_limit"], MAX_PARTITIONS_PER_ANSWER), 1)
        topics: list[Message] = []
        next_cursor = None
        for name in names[bisect_left(names, first_name) :]:
            start = max(first_partition, 0) if name == first_name else 0
            topic = _describe(storage, name, range(start, start + left))
            if left == 0:
                next_cursor = {"topic_name": name, "partition_index": 0}
                break
            topics.append(topic)
            left -= len(topic["partitions"])
            end = start + len(topic["partitions"])
            if end < _count(storage, name):
                next_cursor = {"topic_name": name, "partition_index": end}
                break
        return request.answer({"throttle_time_ms": 0, "topics": topics, "next_cursor": next_cursor})

    return handle


def _count(storage: Storage, name: str) -> int:
    topic = storage.topics.by_name.get(name)
    return 0 if topic is None else len(topic.logs)


def _describe(storage: Storage, name: str, wanted: range) -> Message:
    topic = storage.topics.by_name.get(name)
    bad_name = topic is None and name_problem(name) is not None
    missing = error_codes.INVALID_TOPIC_EXCEPTION if bad_name else error_codes.UNKNOWN_TOPIC_OR_PARTITION
    return {
        "error_code": missing if topic is None else error_codes.NONE,
        "name": name,
        "topic_id": ZERO_ID if topic is None else topic.topic_id,
        "is_internal": False,
        "partitions": [
            {**partition_message(storage, partition), "eligible_leader_replicas": [], "last_known_elr": []}
            for partition in wanted
            if topic is not None and partition < len(topic.logs)
        ],
        "topic_authorized_operations": TOPIC_OPERATIONS,
    }
