"""Results of the jobs as JSON documents for programs, described in docs/results.md; their keys do not change.

The sources of results are listed in their manifest (`results.output`), of bounded size for any record. It holds no
secrets: a URI has no credentials (decision 0072). It names no client.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate import __version__
from tidegate.config.locations import Location
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Missing, NodeChunk
from tidegate.pipeline.replay.carried import End, plan_digest
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import (
    Compared,
    Comparison,
    Row,
    as_recorded,
    compared,
    delayed_amount,
    is_judged,
)
from tidegate.pipeline.report.json_text import DOCUMENT_FORMAT, document_start
from tidegate.pipeline.report.limits_report import default_limits, largest_limits
from tidegate.pipeline.report.obedience_report import obedience_json
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.quota.managers.quota_type import QuotaType

__all__ = [
    "MOST_LISTED",
    "limits_document",
    "made_of",
    "missing_document",
    "obedience_document",
    "replay_document",
    "usage_document",
    "watch_document",
]

_BYTES = ("bytes", "limit_bytes_per_second")
_UNITS = {
    QuotaType.PRODUCE.value: _BYTES,
    QuotaType.FETCH.value: _BYTES,
    QuotaType.REQUEST.value: ("thread_ns", "limit_percent"),
    QuotaType.CONTROLLER_MUTATION.value: ("mutations", "limit_mutations_per_second"),
}
"""The names of `amount` and `bound` by quota type, with their units."""
_LIMITED = ("quota_type", "entity_user", "entity_client_id")
_ENTITY = ("plan", *_LIMITED, "entity_tags")

MOST_LISTED = 1000
"""Most files, nodes and holes that are listed; further ones are counted."""

_HOUR_PARTS = 3  # of the path of a file of the record: its date, its hour, its name


def usage_document(
    rows: Sequence[Mapping[str, Any]],
    *,
    by: Sequence[str],
    groups: int,
    events: int,
    out: Location | None,
    topics: TopicCounts | None = None,
) -> dict[str, Any]:
    """Return the results of `tidegate usage`. rows: columns `usage_schema(by)`, the first of `groups` in all."""
    begin = document_start("usage", events, out)
    counts = {} if topics is None else {"topics": asdict(topics)}
    return {**begin, "by": list(by), "groups_in_all": groups, "groups": list(rows), **counts}


def obedience_document(
    rows: Sequence[Row] | None, *, top: int, events: int | None, out: Location | None
) -> dict[str, Any]:
    """Return the results of `tidegate obedience`. rows: as `worst_first`, of which the first `top` are taken.

    rows and events are None if they are unknown.
    """
    begin = document_start("obedience", events, out) | {"known": rows is not None}
    found = rows or []
    return {**begin, "libraries_in_all": len(found), "libraries": obedience_json(found[:top])}


def limits_document(
    rows: TableRows,
    nodes: TableRows,
    *,
    tolerated: Mapping[str, float],
    top: int,
    events: int,
    out: Location | None,
) -> dict[str, Any]:
    """Return the results of `tidegate limits`: for each quota type, the `top` entities with the largest limits.

    rows, nodes: columns `LIMITS_BY_ENTITY`, `LIMITS_BY_NODE`. tolerated: `delayed_percent` and `longest_ms`.
    """
    defaults = default_limits(rows)
    shown = [row for default in defaults for row in largest_limits(rows, str(default["quota_type"]), top=top)]
    on_nodes: dict[tuple[Any, ...], list[Row]] = {_limited(row): [] for row in shown}
    for node in nodes:
        on_nodes.get(_limited(node), []).append(node)
    return {
        **document_start("limits", events, out),
        "tolerated": dict(tolerated),
        "entities_in_all": len(rows),
        "entities": [
            {
                "quota_type": row["quota_type"],
                "user": row["entity_user"],
                "client_id": row["entity_client_id"],
                **_with_units(row, _LIMITED),
                "nodes": [_with_units(node, _LIMITED) for node in on_nodes[_limited(row)]],
            }
            for row in shown
        ],
        "defaults": [
            {"quota_type": default["quota_type"], **_with_units(default, _LIMITED)} for default in defaults
        ],
    }


def replay_document(
    plans: Sequence[Plan],
    found: Comparison,
    *,
    top: int,
    unmatched: Sequence[Unmatched],
    events: int,
    out: Location | None,
) -> dict[str, Any]:
    """Return the results of `tidegate replay`. found: as `compared`, of which the first `top` are taken."""
    return {
        **document_start("replay", events, out),
        "plans": _plans(plans),
        **_entities(plans, found, top=top),
        "unmatched": _unmatched(unmatched),
    }


def watch_document(
    plans: Sequence[Plan],
    *,
    parts: Mapping[str, tuple[Sequence[Row], Sequence[Row]]],
    unmatched: Sequence[Unmatched],
    top: int,
    **facts: Any,
) -> dict[str, Any]:
    """Return one update as a document. parts: usage by client and entities, by name; facts: copied as they are."""
    documents = {
        name: {
            "groups_in_all": len(clients),
            "groups": list(clients[:top]),
            **_entities(plans, compared(plans, entities), top=top),
        }
        for name, (clients, entities) in parts.items()
    }
    begin = {"format": DOCUMENT_FORMAT, "command": "watch", **facts}
    return {**begin, "plans": _plans(plans), "unmatched": _unmatched(unmatched), **documents}


def _plans(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    return [
        {"name": plan.name, "in_force": plan.is_in_force, "loop": "closed" if plan.is_closed else "open"}
        for plan in plans
    ]


def _entities(plans: Sequence[Plan], found: Comparison, *, top: int) -> dict[str, Any]:
    shown = found.first(top, with_all=True)
    return {"entities_in_all": len(found), "entities": [_entity(entity, plans) for entity in shown]}


def _entity(found: Compared, plans: Sequence[Plan]) -> dict[str, Any]:
    rows = [found.rows[plan.name] for plan in plans if plan.name in found.rows]
    return {
        "key": found.key,
        "quota_type": found.quota_type,
        "user": found.user,
        "client_id": found.client_id,
        "tags": None if found.tags is None else json.loads(found.tags),
        "plans": [_outcome(row) for row in rows],
    }


def _outcome(row: Row) -> dict[str, Any]:
    """Return a row of `REPLAY_BY_ENTITY` with its units in its names."""
    delayed = {
        "delayed_amount": delayed_amount(row),
        "recorded_delayed_amount": delayed_amount(as_recorded(row)),
    }
    return {"plan": row["plan"], "judged": is_judged(row), **_with_units({**row, **delayed}, _ENTITY)}


def _limited(row: Row) -> tuple[Any, ...]:
    """Return the quota type and the entity of a row."""
    return tuple(row[name] for name in _LIMITED)


def _with_units(row: Row, without: Sequence[str]) -> dict[str, Any]:
    """Return the columns of a row, except `without`, with the units of its quota type in their names."""
    amount, limit = _UNITS[row["quota_type"]]
    rate = limit.removeprefix("limit_")
    names = {
        "bound": limit,
        "bound_of": "limit_of",
        "bound_changed": "limit_changed",
        "amount": amount,
        "delayed_amount": f"delayed_{amount}",
        "recorded_amount": f"recorded_{amount}",
        "recorded_delayed_amount": f"recorded_delayed_{amount}",
        "largest_amount": f"largest_{amount}",
        **{name: f"{name}_{rate}" for name in ("never_throttled", "tolerable", "peak")},
    }
    return {names.get(name, name): _value(value) for name, value in row.items() if name not in without}


def missing_document(missing: Sequence[Missing]) -> dict[str, Any]:
    """Return the missing rows as a part of a document: the first places, and their number."""
    listed = [asdict(place) for place in missing[:MOST_LISTED]]
    return {"missing_in_all": len(missing), "missing": listed}


def _value(value: Any) -> Any:
    """Return a value that JSON can represent: numbers that are not finite as Kafka prints them."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _unmatched(unmatched: Sequence[Unmatched]) -> list[dict[str, Any]]:
    """Return entries of plans, with entities in the form of quotas.yaml."""
    return [
        {
            "plan": entry.plan,
            "entity": {
                kind: {"default": True} if name is None else {"name": name} for kind, name in entry.entity
            },
            "missing": entry.kind,
            "nearest": entry.nearest,
            "no_users": entry.no_users,
        }
        for entry in unmatched
    ]


def made_of(
    files: UsageFiles,
    *,
    nodes: Mapping[int, Sequence[NodeChunk | End]],
    missing: Sequence[Missing],
    plans: Sequence[Plan] = (),
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the parts of the manifest on the rows that were read and the plans that were replayed.

    nodes: where the rows of each node begin and end. options: other options of the command.
    """
    names = [_name(path, files.record) for path in files.paths]
    return {
        "version": __version__,
        "options": dict(options),
        "record": {
            "directory": None if files.record is None else _shown(files.record),
            "from_ms": files.from_ms,
            "to_ms": files.to_ms,
            "rows": files.rows,
            "files_in_all": len(names),
            "files_sha256": hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest(),
            "files": names[:MOST_LISTED],
            "nodes_in_all": len(nodes),
            "nodes": [
                {
                    "node_id": node_id,
                    "first_seq": min(part.first_seq for part in parts),
                    "last_seq": max(part.last_seq for part in parts),
                }
                for node_id, parts in islice(sorted(nodes.items()), MOST_LISTED)
            ],
            **missing_document(missing),
        },
        "plans": [
            {**fields, "digest": None if plan.is_in_force else plan_digest(plan)}
            for plan, fields in zip(plans, _plans(plans), strict=True)
        ],
    }


def _name(path: Location, record: Location | None) -> str:
    """Return the name of a file below the record, or of the spool file from which it was copied."""
    if record is None or path == record:
        return _shown(path)
    if not isinstance(path, Path) or not isinstance(record, Path):
        return str(path).removeprefix(f"{record}/")
    if path.is_relative_to(record):
        return path.relative_to(record).as_posix()
    return "/".join(("spool", *path.parts[-_HOUR_PARTS:]))


def _shown(place: Location) -> str:
    return str(place.absolute() if isinstance(place, Path) else place)
