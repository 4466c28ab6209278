"""DescribeLogDirs (key 35), versions 1-5. KIP-113, KIP-827 (total and usable bytes, from 4), KIP-1066 (cordoned, 5).

A node has one directory. Described are the partitions that it leads, of those that are asked for: null asks for all.
A partition that is not there is left out, one that is named more than once is described once.
Needs DESCRIBE on the cluster, else error 31 (before version 3 an empty answer).
Memory: at most 60 bytes for each byte of the request (a partition of 4 bytes becomes a number in a set).
"""

import os
from collections.abc import Generator

from tidegate import error_codes
from tidegate.acl import codes as acl
from tidegate.broker.answering import release
from tidegate.broker.cluster import ClusterView
from tidegate.in_slices import release_messages
from tidegate.server.requests.handler import Message, Request, Work
from tidegate.storage.storage import Storage
from tidegate.storage.topics.topic import Topic
from tidegate.wire import UNKNOWN

__all__ = ["handle_describe_log_dirs"]

_Wanted = dict[str, set[int]]


def handle_describe_log_dirs(storage: Storage, cluster: ClusterView, request: Request) -> Work:
    """Describe the directory of `storage`."""
    directory = os.path.abspath(storage.directory)
    body = yield from request.body_in_slices()
    if not request.authorized(acl.DESCRIBE, acl.CLUSTER):
        yield from request.release_body(body)
        error_code = error_codes.CLUSTER_AUTHORIZATION_FAILED
        return request.answer({"throttle_time_ms": 0, "error_code": error_code, "results": []})
    wanted: _Wanted | None = None
    if body["topics"] is not None:
        wanted = yield from _wanted(body["topics"])
    yield from request.release_body(body)
    result: Message = {
        "error_code": error_codes.NONE,
        "log_dir": directory,
        "topics": [],
        "total_bytes": UNKNOWN,
        "usable_bytes": UNKNOWN,
        "is_cordoned": False,
    }
    try:
        found = os.statvfs(directory)
    except OSError:
        result["error_code"] = error_codes.KAFKA_STORAGE_ERROR
    else:
        result["total_bytes"] = found.f_blocks * found.f_frsize
        result["usable_bytes"] = found.f_bavail * found.f_frsize
        result["topics"] = yield from _topics(storage, cluster, wanted)
    yield from release(wanted or {})
    message = {"throttle_time_ms": 0, "error_code": error_codes.NONE, "results": [result]}
    answer = yield from request.answer_in_slices(message)
    yield from release_messages(result["topics"])
    return answer


def _wanted(topics: list[Message]) -> Generator[None, None, _Wanted]:
    """Return the partitions that are asked for, by topic."""
    wanted: _Wanted = {}
    for part in topics:
        indexes = wanted.setdefault(part["topic"], set())
        for index in part["partitions"]:
            indexes.add(index)
            yield
        yield from release(part["partitions"])
        yield
    return wanted


def _topics(
    storage: Storage, cluster: ClusterView, wanted: _Wanted | None
) -> Generator[None, None, list[Message]]:
    """Return what there is of each topic that has a partition here."""
    described = []
    for topic in list(storage.topics):
        indexes = None if wanted is None else wanted.get(topic.name, set())
        if indexes is None or indexes:
            partitions = yield from _partitions(cluster, topic, indexes)
            if partitions:
                described.append({"name": topic.name, "partitions": partitions})
        yield
    return described


def _partitions(
    cluster: ClusterView, topic: Topic, indexes: set[int] | None
) -> Generator[None, None, list[Message]]:
    partitions = []
    for index, log in enumerate(topic.logs):
        if (indexes is None or index in indexes) and cluster.leads(topic, index):
            partitions.append(
                {
                    "partition_index": index,
                    "partition_size": log.size_bytes,
                    "offset_lag": 0,
                    "is_future_key": False,
                }
            )
        yield
    return partitions
