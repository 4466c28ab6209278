"""The stored quota definitions, by entity and key: descriptions and alterations of them.

`alter_in_slices` only decides: it returns a result per entity and the records to store. Store these records durably,
then `apply` them, before the next alteration. `apply` also loads definitions that were stored earlier. Work that may
take long has a form in slices; only one such change may be in progress between two slices.

>>> definitions = QuotaDefinitions()
>>> alice = (("user", "alice"),)
>>> wanted = [Alteration(entity=alice, ops=(("producer_byte_rate", 1024.0),))]
>>> outcome = run_at_once(definitions.alter_in_slices(wanted))
>>> outcome.results[0].error_code
0
>>> definitions.apply(outcome.records)
>>> filters = [FilterComponent("user", MATCH_EXACT, "alice")]
>>> [(entity, values)] = run_at_once(definitions.describe_in_slices(filters)).entries
>>> entity, dict(values)
((('user', 'alice'),), {'producer_byte_rate': 1024.0})

What Kafka accepts is accepted, NaN included; `tidegate.config.values` holds the stricter rules of our own files and
commands.

Follows: Kafka `ClientQuotaControlManager`, `ClientQuotasImage.describe`, B§6.7, 6.8, 10.1. Entities and values are
described in the order of Kafka's hash maps; with more than a thousand entities, those in one place of the table stay in
the order in which they were made. Differs: definitions have a bound.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from types import MappingProxyType

from tidegate import error_codes
from tidegate.in_slices import release, run_at_once
from tidegate.quota.admin.alterations import (
    Alteration,
    AlterOutcome,
    AlterResult,
    QuotaRecord,
    distinct_in_slices,
    duplicate_text_in_slices,
    entity_error,
    entity_parts,
    is_change,
    is_ip_address,
    result,
    too_large,
    value_error_in_slices,
    visited_parts,
)
from tidegate.quota.admin.definition_filter import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    EntityParts,
    FilterComponent,
    filter_error,
    matches,
)
from tidegate.quota.admin.definition_order import Definition, changed_values, definition_bytes, in_hash_order
from tidegate.quota.admin.java_hash import table_size
from tidegate.quota.admin.keys import ENTITY_TYPES

__all__ = [
    "MATCH_DEFAULT",
    "MATCH_EXACT",
    "MATCH_SPECIFIED",
    "MAX_DEFINITION_BYTES",
    "MAX_RECORDS_PER_ALTER",
    "AlterOutcome",
    "AlterResult",
    "Alteration",
    "Changes",
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
MAX_DEFINITION_BYTES = 256 << 20
"""Most memory of all definitions, as `definition_bytes` counts it: some 200,000 with short names."""
MAX_IN_KAFKAS_ORDER = 1000  # entities that are put in order at each change, within a millisecond
_AT_A_TIME = 100  # definitions looked at, well below a millisecond
_PARTS_IN_ORDER = 300  # more types than this have more letters than are put in order


@dataclass(slots=True)
class Changes:
    """Changes of definitions, made ready to be put in force at once."""

    definitions: dict[EntityParts, Definition] = field(default_factory=dict)
    gone: list[EntityParts] = field(default_factory=list)
    grown_bytes: int = 0


class _Found(Collection[tuple[EntityParts, Mapping[str, float]]]):
    """The definitions that match a filter, as they were at the time of the call; pairs are made one by one."""

    def __init__(self, size: int, found: Iterable[Definition]) -> None:
        self._size = size
        self._found = found

    def __len__(self) -> int:
        return self._size

    def __contains__(self, pair: object) -> bool:
        return any(one == pair for one in self)

    def __iter__(self) -> Iterator[tuple[EntityParts, Mapping[str, float]]]:
        return ((each.entity, MappingProxyType(each.values)) for each in self._found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The entries that match a filter, which can be read once; or None and an error."""

    entries: Collection[tuple[EntityParts, Mapping[str, float]]] | None
    error_code: int = error_codes.NONE
    error_message: str | None = None


class QuotaDefinitions:
    """All stored definitions."""

    def __init__(self, *, max_bytes: int = MAX_DEFINITION_BYTES) -> None:
        self._definitions: dict[EntityParts, Definition] = {}
        self._max_bytes = max_bytes
        self._bytes = 0
        self._before_last_change = 0  # number of entities; sets the least size of the table

    def __len__(self) -> int:
        """Return how many entities have a quota."""
        return len(self._definitions)

    def __iter__(self) -> Iterator[EntityParts]:
        """Yield the entities that have a quota."""
        return iter(self._definitions)

    def values(self, entity: EntityParts) -> Mapping[str, float]:
        """Return what is set for exactly this entity, by key."""
        definition = self._definitions.get(entity)
        return MappingProxyType({} if definition is None else definition.values)

    def records(self) -> Iterator[QuotaRecord]:
        """Yield a record per definition, enough to rebuild all of them."""
        for definition in self._definitions.values():
            for key, value in definition.values.items():
                yield QuotaRecord(entity=definition.entity, key=key, value=value)

    # --- changes

    def apply(self, records: Iterable[QuotaRecord]) -> None:
        """Apply `records` without any check. An entity is removed with its last key."""
        self.activate(run_at_once(self.prepare_in_slices(records)))

    def prepare_in_slices(self, records: Iterable[QuotaRecord]) -> Generator[None, None, Changes]:
        """Return the changes in `records`, ready to be put in force. Yields in between; nothing changes yet."""
        wanted: dict[EntityParts, dict[str, float | None]] = {}
        changes = Changes()
        for number, record in enumerate(records):
            wanted.setdefault(record.entity, {})[record.key] = record.value
            if number % _AT_A_TIME == 0:
                yield
        for number, (entity, ops) in enumerate(wanted.items()):
            before = self.values(entity)
            values = changed_values(before, ops)
            changes.grown_bytes += (len(values) - len(before)) * definition_bytes(entity)
            if values:
                changes.definitions[entity] = Definition(entity, values)
            elif before:
                changes.gone.append(entity)
            if number % _AT_A_TIME == 0:
                yield
        count = len(wanted)
        yield from release(wanted)
        if count <= MAX_IN_KAFKAS_ORDER:
            yield
            capacity = table_size(count, initial_capacity=16)
            last_first = reversed(
                changes.definitions.values()
            )  # as Kafka's controller, so it was seen, writes them
            new = sorted(last_first, key=lambda definition: definition.table_index(capacity))
            changes.definitions = {definition.entity: definition for definition in new}
            yield
        return changes

    def activate(self, changes: Changes) -> None:
        """Apply prepared changes all at once: a description shows all of them or none."""
        self._before_last_change = len(self._definitions)
        self._bytes += changes.grown_bytes
        self._definitions.update(changes.definitions)
        for entity in changes.gone:
            del self._definitions[entity]
        if len(self._definitions) <= MAX_IN_KAFKAS_ORDER:
            capacity = self._table_size()
            places = sorted(
                self._definitions.values(), key=lambda definition: definition.table_index(capacity)
            )
            self._definitions = {definition.entity: definition for definition in places}

    # --- altering

    def alter_in_slices(
        self,
        alterations: Iterable[Alteration],
        *,
        validate_only: bool = False,
        is_known_host: Callable[[str], bool] = is_ip_address,
    ) -> Generator[None, None, AlterOutcome]:
        """Return what the alterations lead to, yielding in between; nothing changes until the records are applied.

        An entity that fails does not stop the others. Of an entity asked for twice the first alteration
        counts although its result is an error, as in Kafka. is_known_host: whether a name of an ip entity is an
        address or a host.
        """
        results: dict[EntityParts | bytes, AlterResult] = {}
        records: list[QuotaRecord] = []
        room_bytes = self._max_bytes - self._bytes
        for alteration in alterations:
            parts = yield from distinct_in_slices(alteration.entity)
            values = yield from distinct_in_slices(alteration.ops)
            if len(parts) > _PARTS_IN_ORDER:
                yield from self._refuse_in_slices(
                    parts, results, is_repeated=len(values) < len(alteration.ops)
                )
                continue
            count = len(alteration.entity)
            entity, visited = entity_parts(parts.items()), visited_parts(parts, count=count)
            if entity in results or len(values) < len(alteration.ops):
                results[entity] = result(entity, (yield from duplicate_text_in_slices(visited)))
            else:
                message, changed = yield from self._decide_in_slices(entity, visited, values, is_known_host)
                grown_bytes = self._grown_bytes(entity, changed)
                if grown_bytes > max(room_bytes, 0):
                    results[entity] = self._no_room(entity)
                else:
                    room_bytes -= grown_bytes
                    results[entity] = result(entity, message)
                    records += changed
            yield
        if len(records) > MAX_RECORDS_PER_ALTER:
            for key, refused in results.items():
                results[key] = too_large(refused.entity)
                yield
            yield from release(records)
        outcome = AlterOutcome(
            results=tuple(results.values()), records=() if validate_only else tuple(records)
        )
        yield from release(results, records)
        return outcome

    def _refuse_in_slices(
        self,
        parts: Mapping[str, str | None],
        results: dict[EntityParts | bytes, AlterResult],
        *,
        is_repeated: bool,
    ) -> Generator[None, None, None]:
        """Refuse an entity with more types than exist. Its parts stay in their order; its key is a digest of them."""
        entity: list[tuple[str, str | None]] = []
        digest = sha256()
        left = iter(parts.items())
        while some := list(islice(left, _AT_A_TIME)):
            entity += some
            digest.update(repr(some).encode("utf-8", "surrogatepass"))
            yield
        key = digest.digest()
        if is_repeated or key in results:
            results[key] = result(entity, (yield from duplicate_text_in_slices(entity)))
        else:
            first = tuple(entity[: len(ENTITY_TYPES) + 1])  # one of them is of no type
            results[key] = result(entity, entity_error(first, is_known_host=is_ip_address))

    def _decide_in_slices(
        self,
        entity: EntityParts,
        visited: EntityParts,
        values: Mapping[str, float | None],
        is_known_host: Callable[[str], bool],
    ) -> Generator[None, None, tuple[str | None, list[QuotaRecord]]]:
        """Return an error text and no records, or None and the records."""
        error = entity_error(visited, is_known_host=is_known_host)
        if error is None:
            error = yield from value_error_in_slices(entity, values)
        if error is not None:
            return error, []
        current = self.values(entity)
        return None, [
            QuotaRecord(entity=entity, key=key, value=value)
            for key, value in values.items()
            if is_change(current.get(key), value)
        ]

    def _grown_bytes(self, entity: EntityParts, records: Sequence[QuotaRecord]) -> int:
        """Return the bytes that the records add. Bytes of removed definitions are subtracted when they are applied."""
        current = self.values(entity)
        added = sum(record.value is not None and record.key not in current for record in records)
        return added * definition_bytes(entity) if added else 0

    def _no_room(self, entity: EntityParts) -> AlterResult:
        message = f"The quota definitions take {self._bytes} bytes; there is room for {self._max_bytes}"
        return AlterResult(entity=entity, error_code=error_codes.POLICY_VIOLATION, error_message=message)

    # --- describing

    def describe_in_slices(
        self, components: Sequence[FilterComponent], *, strict: bool = False
    ) -> Generator[None, None, Description]:
        """Return the entries that match every component, yielding in between, without changes made meanwhile.

        strict: leave out entities with parts that no component names.
        """
        error = filter_error(components)
        if error is not None:
            code, message = error
            return Description(entries=None, error_code=code, error_message=message)
        capacity = self._table_size()
        found: list[Definition] = []
        for number, definition in enumerate(self._candidates(components, strict=strict)):
            entity = definition.entity
            if matches(entity, components) and not (strict and len(entity) != len(components)):
                found.append(definition)
            if number % _AT_A_TIME == 0:
                yield
        in_order = yield from in_hash_order(found, capacity)
        return Description(entries=_Found(len(found), in_order))

    def _table_size(self) -> int:
        return table_size(len(self._definitions), initial_capacity=self._before_last_change)

    def _candidates(self, components: Sequence[FilterComponent], *, strict: bool) -> Collection[Definition]:
        """Return all definitions, or the only one that can match."""
        if strict and components and all(part.match_type != MATCH_SPECIFIED for part in components):
            only = self._definitions.get(entity_parts((part.entity_type, part.match) for part in components))
            return [] if only is None else [only]
        return list(self._definitions.values()) if components or not strict else []
