"""Random requests of groups, their members and fetch sessions, of which users may ask some."""

import random
from collections.abc import Callable
from typing import Any

from tests.differing.acl_names import GROUPS, NAMES, SINGLE_GROUPS, Made
from tests.differing.requests import Session

from tidegate.api_keys import (
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FETCH,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_DELETE,
    SYNC_GROUP,
)
from tidegate.wire import API_BY_KEY

__all__ = ["GROUP_MAKERS", "NEWEST", "fetched_in_session"]

TIMEOUT_MS = 300_000  # nobody is let go meanwhile
NEWEST = "member:-1"
"""Stands for the member id that a broker gave last."""
_MEMBERS = (NEWEST, NEWEST, NEWEST, "member:-2", "m")


def _any_version(rng: random.Random, api_key: int, lowest: int = 0) -> int:
    api = API_BY_KEY[api_key]
    return rng.choice((api.max_version, rng.randint(max(lowest, api.min_version), api.max_version)))


def _join(rng: random.Random) -> Made:
    """Return what lets the one static member of a group join: it need not wait for others, who might come too late."""
    message = {
        "group_id": rng.choice(SINGLE_GROUPS), "session_timeout_ms": TIMEOUT_MS, "rebalance_timeout_ms": TIMEOUT_MS,
        "member_id": rng.choice(("", *_MEMBERS)), "group_instance_id": "i", "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}], "reason": None,
    }  # fmt: skip
    if message["member_id"] == "m":
        return JOIN_GROUP, _any_version(rng, JOIN_GROUP, 1), message
    return JOIN_GROUP, rng.randint(5, 9), message


def _sync(rng: random.Random) -> Made:
    member_id = rng.choice(_MEMBERS)
    return SYNC_GROUP, _any_version(rng, SYNC_GROUP), {
        "group_id": rng.choice(SINGLE_GROUPS), "generation_id": rng.choice((1, 1, 2, 3, 4)), "member_id": member_id,
        "group_instance_id": rng.choice((None, None, "i")), "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [{"member_id": member_id, "assignment": b"all"}],
    }  # fmt: skip


def _heartbeat(rng: random.Random) -> Made:
    return HEARTBEAT, _any_version(rng, HEARTBEAT), {
        "group_id": rng.choice(SINGLE_GROUPS), "generation_id": rng.choice((1, 1, 2, 3, 4)),
        "member_id": rng.choice(_MEMBERS), "group_instance_id": rng.choice((None, None, "i")),
    }  # fmt: skip


def _heartbeat_of_the_newer_protocol(rng: random.Random) -> Made:
    message = {
        "group_id": rng.choice(SINGLE_GROUPS), "member_id": rng.choice(_MEMBERS), "member_epoch": 0,
        "instance_id": None, "rack_id": None, "rebalance_timeout_ms": TIMEOUT_MS, "subscribed_topic_names": list(NAMES),
        "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    return CONSUMER_GROUP_HEARTBEAT, _any_version(rng, CONSUMER_GROUP_HEARTBEAT), message


def _leave(rng: random.Random) -> Made:
    member_id = rng.choice(_MEMBERS)
    leaving = {"member_id": member_id, "group_instance_id": rng.choice((None, None, "i")), "reason": None}
    message = {"group_id": rng.choice(SINGLE_GROUPS), "member_id": member_id, "members": [leaving]}
    return LEAVE_GROUP, _any_version(rng, LEAVE_GROUP), message


def _describe_groups(rng: random.Random) -> Made:
    groups = rng.sample((*GROUPS, *SINGLE_GROUPS, "unknown"), rng.choice((1, 2, 3)))
    message = {"groups": groups, "include_authorized_operations": rng.random() < 0.7}
    return DESCRIBE_GROUPS, _any_version(rng, DESCRIBE_GROUPS), message


def _list_groups(rng: random.Random) -> Made:
    states = rng.choice(([], [], ["Empty"], ["Stable"]))
    return LIST_GROUPS, _any_version(rng, LIST_GROUPS), {"states_filter": states, "types_filter": []}


def _delete_groups(rng: random.Random) -> Made:
    names = rng.sample((*GROUPS, *SINGLE_GROUPS, "unknown"), rng.choice((1, 2)))
    return DELETE_GROUPS, _any_version(rng, DELETE_GROUPS), {"groups_names": names}


def _offset_delete(rng: random.Random) -> Made:
    topics = [
        {"name": name, "partitions": [{"partition_index": 0}]} for name in rng.sample(("u-one", "nothing"), 2)
    ]
    return OFFSET_DELETE, 0, {"group_id": rng.choice((*GROUPS, *SINGLE_GROUPS)), "topics": topics}


def fetched_in_session(rng: random.Random) -> list[Made]:
    """Return fetches of one session, in which topics are added and forgotten."""
    version = rng.choice((7, 12, 13, 15, 18))
    made = [_fetch(rng, version, 0, 0, rng.sample(NAMES, rng.choice((1, 2, 4))))]
    for epoch in range(1, rng.choice((3, 5))):
        names = rng.sample(NAMES, rng.choice((0, 0, 1, 2)))
        wrong = epoch + 1 if rng.random() < 0.05 else epoch
        made.append(_fetch(rng, version, Session(number=-1), wrong, names))
    return made


def _fetch(rng: random.Random, version: int, session: Session | int, epoch: int, names: list[str]) -> Made:
    forgotten = rng.sample(NAMES, rng.choice((0, 0, 1))) if epoch > 0 else []
    return FETCH, version, {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0,
        "session_id": session, "session_epoch": epoch, "rack_id": "",
        "topics": [_wanted(rng, name) for name in names],
        "forgotten_topics_data": [
            {"topic": name, "topic_id": f"id:{name}", "partitions": [0]} for name in forgotten
        ],
    }  # fmt: skip


def _wanted(rng: random.Random, name: str) -> dict[str, Any]:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": rng.choice((0, 0, 1, 2, 1000)),
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1,
    }  # fmt: skip
    return {"topic": name, "topic_id": f"id:{name}", "partitions": [partition]}


GROUP_MAKERS: tuple[Callable[[random.Random], Made], ...] = (
    _join, _join, _join, _sync, _sync, _heartbeat, _heartbeat_of_the_newer_protocol, _leave, _describe_groups,
    _list_groups, _delete_groups, _offset_delete,
)  # fmt: skip
