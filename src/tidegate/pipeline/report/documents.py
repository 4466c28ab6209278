"""What the jobs found as one JSON document, for programs: docs/results.md describes it."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.config.locations import Location
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import Compared
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["json_text", "replay_document", "usage_document"]

_FORMAT = 1
_BYTES = ("bytes", "limit_bytes_per_second")
_UNITS = {
    QuotaType.PRODUCE.value: _BYTES,
    QuotaType.FETCH.value: _BYTES,
    QuotaType.REQUEST.value: ("thread_ns", "limit_percent"),
    QuotaType.CONTROLLER_MUTATION.value: ("mutations", "limit_mutations_per_second"),
}
"""What `amount` and `bound` are of a quota type."""
_ENTITY = ("plan", "quota_type", "entity_user", "entity_client_id")


def json_text(document: Mapping[str, Any]) -> str:
    """Return the document in one line of ASCII. No name can write to the terminal."""
    return json.dumps(document, allow_nan=False)


def usage_document(
    rows: Sequence[Mapping[str, Any]], *, by: Sequence[str], groups: int, events: int, out: Location | None
) -> dict[str, Any]:
    """Return what `tidegate usage` found. rows: columns `usage_schema(by)`, the first of `groups` in all."""
    begin = {"format": _FORMAT, "command": "usage", "events": events, "tables": _path(out)}
    return {**begin, "by": list(by), "groups_in_all": groups, "groups": list(rows)}


def replay_document(
    plans: Sequence[Plan],
    found: Sequence[Compared],
    *,
    top: int,
    unmatched: Sequence[Unmatched],
    events: int,
    out: Location | None,
) -> dict[str, Any]:
    """Return what `tidegate replay` found. found: as `compared`, of which the first `top` are taken."""
    return {
        "format": _FORMAT,
        "command": "replay",
        "events": events,
        "tables": _path(out),
        "plans": [
            {"name": plan.name, "in_force": plan.is_in_force, "loop": "closed" if plan.is_closed else "open"}
            for plan in plans
        ],
        "entities_in_all": len(found),
        "entities": [_entity(entity, plans) for entity in found[:top]],
        "unmatched": [_unmatched(entry) for entry in unmatched],
    }


def _entity(found: Compared, plans: Sequence[Plan]) -> dict[str, Any]:
    rows = [found.rows[plan.name] for plan in plans if plan.name in found.rows]
    return {
        "quota_type": found.quota_type,
        "user": found.user,
        "client_id": found.client_id,
        "plans": [_outcome(row) for row in rows],
    }


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of `REPLAY_BY_ENTITY` with its units in its names."""
    amount, limit = _UNITS[row["quota_type"]]
    names = {
        "bound": limit,
        "bound_of": "limit_of",
        "bound_changed": "limit_changed",
        "amount": amount,
        "delayed_amount": f"delayed_{amount}",
        "recorded_delayed_amount": f"recorded_delayed_{amount}",
    }
    others = {names.get(name, name): _value(value) for name, value in row.items() if name not in _ENTITY}
    return {"plan": row["plan"], **others}


def _value(value: Any) -> Any:
    """Return what JSON can hold: a limit that is no finite number as Kafka prints it."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _unmatched(entry: Unmatched) -> dict[str, Any]:
    return {
        "plan": entry.plan,
        "entity": _parts(entry.entity),
        "missing": entry.kind,
        "nearest": entry.nearest,
        "no_users": entry.no_users,
    }


def _parts(entity: EntityParts) -> dict[str, Any]:
    """Return an entity as quotas.yaml has it."""
    return {kind: {"default": True} if name is None else {"name": name} for kind, name in entity}


def _path(out: Location | None) -> str | None:
    return None if out is None else str(out)
