"""The state of a group that outlives the process, and the store that keeps it. Follows: Kafka `GroupMetadataValue`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from tidegate.fair_share import UNKNOWN_OWNER

__all__ = ["GroupStore", "StoredGroup", "StoredMember", "ignore_result"]


class StoredMember(NamedTuple):
    """A member of a stable generation. `metadata`: of the chosen protocol, the only one that is kept.

    owner: the principal that it counts for.

    A tuple is made in a quarter of a frozen dataclass's time, and a thousand are made at once.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    metadata: bytes
    assignment: bytes
    owner: str = UNKNOWN_OWNER


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """A group between two rebalances: its last generation, and since when (`state_at_ms`) it is stable or empty.

    owner: the principal that created it.
    """

    group_id: str
    protocol_type: str | None
    generation: int
    protocol: str | None
    leader_id: str | None
    state_at_ms: int
    members: tuple[StoredMember, ...] = ()
    owner: str = UNKNOWN_OWNER

    @property
    def size(self) -> int:
        """Return the bytes of the members that are kept: names, metadata and assignments."""
        return sum(
            [
                len(member.metadata) + len(member.assignment) + len(member.member_id) + len(member.client_id)
                for member in self.members
            ]
        )


class GroupStore(Protocol):
    """A store of groups, which writes them in the order in which they are passed to it."""

    @property
    def max_bytes(self) -> int:
        """Return the largest size of a group that is kept, metadata and assignments included, in bytes."""
        ...

    def save(self, group: StoredGroup, on_stored: Callable[[bool, int], None]) -> None:
        """Keep a group, new or changed. Call `on_stored` once, now or later, with whether it is kept, and the time."""
        ...

    def owner(self, group_id: str) -> str | None:
        """Return the principal that owns a group's stored positions; None if the group has none."""
        ...

    def forget(self, group_id: str) -> None:
        """Keep a group no longer; its positions stay."""
        ...


def ignore_result(is_kept: bool, now_ms: int) -> None:
    """Ignore whether a group was kept: it has no members, so no request waits for the result."""
