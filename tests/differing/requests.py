"""Requests made from the message definitions: ordinary, odd, repeated and wrong values by the names of their fields.

Everything comes from one `random.Random`, so a seed gives the same requests again.
"""

import random
from dataclasses import dataclass
from typing import Any

from tidegate.wire import API_BY_KEY
from tidegate.wire.batch import renew_crc
from tidegate.wire.batch_builder import build_batch
from tidegate.wire.definitions import Field, layout

PRODUCE, FETCH, METADATA, FIND_COORDINATOR, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID = (
    0,
    1,
    3,
    10,
    19,
    20,
    22,
)
DESCRIBE_CONFIGS, CREATE_PARTITIONS, DESCRIBE_CLIENT_QUOTAS, ALTER_CLIENT_QUOTAS = 32, 37, 48, 49
OFFSET_COMMIT, DESCRIBE_TOPIC_PARTITIONS = 8, 75
COMPARED = (0, 1, 2, 3, 8, 9, 10, 19, 20, 22, 32, 37, 48, 49, 60, 75)
"""The APIs that are compared: all that are served, but for ApiVersions, which lists what is served."""
TOPICS = {"one": 1, "three": 3, "empty-one": 1}
"""The topics that both brokers have before: their partitions."""
RECORDS = 20  # in each partition of `one` and `three`
NOW_MS = 1_760_000_000_000
ZERO_ID = "00000000-0000-0000-0000-000000000000"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"

NAMES = (
    "one",
    "one",
    "three",
    "three",
    "empty-one",
    "missing",
    "",
    "a b",
    ".",
    "..",
    "x" * 249,
    "x" * 250,
    "new.1",
)
KNOWN_GROUPS = ("g1", "g2", "")
"""The groups that have a position from the start."""
GONE = ("missing", "new.1", "", "a b", "x" * 249, "x" * 250, "segment.bytes")
"""What DeleteTopics may name: the topics of the start stay."""
CLIENTS = ("alice", "bob", "", "x" * 200, "a b", "*", "<default>", "ü")
KEYS = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    "connection_creation_rate", "nonsense", "",
)  # fmt: skip
TOPIC_CONFIGS = (
    "retention.ms", "segment.bytes", "cleanup.policy", "max.message.bytes", "compression.type", "preallocate",
    "min.cleanable.dirty.ratio", "nonsense", "",
)  # fmt: skip
CONFIG_VALUES = ("1", "1048576", "-1", "0", "", "delete", "compact", "nonsense", None)

BY_NAME: dict[str, tuple[Any, ...]] = {
    "topic": NAMES,
    "name": NAMES,
    "group_id": (*KNOWN_GROUPS, "g3"),
    "coordinator_keys": ("g1", "", "x" * 100),
    "key": ("g1", ""),
    "key_type": (0, 0, 0, 1, 2, 7, -1),
    "member_id": ("", "", "m"),
    "group_instance_id": (None,),
    "generation_id_or_member_epoch": (-1, -1, 0, 5),
    "partition": (0, 0, 1, 2, 3, -1, 2**31 - 1),
    "partition_index": (0, 0, 1, 2, 3, -1, 2**31 - 1),
    "partition_indexes": (0, 1, 2, 7),
    "index": (0, 0, 1, 2, 3, -1),
    "current_leader_epoch": (-1, -1, -1, 0, 1, 5),
    "last_fetched_epoch": (-1, -1, -1, 0, 1),
    "leader_epoch": (-1, 0, 1),
    "committed_leader_epoch": (-1, 0, 3),
    "committed_offset": (0, 5, -1, 2**62),
    "committed_metadata": ("", "some", None, "m" * 5000),
    "commit_timestamp": (-1, NOW_MS),
    "retention_time_ms": (-1,),
    "fetch_offset": (0, 1, RECORDS - 1, RECORDS, RECORDS + 1, -1, 2**62),
    "log_start_offset": (-1, 0),
    "partition_max_bytes": (1, 100, 1 << 20, 0, -1, 2**31 - 1),
    "max_bytes": (1, 100, 1 << 20, 0, 2**31 - 1, -1),
    "min_bytes": (0, 1, 1),
    "max_wait_ms": (0, 0, 20, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, -7, 0, NOW_MS, NOW_MS + 5, NOW_MS + RECORDS, 2**62),
    "isolation_level": (0, 0, 1),
    "replica_id": (-1,),
    "session_id": (0,),
    "session_epoch": (-1, -1, 0, -1, 5),
    "cluster_id": (None,),
    "rack_id": ("", "rack"),
    "high_watermark": (2**63 - 1,),
    "acks": (-1, -1, 1, 0, 2, -2),
    "timeout_ms": (1000, 1000, 30_000),
    "transactional_id": (None, None, None, "t"),
    "transaction_timeout_ms": (60_000, 0, -1),
    "producer_id": (-1, -1, 5),
    "producer_epoch": (-1, -1, 0, 3),
    "num_partitions": (1, 2, 3, 0, -1, -2, 5),
    "replication_factor": (1, 1, -1, 0, 2, -3),
    "count": (1, 2, 4, 6, 0, -1),
    "broker_ids": (1, 2, -1),
    "validate_only": (True, True, False),
    "allow_auto_topic_creation": (False, False, False, True),
    "include_topic_authorized_operations": (False, True),
    "include_cluster_authorized_operations": (False, True),
    "include_synonyms": (False, True),
    "include_documentation": (False,),
    "include_fenced_brokers": (False,),
    "endpoint_type": (1, 1, 2, 0),
    "require_stable": (False, True),
    "resource_type": (2, 2, 4, 8, 16, 32, 0, 99),
    "resource_name": ("one", "three", "missing", "", "1", "2", "abc"),
    "configuration_keys": ("retention.ms", "nonsense"),
    "entity_type": ("user", "client-id", "ip", "user", "client-id", "", "nonsense"),
    "entity_name": (*CLIENTS, None, "127.0.0.1", "not an ip"),
    "match_type": (0, 1, 2, 3, -1),
    "match": (*CLIENTS, None),
    "strict": (False, True),
    "remove": (False, False, True),
    "value": (0.0, 1.0, 1000.0, 1.5, -1.0, 1e300, float("nan"), float("inf")),
    "response_partition_limit": (2000, 1, 0, -1),
    "client_software_name": ("diff", "", "a b"),
    "client_software_version": ("1", "", "1 "),
    "replica_directory_id": (ZERO_ID,),
    "replica_epoch": (-1,),
}
"""What a field of this name may hold; a field that is not here gets a value of its type."""

BY_TYPE: dict[str, tuple[Any, ...]] = {
    "bool": (False, True),
    "int8": (0, 1, -1),
    "int16": (0, 1, -1),
    "uint16": (0, 1),
    "int32": (0, 1, -1, 2**31 - 1),
    "int64": (0, 1, -1),
    "float64": (0.0, 1.5),
    "string": ("", "one", "x" * 100),
    "bytes": (b"", b"abc"),
    "uuid": (ZERO_ID, UNKNOWN_ID),
}


_OF_HEADER_BUT_TIMES = (
    (0, 8), (8, 4), (12, 4), (21, 2), (23, 4), (43, 8), (51, 2), (53, 4), (57, 4),
)  # fmt: skip
"""Places and sizes of what a batch's header says. Kafka takes the largest time from the records (row L1)."""
_OF_HEADER = (*_OF_HEADER_BUT_TIMES, (27, 8), (35, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One request. Topic ids are `id:NAME`: each broker has its own."""

    api_key: int
    version: int
    message: dict[str, Any]


def make(api_key: int, rng: random.Random) -> Made:
    """Return a request for an API, in any version of it."""
    api = API_BY_KEY[api_key]
    version = rng.choice((api.max_version, rng.randint(api.min_version, api.max_version)))
    fields = layout(api_key, version, "request").fields
    message = _struct(fields, rng, api_key)
    if api_key == ALTER_CLIENT_QUOTAS:
        _throttle_nobody(message)
    if api_key == PRODUCE:
        _leave_null_records_alone(message)
    if api_key == DESCRIBE_TOPIC_PARTITIONS and not message["topics"]:
        _page_behind_internal_topics(message)
    return Made(api_key=api_key, version=version, message=message)


def _leave_null_records_alone(message: dict[str, Any]) -> None:
    """Let null records be for one partition alone: over them Kafka fails, after it has stored some of the others."""
    for topic in message["topic_data"]:
        for part in topic["partition_data"]:
            if part["records"] is None:
                message["topic_data"] = [{**topic, "partition_data": [part]}]
                return


def _throttle_nobody(message: dict[str, Any]) -> None:
    """Validate only where a quota would be one of the client that asks: answers would take their time."""
    names = [part["entity_name"] for entry in message["entries"] for part in entry["entity"]]
    message["validate_only"] = message["validate_only"] or None in names or "127.0.0.1" in names


def _page_behind_internal_topics(message: dict[str, Any]) -> None:
    """Let a page of all topics, where it begins before Kafka's internal ones, be large enough for all of them.

    They are not compared, and a page that ends within them would be.
    """
    cursor = message["cursor"]
    if cursor is None or cursor["topic_name"] < "a":
        message["response_partition_limit"] = 2000


def _struct(fields: tuple[Field, ...], rng: random.Random, api_key: int) -> dict[str, Any]:
    return {
        field.name: _field(field, rng, api_key) for field in fields if field.tag is None or rng.random() < 0.1
    }


def _field(field: Field, rng: random.Random, api_key: int) -> Any:
    if field.nullable and field.array and rng.random() < 0.15:
        return None
    if field.name == "forgotten_topics_data":
        return []
    if field.array:
        count = rng.choice((0, 1, 1, 1, 2, 2, 3))
        items = [_value(field, rng, api_key) for _ in range(count)]
        return [*items, rng.choice(items)] if items and rng.random() < 0.15 else items
    return _value(field, rng, api_key)


def _value(field: Field, rng: random.Random, api_key: int) -> Any:
    if field.type == "struct":
        value = _struct(field.fields, rng, api_key)
        if field.name == "configs" and rng.random() < 0.7:
            value["name"] = rng.choice(TOPIC_CONFIGS)
        return value
    if field.type == "records":
        return _records(rng)
    if field.name == "topic_id" and api_key == DELETE_TOPICS:
        return rng.choice((ZERO_ID, ZERO_ID, UNKNOWN_ID))
    if field.name == "topic_id":
        return rng.choice((ZERO_ID, UNKNOWN_ID, *(f"id:{name}" for name in TOPICS), "id:one"))
    known = BY_NAME.get(field.name)
    if field.name == "topic_names" or (field.name == "name" and api_key == DELETE_TOPICS):
        known = GONE
    if field.name == "name" and api_key == CREATE_TOPICS:
        known = (*NAMES, *TOPIC_CONFIGS)
    if field.name == "key" and api_key == ALTER_CLIENT_QUOTAS:
        known = KEYS
    if field.name == "value" and field.type == "string":
        known = CONFIG_VALUES
    chosen = rng.choice(known if known is not None else BY_TYPE[field.type])
    if chosen is None and not field.nullable:
        return "" if field.type == "string" else 0
    if field.type != "float64" and isinstance(chosen, float):
        return 0
    return chosen


def _records(rng: random.Random) -> bytes | None:
    """Return a batch as a producer makes it, or with something wrong in it."""
    kind = rng.choice(
        ("good", "good", "two", "none", "empty", "cut", "crc", "old", "field", "field", "field-crc")
    )
    batch = bytearray(
        build_batch([(b"k", b"v" * rng.choice((0, 1, 50)))] * rng.choice((1, 3)), timestamp_ms=NOW_MS)
    )
    if kind == "two":
        return bytes(batch + batch)
    if kind == "none":
        return None
    if kind == "empty":
        return b""
    if kind == "cut":
        return bytes(batch[: rng.randrange(len(batch))])
    if kind == "crc":
        batch[-1] ^= 1
    if kind == "old":
        batch[16] = rng.choice((0, 1, 3, 255))
    if kind.startswith("field"):
        at, size = rng.choice(_OF_HEADER if kind == "field" else _OF_HEADER_BUT_TIMES)
        number = rng.choice((0, 1, 2, 5, 1000, 2**31 - 1, -1, -2)) % (1 << (8 * size))
        batch[at : at + size] = number.to_bytes(size, "big")
        if kind == "field-crc":
            renew_crc(batch)
    return bytes(batch)
