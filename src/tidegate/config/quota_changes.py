"""Differences between the quotas of a cluster and those of a `quotas.yaml`: what to set and what to remove.

A file owns the entities that it names, and states their quotas completely: a key that it leaves out is removed. Other
entities of the cluster stay as they are, unless they are pruned.

>>> alice, bob = (("user", "alice"),), (("user", "bob"),)
>>> cluster = {alice: {"producer_byte_rate": 1000.0, "request_percentage": 50.0}, bob: {"consumer_byte_rate": 9.0}}
>>> wanted = {alice: {"producer_byte_rate": 2000.0}}
>>> for change in quota_changes(cluster, wanted):
...     print(change)
QuotaChange(entity=(('user', 'alice'),), key='producer_byte_rate', before=1000.0, after=2000.0)
QuotaChange(entity=(('user', 'alice'),), key='request_percentage', before=50.0, after=None)
>>> [change.entity for change in quota_changes(cluster, wanted, prunes=True) if change.entity == bob]
[(('user', 'bob'),)]
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import NamedTuple

from tidegate.config.quotas_file import MAX_ENTRIES, QuotaEntry, QuotasFile
from tidegate.config.values import checked_entity, checked_value, entity_text
from tidegate.errors import ConfigError
from tidegate.quota.admin.alterations import Alteration
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.admin.keys import ENTITY_TYPES, QUOTA_KEYS

__all__ = [
    "MAX_UNDO_BYTES",
    "QuotaChange",
    "Quotas",
    "alterations",
    "applied",
    "conflicts",
    "exported",
    "load_undo",
    "pending",
    "quota_changes",
    "undo_text",
    "wanted_quotas",
]

MAX_UNDO_BYTES = 64 << 20
"""Size of a file that undoes changes; 100,000 entities with all four values take less."""
_UNDO_FORMAT = 1
_UNDO_HINT = "give the file that `tidegate quotas apply` wrote"

Quotas = Mapping[EntityParts, Mapping[str, float]]
"""Quotas by entity and key, as a cluster has them."""


class QuotaChange(NamedTuple):
    """One value that changes; None stands for no quota."""

    entity: EntityParts
    key: str
    before: float | None
    after: float | None


def wanted_quotas(file: QuotasFile) -> dict[EntityParts, dict[str, float]]:
    """Return the quotas of a file by entity."""
    return {entry.entity: dict(entry.values) for entry in file.entries}


def quota_changes(cluster: Quotas, wanted: Quotas, *, prunes: bool = False) -> list[QuotaChange]:
    """Return what to change in a cluster so that it has the `wanted` quotas, in the order of entities and keys.

    prunes: whether entities that are not in `wanted` lose their quotas.
    """
    entities = wanted.keys() | cluster.keys() if prunes else wanted.keys()
    changes = (
        QuotaChange(entity, key, before.get(key), after.get(key))
        for entity in sorted(entities, key=_order)
        for before, after in [(cluster.get(entity, {}), wanted.get(entity, {}))]
        for key in sorted(before.keys() | after.keys(), key=_key_order)
    )
    return [change for change in changes if not _same(change.before, change.after)]


def applied(cluster: Quotas, changes: Iterable[QuotaChange]) -> dict[EntityParts, dict[str, float]]:
    """Return the quotas of a cluster after changes. Entities without a quota are left out."""
    quotas = {entity: dict(values) for entity, values in cluster.items()}
    for change in changes:
        values = quotas.setdefault(change.entity, {})
        if change.after is None:
            values.pop(change.key, None)
        else:
            values[change.key] = change.after
    return {entity: values for entity, values in quotas.items() if values}


def conflicts(cluster: Quotas, changes: Iterable[QuotaChange]) -> list[str]:
    """Return a line for each change whose value in the cluster is no longer what it was."""
    return [
        f"{entity_text(change.entity)}: {change.key} is {_value(now)}, expected {_value(change.before)}"
        for change in changes
        for now in [cluster.get(change.entity, {}).get(change.key)]
        if not _same(now, change.before)
    ]


def pending(cluster: Quotas, changes: Iterable[QuotaChange]) -> list[QuotaChange]:
    """Return the changes whose value the cluster does not have yet."""
    return [
        change
        for change in changes
        if not _same(cluster.get(change.entity, {}).get(change.key), change.after)
    ]


def alterations(changes: Sequence[QuotaChange]) -> list[Alteration]:
    """Return changes as what AlterClientQuotas takes: one alteration for each entity."""
    return [
        Alteration(entity=entity, ops=[(change.key, change.after) for change in group])
        for entity, group in groupby(changes, key=lambda change: change.entity)
    ]


def exported(cluster: Quotas) -> tuple[QuotasFile, list[str]]:
    """Return the quotas of a cluster as a file, and a line for each that no file can hold.

    Kafka stores values and names that `quotas.yaml` refuses, such as NaN, fractions of bytes and host names.
    """
    entries, refused = [], []
    for entity in sorted(cluster, key=_order):
        values: dict[str, float] = {}
        for key, value in sorted(cluster[entity].items(), key=lambda item: _key_order(item[0])):
            try:
                values[key] = checked_value(key, value, checked_entity(entity))
            except ConfigError as error:
                refused.append(f"{entity_text(entity)}: {key} {value!r} cannot be written: {error}")
        if values:
            entries.append(QuotaEntry(entity=entity, values=values))
    if len(entries) > MAX_ENTRIES:
        refused.append(f"{len(entries):,} entities have quotas, a file can hold {MAX_ENTRIES:,}")
    return QuotasFile(entries=tuple(entries)), refused


# --- the file that undoes changes -----------------------------------------------------------------------------------


def undo_text(changes: Iterable[QuotaChange], *, cluster_id: str | None) -> str:
    """Return the content of a file that undoes changes, of the cluster with this id.

    Raises `ConfigError` if it would be too long to be read again.
    """
    document = {
        "format": _UNDO_FORMAT,
        "command": "quotas undo",
        "cluster_id": cluster_id,
        "changes": [
            {"entity": dict(change.entity), "key": change.key, "before": change.after, "after": change.before}
            for change in changes
        ],
    }
    text = json.dumps(document, indent=1) + "\n"
    if len(text) > MAX_UNDO_BYTES:  # ASCII only
        raise ConfigError(
            f"too many changes to undo: the file would be longer than {MAX_UNDO_BYTES} bytes",
            hint="apply fewer changes at once",
        )
    return text


def load_undo(path: Path) -> tuple[str | None, list[QuotaChange]]:
    """Return the id of the cluster and the changes of a file that `undo_text` made. Raises `ConfigError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_UNDO_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from error
    if len(content) > MAX_UNDO_BYTES:
        raise ConfigError(f"{str(path)!r} is longer than {MAX_UNDO_BYTES} bytes", hint=_UNDO_HINT)
    try:
        document = json.loads(content)
        if document["format"] != _UNDO_FORMAT or document["command"] != "quotas undo":
            raise ValueError
        cluster_id = document["cluster_id"]
        changes = [_undo_change(each) for each in document["changes"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(f"{str(path)!r} is not a file of changes to undo", hint=_UNDO_HINT) from error
    return None if cluster_id is None else str(cluster_id), changes


def _undo_change(item: Mapping[str, object]) -> QuotaChange:
    entity, key = item["entity"], str(item["key"])
    if not isinstance(entity, dict) or not all(isinstance(name, str | None) for name in entity.values()):
        raise TypeError
    before, after = (None if item[name] is None else float(str(item[name])) for name in ("before", "after"))
    return QuotaChange(tuple(sorted(entity.items())), key, before, after)


# --- values, order and texts ----------------------------------------------------------------------------------------


def _same(one: float | None, other: float | None) -> bool:
    """Return whether two values are the same; Kafka stores NaN, too."""
    return one == other or (one is not None and other is not None and isnan(one) and isnan(other))


def _order(entity: EntityParts) -> tuple[object, ...]:
    """Return what entities are sorted by: types, the default before names, names."""
    parts = dict(entity)
    return tuple(
        (kind not in parts, parts.get(kind) is not None, parts.get(kind) or "") for kind in ENTITY_TYPES
    )


def _key_order(key: str) -> tuple[int, str]:
    keys = tuple(QUOTA_KEYS)
    return (keys.index(key) if key in keys else len(keys)), key


def _value(value: float | None) -> str:
    return "not set" if value is None else f"{value:.15g}"
