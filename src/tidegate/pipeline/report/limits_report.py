"""The smallest limits of entities: their table, and the notes below it."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text
from tidegate.pipeline.report.notes import callback_note
from tidegate.pipeline.report.rounding import limit_text
from tidegate.pipeline.report.tables import Column, Row, Table
from tidegate.pipeline.report.text import count_text, things_text
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.sums import name_numbers

__all__ = ["ESTIMATED", "SMALLEST_LIMITS", "default_limits", "largest_limits", "limits_notes", "limits_table"]

ESTIMATED = "request time is an estimate: Kafka's request log contains only a part of it"
"""The note on an imported record."""

SMALLEST_LIMITS = ("never_throttled", "tolerable")
_HELD_BACK = ("recorded_throttled_requests", "recorded_rejected_mutations")


def limits_table(rows: TableRows, *, top: int, tolerated: str) -> Table:
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


def largest_limits(rows: TableRows, quota_type: str, *, top: int) -> list[dict[str, Any]]:
    """Return the `top` rows of a quota type with the largest limits, those first."""
    table = rows.where(quota_type=quota_type).table
    user, client_id = (name_numbers(table[name]) for name in ("entity_user", "entity_client_id"))
    order = np.lexsort((client_id, user, -table["never_throttled"].to_numpy()))
    found: list[dict[str, Any]] = table.take(pa.array(order[:top])).to_pylist()
    return found


def default_limits(rows: TableRows) -> list[dict[str, Any]]:
    """Return for each quota type the default that is as high as every entity's own limit."""
    by_type = {name: rows.where(quota_type=name).table for name in QUOTA_NAMES}
    return [
        {
            "quota_type": quota_type,
            "entities": len(of_type),
            **{name: pc.max(of_type[name]).as_py() for name in SMALLEST_LIMITS},
            "recorded_throttled_requests": pc.sum(of_type["recorded_throttled_requests"]).as_py(),
        }
        for quota_type, of_type in by_type.items()
        if len(of_type)
    ]


def limits_notes(rows: TableRows, *, callback: str | None = None) -> list[str]:
    """Return sentences on what the table does not show. callback: see `callback_note`."""
    table = rows.table
    was_held_back = (pc.greater(table[name], 0) for name in _HELD_BACK)
    hidden = pc.sum(pc.or_(*was_held_back)).as_py() or 0
    notes = ["0: any limit is high enough"] if pc.any(pc.equal(table["never_throttled"], 0)).as_py() else []
    if hidden:
        entities = things_text(len(rows), "entity", "entities")
        notes.append(
            f"{count_text(hidden)} of {entities} were throttled when this was recorded:\n"
            "the record shows what they were allowed to use, not what they needed"
        )
    return notes if callback is None else [*notes, "\n".join(callback_note(callback))]


def _entity_or_default(row: Row) -> str:
    if "entities" not in row:
        return entity_text(row)
    if row["entities"] == 1:
        return "<default>, for the only entity"
    return f"<default>, for all {count_text(row['entities'])} entities"
