"""Extensions of quotas beyond Kafka, each off unless it is set: the clients they apply to, and their limits.

* observe: decisions about a client are made and recorded as usual, but the client is not throttled.
* exempt: a client is charged to no quota.
* throttle_max_ms: the longest throttle time of any client.
* smooth: bytes produced and fetched come from a token bucket that holds `burst_s` (`tidegate.quota.measure.smooth`).
* cluster_wide: a quota is one limit over all brokers of a cluster (`tidegate.quota.measure.cluster_sensor`).
* debt_max_s: the most that a token bucket, of bytes or of mutations, owes.

Extensions arrive as records, like the definitions of quotas: with an entity and 1.0 or None (off), or without an entity
and with a number. A replay of the same records therefore makes the same decisions (`docs/usage-record.md`).

>>> extensions = Extensions()
>>> extensions.apply(QuotaRecord(entity=(("user", "alice"),), key=OBSERVE, value=1.0))
True
>>> extensions.observe.selects("alice", "c1"), extensions.exempt.any
(True, False)
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.quota.admin.definitions import QuotaRecord
from tidegate.quota.admin.entity import DEFAULT, QuotaEntity
from tidegate.quota.admin.entity_selection import EntitySelection, parse_entities
from tidegate.quota.measure.smooth import SmoothMode

__all__ = [
    "CLUSTER_WIDE",
    "DEBT_MAX_S",
    "EXEMPT_CLIENTS",
    "EXTENSION_SETTINGS",
    "MUTATIONS_SHARED",
    "OBSERVE",
    "SMOOTH",
    "SMOOTH_BURST_S",
    "THROTTLE_MAX_MS",
    "Extensions",
    "changed_records_in_slices",
    "entity_of",
    "extension_records",
    "selection_records",
]

OBSERVE = "tidegate.quota.observe"
EXEMPT_CLIENTS = "tidegate.quota.exempt"
THROTTLE_MAX_MS = "tidegate.quota.throttle.max.ms"
CLUSTER_WIDE = "tidegate.quota.cluster.wide"

SMOOTH = "tidegate.quota.smooth"
SMOOTH_BURST_S = "tidegate.quota.smooth.burst.seconds"
DEBT_MAX_S = "tidegate.quota.debt.max.seconds"

_SELECTIONS = (OBSERVE, EXEMPT_CLIENTS, SMOOTH, CLUSTER_WIDE)
_NUMBERS: Mapping[str, int] = {THROTTLE_MAX_MS: 0, SMOOTH_BURST_S: 1, DEBT_MAX_S: 0}  # with their defaults
_NUMBER_ATTRIBUTES = {
    THROTTLE_MAX_MS: "throttle_max_ms",
    SMOOTH_BURST_S: "burst_s",
    DEBT_MAX_S: "debt_max_s",
}
EXTENSION_SETTINGS = frozenset((*_SELECTIONS, *_NUMBERS))
"""Settings, and keys of records."""
MUTATIONS_SHARED = "tidegate.quota.mutations.shared"
"""Key of a record, and no setting: other gateways charge the buckets of mutations from now on."""


@dataclass(slots=True)
class Extensions:
    """The extensions in force on a node. Every decision reads this object in place; it stays the same object."""

    observe: EntitySelection = field(default_factory=EntitySelection)
    exempt: EntitySelection = field(default_factory=EntitySelection)
    smooth: EntitySelection = field(default_factory=EntitySelection)
    cluster_wide: EntitySelection = field(default_factory=EntitySelection)
    throttle_max_ms: int = _NUMBERS[THROTTLE_MAX_MS]
    burst_s: int = _NUMBERS[SMOOTH_BURST_S]
    debt_max_s: int = _NUMBERS[DEBT_MAX_S]
    mutations_shared: bool = False

    def smooth_mode(self, user: str, client_id: str) -> SmoothMode | None:
        """Return the settings of the token bucket of a quota with these tags; None if it is not smooth."""
        if not self.smooth.selects(user, client_id):
            return None
        observed = self.observe.selects(user, client_id)
        return SmoothMode(burst_s=self.burst_s, debt_max_s=self.debt_max_s, observed=observed)

    def apply(self, record: QuotaRecord) -> bool:
        """Apply one record. Return False if it is not a record of an extension."""
        selections = (self.observe, self.exempt, self.smooth, self.cluster_wide)
        selection = dict(zip(_SELECTIONS, selections, strict=True)).get(record.key)
        if selection is not None:
            selection.set(entity_of(record), selected=record.value is not None)
        elif (attribute := _NUMBER_ATTRIBUTES.get(record.key)) is not None:
            setattr(self, attribute, _NUMBERS[record.key] if record.value is None else int(record.value))
        elif record.key == MUTATIONS_SHARED:
            self.mutations_shared = record.value is not None
        else:
            return False
        return True


def extension_records(values: Mapping[str, Any]) -> Iterator[QuotaRecord]:
    """Yield the records that settings, given by name, lead to; none if all are off. Raises `ConfigError`."""
    for key in _SELECTIONS:
        yield from selection_records(key, parse_entities(values.get(key, ""), setting=key))
    for key, default in _NUMBERS.items():
        if values.get(key, default) != default:
            yield QuotaRecord(entity=(), key=key, value=float(values[key]))


def selection_records(key: str, entities: Iterable[QuotaEntity]) -> Iterator[QuotaRecord]:
    """Yield the records of a setting that names entities."""
    return (QuotaRecord(entity=_parts_of(entity), key=key, value=1.0) for entity in entities)


def changed_records_in_slices(
    before: Iterable[QuotaRecord], after: Iterable[QuotaRecord]
) -> Generator[None, None, list[QuotaRecord]]:
    """Return the records that change one state of the settings into another."""
    old: dict[tuple[Any, str], QuotaRecord] = {}
    new: dict[tuple[Any, str], QuotaRecord] = {}
    for known, records in ((old, before), (new, after)):
        for record in records:
            known[record.entity, record.key] = record
            yield
    changed = []
    for key, record in old.items():
        if key not in new:
            changed.append(replace(record, value=None))
        yield
    for key, record in new.items():
        if old.get(key) != record:
            changed.append(record)
        yield
    return changed


def entity_of(record: QuotaRecord) -> QuotaEntity:
    """Return the user and client id of a record."""
    parts = {entity_type: DEFAULT if name is None else name for entity_type, name in record.entity}
    return QuotaEntity(user=parts.get("user"), client_id=parts.get("client-id"))


def _parts_of(entity: QuotaEntity) -> tuple[tuple[str, str | None], ...]:
    parts = (("client-id", entity.client_id), ("user", entity.user))
    return tuple((kind, None if part is DEFAULT else part) for kind, part in parts if part is not None)
