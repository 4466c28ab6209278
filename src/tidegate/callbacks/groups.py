"""Quota groups: several users and client ids share one limit, which is set in the node's settings.

    client.quota.callback.class=tidegate.callbacks:QuotaGroups
    client.quota.callback.group.etl.members=user:alice, user:bob, client-id:nightly
    client.quota.callback.group.etl.producer_byte_rate=1000000

A user's group counts before that of its client id. For a client in no group, Kafka's own rules apply, with stored
quotas; a member of a group has only the group's, and is unlimited where the group has no limit of the type.

>>> groups = QuotaGroups()
>>> prefix = "client.quota.callback.group.etl"
>>> groups.configure({f"{prefix}.members": "user:alice,client-id:nightly", f"{prefix}.producer_byte_rate": "1000"})
>>> tags = groups.quota_metric_tags(QuotaType.PRODUCE, "alice", "c1")
>>> tags == groups.quota_metric_tags(QuotaType.PRODUCE, "carol", "nightly"), groups.quota_limit(QuotaType.PRODUCE, tags)
(True, 1000.0)
"""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from tidegate.callbacks.own_rules import OwnRules
from tidegate.errors import ConfigError
from tidegate.quota import QuotaType
from tidegate.quota.admin.groups import GROUP_TAG, MEMBER_TYPES, Groups, checked_group_name
from tidegate.quota.managers.quota_type import QUOTA_TYPE_BY_KEY

__all__ = ["QuotaGroups"]

_SETTING = re.compile(r"client\.quota\.callback\.group\.(.+)\.([a-z_]+)")


class QuotaGroups(OwnRules):
    """The callback. A client's tags are `group`, or those of Kafka's own rules."""

    def __init__(self) -> None:
        super().__init__()
        self._groups = Groups()

    def configure(self, config: Mapping[str, Any]) -> None:
        """Read the groups. Raises `ConfigError` for a member of two, a limit that is none, an unknown setting."""
        members, limits = dict(self._groups.members), dict(self._groups.limits)
        for name, value in config.items():
            found = _SETTING.fullmatch(name)
            if found is None:
                continue
            group, what = checked_group_name(found[1]), found[2]
            if what == "members":
                _add_members(members, name, group, str(value))
            elif what in QUOTA_TYPE_BY_KEY:
                limits[group, what] = _limit(name, str(value))
            else:
                raise ConfigError(
                    f"unknown setting {name}, expected members or one of {', '.join(QUOTA_TYPE_BY_KEY)}"
                )
        missing = {group for group, _ in limits} - set(members.values())
        if missing:
            raise ConfigError(f"group {min(missing)!r} has limits but no members")
        self._groups = Groups(members=members, limits=limits)

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Return the tag `group` of a member."""
        group = self._groups.group_of(user, client_id)
        return super().quota_metric_tags(quota_type, user, client_id) if group is None else {GROUP_TAG: group}

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return the group's limit, None where it has none of this type."""
        if GROUP_TAG in tags:
            return self._groups.limit(tags[GROUP_TAG], quota_type.key)
        return super().quota_limit(quota_type, tags)


def _add_members(members: dict[tuple[str, str], str], setting: str, group: str, text: str) -> None:
    for part in filter(None, (part.strip() for part in text.split(","))):
        kind, colon, name = part.partition(":")
        if kind not in MEMBER_TYPES or not colon or not name:
            raise ConfigError(
                f"{setting} has {part!r}, expected user:NAME or client-id:NAME",
                hint="in a name, write a comma as %2C and a percent sign as %25",
            )
        other = members.setdefault((kind, unquote(name)), group)
        if other != group:
            raise ConfigError(f"{setting} has {part!r}, which is already in group {other!r}")


def _limit(setting: str, text: str) -> float:
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 < limit < float("inf"):
        raise ConfigError(f"{setting} is {text!r}, expected a number above 0")
    return limit
