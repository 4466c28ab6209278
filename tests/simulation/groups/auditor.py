"""What must hold whatever happens to a group: a model of generations and owners, fed with answers alone."""

from collections import Counter
from typing import Any

from tidegate.error_codes import NONE
from tidegate.groups import GroupCoordinator, GroupState


class Auditor:
    """Raises `AssertionError` where a promise is broken.

    starts: the generations that each start of the coordinator found, by group.
    """

    def __init__(self) -> None:
        self.starts: list[dict[str, int]] = []
        self.generations: dict[str, int] = {}
        self.commits = 0
        self._number = 0
        self._owners: dict[tuple[str, int], dict[int, str]] = {}
        self._gone: set[tuple[str, str]] = set()
        self._protocols: dict[tuple[int, str, int], tuple[str, str]] = {}

    def next_number(self) -> int:
        """Return a number for a new client."""
        self._number += 1
        return self._number

    def start(self, generations: dict[str, int]) -> None:
        """Begin with the generations that were kept: what was assigned and answered is among them."""
        for (group_id, generation), owners in self._owners.items():
            assert not owners or generations.get(group_id, -1) >= generation, "an assignment was lost"
        self.starts.append(generations)
        self.generations = dict(generations)

    def joined(self, group_id: str, answer: dict[str, Any], coordinator: GroupCoordinator) -> None:
        """See an answer to a JoinGroup: all of a generation are told the same, the leader of all members."""
        if answer["error_code"] != NONE:
            assert not answer["members"]
            return
        generation, member_id = answer["generation_id"], answer["member_id"]
        group = coordinator.groups[group_id]
        assert generation == group.generation >= self.generations.get(group_id, 0)
        self.generations[group_id] = generation
        assert member_id in group.members, "who is answered is a member"
        assert (group_id, member_id) not in self._gone
        said = answer["protocol_type"], answer["protocol_name"]
        assert self._protocols.setdefault((len(self.starts), group_id, generation), said) == said
        if answer["leader"] == member_id:
            assert {member["member_id"] for member in answer["members"]} == set(group.members)

    def synced(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        answer: dict[str, Any],
    ) -> None:
        """See an answer to a SyncGroup: no partition has two owners in a generation."""
        if answer["error_code"] != NONE:
            assert not answer["assignment"]
            return
        owners = self._owners.setdefault((group_id, generation), {})
        owner = instance_id or member_id
        for partition in answer["assignment"]:
            assert owners.setdefault(partition, owner) == owner, f"{partition} of {group_id!r} has two owners"

    def left(self, group_id: str, member_id: str) -> None:
        """See that a member has left: its id is never good again."""
        self._gone.add((group_id, member_id))

    def heard(self, group_id: str, member_id: str, generation: int) -> None:
        """See that a member was taken for one."""
        assert (group_id, member_id) not in self._gone
        assert generation == self.generations[group_id], "a member of an old generation was heard"

    def committed(self, group_id: str, member_id: str, generation: int) -> None:
        """See that a commit was accepted."""
        self.commits += 1
        self.heard(group_id, member_id, generation)

    def look(self, coordinator: GroupCoordinator, now_ms: int) -> None:
        """Look at what nobody is told: the counts agree, and nothing is overdue."""
        members = sum(len(group.members) + len(group.pending) for group in coordinator.groups.values())
        table = coordinator.table
        assert table.members.used + len(table.pending) == members
        assert table.metadata_bytes == sum(group.held_bytes for group in coordinator.groups.values())
        self._look_at_owners(coordinator)
        next_ms = coordinator.next_ms()
        assert next_ms is None or next_ms > now_ms - 400
        for group in coordinator.groups.values():
            waiting = sum(member.join is not None for member in group.members.values())
            assert group.awaiting_join == waiting
            held = sum(member.size for member in group.members.values()) + sum(
                pending.size for pending in group.pending.values()
            )
            assert group.held_bytes == group.size + held
            assert {member.member_id for member in group.members.values() if member.instance_id} == set(
                group.static_ids.values()
            )
            assert group.pending_sync.keys() <= group.members.keys()
            if group.state is GroupState.EMPTY:
                assert not group.members
            if group.state is not GroupState.COMPLETING_REBALANCE:
                assert all(member.sync is None for member in group.members.values())
            if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
                assert group.leader_id in group.members

    @staticmethod
    def _look_at_owners(coordinator: GroupCoordinator) -> None:
        """See that each principal is counted for what it has, and for nothing else but assignments that are saved."""
        members, held = Counter[str](), Counter[str]()
        for group in coordinator.groups.values():
            for member in group.members.values():
                members[member.owner] += 1
                held[member.owner] += member.size
            if group.members:
                held[group.payer] += group.size
        table = coordinator.table
        assert {owner: table.members.used_by(owner) for owner in members} == members
        assert table.members.used == members.total()
        assert all(table.metadata.used_by(owner) >= size for owner, size in held.items())
        assert table.metadata.used - table._saving == held.total()
        assert len(table.empty) == sum(not group.members for group in coordinator.groups.values())
