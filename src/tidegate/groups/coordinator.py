"""The coordinator of consumer groups: joins, generations, assignments, sessions, and who may commit.

    coordinator.join(JoinRequest(...), respond, now_ms)  # MEMBER_ID_REQUIRED at once, or an answer later
    coordinator.run(now_ms)  # when `next_ms` has come: sessions and rebalances that are over

A rebalance: members join (PREPARING_REBALANCE); when all have, at the latest when the longest of their rebalance
timeouts is over, the next generation begins. Its leader assigns (COMPLETING_REBALANCE); when that is kept, all have
their assignment (STABLE). A member whose session is over, or who did not come back for the rebalance, is let go.

Every method returns at once. `respond` is called once for each request, at once or later, also for one that Kafka
forgets (a member that joins again while its first JoinGroup still waits): with UNKNOWN_MEMBER_ID.

Time for which the broker muted a member's connection (`Source.throttled_ms`) does not count against its session, nor
does a rebalance end over it, unless it is to be as in Kafka (`GroupSettings.exact`).

Follows: Kafka 4.3 `GroupMetadataManager` (classic groups), KIP-62, 134, 345, 394, 559, 800, 814.
"""

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping

from tidegate import error_codes
from tidegate.groups.deadlines import Deadlines
from tidegate.groups.group import Group, GroupState, JoinDeadline, Member, PendingMember, SyncDeadline
from tidegate.groups.requests import (
    JoinRequest,
    Message,
    Respond,
    Source,
    SyncRequest,
    join_refusal,
    sync_refusal,
)
from tidegate.groups.settings import (
    MAX_GROUP_BYTES,
    MAX_GROUP_MEMBERS,
    MAX_GROUPS,
    MAX_MEMBERS,
    MAX_METADATA_BYTES,
    MAX_PROTOCOLS,
    NEW_MEMBER_JOIN_TIMEOUT_MS,
    GroupSettings,
)
from tidegate.groups.stored import GroupStore, StoredGroup

__all__ = ["GroupCoordinator"]

_EMPTY, _PREPARING, _COMPLETING = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
)
_STABLE, _DEAD = GroupState.STABLE, GroupState.DEAD
_NAME_CHARS = 8000  # of a client id in a member id: with up to four bytes each it can be sent
_REASON_CHARS = 255  # of a client's text in the log. Source: Kafka `JoinGroupRequest.maybeTruncateReason`
_log = logging.getLogger("tidegate.groups")


class GroupCoordinator:
    """The groups of one node. `groups`: by id; `member_count` counts ids that were given out, too."""

    def __init__(
        self, settings: GroupSettings, store: GroupStore, *, new_id: Callable[[], str] | None = None
    ) -> None:
        """Make one without groups. new_id: makes the part of member ids that nobody can guess."""
        self.groups: dict[str, Group] = {}
        self.member_count = 0
        self.metadata_bytes = 0
        self._saving_bytes = 0  # of assignments that are not on the disk yet
        self._settings = settings
        self._store = store
        self._new_id = new_id or _uuid
        self._deadlines = Deadlines()

    def restore(self, stored: StoredGroup, now_ms: int) -> None:
        """Take over a group that was kept; the sessions of its members begin."""
        group = self.groups[stored.group_id] = Group.of(stored)
        self._count_bytes(group, group.size + sum([member.size for member in group.members.values()]))
        self.member_count += len(group.members)
        for member in group.members.values():
            self._begin_session(member, member.session_timeout_ms, now_ms)
        if len(group.members) > self._max_size:
            self._prepare_rebalance(group, "it has more members than group.max.size", now_ms)

    @property
    def _max_size(self) -> int:
        return min(self._settings.max_size, MAX_GROUP_MEMBERS)

    # --- time

    def next_ms(self) -> int | None:
        """Return when `run` may have something to do, None: never."""
        return self._deadlines.next_ms()

    def run(self, now_ms: int, limit: int = 1 << 30) -> bool:
        """Do what is due, at most so many sessions and rebalances; return whether there is more."""
        for _ in range(limit):
            deadline = self._deadlines.take(now_ms)
            if deadline is None:
                return False
            if isinstance(deadline, Member):
                self._session_over(deadline, now_ms)
            elif isinstance(deadline, JoinDeadline):
                self._join_over(deadline, now_ms)
            elif isinstance(deadline, SyncDeadline):
                self._sync_over(deadline, now_ms)
            else:
                assert isinstance(deadline, PendingMember)
                self._pending_over(deadline, now_ms)
        return True

    # --- JoinGroup

    def join(self, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Let a member join, or begin to; the answer comes when the generation begins that it is in."""
        settings, member_id = self._settings, request.member_id
        if not request.group_id:
            respond(join_refusal(error_codes.INVALID_GROUP_ID, member_id))
            return
        if not (
            settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms
        ):
            respond(join_refusal(error_codes.INVALID_SESSION_TIMEOUT, member_id))
            return
        group = self.groups.get(request.group_id)
        if group is None and member_id:
            has_protocol = request.protocol_type and request.distinct_protocols()
            is_inconsistent = request.is_known and not has_protocol
            code = (
                error_codes.INCONSISTENT_GROUP_PROTOCOL if is_inconsistent else error_codes.UNKNOWN_MEMBER_ID
            )
            respond(join_refusal(code, member_id))
            return
        if len(request.protocols) > MAX_PROTOCOLS:
            respond(join_refusal(error_codes.INCONSISTENT_GROUP_PROTOCOL, member_id))
            return
        if not self._has_room(request, group):
            respond(join_refusal(error_codes.GROUP_MAX_SIZE_REACHED, ""))
            return
        if group is not None:
            self._join_group(group, request, respond, now_ms)
            return
        group = self._create(request.group_id, now_ms)
        self._store.save(group.stored(), _nothing)
        self._join_group(group, request, respond, now_ms)

    def _create(self, group_id: str, now_ms: int) -> Group:
        group = self.groups[group_id] = Group(group_id, now_ms)
        self._count_bytes(group, group.size)
        return group

    def _count_bytes(self, group: Group, size: int) -> None:
        group.held_bytes += size
        self.metadata_bytes += size

    def _has_room(self, request: JoinRequest, group: Group | None) -> bool:
        """Return whether there is room for what a request would leave in memory."""
        size = sum([len(name) + len(data) for name, data in request.protocols]) + len(request.client_id)
        if self.metadata_bytes + size > MAX_METADATA_BYTES:
            return False
        if size + (0 if group is None else group.held_bytes) > MAX_GROUP_BYTES:
            return False
        if group is None:
            return len(self.groups) < MAX_GROUPS and self.member_count < MAX_MEMBERS
        if request.member_id in group.members or request.member_id in group.pending:
            return True
        return len(group.members) + len(group.pending) < MAX_GROUP_MEMBERS and self.member_count < MAX_MEMBERS

    def _join_group(self, group: Group, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        member_id = request.member_id
        if not self._accepts(group, member_id):
            self._forget_pending(group, member_id)
            member = group.members.get(member_id)
            if member is not None:
                self._remove(group, member)
            respond(join_refusal(error_codes.GROUP_MAX_SIZE_REACHED, ""))
            self._complete_if_all_joined(group, now_ms)
        elif not group.supports(request.protocol_type, request.distinct_protocols()):
            respond(join_refusal(error_codes.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not member_id:
            self._join_new(group, request, respond, now_ms)
        else:
            self._join_known(group, request, respond, now_ms)

    def _accepts(self, group: Group, member_id: str) -> bool:
        """Return whether a group has room for a member. While it joins those count who have joined."""
        if group.state is _EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is _PREPARING:
            return (member is not None and member.join is not None) or group.awaiting_join < self._max_size
        return member is not None or len(group.members) < self._max_size

    def _join_new(self, group: Group, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Give an id to who has none; a static member goes on where it was."""
        if request.instance_id is not None:
            member_id = f"{request.instance_id[:_NAME_CHARS]}-{self._new_id()}"
            old_id = group.static_ids.get(request.instance_id)
            if old_id is not None:
                self._replace_static(group, group.members[old_id], member_id, request, respond, now_ms)
                return
        else:
            member_id = f"{request.client_id[:_NAME_CHARS]}-{self._new_id()}"
            if request.needs_known_id:
                pending = group.pending[member_id] = PendingMember(group.group_id, member_id)
                self.member_count += 1
                self._count_bytes(group, len(member_id))
                self._deadlines.start(pending, now_ms + request.session_timeout_ms)
                respond(join_refusal(error_codes.MEMBER_ID_REQUIRED, member_id))
                return
        self._add(group, member_id, request, respond, now_ms)

    def _join_known(self, group: Group, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Let a member join again, or one that has its id from us for the first time."""
        member_id = request.member_id
        if member_id in group.pending:
            if request.instance_id is not None:
                respond(join_refusal(error_codes.UNKNOWN_SERVER_ERROR, ""))
            else:
                self._add(group, member_id, request, respond, now_ms)
            return
        problem = group.problem(member_id, request.instance_id)
        if problem:
            respond(join_refusal(problem, member_id))
            return
        member = group.members[member_id]
        if group.state is _EMPTY:
            respond(join_refusal(error_codes.UNKNOWN_MEMBER_ID, member_id))
            return
        same = member.protocols == tuple(request.distinct_protocols())
        if (group.state is _COMPLETING and same) or (
            group.state is _STABLE and same and member_id != group.leader_id
        ):
            respond(group.joined(member))  # it has not had the answer, or wants it again
            return
        self._update(group, member, request, respond)
        self._hear(member, request.source)
        self._rebalance_or_complete(
            group, f"member {member_id!r} joins while it is {group.state.value}{_why(request.reason)}", now_ms
        )

    def _add(self, group: Group, member_id: str, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        self._forget_pending(group, member_id)
        member = Member(
            group.group_id,
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.distinct_protocols(),
        )
        member.is_new = True
        if group.state is _PREPARING and group.previous_state is _EMPTY:
            group.has_new_member = True
        group.add(member, request.protocol_type, respond)
        self.member_count += 1
        self._count_bytes(group, member.size)
        self._hear(member, request.source)
        self._begin_session(member, NEW_MEMBER_JOIN_TIMEOUT_MS, now_ms)
        self._rebalance_or_complete(group, f"member {member_id!r} joins{_why(request.reason)}", now_ms)

    def _update(self, group: Group, member: Member, request: JoinRequest, respond: Respond) -> None:
        self._count_bytes(group, -member.size)
        earlier = group.update(
            member,
            request.distinct_protocols(),
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            respond,
        )
        self._count_bytes(group, member.size)
        if earlier is not None:
            earlier(join_refusal(error_codes.UNKNOWN_MEMBER_ID, ""))

    def _replace_static(
        self,
        group: Group,
        old: Member,
        member_id: str,
        request: JoinRequest,
        respond: Respond,
        now_ms: int,
    ) -> None:
        """Let a static member that was started anew go on in the place of what it was; that one is fenced."""
        leader_before = group.leader_id
        self._answer_join(group, old, join_refusal(error_codes.FENCED_INSTANCE_ID, old.member_id))
        self._answer_sync(old, sync_refusal(error_codes.FENCED_INSTANCE_ID))
        self._deadlines.cancel(old)
        member = Member(
            group.group_id,
            member_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.session_timeout_ms,
            old.rebalance_timeout_ms,
            old.protocols,
        )
        member.assignment = old.assignment
        self._count_bytes(group, member.size - old.size)
        group.replace_static(old, member)
        self._hear(member, request.source)
        self._update(group, member, request, respond)
        self._begin_session(member, member.session_timeout_ms, now_ms)
        if group.state is not _STABLE:
            self._rebalance_or_complete(
                group, f"static member {member.instance_id!r} is replaced{_why(request.reason)}", now_ms
            )
            return
        if group.select_protocol() != group.protocol:
            self._rebalance_or_complete(
                group, f"static member {member.instance_id!r} changes the protocol", now_ms
            )
            return
        stored, generation = group.stored(), group.generation
        if _stored_bytes(stored) > self._settings.max_record_bytes:
            self._bring_back_static(group, old, member, now_ms)
            respond(join_refusal(error_codes.UNKNOWN_SERVER_ERROR, ""))
            return

        def on_saved(is_kept: bool, _: int) -> None:
            if member.join is not respond or group.state is not _STABLE or group.generation != generation:
                return
            leads = group.leader_id == member_id  # as it is now: others may have been replaced meanwhile
            answer = {
                **group.joined(member),
                "members": group.members_for_leader() if leads and request.skips_assignment else [],
                "leader": group.leader_id if request.skips_assignment else leader_before,
                "skip_assignment": leads and request.skips_assignment,
            }
            if not is_kept:
                answer.update(join_refusal(error_codes.COORDINATOR_NOT_AVAILABLE, ""))
            self._answer_join(group, member, answer)

        self._store.save(stored, on_saved)

    def _bring_back_static(self, group: Group, old: Member, member: Member, now_ms: int) -> None:
        """Let a static member be again what it was before it was started anew."""
        group.take_join(member)
        self._deadlines.cancel(member)
        group.replace_static(member, old)
        self._count_bytes(group, old.size - member.size)
        self._begin_session(old, old.session_timeout_ms, now_ms)

    # --- rebalances

    def _rebalance_or_complete(self, group: Group, reason: str, now_ms: int) -> None:
        """Begin a rebalance, or end one that waits for nobody."""
        if group.state in (_EMPTY, _COMPLETING, _STABLE):
            self._prepare_rebalance(group, reason, now_ms)
        else:
            self._complete_if_all_joined(group, now_ms)

    def _prepare_rebalance(self, group: Group, reason: str, now_ms: int) -> None:
        _log.info(
            "group %r in state %s is rebalanced after generation %d: %s",
            group.group_id,
            group.state.value,
            group.generation,
            reason,
        )
        if group.state is _COMPLETING:
            self._refuse_syncs(group, error_codes.REBALANCE_IN_PROGRESS, now_ms)
        self._deadlines.cancel(group.sync_deadline)
        is_first = group.state is _EMPTY
        group.transition(_PREPARING, now_ms)
        deadline = group.join_deadline
        deadline.extended_ms, deadline.left_ms = 0, None
        for member in group.members.values():
            member.rebalance_mark_ms = _throttled_ms(member)
        if is_first:
            delay_ms = self._settings.initial_rebalance_delay_ms
            deadline.delay_ms, deadline.left_ms = delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._deadlines.start(deadline, now_ms + delay_ms)
        elif group.all_joined():
            self._complete_join(group, now_ms)
        else:
            self._deadlines.start(deadline, now_ms + group.rebalance_timeout_ms())

    def _complete_if_all_joined(self, group: Group, now_ms: int) -> None:
        """End a rebalance that waits for nobody; a first one waits for its time."""
        if group.state is _PREPARING and group.previous_state is not _EMPTY and group.all_joined():
            self._complete_join(group, now_ms)

    def _join_over(self, deadline: JoinDeadline, now_ms: int) -> None:
        group = self.groups.get(deadline.group_id)
        if group is None or group.join_deadline is not deadline or group.state is not _PREPARING:
            return
        if group.has_new_member and deadline.left_ms:
            group.has_new_member = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, deadline.left_ms)
            deadline.left_ms = max(deadline.left_ms - deadline.delay_ms, 0)
            deadline.delay_ms = delay_ms
            self._deadlines.start(deadline, now_ms + delay_ms)
            return
        missing = [member for member in group.members.values() if member.join is None]
        if not self._extended(group, deadline, missing, now_ms):
            self._complete_join(group, now_ms)

    def _extended(
        self, group: Group, deadline: JoinDeadline | SyncDeadline, missing: Collection[Member], now_ms: int
    ) -> bool:
        """Put a deadline off for as long as one of those missing was muted, once over at the most; return whether."""
        if self._settings.exact:
            return False
        longest_ms = 0
        for member in missing:
            throttled_ms = _throttled_ms(member)
            longest_ms = max(longest_ms, throttled_ms - member.rebalance_mark_ms)
            member.rebalance_mark_ms = throttled_ms
        longest_ms = min(longest_ms, group.rebalance_timeout_ms() - deadline.extended_ms)
        if longest_ms <= 0:
            return False
        deadline.extended_ms += longest_ms
        self._deadlines.start(deadline, now_ms + longest_ms)
        return True

    def _complete_join(self, group: Group, now_ms: int) -> None:
        """Begin the next generation with those who have joined, and static members."""
        self._deadlines.cancel(group.join_deadline)
        for member in [
            each for each in group.members.values() if each.join is None and each.instance_id is None
        ]:
            self._remove(group, member)
        if group.members and not group.elect_leader():
            _log.info("group %r waits on: no member joins its rebalance", group.group_id)
            self._deadlines.start(group.join_deadline, now_ms + group.rebalance_timeout_ms())
            return
        group.next_generation(now_ms)
        group.has_new_member = False
        if group.state is _EMPTY:
            self._store.save(group.stored(), _nothing)
            return
        group.pending_sync.update(dict.fromkeys(group.members))
        for member in list(group.members.values()):
            self._begin_session(member, member.session_timeout_ms, now_ms)
            member.is_new = False
            member.rebalance_mark_ms = _throttled_ms(member)
            if member.join is not None:
                self._answer_join(group, member, group.joined(member))
        group.sync_deadline.extended_ms = 0
        self._deadlines.start(group.sync_deadline, now_ms + group.rebalance_timeout_ms())

    def _sync_over(self, deadline: SyncDeadline, now_ms: int) -> None:
        group = self.groups.get(deadline.group_id)
        if group is None or group.sync_deadline is not deadline or not group.pending_sync:
            return
        if group.state not in (_COMPLETING, _STABLE):
            return
        missing = [group.members[member_id] for member_id in group.pending_sync]
        if self._extended(group, deadline, missing, now_ms):
            return
        for member in missing:
            self._remove(group, member)
        self._prepare_rebalance(group, f"{len(missing)} members did not ask for their assignment", now_ms)

    # --- SyncGroup

    def sync(self, request: SyncRequest, respond: Respond, now_ms: int) -> None:
        """Answer a member's assignment: when the leader has sent it, and it is kept."""
        if not request.group_id:
            respond(sync_refusal(error_codes.INVALID_GROUP_ID))
            return
        group = self.groups.get(request.group_id)
        if group is None or group.state is _EMPTY:
            respond(sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
            return
        problem = _sync_problem(group, request)
        if problem:
            respond(sync_refusal(problem))
            return
        member = group.members[request.member_id]
        self._hear(member, request.source)
        group.pending_sync.pop(member.member_id, None)
        if not group.pending_sync:
            self._deadlines.cancel(group.sync_deadline)
        if group.state is _STABLE:
            respond(group.synced(member))
            return
        self._answer_sync(member, sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
        member.sync = respond
        if member.member_id == group.leader_id:
            self._assign(group, request.assignments, now_ms)

    def _assign(self, group: Group, assignments: Mapping[str, bytes], now_ms: int) -> None:
        """Keep what the leader assigns; then every member has its part."""
        stored = group.stored(assignments)
        generation = group.generation
        if _stored_bytes(stored) > min(self._settings.max_record_bytes, MAX_GROUP_BYTES):
            self._cannot_assign(
                group, error_codes.UNKNOWN_SERVER_ERROR, "its assignment is too large", now_ms
            )
            return
        size = sum([len(member.assignment) for member in stored.members])
        if self.metadata_bytes + self._saving_bytes + size > MAX_METADATA_BYTES:
            reason = "there is no room for its assignment"
            self._cannot_assign(group, error_codes.GROUP_MAX_SIZE_REACHED, reason, now_ms)
            return
        self._saving_bytes += size

        def on_saved(is_kept: bool, saved_ms: int) -> None:
            self._saving_bytes -= size
            if group.state is not _COMPLETING or group.generation != generation:
                return
            if is_kept:
                self._stabilize(group, assignments, saved_ms)
            else:
                self._cannot_assign(
                    group, error_codes.COORDINATOR_NOT_AVAILABLE, "its assignment cannot be kept", saved_ms
                )

        self._store.save(stored, on_saved)

    def _stabilize(self, group: Group, assignments: Mapping[str, bytes], now_ms: int) -> None:
        grown = 0
        for member in group.members.values():
            assignment = assignments.get(member.member_id, b"")
            grown += len(assignment) - len(member.assignment)
            member.assignment = assignment
        self._count_bytes(group, grown)
        group.transition(_STABLE, now_ms)
        for member in list(group.members.values()):
            if member.sync is not None:
                self._answer_sync(member, group.synced(member))
                self._begin_session(member, member.session_timeout_ms, now_ms)

    def _cannot_assign(self, group: Group, error_code: int, reason: str, now_ms: int) -> None:
        self._refuse_syncs(group, error_code, now_ms)
        self._rebalance_or_complete(group, reason, now_ms)

    def _refuse_syncs(self, group: Group, error_code: int, now_ms: int) -> None:
        """Take all assignments away, and say so to those who wait for theirs."""
        for member in list(group.members.values()):
            self._count_bytes(group, -len(member.assignment))
            member.assignment = b""
            if member.sync is not None:
                self._answer_sync(member, sync_refusal(error_code))
                self._begin_session(member, member.session_timeout_ms, now_ms)

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
        if group.state is _EMPTY:
            return error_codes.UNKNOWN_MEMBER_ID
        self._hear_session(group.members[member_id], source, now_ms)
        return error_codes.REBALANCE_IN_PROGRESS if group.state is _PREPARING else error_codes.NONE

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """Let one member go, a static one by its instance id alone if need be; return an error code.

        When all of a request have been let go, call `rebalance_without`.
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
            self._forget_pending(group, member_id)
            return error_codes.NONE
        else:
            problem = group.problem(member_id, instance_id)
            if problem:
                return problem
        self._remove(group, group.members[member_id])
        return error_codes.NONE

    def rebalance_without(self, group_id: str, reason: str | None, now_ms: int) -> None:
        """Let a group that members have left go on without them."""
        group = self.groups.get(group_id)
        if group is None:
            return
        if group.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(group, f"members leave{_why(reason)}", now_ms)
        else:
            self._complete_if_all_joined(group, now_ms)

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
        if generation < 0 and group.state is _EMPTY:
            return error_codes.NONE
        if generation >= 0 or member_id or instance_id is not None:
            problem = group.problem(member_id, instance_id)
            if problem:
                return problem
            if generation != group.generation:
                return error_codes.ILLEGAL_GENERATION
        elif group.state is not _EMPTY:
            return error_codes.UNKNOWN_MEMBER_ID
        if group.state is _COMPLETING:
            return error_codes.REBALANCE_IN_PROGRESS
        if group.state in (_STABLE, _PREPARING):
            self._hear_session(group.members[member_id], source, now_ms)
        return error_codes.NONE

    # --- administration

    def delete_problem(self, group_id: str) -> int | None:
        """Return the error for the deletion of a group, 0 where it may be done; None: the group is not known here."""
        group = self.groups.get(group_id)
        if group is None:
            return None
        return error_codes.NONE if group.state is _EMPTY else error_codes.NON_EMPTY_GROUP

    def delete(self, group_id: str) -> None:
        """Forget a group without members. That it was kept is for the caller to forget."""
        group = self.groups.pop(group_id)
        assert not group.members
        for member_id in list(group.pending):
            self._forget_pending(group, member_id)
        group.state = _DEAD
        self._deadlines.cancel(group.join_deadline)
        self._deadlines.cancel(group.sync_deadline)
        self._count_bytes(group, -group.held_bytes)

    def members(self, group_id: str) -> Iterator[Message]:
        """Yield the members of a group as DescribeGroups answers them; metadata of a stable group alone."""
        group = self.groups[group_id]
        is_stable = group.state is _STABLE
        for member in list(group.members.values()):
            yield {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata(group.protocol) if is_stable else b"",
                "member_assignment": member.assignment,
            }

    # --- members and sessions

    def _hear(self, member: Member, source: Source | None) -> None:
        """Note by what a member speaks."""
        if source is not None and source is not member.source:
            member.source = source
            member.session_mark_ms = member.rebalance_mark_ms = source.throttled_ms

    def _hear_session(self, member: Member, source: Source | None, now_ms: int) -> None:
        self._hear(member, source)
        self._begin_session(member, member.session_timeout_ms, now_ms)

    def _begin_session(self, member: Member, timeout_ms: int, now_ms: int) -> None:
        member.session_mark_ms = _throttled_ms(member)
        self._deadlines.start(member, now_ms + timeout_ms)

    def _session_over(self, member: Member, now_ms: int) -> None:
        """Let a member go that is silent. Who waits for a rebalance or an assignment is not."""
        group = self.groups.get(member.group_id)
        if group is None or group.members.get(member.member_id) is not member:
            return
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # its session begins again with the answer
        throttled_ms = 0 if self._settings.exact else _throttled_ms(member) - member.session_mark_ms
        if throttled_ms > 0:
            member.session_mark_ms += throttled_ms
            self._deadlines.start(member, now_ms + throttled_ms)
            return
        self._remove(group, member)
        if group.state in (_STABLE, _COMPLETING):
            self._prepare_rebalance(group, f"the session of member {member.member_id!r} is over", now_ms)
        else:
            self._complete_if_all_joined(group, now_ms)

    def _pending_over(self, pending: PendingMember, now_ms: int) -> None:
        group = self.groups.get(pending.group_id)
        if group is not None and group.pending.get(pending.member_id) is pending:
            self._forget_pending(group, pending.member_id)
            self._complete_if_all_joined(group, now_ms)

    def _forget_pending(self, group: Group, member_id: str) -> None:
        pending = group.pending.pop(member_id, None)
        if pending is not None:
            self._deadlines.cancel(pending)
            self.member_count -= 1
            self._count_bytes(group, -len(member_id))

    def _remove(self, group: Group, member: Member) -> None:
        """Let a member go; what it waits for is answered with UNKNOWN_MEMBER_ID."""
        self._answer_join(group, member, join_refusal(error_codes.UNKNOWN_MEMBER_ID, ""))
        self._answer_sync(member, sync_refusal(error_codes.UNKNOWN_MEMBER_ID))
        self._deadlines.cancel(member)
        group.remove(member)
        if not group.pending_sync:
            self._deadlines.cancel(group.sync_deadline)
        self.member_count -= 1
        self._count_bytes(group, -member.size)

    @staticmethod
    def _answer_join(group: Group, member: Member, answer: Message) -> None:
        join = group.take_join(member)
        if join is not None:
            join(answer)

    @staticmethod
    def _answer_sync(member: Member, answer: Message) -> None:
        sync, member.sync = member.sync, None
        if sync is not None:
            sync(answer)


def _sync_problem(group: Group, request: SyncRequest) -> int:
    problem = group.problem(request.member_id, request.instance_id)
    if problem:
        return problem
    if request.generation != group.generation:
        return error_codes.ILLEGAL_GENERATION
    for said, chosen in ((request.protocol_type, group.protocol_type), (request.protocol, group.protocol)):
        if said is not None and chosen is not None and said != chosen:
            return error_codes.INCONSISTENT_GROUP_PROTOCOL
    return error_codes.REBALANCE_IN_PROGRESS if group.state is _PREPARING else error_codes.NONE


def _stored_bytes(stored: StoredGroup) -> int:
    return sum(
        [
            len(member.metadata) + len(member.assignment) + len(member.member_id) + len(member.client_id)
            for member in stored.members
        ]
    )


def _throttled_ms(member: Member) -> int:
    return 0 if member.source is None else member.source.throttled_ms


def _why(reason: str | None) -> str:
    return f", for {reason[:_REASON_CHARS]!r}" if reason else ""


def _uuid() -> str:
    return str(uuid.uuid4())


def _nothing(*_: int) -> None:
    """Do nothing."""
