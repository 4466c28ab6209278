"""The entity of a quota: the eight levels, the one that applies to a client, and the clients that share its usage.

>>> quotas = EntityQuotas()
>>> quotas.set(QuotaEntity(user="alice"), 1000.0)
>>> quotas.set(QuotaEntity(client_id=DEFAULT), 10.0)
>>> quotas.tags("alice", "c1")
('alice', '')
>>> quotas.tags("bob", "c1")
('', 'c1')
>>> quotas.match(("", "c1"))
(QuotaEntity(client_id=<default>), 10.0)

A client has *tags*: the pair (user, client id) that its usage is counted under, either of them empty. Clients
with equal tags share one quota. Which tags a client gets depends on the levels in use (B§3.3) and on what is
configured; the bound is then looked up by the tags alone (B§3.4). So an empty client id never matches a level
with a client id, not even the default one; only a setting gives it a quota (`static_quotas`).

Names are compared as they are given: the manager sanitises users before (B§3.10).

Follows: Kafka `ClientQuotaManager.DefaultQuotaCallback`, KIP-55, KIP-124, KIP-257.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = [
    "DEFAULT",
    "Default",
    "EntityPart",
    "EntityQuotas",
    "EntityType",
    "Level",
    "QuotaEntity",
    "Tags",
    "candidates_of_tags",
    "entities_of_client",
]

Tags = tuple[str, str]


class Default(enum.Enum):
    """The type of `DEFAULT`, which no name can be equal to: a user may be called `<default>`."""

    DEFAULT = "<default>"

    def __repr__(self) -> str:
        """Show it as Kafka prints it."""
        return self.value


DEFAULT = Default.DEFAULT
EntityPart = str | Default | None
"""A name, `DEFAULT`, or None where the level is not used."""


class EntityType(enum.Enum):
    """The type of one part of an entity. Follows: Kafka `ClientQuotaEntity.ConfigEntityType`."""

    USER = "user"
    CLIENT_ID = "client-id"
    DEFAULT_USER = "default user"
    DEFAULT_CLIENT_ID = "default client-id"


class Level(enum.IntFlag):
    """Bits of the levels in use, as in Kafka's `quotaTypesEnabled`."""

    NONE = 0
    CLIENT_ID = 1
    USER = 2
    USER_CLIENT_ID = 4
    CUSTOM = 8


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class QuotaEntity:
    """A user, a client id or both; each a name, `DEFAULT`, or None where it is not used."""

    user: EntityPart = None
    client_id: EntityPart = None

    def __repr__(self) -> str:
        """Show the parts that are used."""
        parts = [
            f"{name}={part!r}" for name, part in (("user", self.user), ("client_id", self.client_id)) if part
        ]
        return f"QuotaEntity({', '.join(parts)})"

    @property
    def level(self) -> Level:
        """The level that a quota of this entity belongs to."""
        if self.user is None:
            return Level.CLIENT_ID
        return Level.USER if self.client_id is None else Level.USER_CLIENT_ID

    @property
    def has_default(self) -> bool:
        """Return whether a part is the default entity."""
        return self.user is DEFAULT or self.client_id is DEFAULT

    def config_entities(self) -> tuple[tuple[EntityType, str], ...]:
        """Return type and name of each part, the user first. Follows: Kafka `ClientQuotaEntity.configEntities`."""
        parts = (
            (self.user, EntityType.USER, EntityType.DEFAULT_USER),
            (self.client_id, EntityType.CLIENT_ID, EntityType.DEFAULT_CLIENT_ID),
        )
        return tuple(
            (default, part.value) if isinstance(part, Default) else (named, part)
            for part, named, default in parts
            if part is not None
        )


class EntityQuotas:
    """The bounds of one quota type by entity, and which levels they use."""

    def __init__(self) -> None:
        self._bounds: dict[tuple[EntityPart, EntityPart], float] = {}
        self._counts = {Level.CLIENT_ID: 0, Level.USER: 0, Level.USER_CLIENT_ID: 0}
        self.levels = Level.NONE

    def __len__(self) -> int:
        """Return how many entities have a bound."""
        return len(self._bounds)

    def __iter__(self) -> Iterator[tuple[QuotaEntity, float]]:
        """Yield each entity and its bound."""
        for (user, client_id), bound in self._bounds.items():
            yield QuotaEntity(user=user, client_id=client_id), bound

    def get(self, entity: QuotaEntity) -> float | None:
        """Return the bound that is set for `entity`, None without one."""
        return self._bounds.get((entity.user, entity.client_id))

    def set(self, entity: QuotaEntity, bound: float) -> None:
        """Set the bound of `entity`."""
        key = (entity.user, entity.client_id)
        if key not in self._bounds:
            self._count(entity.level, 1)
        self._bounds[key] = bound

    def remove(self, entity: QuotaEntity) -> None:
        """Remove the bound of `entity`; nothing happens where there is none."""
        if self._bounds.pop((entity.user, entity.client_id), None) is not None:
            self._count(entity.level, -1)

    def tags(self, user: str, client_id: str) -> Tags:
        """Return the tags that the usage of a client is counted under."""
        if self.levels in (Level.NONE, Level.CLIENT_ID):
            return "", client_id
        if self.levels == Level.USER:
            return user, ""
        if self.levels == Level.USER_CLIENT_ID:
            return user, client_id
        for entity in _candidates(user, client_id):
            if entity in self._bounds:
                return user, "" if entity[1] is None else client_id
        return "", client_id

    def match(self, tags: Tags) -> tuple[QuotaEntity, float] | None:
        """Return the entity whose bound holds for `tags`, and the bound; None: unlimited."""
        for user, client_id in candidates_of_tags(*tags):
            bound = self._bounds.get((user, client_id))
            if bound is not None:
                return QuotaEntity(user=user, client_id=client_id), bound
        return None

    def bound(self, tags: Tags) -> float | None:
        """Return the bound that holds for `tags`; None: unlimited."""
        for key in candidates_of_tags(*tags):
            bound = self._bounds.get(key)
            if bound is not None:
                return bound
        return None

    def _count(self, level: Level, change: int) -> None:
        self._counts[level] += change
        if self._counts[level]:
            self.levels |= level
        else:
            self.levels &= ~level


_Candidates = tuple[tuple[EntityPart, EntityPart], ...]


def _candidates(user: str, client_id: str) -> _Candidates:
    """Return levels 1 to 6 of B§3.4, most specific first; without one of them the client id decides (7 and 8)."""
    return (
        (user, client_id),
        (user, DEFAULT),
        (user, None),
        (DEFAULT, client_id),
        (DEFAULT, DEFAULT),
        (DEFAULT, None),
    )


def entities_of_client(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    """Return the entities of the eight levels for a client, most specific first (B§3.4)."""
    parts = (*_candidates(user, client_id), (None, client_id), (None, DEFAULT))
    return tuple(QuotaEntity(user=each, client_id=other) for each, other in parts)


def candidates_of_tags(user: str, client_id: str) -> _Candidates:
    """Return the entities whose bound may hold for tags, most specific first (B§3.4, "limit for tags")."""
    if user and client_id:
        return (user, client_id), (user, DEFAULT), (DEFAULT, client_id), (DEFAULT, DEFAULT)
    if user:
        return (user, None), (DEFAULT, None)
    if client_id:
        return (None, client_id), (None, DEFAULT)
    return ((None, ""),)  # set by a setting alone (KIP-13)
