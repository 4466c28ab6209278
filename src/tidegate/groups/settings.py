"""The settings of group coordination, by Kafka's names and defaults, and what bounds it beyond Kafka's."""

from dataclasses import dataclass
from typing import Final

__all__ = [
    "MAX_EMPTY_GROUP_BYTES",
    "MAX_GROUP_BYTES",
    "MAX_GROUP_MEMBERS",
    "MAX_MEMBERS",
    "MAX_METADATA_BYTES",
    "MAX_PENDING_BYTES",
    "MAX_PROTOCOLS",
    "NEW_MEMBER_JOIN_TIMEOUT_MS",
    "GroupSettings",
]

NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 300_000
"""Longest wait of a new member for its first generation. Source: Kafka `classicGroupNewMemberJoinTimeoutMs`."""

MAX_MEMBERS: Final = 20_000
"""Members of all groups of a node: a threshold bound, divided between the principals that join."""
MAX_METADATA_BYTES: Final = 128 << 20
"""Names, protocol metadata and assignments of all members of a node: a threshold bound too. A member without room gets
GROUP_MAX_SIZE_REACHED."""
MAX_EMPTY_GROUP_BYTES: Final = 24 << 20
"""Groups without members, each counted as 1000 bytes and its name: a reclaimable bound. An evicted group keeps its
positions."""
MAX_PENDING_BYTES: Final = 16 << 20
"""Ids that were given to members that have not joined yet, 500 bytes and the id each: a reclaimable bound."""
MAX_GROUP_MEMBERS: Final = 1_000
"""Members of one group, whatever `group.max.size` allows: completing a rebalance takes some ms for so many."""
MAX_GROUP_BYTES: Final = 16 << 20
"""Names, metadata and assignments of one group: the answer to its leader contains the metadata of all members."""
MAX_PROTOCOLS: Final = 20
"""Protocols (assignors) of one member: the choice of a protocol reads the protocols of every member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The field `a_b_c` is Kafka's `group.a.b.c`.

    exact: time for which the broker muted a member's connection counts as silence, as in Kafka.
    """

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2**31 - 1
    exact: bool = False
