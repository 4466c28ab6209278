"""Answers to the JoinGroup and SyncGroup requests of a group's members.

Follows: Kafka 4.3 `GroupMetadataManager` (classic groups), KIP-814.
"""

from collections.abc import Iterable, Iterator

from tidegate import error_codes
from tidegate.groups.group import Group
from tidegate.groups.member import Member
from tidegate.groups.requests import Message

__all__ = ["answers_to_joins", "answers_to_syncs", "joined", "members_for_leader", "synced"]


def joined(group: Group, member: Member) -> Message:
    """Return the answer to a member's JoinGroup; the leader's answer lists all members."""
    return next(answers_to_joins(group, [member]))


def answers_to_joins(group: Group, members: Iterable[Member]) -> Iterator[Message]:
    """Yield the answer to the JoinGroup of each of some members."""
    follower: Message = {
        "error_code": error_codes.NONE,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.leader_id or "",
        "skip_assignment": False,
        "member_id": "",
        "members": [],
    }
    leader_id = group.leader_id
    for member in members:
        answer = follower.copy()  # faster than to make a thousand anew
        answer["member_id"] = member.member_id
        if member.member_id == leader_id:
            answer["members"] = members_for_leader(group)
        yield answer


def members_for_leader(group: Group) -> list[Message]:
    """Return every member with its metadata."""
    return [
        {"member_id": member.member_id, "group_instance_id": member.instance_id, "metadata": metadata}
        for member, metadata in zip(group.members.values(), group.metadata(), strict=True)
    ]


def synced(group: Group, member: Member) -> Message:
    """Return the answer to a member's SyncGroup."""
    return next(answers_to_syncs(group, [member]))


def answers_to_syncs(group: Group, members: Iterable[Member]) -> Iterator[Message]:
    """Yield the answer to the SyncGroup of each of some members."""
    unassigned: Message = {
        "error_code": error_codes.NONE,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": b"",
    }
    for member in members:
        answer = unassigned.copy()
        answer["assignment"] = member.assignment
        yield answer
