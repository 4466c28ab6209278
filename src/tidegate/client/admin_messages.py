"""Values that `Admin` sends and receives, and the entries of Kafka's messages that carry them."""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate import error_codes
from tidegate.client.connection import Reply
from tidegate.client.errors import BrokerError, ThrottlingQuotaExceededError, raise_for
from tidegate.quota.admin.definitions import Alteration, EntityParts
from tidegate.scram import SCRAM_MECHANISMS

__all__ = [
    "ConfigChange",
    "ConfigEntry",
    "NewTopic",
    "Result",
    "ScramChange",
    "alteration_entry",
    "checked",
    "config_entry",
    "entity_parts_of",
    "has_code",
    "result_of",
    "results_by_name",
    "scram_message",
    "topic_entry",
]

_SALT_BYTES = 24
Result = BrokerError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to create. -1: the broker's own default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """A setting of a resource. source: Kafka's number of its origin. synonyms: (name, value, source) in order."""

    name: str
    value: str | None
    source: int
    is_sensitive: bool
    is_read_only: bool
    synonyms: Sequence[tuple[str, str | None, int]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """One setting to change. operation: Kafka's number (0 set, 1 delete, 2 append, 3 subtract)."""

    name: str
    value: str | None
    operation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramChange:
    """A SCRAM credential to set, or to delete where `password` is None. iterations: of the password's hash."""

    user: str
    mechanism: str
    password: str | None = field(default=None, repr=False)
    iterations: int = 4096


def result_of(entry: Mapping[str, Any]) -> Result:
    """Return the error of an entry of a response; None: it has none."""
    return BrokerError(entry["error_code"], entry.get("error_message")) if entry["error_code"] else None


def checked(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a response, or an entry of one. Raises `BrokerError` if it has an error."""
    raise_for(entry["error_code"], entry.get("error_message"))
    return entry


def has_code(result: Result, code: int) -> bool:
    """Return whether a result is the error with this code."""
    return result is not None and result.code == code


def results_by_name(reply: Reply, key: str, names: Iterable[str]) -> dict[str, Result]:
    """Return the result of each topic that was asked for. key: of the results in the response."""
    results: dict[str, Result] = {
        name: BrokerError(error_codes.UNKNOWN_SERVER_ERROR, f"the broker gave no result of topic {name!r}")
        for name in names
    }
    for entry in reply.message[key]:
        if entry["name"] in results:
            error = result_of(entry)
            if has_code(error, error_codes.THROTTLING_QUOTA_EXCEEDED):
                error = ThrottlingQuotaExceededError(reply.throttle_time_ms, entry.get("error_message"))
            results[entry["name"]] = error
    return results


def entity_parts_of(entry: Mapping[str, Any]) -> EntityParts:
    """Return the quota entity of an entry, its parts sorted by type."""
    return tuple(sorted((part["entity_type"], part["entity_name"]) for part in entry["entity"]))


def alteration_entry(alteration: Alteration) -> dict[str, Any]:
    """Return the entry of AlterClientQuotas for the changed quotas of an entity."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in alteration.entity],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in alteration.ops
        ],
    }


def scram_message(changes: Sequence[ScramChange]) -> dict[str, Any]:
    """Return the message of AlterUserScramCredentials; passwords are in it salted and hashed."""
    return {
        "deletions": [
            {"name": each.user, "mechanism": SCRAM_MECHANISMS[each.mechanism].type}
            for each in changes
            if each.password is None
        ],
        "upsertions": [_upsertion(each, each.password) for each in changes if each.password is not None],
    }


def _upsertion(change: ScramChange, password: str) -> dict[str, Any]:
    mechanism, salt = SCRAM_MECHANISMS[change.mechanism], secrets.token_bytes(_SALT_BYTES)
    salted = hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, change.iterations)
    return {
        "name": change.user,
        "mechanism": mechanism.type,
        "iterations": change.iterations,
        "salt": salt,
        "salted_password": salted,
    }


def config_entry(entry: Mapping[str, Any]) -> ConfigEntry:
    """Return the setting that an entry of DescribeConfigs states."""
    return ConfigEntry(
        name=entry["name"],
        value=entry["value"],
        source=entry["config_source"],
        is_sensitive=entry["is_sensitive"],
        is_read_only=entry["read_only"],
        synonyms=[(each["name"], each["value"], each["source"]) for each in entry["synonyms"]],
    )


def topic_entry(topic: NewTopic) -> dict[str, Any]:
    """Return the entry of CreateTopics for a topic."""
    return {
        "name": topic.name,
        "num_partitions": topic.partitions,
        "replication_factor": topic.replication_factor,
        "assignments": [],
        "configs": [{"name": name, "value": value} for name, value in topic.configs.items()],
    }
