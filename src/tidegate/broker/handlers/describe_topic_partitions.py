"""DescribeTopicPartitions (key 75), version 0. KIP-966.

Topics by name, all of them when none is named, in the order of their names; at most `response_partition_limit` and
`max.request.partition.size.limit` partitions in one answer, and a cursor that says where the next one begins. A
cursor whose topic was not asked for, or with a negative partition, is error 42 for every topic; an empty name
without a cursor is error -1. As in Kafka.
Needs DESCRIBE on each topic: of all topics those without it are left out, of named ones they come last, with error 29.
Memory: at most 200 bytes for each byte of the request (a topic of three bytes becomes two dicts and an entry of a
third), and what is answered.
"""

from collections.abc import Generator, Iterable
from heapq import merge
from itertools import islice

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import answer_and_release, release
from tidegate.broker.cluster import ClusterView
from tidegate.broker.handlers.metadata import PartitionMessages, absent_topic_message, topic_message
from tidegate.broker.topic_names import name_problem
from tidegate.in_slices import map_in_slices
from tidegate.quota.measure.throttle import narrow_to_int32
from tidegate.server.requests.handler import Handler, Message, Request, Work
from tidegate.storage.storage import Storage
from tidegate.wire import ZERO_ID

__all__ = ["describe_topic_partitions_handler"]

_SORTED_AT_ONCE = 1000  # names


def describe_topic_partitions_handler(storage: Storage, cluster: ClusterView) -> Handler:
    """Return the handler that describes the topics of `storage` page by page."""
    partitions = PartitionMessages(cluster)
    most = storage.config.max_request_partition_size_limit

    def handle(request: Request) -> Work:
        body = yield from request.body_in_slices()
        cursor = body["cursor"]
        first_name, first_partition = (cursor["topic_name"], cursor["partition_index"]) if cursor else ("", 0)
        names, named = yield from _names(storage, body["topics"], first_name)
        if cursor and (first_partition < 0 or not named):
            return (yield from _refuse(request, body["topics"], error_codes.INVALID_REQUEST))
        if not cursor and named and body["topics"]:
            return (yield from _refuse(request, body["topics"], error_codes.UNKNOWN_SERVER_ERROR))
        of_all = not body["topics"]
        yield from release(body["topics"])
        left = max(min(body["response_partition_limit"], most), 1)
        topics: list[Message] = []
        refused: list[Message] = []
        next_cursor = None
        for name in names:
            if not request.authorized(acl.DESCRIBE, acl.TOPIC, name):
                if not of_all:
                    refused.append(
                        absent_topic_message(name, ZERO_ID, error_codes.TOPIC_AUTHORIZATION_FAILED)
                    )
                yield
                continue
            if left == 0:
                next_cursor = {"topic_name": name, "partition_index": 0}
                break
            topic = storage.topics.by_name.get(name)
            if topic is None:
                bad_name = name_problem(name) is not None
                code = (
                    error_codes.INVALID_TOPIC_EXCEPTION
                    if bad_name
                    else error_codes.UNKNOWN_TOPIC_OR_PARTITION
                )
                operations = request.authorized_operations(acl.TOPIC, name)
                topics.append(absent_topic_message(name, ZERO_ID, code, operations))
                yield
                continue
            count = len(topic.logs)
            start = first_partition if name == first_name else 0
            end = min(
                count, narrow_to_int32(start + left)
            )  # below 0 past Java's largest, and so is the cursor
            described = (yield from partitions.of(topic))[start : max(end, 0)]
            topics.append(topic_message(topic, described, request.authorized_operations(acl.TOPIC, name)))
            left -= len(described)
            if end < count:
                next_cursor = {"topic_name": name, "partition_index": end}
                break
            yield
        topics += refused
        return (yield from _answer(request, topics, next_cursor))

    return handle


def _names(
    storage: Storage, wanted: list[Message], first_name: str
) -> Generator[None, None, tuple[Iterable[str], bool]]:
    """Return in their order the names of topics, from `first_name` on, and whether that one was asked for."""
    if not wanted:
        return sorted(name for name in storage.topics.by_name if name >= first_name), True
    names: dict[str, None] = {}
    for part in wanted:
        if part["name"] >= first_name:
            names[part["name"]] = None
        yield
    runs, left = [], iter(names)
    while run := sorted(islice(left, _SORTED_AT_ONCE)):
        runs.append(run)
        yield
    named = first_name in names
    yield from release(names)
    return merge(*runs), named


def _refuse(request: Request, wanted: list[Message], error_code: int) -> Work:
    topics = yield from map_in_slices(
        lambda part: absent_topic_message(part["name"], ZERO_ID, error_code), wanted
    )
    yield from release(wanted)
    return (yield from _answer(request, topics, None))


def _answer(request: Request, topics: list[Message], next_cursor: Message | None) -> Work:
    message = {"throttle_time_ms": 0, "topics": topics, "next_cursor": next_cursor}
    return (yield from answer_and_release(request, message, topics))
