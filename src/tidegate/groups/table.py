"""All groups of a node, what they hold in memory, and the sessions of their members.

For how long a member's connection had been muted is noted when its session begins: that time does not count against
it.
"""

from heapq import nsmallest
from operator import itemgetter

from tidegate import error_codes
from tidegate.groups.deadlines import Deadlines
from tidegate.groups.group import Group, GroupState
from tidegate.groups.member import Member, PendingMember
from tidegate.groups.requests import JoinRequest, Source, join_refusal, sync_refusal
from tidegate.groups.settings import (
    MAX_GROUP_BYTES,
    MAX_GROUP_MEMBERS,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_METADATA_BYTES,
    GroupSettings,
)

__all__ = ["GroupTable"]

_EMPTY_AT_ONCE = 500  # to look through 20,000 groups for them takes some ms,
_LOOK_EVERY_MS = 1000  # and is not done again and again where there are none


class GroupTable:
    """Groups by id. `member_count` counts ids that were given out, too; `metadata_bytes` is of all groups."""

    __slots__ = (
        "_empty",
        "_looked_ms",
        "_pending",
        "_saving_bytes",
        "_settings",
        "deadlines",
        "groups",
        "member_count",
        "metadata_bytes",
    )

    def __init__(self, settings: GroupSettings) -> None:
        self.groups: dict[str, Group] = {}
        self.deadlines = Deadlines()
        self.member_count = 0
        self.metadata_bytes = 0
        self._saving_bytes = 0
        self._settings = settings
        self._pending: dict[PendingMember, None] = {}  # of all groups, in the order in which they came
        self._empty: list[tuple[int, Group]] = []  # that may go, and since when: the longest at the end
        self._looked_ms: int | None = None

    @property
    def max_size(self) -> int:
        """How many members a group may have."""
        return min(self._settings.max_size, MAX_GROUP_MEMBERS)

    # --- groups

    def put(self, group: Group) -> None:
        """Take in a new group with the members that it has."""
        self.groups[group.group_id] = group
        self.count_bytes(group, group.size + sum([member.size for member in group.members.values()]))
        self.member_count += len(group.members)

    def forget(self, group: Group) -> None:
        """Let a group without members go."""
        assert not group.members
        del self.groups[group.group_id]
        for member_id in list(group.pending):
            self.forget_pending(group, member_id)
        group.state = GroupState.DEAD
        self.deadlines.cancel(group.join_deadline)
        self.deadlines.cancel(group.sync_deadline)
        self.count_bytes(group, -group.held_bytes)

    # --- room

    def count_bytes(self, group: Group, size: int) -> None:
        """Note that a group takes so many bytes more."""
        group.held_bytes += size
        self.metadata_bytes += size

    def has_room(self, request: JoinRequest, group: Group | None) -> bool:
        """Return whether there is room for what a request would leave in memory."""
        size = sum([len(name) + len(data) for name, data in request.protocols]) + len(request.client_id)
        if self.metadata_bytes + size > MAX_METADATA_BYTES:
            return False
        if size + (0 if group is None else group.held_bytes) > MAX_GROUP_BYTES:
            return False
        if group is None:
            return len(self.groups) < MAX_GROUPS and self.member_count < MAX_MEMBERS
        if request.member_id:
            return True  # one that is not known is refused
        return len(group.members) + len(group.pending) < MAX_GROUP_MEMBERS and self.member_count < MAX_MEMBERS

    def longest_empty(self, now_ms: int) -> Group | None:
        """Return, where there are as many groups as may be, the one that nobody has been in for the longest."""
        if len(self.groups) < MAX_GROUPS:
            return None
        if not self._empty and (self._looked_ms is None or now_ms - self._looked_ms >= _LOOK_EVERY_MS):
            may_go = [(group.state_at_ms, group) for group in self.groups.values() if _may_go(group)]
            self._looked_ms = now_ms if len(may_go) < _EMPTY_AT_ONCE else None
            self._empty = nsmallest(_EMPTY_AT_ONCE, may_go, key=itemgetter(0))[::-1]
        while self._empty:
            since_ms, group = self._empty.pop()
            if _may_go(group) and group.state_at_ms == since_ms:
                return group
        return None

    def first_pending(self, group: Group | None) -> PendingMember | None:
        """Return, where there are as many members as may be, of a group or in all, who first was given an id.

        Nobody has come with it yet: a client does at once.
        """
        if group is not None and len(group.members) + len(group.pending) >= MAX_GROUP_MEMBERS:
            return next(iter(group.pending.values()), None)
        return next(iter(self._pending), None) if self.member_count >= MAX_MEMBERS else None

    @property
    def max_stored_bytes(self) -> int:
        """How large a group may be with its assignments when it is kept."""
        return min(self._settings.max_record_bytes, MAX_GROUP_BYTES)

    def reserve(self, size: int) -> bool:
        """Keep room for assignments that are not on the disk yet; return whether there is so much."""
        if self.metadata_bytes + self._saving_bytes + size > MAX_METADATA_BYTES:
            return False
        self._saving_bytes += size
        return True

    def release(self, size: int) -> None:
        """Give back what was kept with `reserve`."""
        self._saving_bytes -= size

    # --- members and their sessions

    def add(self, group: Group, member: Member) -> None:
        """Count a member that has been taken into its group."""
        self.member_count += 1
        self.count_bytes(group, member.size)

    def remove(self, group: Group, member: Member) -> None:
        """Let a member go; what it waits for is answered with UNKNOWN_MEMBER_ID."""
        group.answer_join(member, join_refusal(error_codes.UNKNOWN_MEMBER_ID, ""))
        member.answer_sync(sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
        self.deadlines.cancel(member)
        group.remove(member)
        if not group.pending_sync:
            self.deadlines.cancel(group.sync_deadline)
        self.member_count -= 1
        self.count_bytes(group, -member.size)

    def add_pending(self, group: Group, member_id: str, until_ms: int) -> None:
        """Wait for who was given a member id, until then."""
        pending = group.pending[member_id] = PendingMember(group.group_id, member_id)
        self._pending[pending] = None
        self.member_count += 1
        self.count_bytes(group, len(member_id))
        self.deadlines.start(pending, until_ms)

    def forget_pending(self, group: Group, member_id: str) -> None:
        """Wait no longer for who was given a member id, if anybody was."""
        pending = group.pending.pop(member_id, None)
        if pending is not None:
            del self._pending[pending]
            self.deadlines.cancel(pending)
            self.member_count -= 1
            self.count_bytes(group, -len(member_id))

    @staticmethod
    def hear(member: Member, source: Source | None) -> None:
        """Note by what a member speaks."""
        if source is not None and source is not member.source:
            member.source = source
            member.session_mark_ms = member.rebalance_mark_ms = source.throttled_ms

    def hear_session(self, member: Member, source: Source | None, now_ms: int) -> None:
        """Note by what a member speaks; its session begins anew."""
        self.hear(member, source)
        self.begin_session(member, member.session_timeout_ms, now_ms)

    def begin_session(self, member: Member, timeout_ms: int, now_ms: int) -> None:
        """Let a member be silent for so long from now on."""
        member.session_mark_ms = member.throttled_ms
        self.deadlines.start(member, now_ms + timeout_ms)


def _may_go(group: Group) -> bool:
    return group.state is GroupState.EMPTY and not group.pending
