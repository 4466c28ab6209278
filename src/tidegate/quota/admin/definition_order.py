"""One entity's definition, and definitions in the order of Kafka's hash map."""

from collections.abc import Generator, Iterable, Mapping
from heapq import merge

from tidegate.quota.admin.definition_filter import EntityParts
from tidegate.quota.admin.java_hash import entity_hash, hash_map_order
from tidegate.quota.measure.sensor_table import text_bytes

__all__ = ["Definition", "changed_values", "definition_bytes", "in_hash_order"]

DEFINITION_BYTES = 1000  # one key of one entity: here, with its manager, and in the usage record
_ESCAPED = 3  # letters that the usage record may write for a byte of UTF-8
_HASHED_AT_A_TIME = 20  # of 256 letters each
_SORTED_AT_A_TIME = 500  # in one part of what is merged


def definition_bytes(entity: EntityParts) -> int:
    """Return the most memory that the definition of one key of `entity` takes."""
    names = [name for _, name in entity if name is not None]
    escaped = sum(
        2 * (text_bytes("") + _ESCAPED * len(name) * (1 if name.isascii() else 4)) for name in names
    )
    return DEFINITION_BYTES + sum(map(text_bytes, names)) + escaped


class Definition:
    """The values set for one entity. A definition is never changed, only replaced."""

    __slots__ = ("entity", "hash", "values")

    def __init__(self, entity: EntityParts, values: dict[str, float]) -> None:
        self.entity = entity
        self.values = values
        self.hash = -1  # not asked for yet

    def table_index(self, capacity: int) -> int:
        """Return where Kafka's hash map has the entity in a table of `capacity` places."""
        if self.hash < 0:
            self.hash = entity_hash(self.entity)
        return self.hash & (capacity - 1)


def changed_values(before: Mapping[str, float], ops: Mapping[str, float | None]) -> dict[str, float]:
    """Return the values that an entity has after `ops`, in the order of Kafka's hash map."""
    values = {**before, **{key: ops[key] for key in hash_map_order(ops)}}
    kept = {key: value for key, value in values.items() if value is not None}
    return {key: kept[key] for key in hash_map_order(kept, initial_capacity=len(before))}


def in_hash_order(found: list[Definition], capacity: int) -> Generator[None, None, Iterable[Definition]]:
    """Return definitions in the order of Kafka's hash map: sorted in parts, which are merged as they are read."""
    parts = []
    for first in range(0, len(found), _SORTED_AT_A_TIME):
        part = found[first : first + _SORTED_AT_A_TIME]
        for number, definition in enumerate(part):
            definition.table_index(capacity)
            if number % _HASHED_AT_A_TIME == 0:
                yield
        parts.append(sorted(part, key=lambda definition: definition.table_index(capacity)))
    if len(parts) == 1:
        return parts[0]
    return merge(*parts, key=lambda definition: definition.table_index(capacity))
