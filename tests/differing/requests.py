"""Requests made from the message definitions: ordinary, odd, repeated and wrong values by the names of their fields.

Everything comes from one `random.Random`, so a seed gives the same requests again.
"""

import copy
import gzip
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.batches import build_batch, renew_crc
from tests.wire.odd_messages import NOT_UTF8, ODD_TEXTS

from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    API_VERSIONS,
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_GROUPS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_TOPIC_PARTITIONS,
    ELECT_LEADERS,
    FETCH,
    FIND_COORDINATOR,
    HEARTBEAT,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_CONFIG_RESOURCES,
    LIST_GROUPS,
    LIST_OFFSETS,
    LIST_PARTITION_REASSIGNMENTS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SYNC_GROUP,
)
from tidegate.wire import API_BY_KEY
from tidegate.wire.batch import HEADER_BYTES
from tidegate.wire.definitions import Field, layout

OF_MEMBERS = (JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP)
"""The APIs that members of groups use, whose ids each broker gives."""
COMPARED = (
    *OF_MEMBERS, DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE,
    PRODUCE, FETCH, LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, API_VERSIONS,
    CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS, CREATE_PARTITIONS, DESCRIBE_CLIENT_QUOTAS,
    ALTER_CLIENT_QUOTAS, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_ACLS,
    CREATE_ACLS, DELETE_ACLS, DELETE_RECORDS, OFFSET_FOR_LEADER_EPOCH, ALTER_CONFIGS, DESCRIBE_LOG_DIRS, ELECT_LEADERS,
    ALTER_PARTITION_REASSIGNMENTS, LIST_PARTITION_REASSIGNMENTS, DESCRIBE_PRODUCERS, LIST_CONFIG_RESOURCES,
    CONSUMER_GROUP_HEARTBEAT,
)  # fmt: skip
"""The APIs that are compared."""

CONTROL = "control"
"""The client id that asks what is no part of a sequence."""
OWN = "@"
"""Stands, in a name, for what makes it the sequence's own; of `OWN_LENGTH` characters when it is sent."""
OWN_LENGTH = 11
OWN_ENDING = "-d"
"""What it ends with."""
OWN_IP = "ip@"
"""Stands for the address that the sequence's connections come from."""
TOPIC, NODE = 2, 4
"""The resource types of topics and nodes."""
TOPICS = {"one@": 1, "three@": 3, "empty-one@": 1}
"""The topics that a sequence begins with: their partitions."""
RECORDS = 5  # in each partition of `one@` and `three@`
OFTEN = 300  # times that one element is there; for 3,000 Kafka takes half a minute (`long_repeated.py`)
NOW_MS = 1_760_000_000_000
ZERO_ID = "00000000-0000-0000-0000-000000000000"
UNKNOWN_ID = "11111111-1111-1111-1111-111111111111"

LONGEST = "x" * (249 - OWN_LENGTH) + OWN
NAMES = (
    "one@", "one@", "one@", "three@", "three@", "three@", "empty-one@", "missing@", "", "a b@", ".", "..", LONGEST,
    "x" + LONGEST, "new.1@", "new_1@",
)  # fmt: skip
KNOWN_GROUPS = ("g1@", "g2@")
"""The groups that have a position from the start."""
CLIENTS = ("alice@", "bob@", "", "x" * 200 + OWN, "a b@", "*@", "<default>", "ü@")
ANONYMOUS = "ANONYMOUS"
"""The user that everybody is who does not authenticate."""
KEYS = (
    "producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate",
    "connection_creation_rate", "nonsense", "",
)  # fmt: skip
TOPIC_CONFIGS = (
    "retention.ms", "segment.bytes", "cleanup.policy", "max.message.bytes", "compression.type", "preallocate",
    "min.cleanable.dirty.ratio", "nonsense", "",
)  # fmt: skip
CONFIG_VALUES = ("1", "1048576", "-1", "0", "", "delete", "compact", "nonsense", None)

NODE_SETTINGS: dict[str, tuple[str, ...]] = {
    "max.connections": ("1000", "2147483647", "+5000", " 1000 "),
    "max.connections.per.ip": ("1000", "2147483647", "500", "1000 "),
    "max.connections.per.ip.overrides": (
        "", "10.0.0.1:5", "10.0.0.1:5,10.0.0.2:7", " 10.0.0.1:5 , 10.0.0.2:07", "10.0.0.1:5,10.0.0.1:6",
    ),
    "max.connection.creation.rate": ("100000", "2147483647", "0100000"),
    "listener.name.plaintext.max.connections": ("1000", "2147483647"),
    "listener.name.plaintext.max.connection.creation.rate": ("100000", "2147483647"),
}  # fmt: skip
"""Settings that both brokers change while they run, with values that keep nobody out."""
BAD_SETTINGS = (
    "abc", "-1", "-2147483649", "2147483648", "", " ", "1e3", "0x10", "5_000", "1.0", "1000,2000", "10.0.0.1", ":5",
    "10.0.0.1:x", "10.0.0.1:-1", "10.0.0.1:5,", ",", "\u0661\u0660\u0660\u0660",
)  # fmt: skip
OTHER_SETTINGS = (
    "quota.window.num", "quota.window.size.seconds", "controller.quota.window.num", "node.id", "log.retention.ms",
    "client.quota.callback.class", "max.connections.per", "MAX.CONNECTIONS", "nonsense", "",
    "listener.name.other.max.connection.creation.rate", "listener.name.PLAINTEXT.max.connections",
)  # fmt: skip
"""Settings that one broker or both do not change; asked for without effect."""

MEMBERS = ("member:0", "member:0", "member:1", "member:2", "m")
"""Ids of members: those that a broker has given in the sequence, in the order in which it did, and one of nobody."""
GROUPS = (*KNOWN_GROUPS, "g3@")

BY_NAME: dict[str, tuple[Any, ...]] = {
    "topic": NAMES,
    "topic_name": NAMES,
    "topic_names": NAMES,
    "name": NAMES,
    "group_id": GROUPS,
    "groups": (*GROUPS, "", "unknown@"),
    "groups_names": (*GROUPS, "", "unknown@"),
    "states_filter": ("Stable", "empty", "PreparingRebalance", "nonsense"),
    "types_filter": ("classic", "Classic", "share", "nonsense"),
    "generation_id": (1, 1, 1, 2, 2, 3, 0, -1),
    "session_timeout_ms": (10_000, 10_000, 10_000, 10_000, 1),
    "rebalance_timeout_ms": (500,),
    "protocol_type": ("consumer", "consumer", "consumer", "consumer", "connect", "", None),
    "protocol_name": ("range", "range", "range", "sticky", None),
    "metadata": (b"", b"abc", bytes.fromhex("000100000001000174"), bytes.fromhex("0001000000010001740000")),
    "assignment": (b"", b"abc"),
    "reason": ("because", "", None),
    "include_authorized_operations": (False, True),
    "coordinator_keys": ("g1@", "", "x" * 100),
    "key": ("g1@", ""),
    "key_type": (0, 0, 0, 1, 2, 7, -1),
    "member_id": ("", "", "m"),
    "group_instance_id": (None,),
    "generation_id_or_member_epoch": (-1, -1, -1, 0, 5, -2),
    "partition": (0, 0, 1, 2, 3, -1, 2**31 - 1),
    "partition_index": (0, 0, 1, 2, 3, -1, 2**31 - 1),
    "partition_indexes": (0, 1, 2, 7),
    "partitions": (0, 0, 1, 2, 3, -1),
    "replicas": (1, 1, 1, 2, -1),
    "offset": (0, 1, 3, RECORDS, RECORDS + 1, -1, -1, -2, 2**62),
    "election_type": (0, 0, 1, 2, -1),
    "resource_types": (2, 4, 8, 16, 32, 2, 4, 3, 0),
    "allow_replication_factor_change": (True, False),
    "index": (0, 0, 1, 2, 3, -1),
    "current_leader_epoch": (-1, -1, -1, -1, 0, 1, 5, -2),
    "last_fetched_epoch": (-1, -1, -1, -1, 0, 1, -2),
    "leader_epoch": (-1, 0, 1),
    "committed_leader_epoch": (-1, 0, 3, -2),
    "committed_offset": (0, 5, -1, -2, 2**62),
    "committed_metadata": ("", "some", None, "m" * 5000, "ü" * 3000, "\U0001f300" * 2049),
    "commit_timestamp": (-1, NOW_MS),
    "retention_time_ms": (-1,),
    "fetch_offset": (0, 1, RECORDS - 1, RECORDS, RECORDS + 1, -1, -2, 2**62),
    "log_start_offset": (-1, 0, -2, 7),
    "partition_max_bytes": (1, 100, 1 << 20, 0, -1, 2**31 - 1),
    "max_bytes": (1, 100, 1 << 20, 0, 2**31 - 1, -1),
    "min_bytes": (0, 1, 1),
    "max_wait_ms": (0, 0, 20, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, -7, 0, NOW_MS, NOW_MS + 5, NOW_MS + RECORDS, 2**62),
    "isolation_level": (0, 0, 0, 1, 2, -1),
    "replica_id": (-1,),
    "session_id": (0,),
    "session_epoch": (-1, -1, 0, -1, 5),
    "cluster_id": (None,),
    "rack_id": ("", "rack"),
    "high_watermark": (2**63 - 1,),
    "acks": (-1, -1, 1, 0, 2, -2),
    "timeout_ms": (1000, 1000, 30_000, 0),
    "transactional_id": (*[None] * 15, "t"),
    "transaction_timeout_ms": (60_000, 0, -1),
    "producer_id": (-1, -1, 5, -2),
    "producer_epoch": (-1, -1, 0, 3, -2),
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
    "resource_name": ("one@", "three@", "missing@", "new.1@", "", "1", "2", "abc"),
    "configuration_keys": ("retention.ms", "nonsense"),
    "entity_type": ("user", "client-id", "ip", "user", "client-id", "", "nonsense"),
    "entity_name": (*CLIENTS, ANONYMOUS, None, "127.0.0.1", OWN_IP, "::1", "0:0:0:0:0:0:0:1", "not an ip"),
    "match_type": (0, 1, 2, 3, -1),
    "match": (*CLIENTS, ANONYMOUS, None),
    "config_operation": (0, 0, 0, 0, 1, 1, 2, 3, -1, 4),
    "strict": (False, True),
    "remove": (False, False, True),
    "value": (0.0, 1.0, 1000.0, 1.5, -1.0, 1e300, float("nan"), float("inf")),
    "resource_type_filter": (*[1, 2, 3, 4] * 5, 99, 0),
    "pattern_type_filter": (*[1, 2, 3, 4] * 5, 99, 0),
    "resource_pattern_type": (*[3, 4] * 9, 1, 99, 0),
    "operation": (*range(1, 16), 99, 0),
    "permission_type": (*[1, 2, 3] * 6, 99, 0),
    "resource_name_filter": ("one@", None, ""),
    "principal_filter": ("User:alice", None, "alice"),
    "host_filter": ("*", None, "127.0.0.1"),
    "principal": ("User:alice", "User:*", "alice", ""),
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
    "string": ("", "one@", "x" * 100),
    "bytes": (b"", b"abc"),
    "uuid": (ZERO_ID, UNKNOWN_ID),
}


_OF_HEADER_BUT_TIMES = (
    (0, 8), (8, 4), (12, 4), (21, 2), (23, 4), (43, 8), (51, 2), (53, 4), (57, 4),
)  # fmt: skip
"""Places and sizes of what a batch's header says. Kafka takes the largest time from the records (row L1)."""
_OF_HEADER = (*_OF_HEADER_BUT_TIMES, (27, 8), (35, 8))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Records whose producer id only a broker knows: that of its answer number `producer` to InitProducerId."""

    content: bytes
    producer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A fetch session whose id only a broker knows: the one that it gave as number `number` in the sequence."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One request. `@` in a name is the sequence's own, `id:NAME` the id of a topic: each broker has its own.

    `wrong` is (what is wrong with the frame, a number that says how); see `Side.frame`.
    """

    api_key: int
    version: int
    message: dict[str, Any]
    client: str = "c@"
    wrong: tuple[str, int] | None = None

    def __str__(self) -> str:
        client = "" if self.client == "c@" else f" of {self.client!r}"
        wrong = "" if self.wrong is None else f", wrong {self.wrong[0]}: {self.wrong[1]}"
        return f"{API_BY_KEY[self.api_key].name} v{self.version}{client}{wrong}"


def probe(client: str) -> Made:
    """Return a request whose answer says that the connection of a client is heard."""
    return Made(api_key=API_VERSIONS, version=0, message={}, client=client)


WRONG_LENGTHS = (-1, -(2**31), 2**31 - 1, 104_857_601, 0)
WRONG_VERSIONS = (-1, 99, 32_767)
_ANSWERED_AT_ONCE = (
    LIST_OFFSETS, OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, API_VERSIONS, INIT_PRODUCER_ID, DESCRIBE_CONFIGS,
    DESCRIBE_CLIENT_QUOTAS, DESCRIBE_CLUSTER, DESCRIBE_TOPIC_PARTITIONS,
)  # fmt: skip
"""APIs that wait for nothing and create nothing, whatever one of their bytes says."""


def make(api_key: int, rng: random.Random) -> Made:
    """Return a request for an API, in any version of it."""
    api = API_BY_KEY[api_key]
    version = rng.choice((api.max_version, rng.randint(api.min_version, api.max_version)))
    fields = layout(api_key, version, "request").fields
    message = _struct(fields, rng, api_key)
    _make_odd(api_key, message, rng)
    if api_key == ALTER_CLIENT_QUOTAS:
        _throttle_nobody(message)
    if api_key == PRODUCE:
        _leave_null_records_alone(message)
        if message["acks"] == 0 and any(says_compressed(part) for part in _values(message)):
            message["acks"] = 1  # a wrong one is seen in the answer (row L1)
    if api_key == FETCH and "session_id" in message and rng.random() < 0.5:
        message["session_id"] = Session(number=rng.choice((0, 0, 0, 1)))
        message["session_epoch"] = rng.choice((1, 1, 2, 2, 3, 4, 5, 0, -1))
    if api_key == DESCRIBE_TOPIC_PARTITIONS and not message["topics"]:
        _page_behind_internal_topics(message)
    if api_key in (INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS):
        _change_nodes(message, rng)
    if api_key in (*OF_MEMBERS, OFFSET_COMMIT):
        _name_members(api_key, version, message, rng)
    if api_key == ALTER_CONFIGS:  # one that is named twice is never answered (row D7)
        by_name = {(each["resource_type"], each["resource_name"]): each for each in message["resources"]}
        message["resources"] = list(by_name.values())
    client = rng.choice(("c@", "c@", "c@", "d@", ""))
    return Made(
        api_key=api_key, version=version, message=message, client=client, wrong=_wrong(api_key, version, rng)
    )


def _wrong(api_key: int, version: int, rng: random.Random) -> tuple[str, int] | None:
    chance = rng.random()
    if chance > 0.03:
        return None
    if chance < 0.003:
        return "length", rng.choice(WRONG_LENGTHS)
    if chance < 0.007:
        return "version", rng.choice((*WRONG_VERSIONS, version + 1, API_BY_KEY[api_key].max_version + 1))
    if chance < 0.010:
        return "more", rng.choice((1, 2, 100, 100_000))
    if chance < 0.015:
        return "cut", rng.choice((1, 1, 2, 3, 5, 20))
    if chance < 0.018:
        return "client id", rng.choice((0, 1))
    return ("byte", rng.randrange(1 << 20)) if api_key in _ANSWERED_AT_ONCE else None


_LONG_TEXT = 10_000


def _make_odd(api_key: int, message: dict[str, Any], rng: random.Random) -> None:
    """Now and then, let one text be as strange as it can be, or one element be there very often.

    Over a long text that it cannot quote (row W4), Kafka's controller answers no other forwarded request for 30 s.
    """
    chance = rng.random()
    if chance < 0.003:
        arrays = [value for value in _values(message) if isinstance(value, list) and value]
        if arrays:
            repeat(rng.choice(arrays), OFTEN)
    elif chance < 0.01:
        structs = [value for value in _values(message) if isinstance(value, dict)]
        struct = rng.choice(structs)
        texts = [
            name for name, value in struct.items() if isinstance(value, str) and not name.endswith("_id")
        ]
        if texts:
            longest = _LONG_TEXT if API_BY_KEY[api_key].forwardable else 1 << 15
            odd = [text for text in ODD_TEXTS.values() if NOT_UTF8 not in text and len(text) < longest]
            struct[rng.choice(texts)] = rng.choice(odd)


def repeat(array: list[Any], times: int) -> None:
    """Let an array hold its first element so many times."""
    array[:] = [copy.deepcopy(array[0]) for _ in range(times)]


def _values(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _values(item)


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
    of_all = {None, ANONYMOUS, "127.0.0.1", OWN_IP}
    message["validate_only"] = message["validate_only"] or not of_all.isdisjoint(names)


def _change_nodes(message: dict[str, Any], rng: random.Random) -> None:
    """Mostly ask for settings of nodes and topics; validate only what would change Kafka alone, or keep clients out."""
    for resource in message["resources"]:
        chance = rng.random()
        if chance < 0.1:
            continue
        if chance < 0.4:
            resource["resource_type"] = TOPIC
            continue
        resource["resource_type"] = NODE
        resource["resource_name"] = rng.choice(("1", "1", "1", "", "", "2", "01", "+1", " 1", "abc", "-1"))
        for config in resource["configs"]:
            config["name"] = rng.choice((*NODE_SETTINGS, *NODE_SETTINGS, rng.choice(OTHER_SETTINGS)))
            good = NODE_SETTINGS.get(config["name"], ("5",))
            config["value"] = rng.choice((*good, *good, rng.choice(BAD_SETTINGS), None))
    message["validate_only"] = message["validate_only"] or any(
        not is_changed_by_both(resource) or _names_node_oddly(resource) for resource in message["resources"]
    )


def is_changed_by_both(resource: dict[str, Any]) -> bool:
    """Return whether a resource is a topic, or a node of which both brokers change all that is named."""
    return resource["resource_type"] == TOPIC or (
        resource["resource_type"] == NODE
        and all(config["name"] in NODE_SETTINGS for config in resource["configs"])
    )


def _names_node_oddly(resource: dict[str, Any]) -> bool:
    """Return whether a node is named in a way in which Kafka keeps, and never reads, what it acknowledges (row D5)."""
    return resource["resource_name"] in ("01", "+1")


def _name_members(api_key: int, version: int, message: dict[str, Any], rng: random.Random) -> None:
    """Let requests of members be mostly of those that there are, in groups that have some."""
    message["group_id"] = rng.choice(("g1@", "g1@", "g3@", "g3@", ""))
    if api_key == OFFSET_COMMIT and rng.random() < 0.5:
        message["group_id"] = rng.choice(GROUPS)
        return
    named = [message] if "member_id" in message else []
    for member in (*named, *message.get("members", ()), *message.get("assignments", ())):
        member["member_id"] = rng.choice((*MEMBERS, *[""] * (3 if api_key == JOIN_GROUP else 1)))
        if "group_instance_id" in member:
            member["group_instance_id"] = rng.choice((*[None] * 6, "i1", "i2"))
    if "generation_id_or_member_epoch" in message:
        message["generation_id_or_member_epoch"] = rng.choice((1, 1, 2, 2, 3, -1))
    for protocol in message.get("protocols", ()):
        protocol["name"] = rng.choice(("range", "range", "sticky", ""))
    if api_key == JOIN_GROUP and version == 0:
        message["session_timeout_ms"] = 1  # it is the rebalance timeout, too: others would wait for so long


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
    if field.name == "topic_id":
        return rng.choice((ZERO_ID, UNKNOWN_ID, *(f"id:{name}" for name in TOPICS), "id:one@"))
    known = BY_NAME.get(field.name)
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


_ATTRIBUTES_AT, _CODEC = (
    22,
    0x07,
)  # the lower byte of a batch's attributes, and what of it says how it is compressed


def says_compressed(value: Any) -> bool:
    """Return whether a value is records that say that they are compressed."""
    content = value.content if isinstance(value, Batch) else value
    return (
        isinstance(content, bytes)
        and len(content) > _ATTRIBUTES_AT
        and bool(content[_ATTRIBUTES_AT] & _CODEC)
    )


_KINDS = (
    *["good"] * 60, *["producer"] * 30, *["empty"] * 5, *["two"] * 5, *["cut"] * 5, *["crc"] * 5, *["old"] * 5,
    *["gzip"] * 5, *["field"] * 15, *["field-crc"] * 10, "none",
)  # fmt: skip
"""How often records are of which kind. Null ones take long: Kafka does not answer (row L24)."""


def _records(rng: random.Random) -> bytes | Batch | None:
    """Return a batch as a producer makes it, or with something wrong in it."""
    kind = rng.choice(_KINDS)
    count = rng.choice((1, 1, 3))
    if kind == "producer":
        content = records(rng.choice((0, 1, 50)), count=count, sequence=rng.choice((0, 0, 1, 2, 3)))
        return Batch(content=content, producer=rng.choice((0, 0, 0, 1)))
    batch = bytearray(records(rng.choice((0, 1, 50)), count=count))
    if kind == "two":
        return bytes(batch + batch)
    if kind == "gzip":
        return _zipped(batch)
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


def _zipped(batch: bytearray) -> bytes:
    zipped = batch[:HEADER_BYTES] + gzip.compress(batch[HEADER_BYTES:], mtime=0)
    zipped[8:12] = (len(zipped) - 12).to_bytes(4)
    zipped[22] |= 1
    renew_crc(zipped)
    return bytes(zipped)


def records(value_bytes: int, *, count: int = 1, sequence: int = -1, later_ms: int = 0) -> bytes:
    """Return a batch of `count` records with values of `value_bytes`; with a sequence, of epoch 0."""
    return build_batch(
        [(b"k", b"v" * value_bytes)] * count,
        timestamp_ms=NOW_MS + later_ms,
        producer_epoch=-1 if sequence < 0 else 0,
        base_sequence=sequence,
    )
