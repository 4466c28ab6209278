"""SyncGroup: the leader's assignment is stored, and each member receives its part.

Follows: Kafka 4.3 `GroupMetadataManager.classicGroupSync`.
"""

from collections.abc import Mapping

from tidegate import error_codes
from tidegate.groups.answers import synced
from tidegate.groups.group import Group, GroupState
from tidegate.groups.rebalances import Rebalances
from tidegate.groups.requests import Respond, SyncRequest, sync_refusal
from tidegate.groups.settings import MAX_GROUP_BYTES
from tidegate.groups.stored import GroupStore
from tidegate.groups.table import GroupTable

__all__ = ["Assigning"]


class Assigning:
    """Keeps the assignments of the groups of a table, and hands them out."""

    __slots__ = ("_rebalances", "_store", "_table")

    def __init__(self, store: GroupStore, table: GroupTable, rebalances: Rebalances) -> None:
        self._store = store
        self._table = table
        self._rebalances = rebalances

    def sync(self, request: SyncRequest, respond: Respond, now_ms: int) -> None:
        """Answer a member's SyncGroup as soon as the leader's assignment is stored."""
        if not request.group_id:
            respond(sync_refusal(error_codes.INVALID_GROUP_ID))
            return
        group = self._table.groups.get(request.group_id)
        if group is None or group.state is GroupState.EMPTY:
            respond(sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
            return
        problem = _sync_problem(group, request)
        if problem:
            respond(sync_refusal(problem))
            return
        member = group.members[request.member_id]
        self._table.record_source(member, request.source)
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            self._table.deadlines.cancel(group.sync_deadline)
        if group.state is GroupState.STABLE:
            respond(synced(group, member))
            return
        member.answer_sync(sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
        member.sync = respond
        if member.member_id == group.leader_id:
            self._assign(group, request.assignments, now_ms)

    def _assign(self, group: Group, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """Store the leader's assignment; once it is stored, send each member its part."""
        stored = group.stored(assignments)
        generation = group.generation
        if stored.size > min(self._store.max_bytes, MAX_GROUP_BYTES):
            self._cannot_assign(
                group, error_codes.UNKNOWN_SERVER_ERROR, "the assignment is too large", now_ms
            )
            return
        size = sum([len(member.assignment) for member in stored.members])
        owner = group.members[group.leader_id or ""].owner
        if not self._table.reserve(group, owner, size):
            reason = "no memory for the assignment"
            self._cannot_assign(group, error_codes.GROUP_MAX_SIZE_REACHED, reason, now_ms)
            return

        def on_saved(is_kept: bool, saved_ms: int) -> None:
            self._table.release(owner, size)
            if group.state is not GroupState.COMPLETING_REBALANCE or group.generation != generation:
                return
            if is_kept:
                self._stabilize(group, assignments, saved_ms)
            else:
                self._cannot_assign(
                    group, error_codes.COORDINATOR_NOT_AVAILABLE, "the assignment cannot be stored", saved_ms
                )

        self._store.save(stored, on_saved)

    def _stabilize(self, group: Group, assignments: Mapping[str, bytes], now_ms: int) -> None:
        grown: dict[str, int] = {}
        for member in group.members.values():
            assignment = assignments.get(member.member_id, b"")
            grown[member.owner] = grown.get(member.owner, 0) + len(assignment) - len(member.assignment)
            member.assignment = assignment
        for owner, size in grown.items():
            self._table.count_bytes(group, owner, size)
        group.transition(GroupState.STABLE, now_ms)
        self._rebalances.answer_syncs(group, now_ms)

    def _cannot_assign(self, group: Group, error_code: int, reason: str, now_ms: int) -> None:
        self._rebalances.refuse_syncs(group, error_code, now_ms)
        self._rebalances.begin_or_complete(group, reason, now_ms)


def _sync_problem(group: Group, request: SyncRequest) -> int:
    problem = group.problem(request.member_id, request.instance_id)
    if problem:
        return problem
    if request.generation != group.generation:
        return error_codes.ILLEGAL_GENERATION
    for said, chosen in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
        if said is not None and chosen is not None and said != chosen:
            return error_codes.INCONSISTENT_GROUP_PROTOCOL
    return (
        error_codes.REBALANCE_IN_PROGRESS
        if group.state is GroupState.PREPARING_REBALANCE
        else error_codes.NONE
    )
