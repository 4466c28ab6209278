"""Quota groups: users and client ids that share one limit, in place of the quotas that each would have.

A user's group counts before that of its client id. A member of a group has no quota but the group's, and is
unlimited where that has none of the type; for other clients, Kafka's own rules apply.

>>> groups = Groups(
...     members={("user", "alice"): "etl", ("client-id", "nightly"): "etl", ("client-id", "c1"): "web"},
...     limits={("etl", "producer_byte_rate"): 1000.0},
... )
>>> groups.group_of("alice", "c1"), groups.group_of("bob", "c1"), groups.group_of("bob", "c2")
('etl', 'web', None)
>>> groups.limit("etl", "producer_byte_rate"), groups.limit("web", "producer_byte_rate")
(1000.0, None)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidegate.errors import ConfigError

__all__ = ["GROUP_TAG", "MAX_GROUP_NAME_CHARS", "MEMBER_TYPES", "Groups", "checked_group_name"]

GROUP_TAG = "group"
"""The one tag that the usage of a group is counted under; its value is the group's name."""

MEMBER_TYPES = ("user", "client-id")
"""Entity types that a member may be of."""

MAX_GROUP_NAME_CHARS = 100
"""Characters of a group's name."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """Groups of clients, by entity type and raw name; and limits per second, by group and Kafka's key."""

    members: Mapping[tuple[str, str], str] = field(default_factory=dict)
    limits: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def group_of(self, user: str, client_id: str) -> str | None:
        """Return the group of a client, None if it is in none; `user` is raw."""
        return self.members.get(("user", user)) or self.members.get(("client-id", client_id))

    def limit(self, group: str, key: str) -> float | None:
        """Return what a group may use, None where it is unlimited."""
        return self.limits.get((group, key))


def checked_group_name(name: str) -> str:
    """Return `name`. Raises `ConfigError` for one that no group can have."""
    if _NAME.fullmatch(name) is None or len(name) > MAX_GROUP_NAME_CHARS:
        shown = name if len(name) <= MAX_GROUP_NAME_CHARS else f"{name[:MAX_GROUP_NAME_CHARS]}..."
        expected = f"1 to {MAX_GROUP_NAME_CHARS} of A-Z, a-z, 0-9, '_', '.' and '-'"
        raise ConfigError(f"the name of a group must be {expected}, got {shown!r}")
    return name
