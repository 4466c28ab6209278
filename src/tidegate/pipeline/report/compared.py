"""The rows of several plans put beside one another: by quota entity, or by client where an entity has one alone."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan

__all__ = ["KEY_OF_TYPE", "Compared", "Row", "compared", "record_of", "total", "with_limits"]

KEY_OF_TYPE = {quota_type.value: quota_type.key for quota_type in QUOTA_TYPES}
"""Kafka's quota key by quota type."""

Row = Mapping[str, Any]
"""A row of `REPLAY_BY_ENTITY`."""

_Entity = tuple[str | None, str | None, str | None]  # user, client id, other tags
_OUTCOME = ("throttled_requests", "throttle_ms", "delayed_amount", "rejected_mutations")
_COUNTED = ("requests", "amount", *_OUTCOME)
_SUMS = (*_COUNTED, *(f"recorded_{name}" for name in _COUNTED))
_SMALLEST = ("never_throttled", "tolerable")
_LARGEST = ("longest_throttle_ms", "recorded_longest_throttle_ms")
_FIRST = ("first_throttled_ts_ms", "recorded_first_throttled_ts_ms")


@dataclass(frozen=True, slots=True)
class Compared:
    """An entity, or the only client of several, with a row for each plan; is_named: it has a limit of its own in one.

    tags: as JSON, where a quota callback chose other ones than a user and a client id.

    A plan that counts these clients together with others has no row.
    """

    quota_type: str
    user: str | None
    client_id: str | None
    tags: str | None
    rows: Mapping[str, Row]
    is_named: bool

    @property
    def record(self) -> Row:
        """Return the row that counts most: its columns of what really happened stand for the record."""
        return record_of(self.rows.values())

    @property
    def is_throttled(self) -> bool:
        """Whether anything was held back or refused, or would have been."""
        columns = ("throttled_requests", "rejected_mutations")
        return any(self.largest(f"{prefix}{column}") for prefix in ("", "recorded_") for column in columns)

    def largest(self, column: str) -> int:
        """Return the largest of a column over the plans."""
        return max(int(row[column]) for row in self.rows.values())


def compared(plans: Sequence[Plan], rows: Iterable[Row]) -> list[Compared]:
    """Return what is compared: first who would have waited longest, then who did, then who has a limit of its own.

    Entities with one client alone are one thing, whatever level their quotas are of in each plan.
    """
    groups: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        key = _key(row)
        if row["plan"] in groups.get(key, ()):  # in force under two entities, one after the other
            key = (*key, _entity(row))
        groups.setdefault(key, {})[row["plan"]] = row
    named = _named(plans)
    return sorted((_compared(by_plan, named) for by_plan in groups.values()), key=_rank)


def record_of(rows: Iterable[Row]) -> Row:
    """Return the row of most requests, as they were recorded: forecasts count each attempt of a fetch."""
    return max(map(_recorded, rows), key=lambda row: int(row["requests"]))


def with_limits(rows: Iterable[Row], limits: Mapping[str, Iterable[Row]]) -> list[dict[str, Any]]:
    """Return the rows with the smallest limits of their entities, as far as there are any.

    limits: rows of `LIMITS_BY_ENTITY` by plan, of its entities.
    """
    found = {
        (plan, row["quota_type"], *_entity(row)): row for plan, of_plan in limits.items() for row in of_plan
    }
    with_them = []
    for row in rows:
        limit = found.get((row["plan"], row["quota_type"], *_entity(row)), {})
        with_them.append({**row, **{name: limit.get(name) for name in _SMALLEST}})
    return with_them


def total(rows: Collection[Row]) -> Row:
    """Return the row of all entities of a plan and a quota type together, as far as a table shows it."""
    firsts = {name: [row[name] for row in rows if row[name] is not None] for name in _FIRST}
    return {
        **{name: _sum([row[name] for row in rows]) for name in _SUMS},
        **{name: max((row[name] for row in rows), default=0) for name in _LARGEST},
        **{name: min(times, default=None) for name, times in firsts.items()},
    }


def _sum(numbers: Collection[int | None]) -> int | None:
    """Return the sum; None where a plan in open loop has none."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _recorded(row: Row) -> Row:
    if row["recorded_requests"] is None:
        return row
    return {**row, "requests": row["recorded_requests"], "amount": row["recorded_amount"]}


def _key(row: Row) -> tuple[Any, ...]:
    only = row["only_user"], row["only_client_id"]
    return row["quota_type"], (_entity(row) if None in only else only), None in only


def _entity(row: Row) -> _Entity:
    return row["entity_user"], row["entity_client_id"], row.get("entity_tags")


def _compared(by_plan: Mapping[str, Row], named: Collection[tuple[str, _Entity]]) -> Compared:
    first, *_ = rows = list(by_plan.values())
    entities = {_entity(row) for row in rows}
    only = first["only_user"], first["only_client_id"], None
    user, client_id, tags = _entity(first) if len(entities) == 1 else only
    quota_type = first["quota_type"]
    is_named = any((quota_type, entity) in named for entity in entities)
    return Compared(quota_type, user, client_id, tags, by_plan, is_named)


def _named(plans: Sequence[Plan]) -> set[tuple[str, _Entity]]:
    """Return the entities that have a limit of their own, by quota type."""
    types = {key: quota_type for quota_type, key in KEY_OF_TYPE.items()}
    records = [record for plan in plans for record in plan.records or () if record.key in types]
    parts = [(types[record.key], dict(record.entity)) for record in records]
    return {
        (quota_type, (names.get("user"), names.get("client-id"), None))
        for quota_type, names in parts
        if None not in names.values()
    }


def _rank(found: Compared) -> tuple[Any, ...]:
    waits = (found.largest("throttle_ms"), found.largest("recorded_throttle_ms"))
    refused = (found.largest("rejected_mutations"), found.largest("recorded_rejected_mutations"))
    order = (*waits, *refused, found.is_named, found.largest("requests"))
    names = (found.user or "", found.client_id or "", found.tags or "")
    return *(-number for number in order), found.quota_type, *names
