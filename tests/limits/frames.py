"""Messages that the tests of limits send, and how large they are."""

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from tests.batches import build_batch

from tidegate.wire import API_BY_KEY, encode_request

PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH = 0, 1, 2, 3, 8, 9
FIND_COORDINATOR, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 10, 18, 19, 20
DESCRIBE_CONFIGS, CREATE_PARTITIONS, DESCRIBE_QUOTAS, ALTER_QUOTAS = 32, 37, 48, 49
DESCRIBE_TOPIC_PARTITIONS = 75
DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31

FULL = bool(os.environ.get("TIDEGATE_LIMITS_FULL"))
"""Whether to run with the largest input there may be: minutes, and gigabytes of memory."""

EMPTY_BATCH = build_batch([(None, b"")])


def size(usual: int, largest: int) -> int:
    """Return how large an input is: as large as a bar needs to be seen, or the largest if `FULL`."""
    return largest if FULL else usual


def request(api_key: int, version: int, message: Mapping[str, Any], client_id: str = "limits") -> bytes:
    """Return a whole request."""
    return bytes(encode_request(api_key, version, 1, client_id, message))


def raw_frame(api_key: int, version: int, body: bytes, tags: bytes = b"\0") -> bytes:
    """Return a request of which the body, and the header's tagged fields, are given as bytes."""
    flexible = API_BY_KEY[api_key].is_flexible(version)
    header = struct.pack(">hhih6s", api_key, version, 1, 6, b"limits") + (tags if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def uvarint(value: int) -> bytes:
    """Return a number in as many groups of seven bits as it takes."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def produce(topic: str, batches: Sequence[bytes], *, acks: int = 1, partition: int = 0) -> dict[str, Any]:
    """Return a Produce v8 with batches for one partition."""
    parts = [{"index": partition, "records": batch} for batch in batches]
    topics = [{"name": topic, "partition_data": parts}]
    return {"transactional_id": None, "acks": acks, "timeout_ms": 10_000, "topic_data": topics}


def fetch(
    topic: str,
    partitions: Sequence[int] = (0,),
    *,
    offset: int = 0,
    wait_ms: int = 0,
    max_bytes: int = 50_000_000,
) -> dict[str, Any]:
    """Return a Fetch v11 without a session; it waits for a byte, at most `wait_ms`."""
    parts = [
        {
            "partition": partition,
            "current_leader_epoch": -1,
            "fetch_offset": offset,
            "log_start_offset": -1,
            "partition_max_bytes": max_bytes,
        }
        for partition in partitions
    ]
    return {
        "replica_id": -1,
        "max_wait_ms": wait_ms,
        "min_bytes": 1,
        "max_bytes": max_bytes,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": parts}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def list_offsets(topic: str, timestamps: Sequence[int], partition: int = 0) -> dict[str, Any]:
    """Return a ListOffsets v5 that asks about times of one partition."""
    parts = [
        {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        for timestamp in timestamps
    ]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": parts}]}


def metadata(topics: Sequence[str] | None, *, create: bool = False) -> dict[str, Any]:
    """Return a Metadata v7."""
    named = None if topics is None else [{"name": topic} for topic in topics]
    return {"topics": named, "allow_auto_topic_creation": create}


def new_topic(name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a topic for `create_topics`."""
    settings = [{"name": key, "value": value} for key, value in (configs or {}).items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": settings,
    }


def create_topics(topics: Sequence[Mapping[str, Any]], *, validate_only: bool = False) -> dict[str, Any]:
    """Return a CreateTopics v5."""
    return {"topics": topics, "timeout_ms": 60_000, "validate_only": validate_only}


def alter(entities: Sequence[Mapping[str, str | None]], quotas: Mapping[str, float]) -> dict[str, Any]:
    """Return an AlterClientQuotas v0 that sets the same quotas for many entities."""
    ops = [{"key": key, "value": value, "remove": False} for key, value in quotas.items()]
    entries = [
        {"entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()], "ops": ops}
        for entity in entities
    ]
    return {"entries": entries, "validate_only": False}


def commit(topics: Mapping[str, int], *, metadata: str = "") -> dict[str, Any]:
    """Return an OffsetCommit v5 of a group without members: topic to how many times its partition 0 is named."""
    part = {
        "partition_index": 0,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    named = [{"name": topic, "partitions": [part] * times} for topic, times in topics.items()]
    return {"group_id": "limits", "generation_id_or_member_epoch": -1, "member_id": "", "topics": named}
