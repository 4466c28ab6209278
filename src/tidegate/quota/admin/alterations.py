"""Alterations of quota definitions: requests, their errors, and the records that they lead to.

>>> entity_error((("ip", "broker.test"), ("user", "alice")), is_known_host=is_ip_address)
'Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId'
>>> from tidegate.in_slices import run_at_once
>>> run_at_once(value_error_in_slices((("user", "alice"),), {"producer_byte_rate": 0.5}))
'producer_byte_rate cannot be a fractional value.'

Follows: Kafka `ClientQuotaControlManager`, B§6.8. Differs: names that no answer could hold are refused; the process of
Kafka 4.3.1 ends over them.
"""

import ipaddress
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tidegate import error_codes
from tidegate.in_slices import batched
from tidegate.quota.admin.definition_filter import (
    EntityParts,
)
from tidegate.quota.admin.java_hash import hash_map_order, hash_map_place
from tidegate.quota.admin.keys import ENTITY_TYPES, QUOTA_KEYS, QuotaKey, ValueType

__all__ = [
    "MAX_NAME_BYTES",
    "AlterOutcome",
    "AlterResult",
    "Alteration",
    "QuotaRecord",
    "distinct_in_slices",
    "duplicate_text_in_slices",
    "entity_error",
    "entity_parts",
    "is_change",
    "is_ip_address",
    "is_writable",
    "result",
    "too_large",
    "value_error_in_slices",
    "visited_parts",
]

T = TypeVar("T")

MAX_NAME_BYTES = 32_767
"""Most bytes of a name: what Kafka's protocol can carry. One that is read from invalid UTF-8 may have grown beyond."""
_LETTERS_AT_A_TIME = 5000  # of keys that are hashed: half a millisecond
_LETTERS_OF_A_LOOK = 20  # letters that could be hashed in the time of a lookup
_LETTERS_IN_ORDER = 256  # of an entity's types: with all of them known there are 15
_LARGEST_FRACTION = 1e-6  # B§6.8: what a LONG or an INT may be off a whole number


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """The changes of one entity in one request: pairs of key and value. The value None removes the key."""

    entity: Sequence[tuple[str, str | None]]
    ops: Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterResult:
    """The result for one entity. The message is None if the code is 0. A list of very many parts may be emptied."""

    entity: Sequence[tuple[str, str | None]]
    error_code: int = error_codes.NONE
    error_message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRecord:
    """One change to store: the value of one key of one entity, or None for its removal."""

    entity: EntityParts
    key: str
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterOutcome:
    """A result per distinct entity, and what has to be stored, as one batch."""

    results: tuple[AlterResult, ...]
    records: tuple[QuotaRecord, ...] = ()


def entity_error(entity: EntityParts, *, is_known_host: Callable[[str], bool]) -> str | None:
    """Return what is wrong with an entity, given as Kafka visits it; None where nothing is."""
    if not entity:
        return "Invalid empty client quota entity"
    for entity_type, name in entity:
        if entity_type not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {entity_type}"
        if name == "":
            return f"Empty {entity_type} not supported"
        if name is not None and not is_writable(name):
            return f"The name of {entity_type} is longer than {MAX_NAME_BYTES} bytes of UTF-8"
    return _ip_error(dict(entity), is_known_host)


def _ip_error(parts: Mapping[str, str | None], is_known_host: Callable[[str], bool]) -> str | None:
    if "ip" not in parts:
        return None
    if len(parts) > 1:
        return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
    name = parts["ip"]
    if name is not None and not is_known_host(name):
        return f"{name} is not a valid IP or resolvable host."
    return None


def is_writable(name: str) -> bool:
    """Return whether the protocol can carry `name`."""
    if name.isascii():
        return len(name) <= MAX_NAME_BYTES
    try:
        return len(name.encode()) <= MAX_NAME_BYTES
    except UnicodeEncodeError:
        return False


def entity_parts(parts: Iterable[tuple[str, str | None]]) -> EntityParts:
    """Return parts in the form they are stored in: sorted by type; of a repeated type the last one wins."""
    distinct = dict(parts)
    if len(distinct) > len(ENTITY_TYPES):
        return tuple(distinct.items())  # some type is unknown, and there may be many: no need for an order
    return tuple(sorted(distinct.items()))


def is_ip_address(name: str) -> bool:
    """Return whether `name` is an IPv4 or IPv6 address. Asks no name server."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def distinct_in_slices(pairs: Sequence[tuple[str, T]]) -> Generator[None, None, dict[str, T]]:
    """Return pairs by their first, of a repeated one the last, yielding in between where there are many."""
    distinct: dict[str, T] = {}
    for number, some in enumerate(batched(pairs)):
        if number:
            yield
        distinct.update(some)
    return distinct


def visited_parts(names: Mapping[str, str | None], *, count: int) -> EntityParts:
    """Return the parts of a request, `count` with those that are repeated, in the order in which Kafka visits them.

    It is that of a `HashMap`, each type once. They stay in the order of the request where the names of their types are
    too long for any that there is.
    """
    if sum(map(len, names)) > _LETTERS_IN_ORDER:
        return tuple(names.items())
    order = hash_map_order(names, initial_capacity=count)
    return tuple((entity_type, names[entity_type]) for entity_type in order)


def duplicate_text_in_slices(entity: Sequence[tuple[str, str | None]]) -> Generator[None, None, str]:
    """Return what Kafka says of an entity, given as it visits it, that is asked for twice."""
    texts: list[str] = []
    for parts in batched(entity):
        texts += [f"{entity_type}={'null' if name is None else name}" for entity_type, name in parts]
        yield
    return f"Ignoring duplicate entity ClientQuotaEntity(entries={{{', '.join(texts)}}})"


def result(entity: Sequence[tuple[str, str | None]], message: str | None) -> AlterResult:
    """Return the result of one entity; a message is why it was refused."""
    code = error_codes.NONE if message is None else error_codes.INVALID_REQUEST
    return AlterResult(entity=entity, error_code=code, error_message=message)


def too_large(entity: Sequence[tuple[str, str | None]]) -> AlterResult:
    """Return the result of an entity whose request leads to too many records."""
    message = "Request parameters do not satisfy the configured policy."
    return AlterResult(entity=entity, error_code=error_codes.POLICY_VIOLATION, error_message=message)


def is_change(current: float | None, value: float | None) -> bool:
    """Compare as Java compares objects: NaN is equal to NaN."""
    if current is None or value is None:
        return current is not value
    return current != value and not (math.isnan(current) and math.isnan(value))


def value_error_in_slices(
    entity: EntityParts, values: Mapping[str, float | None]
) -> Generator[None, None, str | None]:
    """Return the first error in Kafka's order of visiting, yielding in between; removals are never validated."""
    first: tuple[int, str] | None = None
    looked_at = 0
    for key, value in values.items():
        error = None if value is None else _one_value_error(entity, key, value)
        if error is not None:
            place = hash_map_place(key, count=len(values), initial_capacity=len(values))
            if first is None or place < first[0]:
                first = place, error
        looked_at += len(key) + _LETTERS_OF_A_LOOK
        if looked_at > _LETTERS_AT_A_TIME:
            looked_at = 0
            yield
    return None if first is None else first[1]


def _one_value_error(entity: EntityParts, name: str, value: float) -> str | None:
    key = QUOTA_KEYS.get(name)
    if key is None or not any(entity_type in key.entity_types for entity_type, _ in entity):
        return f"Invalid configuration key {name}"
    if value <= 0:
        return f"Quota {name} must be greater than 0"
    return None if key.value_type is ValueType.DOUBLE else _whole_number_error(key, value)


def _whole_number_error(key: QuotaKey, value: float) -> str | None:
    """Return what is wrong with a LONG or an INT; NaN passes both comparisons, as in Kafka."""
    if value > key.value_type.maximum:
        article = "an" if key.value_type is ValueType.INT else "a"
        return f"Proposed value for {key.name} is too large for {article} {key.value_type.value}."
    if abs(math.fmod(value, 1.0)) > _LARGEST_FRACTION:
        return f"{key.name} cannot be a fractional value."
    return None
