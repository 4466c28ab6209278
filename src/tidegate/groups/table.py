"""All groups of a node, what they hold in memory, and the sessions of their members.

The table notes, when a session begins, how long the member's connection has been muted: only later muted time extends
the session.
"""

from collections.abc import Sequence

from tidegate import error_codes
from tidegate.fair_share import ReclaimableBound, ThresholdBound
from tidegate.groups.deadlines import Deadlines
from tidegate.groups.group import Group, GroupState
from tidegate.groups.member import Member, PendingMember
from tidegate.groups.requests import JoinRequest, Source, join_refusal, sync_refusal
from tidegate.groups.settings import (
    MAX_EMPTY_GROUP_BYTES,
    MAX_GROUP_BYTES,
    MAX_GROUP_MEMBERS,
    MAX_MEMBERS,
    MAX_METADATA_BYTES,
    MAX_PENDING_BYTES,
    GroupSettings,
)

__all__ = ["GroupTable"]


class GroupTable:
    """Groups by id, and what they hold, divided between principals.

    members, metadata: the number of members, and the bytes of all groups with members, both counted for the principals
    that join. empty: groups without members, counted for the principals that created them. pending: ids that were given
    out and not used yet, counted for the principals that requested them.
    """

    __slots__ = ("_saving", "_settings", "deadlines", "empty", "groups", "members", "metadata", "pending")

    def __init__(self, settings: GroupSettings) -> None:
        self.groups: dict[str, Group] = {}
        self.deadlines = Deadlines()
        self.members = ThresholdBound(MAX_MEMBERS)
        self.metadata = ThresholdBound(MAX_METADATA_BYTES)
        self.empty: ReclaimableBound[Group] = ReclaimableBound(MAX_EMPTY_GROUP_BYTES)
        self.pending: ReclaimableBound[PendingMember] = ReclaimableBound(MAX_PENDING_BYTES)
        self._saving = 0
        self._settings = settings

    @property
    def metadata_bytes(self) -> int:
        """About how many bytes all groups take in memory."""
        return self.metadata.used - self._saving + self.empty.used + self.pending.used

    @property
    def max_size(self) -> int:
        """Return the largest number of members that a group may have."""
        return min(self._settings.max_size, MAX_GROUP_MEMBERS)

    # --- groups

    def add_group(self, group: Group) -> None:
        """Add a new group with the members that it has."""
        self.groups[group.group_id] = group
        group.held_bytes = group.size
        self.empty.add_entry(group, group.owner, group.size)
        for member in group.members.values():
            self._count_first(group, member)
            self.members.count_use(member.owner)
            self.count_bytes(group, member.owner, member.size)

    def forget(self, group: Group) -> None:
        """Remove a group without members."""
        assert not group.members
        del self.groups[group.group_id]
        for member_id in list(group.pending):
            self.forget_pending(group, member_id)
        group.state = GroupState.DEAD
        self.deadlines.cancel(group.join_deadline)
        self.deadlines.cancel(group.sync_deadline)
        self.empty.remove(group)

    # --- room

    def count_bytes(self, group: Group, owner: str, size: int) -> None:
        """Count bytes more for a principal's members of a group."""
        group.held_bytes += size
        self.metadata.count_use(owner, size)

    def has_room(self, request: JoinRequest, group: Group | None) -> bool:
        """Return whether there is room for what a request would leave in memory.

        There always is for a member that joins again for the same principal with a request that is not larger.
        """
        size = request.size
        held = 0 if group is None else group.held_bytes
        member = None if group is None else group.known_member(request.member_id, request.instance_id)
        if member is not None:
            grown = size - member.request_size
            if held + grown > MAX_GROUP_BYTES and grown > 0:
                return False
            added = grown if member.owner == request.owner else size
            return added <= 0 or self.metadata.may_add(request.owner, added)
        if size + held > MAX_GROUP_BYTES:
            return False
        if group is not None and request.member_id and request.member_id not in group.pending:
            return True  # one that is not known is refused
        of_group = len(request.group_id) if group is None else 0 if group.members else group.size
        return self.members.may_add(request.owner) and self.metadata.may_add(request.owner, size + of_group)

    def has_group_room(self, group: Group) -> bool:
        """Return whether one more id may be given out, or member added, in a group."""
        return len(group.members) + len(group.pending) < MAX_GROUP_MEMBERS

    def empty_victim(self, owner: str, size: int) -> Group | None:
        """Return the group without members to evict so that a principal may create one; None: no eviction is needed."""
        return None if self.empty.fits(size) else self.empty.victim(owner, size)

    def pending_victim(self, group: Group, owner: str, size: int) -> PendingMember | None:
        """Return the id to evict so that a principal may be given one of `size` bytes; None: no eviction is needed.

        No member has joined with it yet, although clients do so at once.
        """
        if not self.has_group_room(group):
            return next(iter(group.pending.values()), None)
        return None if self.pending.fits(size) else self.pending.victim(owner, size)

    def reserve(self, group: Group, owner: str, size: int) -> bool:
        """Count assignments that are not stored yet for the leader's principal. Return whether there is room for them.

        There always is if the group's assignments do not grow.
        """
        grown = size - sum([len(member.assignment) for member in group.members.values()])
        if grown > 0 and not self.metadata.may_add(owner, grown):
            return False
        self._saving += size
        self.metadata.count_use(owner, size)
        return True

    def release(self, owner: str, size: int) -> None:
        """Remove the bytes that `reserve` counted for a principal."""
        self._saving -= size
        self.metadata.remove(owner, size)

    # --- members and their sessions

    def count_member(self, group: Group, member: Member) -> None:
        """Count a member that has been added to its group."""
        self._count_first(group, member)
        self.members.count_use(member.owner)
        self.count_bytes(group, member.owner, member.size)

    def _count_first(self, group: Group, member: Member) -> None:
        """Count a group for the principal of its first member, instead of as one without members."""
        if group in self.empty:
            self.empty.remove(group)
            group.payer = member.owner
            self.metadata.count_use(group.payer, group.size)

    def remove(self, group: Group, member: Member) -> None:
        """Remove a member; what it waits for is answered with UNKNOWN_MEMBER_ID."""
        group.answer_join(member, join_refusal(error_codes.UNKNOWN_MEMBER_ID, ""))
        member.answer_sync(sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
        self.deadlines.cancel(member)
        group.remove(member)
        if not group.pending_sync:
            self.deadlines.cancel(group.sync_deadline)
        self.members.remove(member.owner)
        self.count_bytes(group, member.owner, -member.size)
        if not group.members:
            # The group counts for the principal of its first member, which may not be that of the last one.
            self.metadata.remove(group.payer, group.size)
            self.empty.add_entry(group, group.owner, group.size)

    def set_owner(self, member: Member, owner: str) -> None:
        """Count a member for the principal that sends its requests now."""
        if member.owner != owner:
            size = member.size
            self.members.remove(member.owner)
            self.metadata.remove(member.owner, size)
            member.owner = owner
            self.members.count_use(owner)
            self.metadata.count_use(owner, size)

    def add_pending(self, group: Group, member_id: str, owner: str, until_ms: int) -> None:
        """Remember a member id that was given out, until a member joins with it or `until_ms` has come."""
        pending = group.pending[member_id] = PendingMember(group.group_id, member_id)
        self.pending.add_entry(pending, owner, pending.size)
        group.held_bytes += pending.size
        self.deadlines.start(pending, until_ms)

    def forget_pending(self, group: Group, member_id: str) -> None:
        """Remove a member id from those that were given out and not used, if it is one of them."""
        pending = group.pending.pop(member_id, None)
        if pending is not None:
            self.pending.remove(pending)
            self.deadlines.cancel(pending)
            group.held_bytes -= pending.size

    @staticmethod
    def record_source(member: Member, source: Source | None) -> None:
        """Note the connection of a member's request."""
        # Another connection has its own sum of muted time: marks of the old one would mean nothing.
        if source is not None and source is not member.source:
            member.source = source
            member.session_mark_ms = member.rebalance_mark_ms = source.throttled_ms

    def start_session(self, member: Member, source: Source | None, now_ms: int) -> None:
        """Note the connection of a member's request, and start a new session."""
        self.record_source(member, source)
        self.begin_session(member, member.session_timeout_ms, now_ms)

    def begin_sessions(self, members: Sequence[Member], now_ms: int) -> None:
        """Start new sessions of members, each as long as its timeout."""
        for member in members:
            source = member.source
            member.session_mark_ms = 0 if source is None else source.throttled_ms
        self.deadlines.start_all([(member, now_ms + member.session_timeout_ms) for member in members])

    def begin_session(self, member: Member, timeout_ms: int, now_ms: int) -> None:
        """Start a new session of a member, which lasts `timeout_ms`."""
        member.session_mark_ms = member.throttled_ms
        self.deadlines.start(member, now_ms + timeout_ms)
