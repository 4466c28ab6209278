"""The order in which Java's `HashMap` visits string keys, where that order can be seen from outside.

>>> hash_map_order(["bogus", "connection_creation_rate"])
['connection_creation_rate', 'bogus']

Follows: `java.lang.String.hashCode` and `java.util.HashMap`, whose table doubles when it is more than three
quarters full. A bucket so crowded that Java turns it into a tree (eight colliding keys) is not followed.
Where the order shows: B§9.2.
"""

from collections.abc import Collection

__all__ = ["entity_hash", "hash_map_order", "hash_map_place", "string_hash", "table_size"]


def string_hash(text: str) -> int:
    """Return Java's `hashCode` of a string, as an unsigned 32-bit number.

    >>> string_hash("producer_byte_rate") == 0xCE61054A
    True
    """
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value


def hash_map_place(key: str, *, count: int, initial_capacity: int = 16) -> int:
    """Return the place of `key` in the table of a `HashMap` with `count` keys: places are visited in their order."""
    return _spread(string_hash(key)) & (table_size(count, initial_capacity=initial_capacity) - 1)


def entity_hash(entity: Collection[tuple[str, str | None]]) -> int:
    """Return the `hashCode` of Kafka's `ClientQuotaEntity`, spread as a `HashMap` spreads it.

    Names are taken to 256 letters: Kafka's order of longer ones is not followed.
    """
    hashes = (string_hash(key) ^ (0 if name is None else string_hash(name[:256])) for key, name in entity)
    return _spread((31 + sum(hashes)) & 0xFFFFFFFF)


def table_size(count: int, *, initial_capacity: int) -> int:
    """Return how large the table of a `HashMap` is with `count` keys."""
    capacity = 1
    while capacity < initial_capacity or count > capacity * 3 // 4:
        capacity *= 2
    return capacity


def hash_map_order(keys: Collection[str], *, initial_capacity: int = 16) -> list[str]:
    """Return distinct `keys`, given as they were inserted, in the order in which a `HashMap` visits them."""
    if len(keys) < 2:
        return list(keys)
    capacity = table_size(len(keys), initial_capacity=initial_capacity)
    return sorted(keys, key=lambda key: _spread(string_hash(key)) & (capacity - 1))


def _spread(value: int) -> int:
    return value ^ (value >> 16)
