"""JoinGroup: new members, their ids, and static members that come back.

A member that joins without an id is given one and joins again with it (KIP-394). A static member that has restarted
keeps its place in the group, and its earlier member id is fenced (KIP-345, 814).

Follows: Kafka 4.3 `GroupMetadataManager.classicGroupJoin`, KIP-345, 394, 559, 800, 814.
"""

from collections.abc import Callable, Sequence

from tidegate import error_codes
from tidegate.groups.answers import joined, members_for_leader
from tidegate.groups.group import Group, GroupState
from tidegate.groups.member import Member
from tidegate.groups.rebalances import Rebalances
from tidegate.groups.requests import JoinRequest, Respond, join_refusal, sync_refusal, why
from tidegate.groups.settings import MAX_PROTOCOLS, NEW_MEMBER_JOIN_TIMEOUT_MS, GroupSettings
from tidegate.groups.stored import GroupStore, ignore_result
from tidegate.groups.table import GroupTable

__all__ = ["Joining"]

_EMPTY, _PREPARING, _COMPLETING, _STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)
_ID_BYTES = 540  # of an id that is given out, besides its client id
_NAME_CHARS = 8000  # of a client id in a member id: with up to four bytes each it can be sent


class Joining:
    """Handling of the JoinGroup requests to the groups of a table."""

    __slots__ = ("_new_id", "_rebalances", "_settings", "_store", "_table")

    def __init__(
        self,
        settings: GroupSettings,
        store: GroupStore,
        table: GroupTable,
        rebalances: Rebalances,
        new_id: Callable[[], str],
    ) -> None:
        self._settings = settings
        self._store = store
        self._table = table
        self._rebalances = rebalances
        self._new_id = new_id

    def join(self, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Process a JoinGroup request. Call `respond` when the member's generation begins, or at once with an error."""
        settings, member_id = self._settings, request.member_id
        if not request.group_id:
            respond(join_refusal(error_codes.INVALID_GROUP_ID, member_id))
            return
        if not (
            settings.min_session_timeout_ms <= request.session_timeout_ms <= settings.max_session_timeout_ms
        ):
            respond(join_refusal(error_codes.INVALID_SESSION_TIMEOUT, member_id))
            return
        group = self._table.groups.get(request.group_id)
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
        if not self._table.has_room(request, group) or not self._make_room(request, group, now_ms):
            respond(join_refusal(error_codes.GROUP_MAX_SIZE_REACHED, ""))
            return
        if group is not None:
            self._join_group(group, request, respond, now_ms)
            return
        group = Group(request.group_id, now_ms, self._store.owner(request.group_id) or request.owner)
        self._table.add_group(group)
        self._store.save(group.stored(), ignore_result)
        self._join_group(group, request, respond, now_ms)

    def _make_room(self, request: JoinRequest, group: Group | None, now_ms: int) -> bool:
        """Evict entries to make room for a new group or member id. Return whether there is room.

        Groups without members can be evicted, and their positions stay; so can ids with which no member has joined yet.
        The victim is the oldest entry of the principal that holds most or, in a full group, the group's oldest id.
        """
        if group is None:
            owner = self._store.owner(request.group_id) or request.owner
            group = Group(request.group_id, now_ms, owner)
            while (empty := self._table.empty_victim(owner, group.size)) is not None:
                self._table.forget(empty)
                self._store.forget(empty.group_id)
            if not self._table.empty.fits(group.size):
                return False
        if request.member_id or group.known_member("", request.instance_id) is not None:
            return True
        needs_id = request.needs_known_id and request.instance_id is None
        size = _ID_BYTES + len(request.client_id[:_NAME_CHARS]) if needs_id else 0
        while (pending := self._table.pending_victim(group, request.owner, size)) is not None:
            of_group = self._table.groups[pending.group_id]
            self._table.forget_pending(of_group, pending.member_id)
            self._rebalances.complete_if_all_joined(of_group, now_ms)
        return self._table.has_group_room(group) and self._table.pending.fits(size)

    def _join_group(self, group: Group, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        member_id = request.member_id
        if not self._accepts(group, member_id):
            self._table.forget_pending(group, member_id)
            member = group.members.get(member_id)
            if member is not None:
                self._table.remove(group, member)
            respond(join_refusal(error_codes.GROUP_MAX_SIZE_REACHED, ""))
            self._rebalances.complete_if_all_joined(group, now_ms)
        elif not group.supports(request.protocol_type, _protocols_that_count(request)):
            respond(join_refusal(error_codes.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif not member_id:
            self._join_new(group, request, respond, now_ms)
        else:
            self._join_known(group, request, respond, now_ms)

    def _accepts(self, group: Group, member_id: str) -> bool:
        """Return whether a group has room for a member. During a rebalance only members that have joined count."""
        if group.state is _EMPTY:
            return True
        member = group.members.get(member_id)
        if group.state is _PREPARING:
            return (
                member is not None and member.join is not None
            ) or group.awaiting_join < self._table.max_size
        return member is not None or len(group.members) < self._table.max_size

    def _join_new(self, group: Group, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Assign a member id and add the member, or replace the static member with the same instance id."""
        if request.instance_id is not None:
            member_id = f"{request.instance_id[:_NAME_CHARS]}-{self._new_id()}"
            old_id = group.static_ids.get(request.instance_id)
            if old_id is not None:
                self._replace_static(group, group.members[old_id], member_id, request, respond, now_ms)
                return
        else:
            member_id = f"{request.client_id[:_NAME_CHARS]}-{self._new_id()}"
            if request.needs_known_id:
                # A client that does not come back with its id leaves only this small entry, and no member (KIP-394).
                self._table.add_pending(group, member_id, request.owner, now_ms + request.session_timeout_ms)
                respond(join_refusal(error_codes.MEMBER_ID_REQUIRED, member_id))
                return
        self._add(group, member_id, request, respond, now_ms)

    def _join_known(self, group: Group, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        """Process the JoinGroup of a member, or the first with a member id that the coordinator has assigned."""
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
            respond(joined(group, member))  # it has not had the answer, or wants it again
            return
        self._update(group, member, request, respond)
        self._table.record_source(member, request.source)
        self._rebalances.begin_or_complete(
            group,
            f"member {member_id!r} joined again in state {group.state.value}{why(request.reason)}",
            now_ms,
        )

    def _add(self, group: Group, member_id: str, request: JoinRequest, respond: Respond, now_ms: int) -> None:
        self._table.forget_pending(group, member_id)
        member = Member(
            group.group_id,
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            request.distinct_protocols(),
            request.owner,
        )
        member.is_new = True
        if group.state is _PREPARING and group.previous_state is _EMPTY:
            group.has_new_member = True
        group.add_member(member, request.protocol_type, respond)
        self._table.count_member(group, member)
        self._table.record_source(member, request.source)
        self._table.begin_session(member, NEW_MEMBER_JOIN_TIMEOUT_MS, now_ms)
        self._rebalances.begin_or_complete(group, f"member {member_id!r} joined{why(request.reason)}", now_ms)

    def _update(self, group: Group, member: Member, request: JoinRequest, respond: Respond) -> None:
        self._table.set_owner(member, request.owner)
        # Subtracted before and added after: `update` changes the size.
        self._table.count_bytes(group, member.owner, -member.size)
        earlier = group.update(
            member,
            request.distinct_protocols(),
            request.session_timeout_ms,
            request.rebalance_timeout_ms,
            respond,
        )
        self._table.count_bytes(group, member.owner, member.size)
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
        """Replace a static member that has restarted; fence its earlier member id."""
        leader_before = group.leader_id
        member = self._put_in_place(group, old, member_id)
        self._table.record_source(member, request.source)
        self._update(group, member, request, respond)
        self._table.begin_session(member, member.session_timeout_ms, now_ms)
        name = f"static member {member.instance_id!r}"
        if group.state is not _STABLE:
            self._rebalances.begin_or_complete(group, f"{name} was replaced{why(request.reason)}", now_ms)
            return
        if group.select_protocol() != group.protocol:
            self._rebalances.begin_or_complete(group, f"{name} changed the protocol", now_ms)
            return
        stored = group.stored()
        if stored.size > self._store.max_bytes:
            self._bring_back_static(group, old, member, now_ms)
            respond(join_refusal(error_codes.UNKNOWN_SERVER_ERROR, ""))
            return
        self._store.save(stored, self._answering_in_place(group, member, request, respond, leader_before))

    def _put_in_place(self, group: Group, old: Member, member_id: str) -> Member:
        """Replace a static member by a new one, and return that. Answer the old one with FENCED_INSTANCE_ID."""
        group.answer_join(old, join_refusal(error_codes.FENCED_INSTANCE_ID, old.member_id))
        old.answer_sync(sync_refusal(error_codes.FENCED_INSTANCE_ID))
        self._table.deadlines.cancel(old)
        member = Member(
            group.group_id,
            member_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.session_timeout_ms,
            old.rebalance_timeout_ms,
            old.protocols,
            old.owner,
        )
        member.assignment = old.assignment
        self._table.count_bytes(group, member.owner, member.size - old.size)
        group.replace_static(old, member)
        return member

    @staticmethod
    def _answering_in_place(
        group: Group, member: Member, request: JoinRequest, respond: Respond, leader_before: str | None
    ) -> Callable[[bool, int], None]:
        """Return the callback that answers a restarted static member once its group is stored.

        The member stays in the current generation.
        """
        generation = group.generation

        def on_saved(is_kept: bool, _: int) -> None:
            # By now the member may have joined again, or the group may have begun another generation.
            if member.join is not respond or group.state is not _STABLE or group.generation != generation:
                return
            leads = (
                group.leader_id == member.member_id
            )  # as it is now: others may have been replaced meanwhile
            answer = {
                **joined(group, member),
                "members": members_for_leader(group) if leads and request.skips_assignment else [],
                "leader": group.leader_id if request.skips_assignment else leader_before,
                "skip_assignment": leads and request.skips_assignment,
            }
            if not is_kept:
                answer.update(join_refusal(error_codes.COORDINATOR_NOT_AVAILABLE, ""))
            group.answer_join(member, answer)

        return on_saved

    def _bring_back_static(self, group: Group, old: Member, member: Member, now_ms: int) -> None:
        """Undo the replacement of a restarted static member, and start its session again."""
        group.take_join(member)
        self._table.deadlines.cancel(member)
        group.replace_static(member, old)
        self._table.set_owner(member, old.owner)
        self._table.count_bytes(group, old.owner, old.size - member.size)
        self._table.begin_session(old, old.session_timeout_ms, now_ms)


def _protocols_that_count(request: JoinRequest) -> Sequence[tuple[str, bytes]]:
    """Return the protocols that decide whether a request is accepted.

    For a client that is given a member id these are all of its protocols, as in Kafka. When that client joins with its
    id, protocols that it names twice do not count, so it is refused. Kafka never answers it, nor its group after that.
    """
    is_given_id = not request.member_id and request.needs_known_id and request.instance_id is None
    return request.protocols if is_given_id else request.distinct_protocols()
