"""Random requests of administrators' tools about records, leaders, logs, settings and credentials."""

import random
from collections.abc import Callable
from typing import Any

from tests.differing.acl_names import NAMES, TOPICS, Made

from tidegate.api_keys import (
    ALTER_CONFIGS,
    ALTER_PARTITION_REASSIGNMENTS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_VERSIONS,
    DELETE_RECORDS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_PRODUCERS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_CONFIG_RESOURCES,
    LIST_PARTITION_REASSIGNMENTS,
    OFFSET_FOR_LEADER_EPOCH,
)
from tidegate.wire import API_BY_KEY

__all__ = ["ADMIN_MAKERS"]

_CHANGED = {2: ("retention.ms", "1000000"), 4: ("max.connections", "2147483647")}
"""A setting of each kind of resource, and what it is set to."""
_OF_OTHERS = {
    8: ("kafka", "INFO"),
    16: ("interval.ms", "1000"),
    32: ("consumer.session.timeout.ms", "50000"),
    3: ("x", "1"),
}
_RESOURCES = ((2, "t-one"), (2, "u-one"), (2, "missing"), (4, "1"), (8, "1"), (16, "s"), (32, "g"), (3, "x"))


def _any_version(rng: random.Random, api_key: int) -> int:
    api = API_BY_KEY[api_key]
    return rng.choice((api.max_version, rng.randint(api.min_version, api.max_version)))


def _names(rng: random.Random) -> list[str]:
    return rng.sample(NAMES, rng.choice((1, 2, 4)))


def _delete_records(rng: random.Random) -> Made:
    partitions = [{"partition_index": 0, "offset": rng.choice((0, 0, 1, -1, 1000))}]
    topics = [{"name": name, "partitions": partitions} for name in _names(rng)]
    return DELETE_RECORDS, _any_version(rng, DELETE_RECORDS), {"topics": topics, "timeout_ms": 10_000}


def _offset_for_leader_epoch(rng: random.Random) -> Made:
    partitions = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": rng.choice((0, -1))}]
    topics = [{"topic": name, "partitions": partitions} for name in _names(rng)]
    version = _any_version(rng, OFFSET_FOR_LEADER_EPOCH)
    return OFFSET_FOR_LEADER_EPOCH, version, {"replica_id": -1, "topics": topics}


def _describe_producers(rng: random.Random) -> Made:
    topics = [{"name": name, "partition_indexes": [0]} for name in _names(rng)]
    return DESCRIBE_PRODUCERS, 0, {"topics": topics}


def _describe_log_dirs(rng: random.Random) -> Made:
    topics = [{"topic": name, "partitions": [0]} for name in rng.sample(("t-one", "u-one", "missing"), 2)]
    return DESCRIBE_LOG_DIRS, _any_version(rng, DESCRIBE_LOG_DIRS), {"topics": topics}


def _list_config_resources(rng: random.Random) -> Made:
    types = rng.sample((2, 4, 8), rng.choice((1, 2)))
    return LIST_CONFIG_RESOURCES, rng.choice((1, 1, 0)), {"resource_types": types}


def _alter_configs(rng: random.Random) -> Made:
    api_key = rng.choice((ALTER_CONFIGS, INCREMENTAL_ALTER_CONFIGS))
    resources = [_altered(kind, name) for kind, name in rng.sample(_RESOURCES, rng.choice((1, 2, 4)))]
    return api_key, _any_version(rng, api_key), {"resources": resources, "validate_only": True}


def _altered(kind: int, name: str) -> dict[str, Any]:
    key, value = (_CHANGED | _OF_OTHERS)[kind]
    configs = [{"name": key, "config_operation": 0, "value": value}]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def _elect_leaders(rng: random.Random) -> Made:
    wanted = rng.choice((None, [{"topic": name, "partitions": [0]} for name in _names(rng)]))
    message = {"election_type": rng.choice((0, 1)), "topic_partitions": wanted, "timeout_ms": 10_000}
    return ELECT_LEADERS, _any_version(rng, ELECT_LEADERS), message


def _reassign(rng: random.Random) -> Made:
    partitions = [{"partition_index": 0, "replicas": rng.choice(([1], None, [2]))}]
    topics = [{"name": name, "partitions": partitions} for name in _names(rng)]
    message = {"timeout_ms": 10_000, "allow_replication_factor_change": True, "topics": topics}
    return ALTER_PARTITION_REASSIGNMENTS, _any_version(rng, ALTER_PARTITION_REASSIGNMENTS), message


def _list_reassignments(rng: random.Random) -> Made:
    topics = rng.choice((None, [{"name": name, "partition_indexes": [0]} for name in TOPICS]))
    return LIST_PARTITION_REASSIGNMENTS, 0, {"timeout_ms": 10_000, "topics": topics}


def _describe_credentials(rng: random.Random) -> Made:
    """Return what asks for some users: for all of them, Kafka does not answer who may not (row U10)."""
    return (
        DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        {"users": [{"name": name} for name in rng.sample("xyz", rng.randrange(3))]},
    )


def _alter_credentials(rng: random.Random) -> Made:
    """Return what changes nothing: nobody has a credential, and one more needs more iterations."""
    deletions = [{"name": "x", "mechanism": 1}]
    few = {"name": "y", "mechanism": 2, "iterations": 1, "salt": b"salt", "salted_password": bytes(64)}
    upsertions = rng.choice(([], [few]))
    return ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": deletions, "upsertions": upsertions}


def _api_versions(rng: random.Random) -> Made:
    message = {"client_software_name": "acls", "client_software_version": "1"}
    return API_VERSIONS, rng.randint(0, 3), message


ADMIN_MAKERS: tuple[Callable[[random.Random], Made], ...] = (
    _delete_records, _offset_for_leader_epoch, _describe_producers, _describe_log_dirs, _list_config_resources,
    _alter_configs, _alter_configs, _elect_leaders, _reassign, _list_reassignments, _describe_credentials,
    _alter_credentials, _api_versions,
)  # fmt: skip
