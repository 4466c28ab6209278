"""Answers as they can be compared: without times, addresses and ids, which each broker has of its own."""

import re
from dataclasses import dataclass, field
from typing import Any

from tests.differing.requests import COMPARED, OWN, OWN_IP

__all__ = ["Given", "comparable"]

_VARIABLE = {
    "throttle_time_ms", "cluster_id", "host", "port", "log_append_time_ms", "rack", "controller_id",
    "supported_features", "finalized_features", "finalized_features_epoch", "zk_migration_ready",
    "log_dir", "total_bytes", "usable_bytes",
}  # fmt: skip
_TIMES = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.,]+Z?")
_LEFT_OUT = ("__consumer_offsets", "__transaction_state", "file.delete.delay.ms")
"""Topics of the broker's own, which only Kafka has, and a setting that it is started with here."""
_BAGS = {
    "topics", "responses", "partitions", "results", "api_keys", "partition_responses", "entries", "entity", "values",
    "configs", "groups", "members",
    "config_resources", "active_producers", "replica_election_results", "partition_result",
}  # fmt: skip
"""Arrays whose order means nothing."""


@dataclass
class Given:
    """What only one broker has in a sequence: the ids that it gave, in the order in which it did."""

    own: str = ""
    """The ending of the sequence's names."""
    own_ip: str = ""
    """The address that its connections come from."""
    ids: dict[str, str] = field(default_factory=dict)
    """The newest id of a topic, by its name."""
    names: dict[str, str] = field(default_factory=dict)
    """The name of every id."""
    producers: list[int] = field(default_factory=list)
    members: list[str] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)


def comparable(value: Any, given: Given, key: str = "") -> Any:
    """Return an answer, or a part of one that is called `key`; records as the values of their bytes."""
    if isinstance(value, dict):
        return {name: comparable(item, given, name) for name, item in value.items() if name not in _VARIABLE}
    if isinstance(value, list):
        items = [comparable(item, given, key) for item in value if not _is_left_out(item, given)]
        return sorted(items, key=repr) if key in _BAGS else items
    if key == "producer_id" and value >= 0:
        return given.producers.index(value) if value in given.producers else "another id"
    if key == "session_id" and value:
        return given.sessions.index(value) + 1
    if isinstance(value, bytes | bytearray | memoryview):
        return _records(bytes(value), given)
    if key == "topic_id" and isinstance(value, str):
        unknown = "another id" if value.strip("0-") else value
        return f"id:{given.names[value]}" if value in given.names else unknown
    if key in ("member_id", "leader") and value in given.members:
        return f"member:{given.members.index(value)}"
    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, str):
        return value
    if key == "documentation":
        return bool(value)  # in other words than Kafka's (row D1)
    for own, name in ((given.own, OWN), (given.own_ip, OWN_IP)):
        value = value.replace(own, name) if own else value
    return _TIMES.sub("<time>", value)


def _is_left_out(item: Any, given: Given) -> bool:
    if not isinstance(item, dict):
        return False
    if "protocol_type" in item and "error_code" not in item:
        return given.own not in item["group_id"]  # ListGroups has those of other sequences, too
    named = {item.get("name"), item.get("topic"), item.get("resource_name")}
    return not named.isdisjoint(_LEFT_OUT) or ("min_version" in item and item["api_key"] not in COMPARED)


def _records(content: bytes, given: Given) -> str:
    """Return the bytes of records, but for producer ids of this broker and the sums that they are in."""
    out, at = bytearray(content), 0
    while at + 61 <= len(out):
        producer = int.from_bytes(out[at + 43 : at + 51], signed=True)
        if producer in given.producers:
            out[at + 43 : at + 51] = given.producers.index(producer).to_bytes(8)
            out[at + 17 : at + 21] = bytes(4)
        at += 12 + max(int.from_bytes(out[at + 8 : at + 12], signed=True), 0)
    return out.hex()
