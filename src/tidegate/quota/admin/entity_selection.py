"""The clients that a setting names: a list of entities, or all clients.

    user=alice;client-id=loader;user=ops,client-id=x

An entity names every client that has its user, its client id, or both; `<default>` is any user, or any client id
except the empty one. `all` names every client, `none` names no client. Write a name that has `;`, `,`, `%` or blanks
at its ends as Kafka sanitises it (B§3.10).

>>> selection = EntitySelection(parse_entities("user=alice;client-id=loader", setting="tidegate.quota.observe"))
>>> selection.selects("alice", "c1"), selection.selects("bob", "loader"), selection.selects("bob", "c1")
(True, True, False)
"""

import functools
from collections.abc import Iterable, Iterator

from tidegate.errors import ConfigError
from tidegate.quota.admin.entity import DEFAULT, EntityPart, QuotaEntity
from tidegate.quota.admin.sanitizer import SanitizeError, desanitize

__all__ = ["EVERYBODY", "MAX_SELECTED", "EntitySelection", "parse_entities"]

EVERYBODY = QuotaEntity()
"""The entity without parts: what `all` stands for."""
MAX_SELECTED = 1000
"""Most entities in one list: each is a row of the usage record when the setting changes."""

_DEFAULT_NAME = DEFAULT.value
_PARTS = {"user": "user", "client-id": "client_id"}
_EXPECTED = "all, none, or entities such as user=alice;client-id=loader;user=ops,client-id=x"


class EntitySelection:
    """A set of entities that is asked whether it names a client. any: whether it names any entity."""

    __slots__ = ("_entities", "any")

    def __init__(self, entities: Iterable[QuotaEntity] = ()) -> None:
        self._entities = {(entity.user, entity.client_id) for entity in entities}
        self.any = bool(self._entities)

    def set(self, entity: QuotaEntity, *, selected: bool) -> None:
        """Add an entity if `selected`; else remove it."""
        key = (entity.user, entity.client_id)
        if selected:
            self._entities.add(key)
        else:
            self._entities.discard(key)
        self.any = bool(self._entities)

    def __iter__(self) -> Iterator[QuotaEntity]:
        """Yield the entities, in no order."""
        return (QuotaEntity(user=user, client_id=client_id) for user, client_id in self._entities)

    def selects(self, user: str, client_id: str) -> bool:
        """Return whether an entity names a client; of the tags of a quota, an empty part is a level not used."""
        users: tuple[EntityPart, ...] = (None, user, DEFAULT) if user else (None,)
        client_ids: tuple[EntityPart, ...] = (None, client_id, DEFAULT) if client_id else (None,)
        entities = self._entities
        return any((one, other) in entities for one in users for other in client_ids)


@functools.lru_cache(maxsize=8)
def parse_entities(text: str, *, setting: str) -> tuple[QuotaEntity, ...]:
    """Return the entities of a list. Raises `ConfigError` with setting, value and what was expected.

    The last results are kept: a list is parsed when it is checked, stored and put in force, and takes milliseconds.
    """
    text = text.strip()
    if text in ("", "none"):
        return ()
    if text == "all":
        return (EVERYBODY,)
    parts = text.split(";")
    if len(parts) > MAX_SELECTED:
        raise ConfigError(f"{setting} has {len(parts)} entities, expected at most {MAX_SELECTED}")
    return tuple([_entity(part, setting) for part in parts])


def _entity(text: str, setting: str) -> QuotaEntity:
    parts: dict[str, EntityPart] = {}
    for part in text.split(","):
        kind, _, name = part.strip().partition("=")
        field = _PARTS.get(kind)
        if field is None or not name or field in parts:
            raise ConfigError(f"{setting} has {text!r}, expected {_EXPECTED}")
        parts[field] = DEFAULT if name == _DEFAULT_NAME else _name(name, setting)
    return QuotaEntity(**parts)


def _name(text: str, setting: str) -> str:
    try:
        return desanitize(text.replace("+", "%2B"))
    except SanitizeError as error:
        raise ConfigError(f"{setting} has {text!r}: {error}") from error
