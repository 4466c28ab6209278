"""Members of consumer groups to which planned quotas give a lower limit, and the members that share it.

Kafka does not tell the user of a member. Quotas for all users, and quotas of clients that do not log in, are looked up
without a user. For a quota of a user and a client id, each member with this client id is assumed to be that user.
Follows: B§3.4 (which quota applies).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.cli.quota_effects.groups import Member
from tidegate.client.partitions import TopicPartition
from tidegate.config.quota_changes import QuotaChange, Quotas, applied
from tidegate.config.quotas_text import value_text
from tidegate.config.values import cut, entity_text
from tidegate.fair_share import ANONYMOUS
from tidegate.quota import QuotaEntity, QuotaRecord
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.admin.entity import EntityQuotas, Tags
from tidegate.quota.admin.keys import CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE
from tidegate.quota.admin.sanitizer import sanitize
from tidegate.quota.managers.callback import sanitized
from tidegate.quota.managers.extensions import entity_of

__all__ = ["KEYS", "Limits", "QuotaEffect", "Readers"]

KEYS = (CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE)
"""The quota types that concern members of groups."""
_USERS_OF_CLIENT_ID = 20  # most users with a quota for the same client id that are examined


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEffect:
    """A warning: the quota, its groups, and a sentence. Numbers that the sentence does not contain are None."""

    entity: EntityParts
    key: str
    value: float
    groups: Sequence[str]
    message: str
    hint: str
    broker: int | None = None
    growth_bytes_per_s: float | None = None
    lag_records: int | None = None
    lag_bytes: float | None = None


@dataclass(slots=True)
class Readers:
    """The members that share a quota: the partitions that they read, by group. user: None if it is not known."""

    entity: EntityParts
    key: str
    value: float
    user: str | None
    partitions: dict[str, set[TopicPartition]] = field(default_factory=dict)

    def effect(self, groups: Iterable[str], message: str, **numbers: Any) -> QuotaEffect:
        """Return a warning that begins with the quota."""
        value = value_text(self.key, self.value)
        named = f"{self.key} {value} of {entity_text(self.entity)}"
        condition = "" if self.user is None else f" (if the members log in as {cut(self.user)!r})"
        return QuotaEffect(
            entity=self.entity,
            key=self.key,
            value=self.value,
            groups=sorted(groups),
            message=f"{named} {message}{condition}",
            **numbers,
        )


class Limits:
    """The quotas of a cluster before and after changes.

    users_alone: the number of entities of a named user alone with a new quota that may apply to members.
    """

    def __init__(self, cluster: Quotas, changes: Sequence[QuotaChange]) -> None:
        self._entities: dict[QuotaEntity, EntityParts] = {}
        self._before = self._by_key(cluster)
        self._after = self._by_key(applied(cluster, changes))
        self._users: dict[str, set[str]] = defaultdict(set)
        alone = set()
        for change in changes:
            parts = dict(change.entity)
            user, client_id = parts.get("user"), parts.get("client-id")
            if change.key not in KEYS or change.after is None or user is None or user == ANONYMOUS:
                continue
            if client_id is None:
                alone.add(change.entity)
            elif len(self._users[client_id]) < _USERS_OF_CLIENT_ID:
                self._users[client_id].add(user)
        self.users_alone = len(alone)

    def readers(self, members: Iterable[Member], key: str) -> list[Readers]:
        """Return the members that get a lower limit, grouped by the limit that they share."""
        before, after = self._before[key], self._after[key]
        found: dict[Tags, Readers] = {}
        for member in members:
            for user in (None, *sorted(self._users.get(member.client_id, ()))):
                name = sanitize(ANONYMOUS if user is None else user)
                tags = after.tags(name, member.client_id)
                match = after.match(tags)
                old = before.bound(before.tags(name, member.client_id))
                if match is None or (old is not None and not match[1] < old):
                    continue
                entity = self._entities[match[0]]
                if user is not None and dict(entity).get("user") != user:
                    continue  # a quota for all users, which is looked up without a user
                readers = found.setdefault(tags, Readers(entity=entity, key=key, value=match[1], user=user))
                readers.partitions.setdefault(member.group_id, set()).update(member.partitions)
        return list(found.values())

    def _by_key(self, quotas: Quotas) -> dict[str, EntityQuotas]:
        by_key = {key: EntityQuotas() for key in KEYS}
        for parts, values in quotas.items():
            for key in values.keys() & by_key.keys():
                record = QuotaRecord(entity=parts, key=key, value=values[key])
                entity = sanitized(entity_of(record))
                by_key[key].set(entity, values[key])
                self._entities[entity] = parts
        return by_key
