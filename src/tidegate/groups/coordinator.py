"""The coordinator of consumer groups: joins, generations, assignments, sessions, and the right to commit.

    coordinator.join(JoinRequest(...), respond, now_ms)  # MEMBER_ID_REQUIRED at once, or an answer later
    coordinator.run(now_ms)  # when `next_ms` has come: expired sessions, and rebalances that are due

This module, `joining` and `assigning` check requests; `rebalances` handles what happens over time. A member is removed
when its session expires, or when it does not rejoin in time for a rebalance.

Every method returns at once. `respond` is called once for each request, at once or later, also for one that Kafka
forgets (a member that joins again while its first JoinGroup still waits): with UNKNOWN_MEMBER_ID.

Follows: Kafka 4.3 `GroupMetadataManager` (classic groups), KIP-62, 134, 345, 394, 559, 800, 814.
"""

import os
from collections.abc import Callable, Iterator, Mapping

from tidegate import error_codes
from tidegate.groups.assigning import Assigning
from tidegate.groups.group import Group, GroupState
from tidegate.groups.joining import Joining
from tidegate.groups.rebalances import Rebalances
from tidegate.groups.requests import JoinRequest, Message, Respond, Source, SyncRequest, why
from tidegate.groups.settings import GroupSettings
from tidegate.groups.stored import GroupStore, StoredGroup
from tidegate.groups.table import GroupTable

__all__ = ["GroupCoordinator"]

_DIGITS = 32  # of a UUID
_IDS_AT_ONCE = 64


class GroupCoordinator:
    """The groups of one node, by id in `groups`. table: these groups, and what they hold in memory."""

    def __init__(
        self, settings: GroupSettings, store: GroupStore, *, new_id: Callable[[], str] | None = None
    ) -> None:
        """Begin without groups. new_id: makes the part of member ids that cannot be guessed."""
        self.table = table = GroupTable(settings)
        self._rebalances = Rebalances(settings, store, table)
        self._joining = Joining(settings, store, table, self._rebalances, new_id or _RandomIds())
        self._assigning = Assigning(store, table, self._rebalances)
        self.groups: Mapping[str, Group] = table.groups

    def restore(self, stored: StoredGroup, now_ms: int) -> None:
        """Add a stored group and start the sessions of its members."""
        group = Group.of(stored)
        self.table.add_group(group)
        for member in group.members.values():
            self.table.begin_session(member, member.session_timeout_ms, now_ms)
        if len(group.members) > self.table.max_size:
            self._rebalances.start_rebalance(group, "more members than group.max.size", now_ms)

    # --- time

    def next_ms(self) -> int | None:
        """Return when `run` may have something to do, None: never."""
        return self.table.deadlines.next_ms()

    def run(self, now_ms: int, limit: int = 1 << 30) -> bool:
        """Process sessions and rebalances that are due, at most `limit`. Return whether more may be due."""
        for _ in range(limit):
            deadline = self.table.deadlines.pop_expired(now_ms)
            if deadline is None:
                return False
            self._rebalances.on_expired(deadline, now_ms)
        return True

    # --- JoinGroup, SyncGroup

    def join(self, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Process a JoinGroup request. Call `respond` when the member's generation begins, or at once with an error."""
        self._joining.join(request, respond, now_ms)

    def sync(self, request: SyncRequest, respond: Respond, now_ms: int) -> None:
        """Answer a member's SyncGroup as soon as the leader's assignment is stored."""
        self._assigning.sync(request, respond, now_ms)

    # --- Heartbeat, LeaveGroup, commits

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        source: Source | None = None,
    ) -> int:
        """Begin a member's session anew; return an error code: REBALANCE_IN_PROGRESS where it is to join again."""
        if not group_id:
            return error_codes.INVALID_GROUP_ID
        group = self.groups.get(group_id)
        if group is None:
            return error_codes.UNKNOWN_MEMBER_ID
        problem = group.problem(member_id, instance_id)
        if problem:
            return problem
        if generation != group.generation:
            return error_codes.ILLEGAL_GENERATION
        if group.state is GroupState.EMPTY:
            return error_codes.UNKNOWN_MEMBER_ID
        self.table.start_session(group.members[member_id], source, now_ms)
        return (
            error_codes.REBALANCE_IN_PROGRESS
            if group.state is GroupState.PREPARING_REBALANCE
            else error_codes.NONE
        )

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """Remove one member and return an error code. The instance id alone is enough for a static member.

        After all members of a request are removed, call `rebalance_without`.
        """
        group = self.groups.get(group_id)
        if group is None:
            return error_codes.UNKNOWN_MEMBER_ID
        if not member_id:
            found = None if instance_id is None else group.static_ids.get(instance_id)
            if found is None:
                return error_codes.UNKNOWN_MEMBER_ID
            member_id = found
        elif member_id in group.pending:
            self.table.forget_pending(group, member_id)
            return error_codes.NONE
        else:
            problem = group.problem(member_id, instance_id)
            if problem:
                return problem
        self.table.remove(group, group.members[member_id])
        return error_codes.NONE

    def rebalance_without(self, group_id: str, reason: str | None, now_ms: int) -> None:
        """Start a rebalance after members have left, or complete the current one if all other members have joined."""
        group = self.groups.get(group_id)
        if group is None:
            return
        self._rebalances.rebalance_without(group, f"members left{why(reason)}", now_ms)

    def commit_problem(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now_ms: int,
        source: Source | None = None,
    ) -> int | None:
        """Return the error for a commit of offsets, 0 where it may be done; None: the group is not known here.

        A commit keeps a member's session.
        """
        group = self.groups.get(group_id)
        if group is None:
            return None
        if generation < 0 and group.state is GroupState.EMPTY:
            return error_codes.NONE
        if generation >= 0 or member_id or instance_id is not None:
            problem = group.problem(member_id, instance_id)
            if problem:
                return problem
            if generation != group.generation:
                return error_codes.ILLEGAL_GENERATION
        elif group.state is not GroupState.EMPTY:
            return error_codes.UNKNOWN_MEMBER_ID
        if group.state is GroupState.COMPLETING_REBALANCE:
            return error_codes.REBALANCE_IN_PROGRESS
        if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self.table.start_session(group.members[member_id], source, now_ms)
        return error_codes.NONE

    # --- administration

    def delete_problem(self, group_id: str) -> int | None:
        """Return the error for the deletion of a group, 0 where it may be done; None: the group is not known here."""
        group = self.groups.get(group_id)
        if group is None:
            return None
        return error_codes.NONE if group.state is GroupState.EMPTY else error_codes.NON_EMPTY_GROUP

    def delete(self, group_id: str) -> None:
        """Forget a group without members. That it was kept is for the caller to forget."""
        self.table.forget(self.groups[group_id])

    def members(self, group_id: str) -> Iterator[Message]:
        """Yield the members of a group as DescribeGroups answers them; metadata of a stable group alone."""
        group = self.groups[group_id]
        is_stable = group.state is GroupState.STABLE
        for member in list(group.members.values()):
            yield {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                "member_assignment": member.assignment,
            }


class _RandomIds:
    """Random UUIDs (version 4) as texts. The bytes of many are drawn with one system call."""

    def __init__(self) -> None:
        self._digits = ""

    def __call__(self) -> str:
        """Return the next one.

        >>> from uuid import UUID
        >>> UUID(_RandomIds()()).version
        4
        """
        if not self._digits:
            self._digits = os.urandom(_IDS_AT_ONCE * _DIGITS // 2).hex()
        digits, self._digits = self._digits[:_DIGITS], self._digits[_DIGITS:]
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
