"""Random requests of users with and without rights, to two brokers with ACLs."""

import random
from collections.abc import Callable
from typing import Any

from tests.differing.acl_admin_requests import ADMIN_MAKERS
from tests.differing.acl_group_requests import GROUP_MAKERS, fetched_in_session
from tests.differing.acl_names import DELETED, GROUPS, NAMES, POSITIONS, ZERO_ID
from tests.differing.acl_names import Made as _Made
from tests.differing.acl_sides import ADMIN
from tests.unit.storage.logs import batch

from tidegate.acl import codes
from tidegate.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_ACLS,
    DELETE_TOPICS,
    DESCRIBE_ACLS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_TOPIC_PARTITIONS,
    FETCH,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    METADATA,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
)

__all__ = ["EVERYTHING", "MADE", "Asked", "changes", "create_topics", "positions", "requests"]

Asked = tuple[str, int, int, dict[str, Any]]
"""User, API key, version and message."""
USERS = ("alice", "bob")
EVERYTHING = {
    "resource_type_filter": codes.ANY, "resource_name_filter": None, "pattern_type_filter": codes.ANY,
    "principal_filter": None, "host_filter": None, "operation": codes.ANY, "permission_type": codes.ANY,
}  # fmt: skip
_OPERATIONS = range(codes.ALL, codes.TWO_PHASE_COMMIT + 1)
_OF_TYPE = {
    codes.TOPIC: ("t-one", "t-two", "u-one", "missing", "t-", "u", "*"),
    codes.GROUP: ("g", "h", "g-members", "*"),
    codes.CLUSTER: (codes.CLUSTER_NAME,),
    codes.TRANSACTIONAL_ID: ("tx", "*"),
}


def create_topics(*names: str, validate_only: bool = False) -> dict[str, Any]:
    """Return what creates topics of one partition."""
    topics = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": topics, "timeout_ms": 10_000, "validate_only": validate_only}


def changes(rng: random.Random) -> list[Asked]:
    """Return requests of the administrator that create ACLs, and delete some of a user's."""
    asked: list[Asked] = []
    if rng.random() < 0.5:
        wanted = {**EVERYTHING, "principal_filter": rng.choice(("User:alice", "User:bob", "User:*", None))}
        asked.append((ADMIN, DELETE_ACLS, rng.randint(1, 3), {"filters": [wanted]}))
    acls = [_acl(rng) for _ in range(rng.choice((1, 3, 6)))]
    asked.append((ADMIN, CREATE_ACLS, rng.randint(1, 3), {"creations": acls}))
    return asked


def _acl(rng: random.Random) -> dict[str, Any]:
    resource_type = rng.choice(
        (*[codes.TOPIC] * 5, codes.GROUP, codes.GROUP, codes.CLUSTER, codes.CLUSTER, codes.TRANSACTIONAL_ID)
    )
    return {
        "resource_type": resource_type,
        "resource_name": rng.choice(_OF_TYPE[resource_type]),
        "resource_pattern_type": rng.choice((codes.LITERAL, codes.LITERAL, codes.PREFIXED)),
        "principal": rng.choice(("User:alice", "User:alice", "User:bob", "User:*", "Group:alice")),
        "host": rng.choice(("*", "*", "127.0.0.1", "10.0.0.1")),
        "operation": rng.choice((*_OPERATIONS, codes.READ, codes.WRITE, codes.DESCRIBE)),
        "permission_type": rng.choice((*[codes.ALLOW] * 4, codes.DENY)),
    }  # fmt: skip


def requests(rng: random.Random, count: int) -> list[Asked]:
    """Return requests of alice and bob, who use one another's groups and fetch sessions, too."""
    made: list[Asked] = []
    while len(made) < count:
        some = fetched_in_session(rng) if rng.random() < 0.05 else [rng.choice(_MAKERS)(rng)]
        user = rng.choice(USERS)
        made += [(rng.choice((user, user, user, *USERS)), *one) for one in some]
    return made


def positions(group_id: str) -> dict[str, Any]:
    """Return what lets a group have positions."""
    position = {
        "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    return {
        "group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": name, "partitions": [position]} for name in ("t-one", "u-one")],
    }  # fmt: skip


def _metadata(rng: random.Random) -> _Made:
    version = rng.randint(0, 13)
    by_id = version >= 12 and rng.random() < 0.4
    names = rng.sample(NAMES, rng.choice((1, 2, 4)))
    topics: list[dict[str, Any]] | None = [
        {"name": None, "topic_id": f"id:{name}"} if by_id else {"name": name, "topic_id": ZERO_ID}
        for name in names
    ]
    if rng.random() < 0.3:
        topics = None if version else []
    return METADATA, version, {
        "topics": topics, "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": rng.random() < 0.7,
        "include_cluster_authorized_operations": rng.random() < 0.7,
    }  # fmt: skip


def _produce(rng: random.Random) -> _Made:
    version = rng.randint(3, 13)
    names = rng.sample(NAMES, rng.choice((1, 1, 2)))
    topics = [
        {"name": name, "topic_id": f"id:{name}", "partition_data": [{"index": 0, "records": bytes(batch())}]}
        for name in names
    ]
    message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": topics}
    return PRODUCE, version, message


def _fetch(rng: random.Random) -> _Made:
    version = rng.randint(4, 18)
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1,
    }  # fmt: skip
    topics = [
        {"topic": name, "topic_id": f"id:{name}", "partitions": [partition]}
        for name in rng.sample(NAMES, rng.choice((1, 1, 2, 3)))
    ]
    return FETCH, version, {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": topics, "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip


def _list_offsets(rng: random.Random) -> _Made:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
    topics = [{"name": name, "partitions": [partition]} for name in rng.sample(NAMES, 2)]
    message = {
        "replica_id": -1,
        "isolation_level": rng.choice((0, 0, 1, 7)),
        "topics": topics,
        "timeout_ms": 0,
    }
    return LIST_OFFSETS, rng.randint(1, 11), message


def _offset_commit(rng: random.Random) -> _Made:
    position = {
        "partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    topics = [
        {"name": name, "topic_id": f"id:{name}", "partitions": [position]}
        for name in rng.sample(POSITIONS, rng.choice((1, 2)))
    ]
    return OFFSET_COMMIT, rng.randint(2, 10), {
        "retention_time_ms": -1,
        "group_id": rng.choice(GROUPS), "generation_id_or_member_epoch": -1, "member_id": "",
        "group_instance_id": None, "topics": topics,
    }  # fmt: skip


def _offset_fetch(rng: random.Random) -> _Made:
    topics: list[dict[str, Any]] | None = [
        {"name": name, "topic_id": f"id:{name}", "partition_indexes": [0]}
        for name in rng.sample(POSITIONS, 2)
    ]
    if rng.random() < 0.4:
        topics = None
    version = rng.randint(1, 10)
    if version >= 8:
        groups = [
            {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": topics}
            for group_id in GROUPS
        ]
        return OFFSET_FETCH, version, {"groups": groups, "require_stable": False}
    if version == 1:
        topics = topics or []
    return OFFSET_FETCH, version, {"group_id": "g", "topics": topics, "require_stable": False}


def _find_coordinator(rng: random.Random) -> _Made:
    message = {"key": "g", "key_type": 0, "coordinator_keys": ["g", "h"]}
    return FIND_COORDINATOR, rng.randint(0, 6), message


def _init_producer_id(rng: random.Random) -> _Made:
    message = {
        "transactional_id": rng.choice((None, None, None, "")), "transaction_timeout_ms": 1000, "producer_id": -1,
        "producer_epoch": -1,
    }  # fmt: skip
    return INIT_PRODUCER_ID, rng.randint(0, 5), message


def _create_topics(rng: random.Random) -> _Made:
    names = rng.sample((*NAMES, "t-new", "u-new", "missing"), 2)
    return CREATE_TOPICS, rng.randint(2, 7), create_topics(*set(names), validate_only=True)


def _delete_topics(rng: random.Random) -> _Made:
    name = rng.choice(DELETED)
    by_id = rng.random() < 0.5
    topic = {"name": None, "topic_id": f"id:{name}"} if by_id else {"name": name, "topic_id": ZERO_ID}
    return DELETE_TOPICS, rng.randint(1, 6), {"topics": [topic], "topic_names": [name], "timeout_ms": 10_000}


def _create_partitions(rng: random.Random) -> _Made:
    topics = [{"name": name, "count": 2, "assignments": None} for name in rng.sample(NAMES, 2)]
    return (
        CREATE_PARTITIONS,
        rng.randint(0, 3),
        {"topics": topics, "timeout_ms": 10_000, "validate_only": True},
    )


def _configs(rng: random.Random) -> list[tuple[int, str]]:
    return rng.sample([(2, "t-one"), (2, "missing"), (4, "1"), (8, "1"), (16, "s"), (32, "g")], 3)


def _describe_configs(rng: random.Random) -> _Made:
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configuration_keys": ["max.connections", "retention.ms"],
        }
        for kind, name in _configs(rng)
        if kind != 8  # whose loggers have other names here (row D2)
    ]
    message = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    return DESCRIBE_CONFIGS, rng.randint(1, 4), message


def _alter_configs(rng: random.Random) -> _Made:
    resources = [
        {
            "resource_type": 4, "resource_name": "1",
            "configs": [{"name": "max.connections", "config_operation": 0, "value": "2147483647"}],
        }
    ]  # fmt: skip
    return INCREMENTAL_ALTER_CONFIGS, rng.randint(0, 1), {"resources": resources, "validate_only": True}


def _describe_quotas(rng: random.Random) -> _Made:
    component = {"entity_type": "user", "match_type": 2, "match": None}
    return DESCRIBE_CLIENT_QUOTAS, rng.randint(0, 1), {"components": [component], "strict": False}


def _alter_quotas(rng: random.Random) -> _Made:
    op = {"key": rng.choice(("producer_byte_rate", "bogus")), "value": 1.0, "remove": False}
    entries = [{"entity": [{"entity_type": "user", "entity_name": name}], "ops": [op]} for name in ("x", "y")]
    return ALTER_CLIENT_QUOTAS, rng.randint(0, 1), {"entries": entries, "validate_only": True}


def _describe_cluster(rng: random.Random) -> _Made:
    message = {
        "include_cluster_authorized_operations": rng.random() < 0.8, "endpoint_type": 1,
        "include_fenced_brokers": False,
    }  # fmt: skip
    return DESCRIBE_CLUSTER, rng.randint(0, 2), message


def _describe_topic_partitions(rng: random.Random) -> _Made:
    names = rng.sample(NAMES, rng.choice((0, 2, 4)))
    topics = [{"name": name} for name in names]
    return DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": topics, "response_partition_limit": 2000, "cursor": None}


def _acls(rng: random.Random) -> _Made:
    api_key = rng.choice((DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS))
    wanted = {
        **EVERYTHING,
        "resource_name_filter": rng.choice((None, "t-one", "t-")),
        "pattern_type_filter": rng.randint(codes.ANY, codes.PREFIXED),
        "principal_filter": "User:nobody" if api_key == DELETE_ACLS else rng.choice((None, "User:*")),
    }
    message = {**wanted, "creations": [_acl(rng) | {"principal": "User:nobody"}], "filters": [wanted]}
    return api_key, rng.randint(1, 3), message


_MAKERS: tuple[Callable[[random.Random], _Made], ...] = (
    *[_metadata] * 4, _produce, _produce, _fetch, _fetch, _list_offsets, _offset_commit, _offset_fetch,
    _offset_fetch, _find_coordinator, _init_producer_id, _create_topics, _delete_topics, _create_partitions,
    _describe_configs, _alter_configs, _describe_quotas, _alter_quotas, _describe_cluster,
    _describe_topic_partitions, _acls, *GROUP_MAKERS, *ADMIN_MAKERS,
)  # fmt: skip
MADE = frozenset(made(random.Random(seed))[0] for made in _MAKERS for seed in range(20))
"""The APIs that users ask."""
