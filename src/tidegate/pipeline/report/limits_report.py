"""The smallest limits of entities: their table, and the notes below it."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text
from tidegate.pipeline.report.notes import callback_note
from tidegate.pipeline.report.rounding import limit_text
from tidegate.pipeline.report.tables import Column, Row, Table
from tidegate.pipeline.report.text import count_text, things_text

__all__ = ["ESTIMATED", "default_limits", "largest_limits", "limits_notes", "limits_table", "was_throttled"]

ESTIMATED = "request time is an estimate: Kafka's request log contains only a part of it"
"""The note on an imported record."""

_LIMITS = ("never_throttled", "tolerable")


def limits_table(rows: Sequence[Row], *, top: int, tolerated: str) -> Table:
    """Return the `top` entities with the largest limits of each quota type, and the default that all of them need.

    rows: columns `LIMITS_BY_ENTITY`. tolerated: the heading of the limit that delays some requests.
    """
    shown: list[Row | str] = []
    for default in default_limits(rows):
        shown += [*largest_limits(rows, default["quota_type"], top=top), default, ""]
    columns = [
        Column("quota", "quota_type", QUOTA_NAMES.__getitem__, is_name=True),
        Column("entity", _entity_or_default, is_name=True),
        Column("throttles\nnothing", lambda row: limit_text(row["quota_type"], row["never_throttled"])),
        Column(tolerated, lambda row: limit_text(row["quota_type"], row["tolerable"])),
        Column("throttled\nas recorded", "recorded_throttled_requests", count_text),
    ]
    return Table(caption="smallest limits, per second and broker", columns=columns, rows=shown[:-1])


def largest_limits(rows: Sequence[Row], quota_type: str, *, top: int) -> list[Row]:
    """Return the `top` rows of a quota type with the largest limits, those first."""
    return nsmallest(top, (row for row in rows if row["quota_type"] == quota_type), key=_largest_first)


def default_limits(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return for each quota type the default that is as high as every entity's own limit."""
    by_type = {name: [row for row in rows if row["quota_type"] == name] for name in QUOTA_NAMES}
    return [
        {
            "quota_type": quota_type,
            "entities": len(of_type),
            **{name: max(row[name] for row in of_type) for name in _LIMITS},
            "recorded_throttled_requests": sum(row["recorded_throttled_requests"] for row in of_type),
        }
        for quota_type, of_type in by_type.items()
        if of_type
    ]


def limits_notes(rows: Sequence[Row], *, callback: str | None = None) -> list[str]:
    """Return sentences on what the table does not show. callback: see `callback_note`."""
    hidden = sum(was_throttled(row) for row in rows)
    notes = ["0: any limit is high enough"] if any(row["never_throttled"] == 0 for row in rows) else []
    if hidden:
        entities = things_text(len(rows), "entity", "entities")
        notes.append(
            f"{count_text(hidden)} of {entities} were throttled when this was recorded:\n"
            "the record shows what they were allowed to use, not what they needed"
        )
    return notes if callback is None else [*notes, "\n".join(callback_note(callback))]


def was_throttled(row: Row) -> bool:
    """Return whether the entity of a row of `LIMITS_BY_ENTITY` was throttled when it was recorded."""
    return bool(row["recorded_throttled_requests"] or row.get("recorded_rejected_mutations"))


def _entity_or_default(row: Row) -> str:
    if "entities" not in row:
        return entity_text(row)
    if row["entities"] == 1:
        return "<default>, for the only entity"
    return f"<default>, for all {count_text(row['entities'])} entities"


def _largest_first(row: Row) -> tuple[Any, ...]:
    return -row["never_throttled"], row["entity_user"] or "", row["entity_client_id"] or ""
