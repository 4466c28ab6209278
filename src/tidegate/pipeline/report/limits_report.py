"""The smallest limits, as a table for the terminal."""

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tidegate.pipeline.report.text import QUOTA_NAMES, count_text, name_text
from tidegate.pipeline.rounding import limit_text

__all__ = [
    "ESTIMATED",
    "callback_note",
    "default_limits",
    "entity_text",
    "largest_limits",
    "limits_notes",
    "limits_table",
    "was_throttled",
]

Row = Mapping[str, Any]
_LONGEST_SETTING = 70  # cells, of a line
ESTIMATED = "request time is an estimate: Kafka's request log does not have all of it"
"""What is to be said of a record that was imported."""

_LIMITS = ("never_throttled", "tolerable")


def limits_table(rows: Sequence[Row], *, top: int, tolerated: str) -> Table:
    """Return the table of `rows` (columns `LIMITS_BY_ENTITY`), names folded where there is no room.

    Of each type of quota the `top` entities with the largest limits, and what a default would have to be.
    tolerated: the heading of the limit that delays some.
    """
    table = Table(
        title="smallest limits, per second and broker",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("quota", no_wrap=True)
    table.add_column("entity", overflow="fold")
    for name in ("throttles\nnothing", tolerated, "throttled\nas recorded"):
        table.add_column(name, justify="right", no_wrap=True)
    for default in default_limits(rows):
        for row in largest_limits(rows, default["quota_type"], top=top):
            table.add_row(*map(Text, _cells(row, entity_text(row))))
        entities = default["entities"]
        everybody = (
            "<default>, for the only one"
            if entities == 1
            else f"<default>, for all {count_text(entities)} of them"
        )
        table.add_row(*map(Text, _cells(default, everybody)), end_section=True)
    return table


def largest_limits(rows: Sequence[Row], quota_type: str, *, top: int) -> list[Row]:
    """Return the `top` rows of a type of quota with the largest limits, those first."""
    return nsmallest(top, (row for row in rows if row["quota_type"] == quota_type), key=_largest_first)


def default_limits(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return, for each type of quota, what a default would have to be to be as good as each entity's own limit."""
    found = []
    for quota_type in QUOTA_NAMES:
        of_type = [row for row in rows if row["quota_type"] == quota_type]
        if of_type:
            largest = {name: max(row[name] for row in of_type) for name in _LIMITS}
            throttled = sum(row["recorded_throttled_requests"] for row in of_type)
            found.append(
                {
                    "quota_type": quota_type,
                    "entities": len(of_type),
                    **largest,
                    "recorded_throttled_requests": throttled,
                }
            )
    return found


def limits_notes(rows: Sequence[Row], *, callback: str | None = None) -> list[str]:
    """Return sentences on what the table does not say. callback: see `callback_note`."""
    hidden = sum(was_throttled(row) for row in rows)
    notes = ["0: any limit would do"] if any(row["never_throttled"] == 0 for row in rows) else []
    if hidden:
        notes.append(
            f"{count_text(hidden)} of {count_text(len(rows))} were throttled when this was recorded:\n"
            "what they used is what got through, not what they wanted"
        )
    return notes if callback is None else [*notes, "\n".join(callback_note(callback))]


def callback_note(callback: str) -> list[str]:
    """Return the lines that say whose rules limits are of. callback: the setting of one that decided otherwise."""
    return [
        f"{name_text(callback, longest=_LONGEST_SETTING)} was set.",
        "These limits are by Kafka's own rules: they do not hold for whom it puts",
        "into a group, or counts otherwise.",
    ]


def entity_text(row: Row) -> str:
    """Return whose quota it is, in the words of the command line."""
    parts = (("user", row["entity_user"]), ("client-id", row["entity_client_id"]))
    return " ".join(f"{kind}={name_text(name)}" for kind, name in parts if name is not None) or "–"


def was_throttled(row: Row) -> bool:
    """Return whether the entity of a row of `LIMITS_BY_ENTITY` waited when it was recorded."""
    return bool(row["recorded_throttled_requests"] or row.get("recorded_rejected_mutations"))


def _largest_first(row: Row) -> tuple[Any, ...]:
    return -row["never_throttled"], row["entity_user"] or "", row["entity_client_id"] or ""


def _cells(row: Row, entity: str) -> list[str]:
    limits = [limit_text(row["quota_type"], row[name]) for name in _LIMITS]
    return [QUOTA_NAMES[row["quota_type"]], entity, *limits, count_text(row["recorded_throttled_requests"])]
