"""Rebalances: their beginning, the members that they wait for, their end; and the end of a member's session.

Members join (PREPARING_REBALANCE); when all have, at the latest when the longest of their rebalance timeouts is over,
the next generation begins. Its leader assigns (COMPLETING_REBALANCE); when that is kept, all have their assignment
(STABLE).

Time for which a member's connection is muted counts neither toward its session nor toward a rebalance, unless
`GroupSettings.exact` selects Kafka's behaviour.

Follows: Kafka 4.3 `GroupMetadataManager` (classic groups), KIP-62, 134.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial

from tidegate import error_codes
from tidegate.groups.answers import answers_to_joins, answers_to_syncs
from tidegate.groups.deadlines import Deadline
from tidegate.groups.group import Group, GroupState
from tidegate.groups.member import DueAnswers, JoinDeadline, Member, PendingMember, SyncDeadline
from tidegate.groups.requests import Respond, sync_refusal
from tidegate.groups.settings import GroupSettings
from tidegate.groups.stored import GroupStore, ignore_result
from tidegate.groups.table import GroupTable

__all__ = ["Rebalances"]

_EMPTY, _PREPARING, _COMPLETING, _STABLE = (
    GroupState.EMPTY,
    GroupState.PREPARING_REBALANCE,
    GroupState.COMPLETING_REBALANCE,
    GroupState.STABLE,
)
_ANSWERED_AT_ONCE = 250  # members; of a larger group, the others are answered in later turns of the loop
_Waiting = Sequence[tuple[Member, Respond | None]]
"""Members, and how the request of each is answered; None: it has none, but its session begins, too."""
_log = logging.getLogger("tidegate.groups")


class Rebalances:
    """The rebalances of all groups of a table."""

    __slots__ = ("_deadlines", "_settings", "_store", "_table")

    def __init__(self, settings: GroupSettings, store: GroupStore, table: GroupTable) -> None:
        self._settings = settings
        self._store = store
        self._table = table
        self._deadlines = table.deadlines

    def begin_or_complete(self, group: Group, reason: str, now_ms: int) -> None:
        """Begin a rebalance, or end the current one if no member is missing."""
        if group.state in (_EMPTY, _COMPLETING, _STABLE):
            self.start_rebalance(group, reason, now_ms)
        else:
            self.complete_if_all_joined(group, now_ms)

    def rebalance_without(self, group: Group, reason: str, now_ms: int) -> None:
        """Begin a rebalance after members have left, or complete the current one if all others have joined."""
        if group.state in (_STABLE, _COMPLETING):
            self.start_rebalance(group, reason, now_ms)
        else:
            self.complete_if_all_joined(group, now_ms)

    def start_rebalance(self, group: Group, reason: str, now_ms: int) -> None:
        """Begin a rebalance. The first of a group waits for a while for more members."""
        self._answer_all_due(group, now_ms)
        _log.info(
            "rebalancing group %r (state %s, generation %d): %s",
            group.group_id,
            group.state.value,
            group.generation,
            reason,
        )
        if group.state is _COMPLETING:
            self.refuse_syncs(group, error_codes.REBALANCE_IN_PROGRESS, now_ms)
        self._deadlines.cancel(group.sync_deadline)
        is_first = group.state is _EMPTY
        group.transition(_PREPARING, now_ms)
        deadline = group.join_deadline
        deadline.extended_ms, deadline.left_ms = 0, None
        for member in group.members.values():
            # Muted time from here on extends the member's time to join, earlier time does not (L26 of the differences).
            member.rebalance_mark_ms = member.throttled_ms
        if is_first:
            delay_ms = self._settings.initial_rebalance_delay_ms
            if delay_ms <= 0:
                self._complete(group, now_ms)
                return
            deadline.delay_ms, deadline.left_ms = delay_ms, max(group.rebalance_timeout_ms() - delay_ms, 0)
            self._deadlines.start(deadline, now_ms + delay_ms)
        elif group.all_joined():
            self._complete(group, now_ms)
        else:
            self._deadlines.start(deadline, now_ms + group.rebalance_timeout_ms())

    def complete_if_all_joined(self, group: Group, now_ms: int) -> None:
        """End a rebalance if no member is missing; a group's first one waits until its delay is over."""
        if group.state is _PREPARING and group.previous_state is not _EMPTY and group.all_joined():
            self._complete(group, now_ms)

    def refuse_syncs(self, group: Group, error_code: int, now_ms: int) -> None:
        """Remove all assignments, and answer members that wait for their assignment with `error_code`."""
        for member in list(group.members.values()):
            self._table.count_bytes(group, member.owner, -len(member.assignment))
            member.assignment = b""
            if member.sync is not None:
                member.answer_sync(sync_refusal(error_code))
                self._table.begin_session(member, member.session_timeout_ms, now_ms)

    def _complete(self, group: Group, now_ms: int) -> None:
        """Begin the next generation with the members that have joined, and static members."""
        self._deadlines.cancel(group.join_deadline)
        for member in [
            each for each in group.members.values() if each.join is None and each.instance_id is None
        ]:
            self._table.remove(group, member)
        # Only static members are left, and none has joined: there is no leader, so that the group waits once more.
        if group.members and not group.elect_leader():
            _log.info("extended the rebalance of group %r: no member has joined it yet", group.group_id)
            self._deadlines.start(group.join_deadline, now_ms + group.rebalance_timeout_ms())
            return
        group.next_generation(now_ms)
        group.has_new_member = False
        if group.state is _EMPTY:
            self._store.save(group.stored(), ignore_result)
            return
        group.pending_sync.update(dict.fromkeys(group.members))
        waiting = [(member, member.join) for member in group.members.values()]
        self._answer(group, self._answer_joins, waiting, now_ms)
        group.sync_deadline.extended_ms = 0
        self._deadlines.start(group.sync_deadline, now_ms + group.rebalance_timeout_ms())

    # --- answers to all members

    def answer_syncs(self, group: Group, now_ms: int) -> None:
        """Begin the sessions of all members that wait for their assignment, and answer them."""
        waiting = [(member, member.sync) for member in group.members.values() if member.sync is not None]
        self._answer(group, self._answer_syncs, waiting, now_ms)

    def _answer(
        self, group: Group, answer: Callable[[Group, _Waiting, int], None], waiting: _Waiting, now_ms: int
    ) -> None:
        """Begin to answer members: the first ones now, others when `group.due_answers` is over."""
        due = group.due_answers
        for start in range(0, len(waiting), _ANSWERED_AT_ONCE):
            due.work.append(partial(answer, group, waiting[start : start + _ANSWERED_AT_ONCE]))
        self._answer_some(due, now_ms)

    def _answer_some(self, due: DueAnswers, now_ms: int) -> None:
        if not due.work:
            return
        work = due.work.popleft()
        if due.work:  # before any answer: if one raises, the other members are still answered
            self._deadlines.start(due, now_ms)
        work(now_ms)

    def _answer_all_due(self, group: Group, now_ms: int) -> None:
        """Answer the members that still wait for their answers to the last rebalance.

        Called before the next rebalance begins and before a session ends.
        """
        due = group.due_answers
        while due.work:
            due.work.popleft()(now_ms)
        self._deadlines.cancel(due)

    def _answer_joins(self, group: Group, waiting: _Waiting, now_ms: int) -> None:
        there = [each for each in waiting if group.members.get(each[0].member_id) is each[0]]
        members = [member for member, _ in there]
        self._table.begin_sessions(members, now_ms)
        for (member, join), answer in zip(there, answers_to_joins(group, members), strict=True):
            member.rebalance_mark_ms = member.session_mark_ms
            member.is_new = False
            if join is not None and member.join is join:  # it may have joined again meanwhile
                member.join = None
                group.awaiting_join -= 1
                join(answer)

    def _answer_syncs(self, group: Group, waiting: _Waiting, now_ms: int) -> None:
        members = [
            member
            for member, sync in waiting
            if member.sync is sync and group.members.get(member.member_id) is member
        ]
        self._table.begin_sessions(members, now_ms)
        for member, answer in zip(members, answers_to_syncs(group, members), strict=True):
            member.answer_sync(answer)

    # --- what is over

    def on_expired(self, deadline: Deadline, now_ms: int) -> None:
        """Handle an expired deadline of the table: of a session, a join, a sync, a pending member or due answers."""
        if isinstance(deadline, Member):
            self._on_session_expired(deadline, now_ms)
        elif isinstance(deadline, DueAnswers):
            self._answer_some(deadline, now_ms)
        elif isinstance(deadline, JoinDeadline):
            self._on_join_expired(deadline, now_ms)
        elif isinstance(deadline, SyncDeadline):
            self._on_sync_expired(deadline, now_ms)
        else:
            assert isinstance(deadline, PendingMember)
            self._on_pending_expired(deadline, now_ms)

    def _on_session_expired(self, member: Member, now_ms: int) -> None:
        """Remove a silent member. A member that waits for a rebalance or its assignment is silent only if it is new."""
        group = self._table.groups.get(member.group_id)
        if group is None or group.members.get(member.member_id) is not member:
            return
        if not member.is_new and (member.join is not None or member.sync is not None):
            return  # its session begins again with the answer
        self._answer_all_due(group, now_ms)
        if member.at_ms is not None:
            return  # its session began again with its generation
        throttled_ms = 0 if self._settings.exact else member.throttled_ms - member.session_mark_ms
        if throttled_ms > 0:
            # The mark moves along, so that each muted millisecond extends the session once.
            member.session_mark_ms += throttled_ms
            self._deadlines.start(member, now_ms + throttled_ms)
            return
        self._table.remove(group, member)
        self.rebalance_without(group, f"session of member {member.member_id!r} expired", now_ms)

    def _on_pending_expired(self, pending: PendingMember, now_ms: int) -> None:
        group = self._table.groups.get(pending.group_id)
        if group is not None and group.pending.get(pending.member_id) is pending:
            self._table.forget_pending(group, pending.member_id)
            self.complete_if_all_joined(group, now_ms)

    def _on_join_expired(self, deadline: JoinDeadline, now_ms: int) -> None:
        group = self._table.groups.get(deadline.group_id)
        if group is None or group.join_deadline is not deadline or group.state is not _PREPARING:
            return
        if group.has_new_member and deadline.left_ms:
            # The initial delay is extended while members come, but not past the rebalance timeout (KIP-134).
            group.has_new_member = False
            delay_ms = min(self._settings.initial_rebalance_delay_ms, deadline.left_ms)
            deadline.left_ms = max(deadline.left_ms - deadline.delay_ms, 0)
            deadline.delay_ms = delay_ms
            self._deadlines.start(deadline, now_ms + delay_ms)
            return
        missing = [member for member in group.members.values() if member.join is None]
        if not self._is_put_off(group, deadline, missing, now_ms):
            self._complete(group, now_ms)

    def _on_sync_expired(self, deadline: SyncDeadline, now_ms: int) -> None:
        group = self._table.groups.get(deadline.group_id)
        if group is None or group.sync_deadline is not deadline or not group.pending_sync:
            return
        if group.state not in (_COMPLETING, _STABLE):
            return
        missing = [group.members[member_id] for member_id in group.pending_sync]
        if self._is_put_off(group, deadline, missing, now_ms):
            return
        for member in missing:
            self._table.remove(group, member)
        self.start_rebalance(group, f"{len(missing)} members did not request their assignment", now_ms)

    def _is_put_off(
        self, group: Group, deadline: JoinDeadline | SyncDeadline, missing: Collection[Member], now_ms: int
    ) -> bool:
        """Extend a deadline by the longest time that a missing member was muted; return whether it was extended.

        All extensions of a deadline together are at most one rebalance timeout.
        """
        if self._settings.exact:
            return False
        longest_ms = 0
        for member in missing:
            throttled_ms = member.throttled_ms
            longest_ms = max(longest_ms, throttled_ms - member.rebalance_mark_ms)
            member.rebalance_mark_ms = throttled_ms
        # A client that is muted repeatedly must not hold up the whole group: one timeout more at most (L26).
        longest_ms = min(longest_ms, group.rebalance_timeout_ms() - deadline.extended_ms)
        if longest_ms <= 0:
            return False
        deadline.extended_ms += longest_ms
        self._deadlines.start(deadline, now_ms + longest_ms)
        return True
