"""One group: its members, their leader and their protocol; not when anything happens.

Follows: Kafka 4.3 `ClassicGroup`.
"""

import enum
from collections.abc import Container, Generator, Mapping, Sequence

from tidegate import error_codes
from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.groups.member import DueAnswers, JoinDeadline, Member, PendingMember, SyncDeadline
from tidegate.groups.requests import Message, Respond
from tidegate.groups.stored import StoredGroup, StoredMember
from tidegate.groups.subscription import CONSUMER, Subscription, subscribed_topics_in_slices
from tidegate.quota.admin.java_hash import hash_map_order

__all__ = ["Group", "GroupState"]

_BYTES = 1000


class GroupState(enum.Enum):
    """The state of a group between two generations; the values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Group:
    """A group. Members are in the order in which they came; `awaiting_join` counts those whose JoinGroup waits.

    owner: the principal that created it. payer: the principal that it counts for while it has members: the first one's.
    held_bytes: approximate memory of the group with all its members, in bytes; the coordinator updates it.
    subscriptions: the members' metadata when the generation began; they stay alive until the next one does.
    """

    __slots__ = (
        "awaiting_join",
        "due_answers",
        "generation",
        "group_id",
        "has_new_member",
        "held_bytes",
        "join_deadline",
        "leader_id",
        "members",
        "owner",
        "payer",
        "pending",
        "pending_sync",
        "previous_state",
        "protocol",
        "protocol_type",
        "state",
        "state_at_ms",
        "static_ids",
        "subscriptions",
        "supported",
        "sync_deadline",
    )

    def __init__(self, group_id: str, now_ms: int, owner: str = UNKNOWN_OWNER) -> None:
        self.group_id = group_id
        self.owner = self.payer = owner
        self.state = self.previous_state = GroupState.EMPTY
        self.state_at_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_ids: dict[str, str] = {}
        self.pending: dict[str, PendingMember] = {}
        self.pending_sync: dict[str, None] = {}
        self.supported: dict[str, int] = {}
        self.awaiting_join = 0
        self.held_bytes = 0
        self.has_new_member = False
        self.subscriptions: tuple[bytes, ...] | None = None
        self.due_answers = DueAnswers()
        self.join_deadline = JoinDeadline(group_id)
        self.sync_deadline = SyncDeadline(group_id)

    @property
    def size(self) -> int:
        """About how many bytes it takes in memory besides its members."""
        return _BYTES + len(self.group_id)

    def transition(self, state: GroupState, now_ms: int) -> None:
        """Set the state, and record the previous one and the time of the change."""
        self.previous_state, self.state, self.state_at_ms = self.state, state, now_ms

    # --- members

    def add_member(self, member: Member, protocol_type: str, join: Respond) -> None:
        """Add a new member with a waiting JoinGroup. The first member sets the protocol type of the group."""
        assert member.member_id not in self.members
        if not self.members:
            self.protocol_type = protocol_type
        if member.instance_id is not None:
            self.static_ids[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)
        member.join = join
        self.awaiting_join += 1

    def update(
        self,
        member: Member,
        protocols: Sequence[tuple[str, bytes]],
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        join: Respond,
    ) -> Respond | None:
        """Store a member's new JoinGroup. Return the callback of its earlier JoinGroup if that still waits."""
        self._count_protocols(member, -1)
        member.protocols = tuple(protocols)
        self._count_protocols(member, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms
        earlier, member.join = member.join, join
        self.awaiting_join += earlier is None
        return earlier

    def take_join(self, member: Member) -> Respond | None:
        """Remove and return the callback of a member's waiting JoinGroup, None if none waits."""
        join, member.join = member.join, None
        self.awaiting_join -= join is not None
        return join

    def answer_join(self, member: Member, answer: Message) -> None:
        """Answer a member's JoinGroup, if one waits."""
        join = self.take_join(member)
        if join is not None:
            join(answer)

    def remove(self, member: Member) -> None:
        """Remove a member without a waiting JoinGroup. If it led the group, another member becomes the leader."""
        assert member.join is None
        del self.members[member.member_id]
        self._count_protocols(member, -1)
        if member.instance_id is not None:
            del self.static_ids[member.instance_id]
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self.members), None)
        self.pending_sync.pop(member.member_id, None)

    def replace_static(self, old: Member, new: Member) -> None:
        """Replace a static member. The new member inherits the leadership and a SyncGroup that is still expected."""
        del self.members[old.member_id]
        self._count_protocols(old, -1)
        self.members[new.member_id] = new
        self._count_protocols(new, 1)
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        assert new.instance_id is not None
        self.static_ids[new.instance_id] = new.member_id
        if old.member_id in self.pending_sync:
            del self.pending_sync[old.member_id]
            self.pending_sync[new.member_id] = None

    def problem(self, member_id: str, instance_id: str | None) -> int:
        """Return the error for a request with these ids of a member, 0 if they belong to one."""
        if instance_id is not None:
            static_id = self.static_ids.get(instance_id)
            if static_id is None:
                return error_codes.UNKNOWN_MEMBER_ID
            if static_id != member_id:
                return error_codes.FENCED_INSTANCE_ID
        return error_codes.NONE if member_id in self.members else error_codes.UNKNOWN_MEMBER_ID

    def known_member(self, member_id: str, instance_id: str | None) -> Member | None:
        """Return the member that sent a JoinGroup, a static one by its instance id alone; None for a new one."""
        if not member_id and instance_id is not None:
            member_id = self.static_ids.get(instance_id, "")
        return self.members.get(member_id)

    def _count_protocols(self, member: Member, number: int) -> None:
        for name in {name for name, _ in member.protocols}:
            count = self.supported.get(name, 0) + number
            if count:
                self.supported[name] = count
            else:
                del self.supported[name]

    # --- rebalances

    def all_joined(self) -> bool:
        """Return whether all members, and all clients that were given an id, have joined."""
        return self.awaiting_join == len(self.members) and not self.pending

    def elect_leader(self) -> bool:
        """Replace a leader that has not joined by a member that has. Return whether a joined member leads."""
        leader = None if self.leader_id is None else self.members.get(self.leader_id)
        if leader is None:
            return False
        if leader.join is None:
            joined = next((member for member in self.members.values() if member.join is not None), None)
            if joined is None:
                return False
            self.leader_id = joined.member_id
        return True

    def supports(self, protocol_type: str, protocols: Sequence[tuple[str, bytes]]) -> bool:
        """Return whether a client with these protocols can be a member."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        count = len(self.members)
        return protocol_type == self.protocol_type and any(
            self.supported.get(name, 0) == count for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """Return the protocol that most members prefer of those that all of them speak.

        Of several with as many votes the one that Java's `HashMap` has first.
        """
        candidates = {name for name, count in self.supported.items() if count == len(self.members)}
        votes: dict[str, int] = {}
        for member in self.members.values():
            for name, _ in member.protocols:
                if name in candidates:
                    votes[name] = votes.get(name, 0) + 1
                    break
        return max(hash_map_order(votes), key=votes.__getitem__)

    def next_generation(self, now_ms: int) -> None:
        """Begin the next generation with the current members."""
        self.generation += 1
        self.protocol = self.select_protocol() if self.members else None
        self.subscriptions = self._subscriptions()
        self.transition(GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY, now_ms)
        self.pending_sync.clear()

    def rebalance_timeout_ms(self) -> int:
        """Return how long a rebalance waits for members: as long as one of them wants."""
        return max([member.rebalance_timeout_ms for member in self.members.values()], default=0)

    def subscription_in_slices(self, among: Container[str]) -> Generator[None, None, Subscription]:
        """Return to which topics of `among` the members of this generation subscribe."""
        generation, is_consumer = self.generation, self.protocol_type == CONSUMER
        topics: set[str] | None = None if self.subscriptions is None else set()
        last = None
        for metadata in self.subscriptions or ():
            if metadata == last:
                continue
            last = metadata
            found = yield from subscribed_topics_in_slices(metadata, among)
            if found is None or topics is None:
                topics = None
                break
            topics |= found
            yield
        known = None if topics is None else frozenset(topics)
        return Subscription(generation=generation, is_consumer=is_consumer, topics=known)

    def _subscriptions(self) -> tuple[bytes, ...] | None:
        if self.protocol_type != CONSUMER:
            return None
        return tuple(self.metadata())

    def metadata(self) -> list[bytes]:
        """Return the metadata of every member for the chosen protocol. Most members name that protocol first."""
        chosen = self.protocol
        return [
            protocols[0][1]
            if (protocols := member.protocols) and protocols[0][0] == chosen
            else member.metadata(chosen)
            for member in self.members.values()
        ]

    # --- what is kept

    def stored(self, assignments: Mapping[str, bytes] | None = None) -> StoredGroup:
        """Return the state of the group to store, with these assignments or, by default, with those of its members.

        Fields of members are given by position, which is faster: a thousand members are stored at once.
        """
        members = self.members.values()
        if assignments is None:
            assigned = [member.assignment for member in members]
        else:
            assigned = [assignments.get(member_id, b"") for member_id in self.members]
        return StoredGroup(
            group_id=self.group_id,
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol,
            leader_id=self.leader_id,
            state_at_ms=self.state_at_ms,
            members=tuple(
                [
                    StoredMember(
                        member.member_id,
                        member.instance_id,
                        member.client_id,
                        member.client_host,
                        member.rebalance_timeout_ms,
                        member.session_timeout_ms,
                        metadata,
                        assignment,
                        member.owner,
                    )
                    for member, metadata, assignment in zip(members, self.metadata(), assigned, strict=True)
                ]
            ),
            owner=self.owner,
        )

    @classmethod
    def of(cls, stored: StoredGroup) -> "Group":
        """Return a group as it was kept: stable where it has members. No session runs yet."""
        group = cls(stored.group_id, stored.state_at_ms, stored.owner)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type
        group.protocol = stored.protocol
        group.leader_id = stored.leader_id
        for kept in stored.members:
            member = Member(
                stored.group_id,
                kept.member_id,
                kept.instance_id,
                kept.client_id,
                kept.client_host,
                kept.session_timeout_ms,
                kept.rebalance_timeout_ms,
                [(stored.protocol or "", kept.metadata)],
                kept.owner,
            )
            member.assignment = kept.assignment
            group.members[member.member_id] = member
            group._count_protocols(member, 1)
            if member.instance_id is not None:
                group.static_ids[member.instance_id] = member.member_id
        group.subscriptions = group._subscriptions()
        if group.members:
            group.state = group.previous_state = GroupState.STABLE
        return group
