"""Progress of the consumer groups of a cluster: what their members read, how fast it grows, and how far they lag.

    members = await stable_members(admin.cluster, most_groups=200)
    growth = await log_growth(admin.cluster, members.partitions)
    committed = await committed_offsets(admin.cluster, "billing")

Growth in bytes is an estimate: the records of the last `GROWTH_MS` by their timestamps, times the mean size of all
records that the partition has. Each member has the client id of its group's description; Kafka has no way to ask for
the user that a member logged in as.
Follows: Kafka `Admin.describeConsumerGroups`, `listConsumerGroupOffsets`, `listOffsets`, `describeLogDirs`.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from tidegate.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    DESCRIBE_LOG_DIRS,
    LIST_GROUPS,
    LIST_OFFSETS,
    OFFSET_FETCH,
)
from tidegate.client.cluster import Cluster
from tidegate.client.errors import ClientError, only_entry, raise_for
from tidegate.client.partitions import TopicPartition
from tidegate.groups.subscription import CONSUMER, assigned_partitions_in_slices
from tidegate.in_slices import run_at_once
from tidegate.wire import Message

__all__ = [
    "GROWTH_MS",
    "LogGrowth",
    "Member",
    "StableMembers",
    "committed_offsets",
    "log_growth",
    "stable_members",
]

GROWTH_MS = 600_000
"""The span of record timestamps that growth is measured over."""
_LEAST_MS = 60_000  # a shorter burst counts as if it had lasted so long
_LATEST, _EARLIEST = -1, -2
_NEWEST_WITH_NAMES = 9  # later versions of OffsetFetch have topic ids in the place of names
_MS_PER_S = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of a consumer group and the partitions that are assigned to it."""

    group_id: str
    client_id: str
    partitions: Sequence[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class StableMembers:
    """The members of the groups that were described.

    groups: how many. refused: groups that a broker did not describe, with the first reason. more: groups beyond the
    bound.
    """

    members: Sequence[Member]
    groups: int
    refused: int = 0
    reason: str | None = None
    more: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrowth:
    """A partition's leader, its growth, the mean size of its records, and its first and its next offset."""

    leader: int
    bytes_per_s: float
    record_bytes: float
    start_offset: int
    end_offset: int


async def stable_members(cluster: Cluster, *, most_groups: int) -> StableMembers:
    """Return the members of the consumer groups that are stable and visible to this user, of at most so many groups.

    Groups of the classic protocol and of KIP-848. Raises `ClientError` if groups cannot be listed.
    """
    await cluster.refresh()
    lists = await asyncio.gather(*(_stable_groups(cluster, node_id) for node_id in cluster.node_ids))
    groups = sorted(set(chain.from_iterable(lists)))
    described = groups[:most_groups]
    results = await asyncio.gather(
        *(_members(cluster, *group) for group in described), return_exceptions=True
    )
    failures = [_checked(result) for result in results if isinstance(result, BaseException)]
    return StableMembers(
        members=[each for result in results if not isinstance(result, BaseException) for each in result],
        groups=len(described) - len(failures),
        refused=len(failures),
        reason=str(failures[0]) if failures else None,
        more=len(groups) - len(described),
    )


async def log_growth(
    cluster: Cluster, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, LogGrowth]:
    """Return the growth of each partition that has a leader and that this user may describe. Raises `ClientError`."""
    wanted = set(partitions)
    topics = sorted({partition.topic for partition in wanted})
    by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
    for topic in await cluster.refresh(topics) if topics else ():
        for partition, leader in topic.leaders.items():
            place = TopicPartition(topic.name, partition)
            if leader >= 0 and place in wanted:
                by_leader[leader].append(place)
    found = await asyncio.gather(*(_growth_at(cluster, *each) for each in by_leader.items()))
    return {place: growth for some in found for place, growth in some.items()}


async def committed_offsets(cluster: Cluster, group_id: str) -> dict[TopicPartition, int]:
    """Return the committed offsets of a group. Raises `ClientError`."""
    node = await cluster.node(await cluster.coordinator_id(group_id))
    group = {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": None}
    message = {**group, "groups": [group], "require_stable": False}
    answer = (await node.ask(OFFSET_FETCH, message, most_version=_NEWEST_WITH_NAMES)).message
    found = only_entry(answer.get("groups") or [answer])
    raise_for(found["error_code"], None)
    return {
        TopicPartition(topic["name"], each["partition_index"]): each["committed_offset"]
        for topic in found["topics"]
        for each in topic["partitions"]
        if not each["error_code"] and each["committed_offset"] >= 0
    }


# --- groups ---------------------------------------------------------------------------------------------------------


async def _stable_groups(cluster: Cluster, node_id: int) -> list[tuple[str, bool]]:
    """Return the consumer groups that a broker coordinates, each with whether its protocol is KIP-848's."""
    message = {"states_filter": ["Stable"], "types_filter": []}
    answer = (await cluster.ask_node(node_id, LIST_GROUPS, message)).message
    raise_for(answer["error_code"], None)
    return [
        (each["group_id"], each.get("group_type", "").lower() == CONSUMER)
        for each in answer["groups"]
        if each["protocol_type"] == CONSUMER
    ]


async def _members(cluster: Cluster, group_id: str, is_new: bool) -> list[Member]:
    coordinator = await cluster.coordinator_id(group_id)
    api_key, ids = (CONSUMER_GROUP_DESCRIBE, "group_ids") if is_new else (DESCRIBE_GROUPS, "groups")
    message = {ids: [group_id], "include_authorized_operations": False}
    group = only_entry((await cluster.ask_node(coordinator, api_key, message)).message["groups"])
    raise_for(group["error_code"], group.get("error_message"))
    partitions_of = _assigned_by_name if is_new else _assigned
    return [
        Member(group_id=group_id, client_id=each["client_id"], partitions=partitions_of(each))
        for each in group["members"]
    ]


def _assigned(member: Mapping[str, Any]) -> list[TopicPartition]:
    assignment = bytes(member["member_assignment"])
    found = run_at_once(assigned_partitions_in_slices(assignment, most=len(assignment)))
    return [TopicPartition(*each) for each in found]


def _assigned_by_name(member: Mapping[str, Any]) -> list[TopicPartition]:
    return [
        TopicPartition(topic["topic_name"], partition)
        for topic in member["assignment"]["topic_partitions"]
        for partition in topic["partitions"]
    ]


def _checked(error: BaseException) -> ClientError:
    """Return an error of one group. Raises any other."""
    if not isinstance(error, ClientError):
        raise error
    return error


# --- growth ---------------------------------------------------------------------------------------------------------


async def _growth_at(
    cluster: Cluster, leader: int, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, LogGrowth]:
    now_ms = round(time.time() * _MS_PER_S)
    starts, ends, since, sizes = await asyncio.gather(
        _offsets(cluster, leader, partitions, _EARLIEST),
        _offsets(cluster, leader, partitions, _LATEST),
        _offsets(cluster, leader, partitions, now_ms - GROWTH_MS),
        _sizes(cluster, leader, partitions),
    )
    growth = {}
    for place in starts.keys() & ends.keys() & since.keys() & sizes.keys():
        (start, _), (end, _), (first, first_ms) = starts[place], ends[place], since[place]
        record_bytes = sizes[place] / (end - start) if end > start else 0.0
        grown = end - first if first >= 0 else 0
        span_ms = min(max(now_ms - first_ms, _LEAST_MS), GROWTH_MS)
        growth[place] = LogGrowth(
            leader=leader,
            bytes_per_s=grown * record_bytes * _MS_PER_S / span_ms,
            record_bytes=record_bytes,
            start_offset=start,
            end_offset=end,
        )
    return growth


async def _offsets(
    cluster: Cluster, leader: int, partitions: Sequence[TopicPartition], timestamp: int
) -> dict[TopicPartition, tuple[int, int]]:
    """Return offset and timestamp of the first record that is not older; -1 and -1 where there is none."""
    topics = _by_topic(partitions, lambda number: {"partition_index": number, "timestamp": timestamp})
    message = {
        "replica_id": -1,
        "isolation_level": 0,
        "timeout_ms": int(_MS_PER_S * cluster.settings.request_timeout_s),
        "topics": [{"name": name, "partitions": each} for name, each in topics.items()],
    }
    answer = (await cluster.ask_node(leader, LIST_OFFSETS, message)).message
    return {
        TopicPartition(topic["name"], each["partition_index"]): (each["offset"], each["timestamp"])
        for topic in answer["topics"]
        for each in topic["partitions"]
        if not each["error_code"]
    }


async def _sizes(
    cluster: Cluster, leader: int, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the sizes of logs on their leader, in bytes."""
    topics = _by_topic(partitions, int)
    message: Message = {
        "topics": [{"topic": name, "partitions": numbers} for name, numbers in topics.items()]
    }
    answer = (await cluster.ask_node(leader, DESCRIBE_LOG_DIRS, message)).message
    raise_for(answer.get("error_code", 0), None)  # since version 3
    return {
        TopicPartition(topic["name"], each["partition_index"]): each["partition_size"]
        for log_dir in answer["results"]
        for topic in log_dir["topics"]
        for each in topic["partitions"]
        if not each["is_future_key"]
    }


def _by_topic(partitions: Iterable[TopicPartition], entry_of: Callable[[int], Any]) -> dict[str, list[Any]]:
    topics: dict[str, list[Any]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(entry_of(partition))
    return topics
