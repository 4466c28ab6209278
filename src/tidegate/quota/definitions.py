"""The stored quota definitions: which entity has which key at which value; asking for them and altering them.

`alter` decides and changes nothing: it answers with a result per entity and with the records to store. Write
the records where they survive, then `apply` them, before the next `alter`. `apply` also loads what was stored
earlier.

>>> definitions = QuotaDefinitions()
>>> alice = (("user", "alice"),)
>>> outcome = definitions.alter([Alteration(entity=alice, ops=(("producer_byte_rate", 1024.0),))])
>>> outcome.results[0].error_code
0
>>> definitions.apply(outcome.records)
>>> [(entity, values)] = definitions.describe([FilterComponent("user", MATCH_EXACT, "alice")]).entries
>>> entity, values
((('user', 'alice'),), {'producer_byte_rate': 1024.0})

What Kafka accepts is accepted, NaN included; `config_values` holds the stricter rules of our own files and
commands.

Follows: Kafka `ClientQuotaControlManager`, `ClientQuotasImage.describe`, B§6.7, 6.8, 10.1.
"""

import ipaddress
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tidegate.quota.definition_filter import (
    ERROR_INVALID_REQUEST,
    ERROR_NONE,
    ERROR_POLICY_VIOLATION,
    ERROR_UNSUPPORTED_VERSION,
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    EntityParts,
    FilterComponent,
    filter_error,
    matches,
)
from tidegate.quota.java_hash import hash_map_order
from tidegate.quota.keys import ENTITY_TYPES, QUOTA_KEYS, QuotaKey, ValueType

__all__ = [
    "ERROR_INVALID_REQUEST",
    "ERROR_NONE",
    "ERROR_POLICY_VIOLATION",
    "ERROR_UNSUPPORTED_VERSION",
    "MATCH_DEFAULT",
    "MATCH_EXACT",
    "MATCH_SPECIFIED",
    "MAX_RECORDS_PER_ALTER",
    "AlterOutcome",
    "AlterResult",
    "Alteration",
    "Description",
    "EntityParts",
    "FilterComponent",
    "QuotaDefinitions",
    "QuotaRecord",
    "entity_parts",
    "is_ip_address",
]

MAX_RECORDS_PER_ALTER = 10_000
"""Records that one request may lead to. Follows: Kafka `QuorumController.MAX_RECORDS_PER_USER_OP`."""

_LARGEST_FRACTION = 1e-6  # B§6.8: what a LONG or an INT may be off a whole number


@dataclass(frozen=True, slots=True, kw_only=True)
class Alteration:
    """What one request wants for one entity: pairs of key and value, None to remove the key."""

    entity: Sequence[tuple[str, str | None]]
    ops: Sequence[tuple[str, float | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterResult:
    """What became of one entity; the message is None when the code is 0."""

    entity: EntityParts
    error_code: int = ERROR_NONE
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The entries that match a filter, or None and an error."""

    entries: tuple[tuple[EntityParts, Mapping[str, float]], ...] | None
    error_code: int = ERROR_NONE
    error_message: str | None = None


class QuotaDefinitions:
    """All stored definitions. `is_known_host` tells whether a name is an address or resolves to one."""

    def __init__(self, is_known_host: Callable[[str], bool] | None = None) -> None:
        self._values: dict[EntityParts, dict[str, float]] = {}
        self._is_known_host = is_known_host or is_ip_address

    def __len__(self) -> int:
        """Return how many entities have a quota."""
        return len(self._values)

    def __iter__(self) -> Iterator[EntityParts]:
        """Yield the entities that have a quota."""
        return iter(self._values)

    def values(self, entity: EntityParts) -> Mapping[str, float]:
        """Return what is set for exactly this entity, by key."""
        return MappingProxyType(self._values.get(entity, {}))

    def records(self) -> Iterator[QuotaRecord]:
        """Yield a record per definition, enough to rebuild all of them."""
        for entity, values in self._values.items():
            for key, value in values.items():
                yield QuotaRecord(entity=entity, key=key, value=value)

    def apply(self, records: Iterable[QuotaRecord]) -> None:
        """Store what `records` say, without any check; an entity vanishes with its last key."""
        for record in records:
            values = self._values.setdefault(record.entity, {})
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
            if not values:
                del self._values[record.entity]

    def alter(self, alterations: Iterable[Alteration], *, validate_only: bool = False) -> AlterOutcome:
        """Return what the alterations lead to; nothing is changed until the records are applied.

        An entity that fails does not stop the others. Of an entity asked for twice the first alteration
        counts although its result is an error, as in Kafka.
        """
        results: dict[EntityParts, str | None] = {}
        records: list[QuotaRecord] = []
        for alteration in alterations:
            entity = entity_parts(alteration.entity)
            if entity in results or _has_repeated_key(alteration.ops):
                results[entity] = f"Ignoring duplicate entity {_kafka_text(entity)}"
                continue
            results[entity], new_records = self._alter_entity(entity, alteration.ops)
            records += new_records
        if len(records) > MAX_RECORDS_PER_ALTER:
            return _too_large(results)
        answers = tuple(_result(entity, message) for entity, message in results.items())
        return AlterOutcome(results=answers, records=() if validate_only else tuple(records))

    def describe(self, components: Sequence[FilterComponent], *, strict: bool = False) -> Description:
        """Return the entries that match every component; `strict` refuses parts that none of them names."""
        error = filter_error(components)
        if error is not None:
            code, message = error
            return Description(entries=None, error_code=code, error_message=message)
        found = (
            (entity, dict(values))
            for entity, values in self._values.items()
            if matches(entity, components) and not (strict and len(entity) != len(components))
        )
        return Description(entries=tuple(found))

    def _alter_entity(
        self, entity: EntityParts, ops: Sequence[tuple[str, float | None]]
    ) -> tuple[str | None, list[QuotaRecord]]:
        """Return an error text and no records, or None and the records."""
        values = dict(ops)
        error = self._entity_error(entity) or _first_value_error(entity, values)
        if error is not None:
            return error, []
        current = self._values.get(entity, {})
        return None, [
            QuotaRecord(entity=entity, key=key, value=value)
            for key, value in values.items()
            if _is_change(current.get(key), value)
        ]

    def _entity_error(self, entity: EntityParts) -> str | None:
        if not entity:
            return "Invalid empty client quota entity"
        for entity_type, name in entity:
            if entity_type not in ENTITY_TYPES:
                return f"Unhandled client quota entity type: {entity_type}"
            if name == "":
                return f"Empty {entity_type} not supported"
        return self._ip_error(dict(entity))

    def _ip_error(self, parts: Mapping[str, str | None]) -> str | None:
        if "ip" not in parts:
            return None
        if len(parts) > 1:
            return "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"
        name = parts["ip"]
        if name is not None and not self._is_known_host(name):
            return f"{name} is not a valid IP or resolvable host."
        return None


def entity_parts(parts: Iterable[tuple[str, str | None]]) -> EntityParts:
    """Return parts in the form they are stored in: sorted by type; of a repeated type the last one wins."""
    return tuple(sorted(dict(parts).items()))


def is_ip_address(name: str) -> bool:
    """Return whether `name` is an IPv4 or IPv6 address. Asks no name server."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _has_repeated_key(ops: Sequence[tuple[str, float | None]]) -> bool:
    return len({key for key, _ in ops}) < len(ops)


def _kafka_text(entity: EntityParts) -> str:
    parts = ", ".join(f"{entity_type}={'null' if name is None else name}" for entity_type, name in entity)
    return f"ClientQuotaEntity(entries={{{parts}}})"


def _result(entity: EntityParts, message: str | None) -> AlterResult:
    code = ERROR_NONE if message is None else ERROR_INVALID_REQUEST
    return AlterResult(entity=entity, error_code=code, error_message=message)


def _too_large(entities: Iterable[EntityParts]) -> AlterOutcome:
    message = "Unable to perform excessively large batch operation."
    return AlterOutcome(
        results=tuple(
            AlterResult(entity=entity, error_code=ERROR_POLICY_VIOLATION, error_message=message)
            for entity in entities
        )
    )


def _is_change(current: float | None, value: float | None) -> bool:
    """Compare as Java compares objects: NaN is equal to NaN."""
    if current is None or value is None:
        return current is not value
    return current != value and not (math.isnan(current) and math.isnan(value))


def _first_value_error(entity: EntityParts, values: Mapping[str, float | None]) -> str | None:
    """Return the first error in Kafka's order of visiting; removals are never validated."""
    for key in hash_map_order(values, initial_capacity=len(values)):
        value = values[key]
        error = None if value is None else _value_error(entity, key, value)
        if error is not None:
            return error
    return None


def _value_error(entity: EntityParts, name: str, value: float) -> str | None:
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
