"""Bodies of requests and responses as the log has them, in JSON: their sizes, topics, records and throttle times.

Follows: B§6.2-6.4 for what is charged.
"""

import re
from typing import Any
from zlib import crc32

from tidegate.api_keys import API_VERSIONS
from tidegate.error_codes import UNSUPPORTED_VERSION
from tidegate.kafka_log.line import LineError
from tidegate.kafka_log.sizes import request_size, response_size
from tidegate.topic_sizes import TopicSizes
from tidegate.wire import API_BY_KEY

__all__ = [
    "NO_LAG",
    "bytes_of_records",
    "fetch_positions",
    "fetched_topics",
    "is_follower",
    "message_sizes",
    "names_by_id",
    "partitions_of",
    "produced_topics",
    "stated_throttle_ms",
    "without_configs",
]

NO_LAG = -1
"""Value for a line that does not contain the offsets from which it reads, or the end of the log."""

SIZE_MAX = 2**31 - 1
"""Largest size of a message; its length is an INT32."""

_MOST_RECORDS = 2**53
"""Largest lag and largest sum of offsets; no log comes near."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""A topic's name as Kafka allows it, or its id. Other names belong to requests for topics that do not exist."""
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


def without_configs(message: Any) -> dict[str, Any]:
    """Return a message about topics without their settings, which are most of it."""
    topics = [{key: value for key, value in topic.items() if key != "configs"} for topic in message["topics"]]
    return {**message, "topics": topics}


def is_follower(request: dict[str, Any]) -> bool:
    """Return whether a Fetch request is one of a replica, not of a consumer."""
    state = request.get("replicaState")
    return bool((state["replicaId"] if state else request.get("replicaId", -1)) >= 0)


def partitions_of(response: dict[str, Any]) -> dict[str, int]:
    """Return how many partitions topics have, by name and by id, from an answer that describes them."""
    found: dict[str, int] = {}
    for topic in response.get("topics", ()):
        if topic.get("errorCode", 0) == 0:
            for key in (topic.get("name"), topic.get("topicId")):
                if key:
                    found[key] = len(topic["partitions"])
    return found


def names_by_id(response: dict[str, Any]) -> dict[str, str]:
    """Return the names of topics by id, from an answer that describes topics or has created them."""
    topics = response.get("topics", ())
    pairs = ((topic.get("topicId"), topic.get("name")) for topic in topics)
    return {key: name for key, name in pairs if key and key != _NO_ID and name and _TOPIC.fullmatch(name)}


def produced_topics(request: dict[str, Any], response: dict[str, Any] | str) -> tuple[str | None, int]:
    """Return the topic with the most stored bytes of a Produce, and the number of others; without acks, of sent bytes.

    A partition with an error stores nothing.
    """
    refused = set()
    if isinstance(response, dict):
        refused = {
            (topic.get("topicId") or topic["name"], part["index"])
            for topic in response["responses"]
            for part in topic["partitionResponses"]
            if part["errorCode"]
        }
    sizes = TopicSizes()
    for topic in request["topicData"]:
        name = topic.get("topicId") or topic["name"]
        for part in topic["partitionData"]:
            if not refused or (name, part["index"]) not in refused:
                _add_size(sizes, name, part)
    return sizes.largest()


def fetched_topics(response: dict[str, Any]) -> tuple[str | None, int]:
    """Return the topic with the most bytes of records in the answer to a Fetch, and the number of others."""
    sizes = TopicSizes()
    for topic in response["responses"]:
        for part in topic["partitions"]:
            _add_size(sizes, topic.get("topicId") or topic["topic"], part)
    return sizes.largest()


def _add_size(sizes: TopicSizes, topic: str, part: dict[str, Any]) -> None:
    size = part.get("recordsSizeInBytes")
    if size and _TOPIC.fullmatch(topic):
        sizes.add(topic, size)


def bytes_of_records(response: dict[str, Any]) -> int:
    """Return the bytes of records in the answer to a fetch."""
    topics = response["responses"]
    return sum([part.get("recordsSizeInBytes") or 0 for topic in topics for part in topic["partitions"]])


def fetch_positions(
    asked: list[dict[str, Any]], answered: list[dict[str, Any]]
) -> tuple[int, int, int] | None:
    """Return lag, offsets and partitions of a Fetch (`RequestColumns.table`).

    Only partitions in both request and answer count: in a fetch session a request names only those whose offset has
    changed, and an answer only those with something new.
    """
    if not asked or not answered:
        return None
    ends = {
        (topic.get("topicId") or topic["topic"], part["partitionIndex"]): part["highWatermark"]
        for topic in answered
        for part in topic["partitions"]
    }
    lag, offsets, partitions = NO_LAG, 0, 0
    for topic in asked:
        name = topic.get("topicId") or topic["topic"]
        for part in topic["partitions"]:
            index, offset = part["partition"], part["fetchOffset"]
            behind = ends.pop((name, index), -1) - offset
            if offset >= 0 <= behind:
                lag = behind if lag < 0 else lag + behind
                offsets += offset
                partitions += crc32(f"{name} {index}".encode("utf-8", "replace"))
    if type(lag + offsets) is not int or lag + offsets > _MOST_RECORDS:
        raise LineError("an offset of the Fetch is out of range")
    return (lag, offsets, partitions) if lag >= 0 else None


def stated_throttle_ms(response: dict[str, Any]) -> int:
    """Return the throttle time of a response: for a mutation, nothing else in the log states it."""
    throttle_ms = response.get("throttleTimeMs", 0)
    if type(throttle_ms) is not int or not 0 <= throttle_ms <= SIZE_MAX:
        raise LineError(f"throttleTimeMs of the response is not a whole number from 0 to {SIZE_MAX}")
    return throttle_ms


def message_sizes(
    api_key: int, api_version: int, client_id: str, body: dict[str, Any], response: dict[str, Any] | str
) -> tuple[int, int]:
    """Return the bytes of request and response; 0 for what only controllers say to each other."""
    if api_key not in API_BY_KEY:
        return 0, 0
    if (
        api_key == API_VERSIONS
        and isinstance(response, dict)
        and response["errorCode"] == UNSUPPORTED_VERSION
    ):
        api_version, body = (
            0,
            {},
        )  # answered in version 0; the request is not read, its body is not in the log
    sizes = (
        request_size(api_key, api_version, client_id, body),
        response_size(api_key, api_version, response) if isinstance(response, dict) else 0,
    )
    if not 0 <= min(sizes) <= max(sizes) <= SIZE_MAX:
        raise LineError(f"{API_BY_KEY[api_key].name} is larger than a message can be, {SIZE_MAX} bytes")
    return sizes
