"""The section on the smallest limits: what quota would have throttled nobody."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.pipeline.page.parts import Column, Section, Table
from tidegate.pipeline.report.limits_report import entity_text, limits_notes
from tidegate.pipeline.report.text import QUOTA_NAMES, count_text, things_text
from tidegate.pipeline.rounding import limit_text

__all__ = ["limits_section"]

Row = Mapping[str, Any]
_MOST_ROWS = 40
_LIMITS = ("never_throttled", "tolerable")


def limits_section(rows: Sequence[Row]) -> Section | None:
    """Return the section; None where there is nothing to limit. rows: columns `LIMITS_BY_ENTITY`."""
    limited = [row for row in rows if row["never_throttled"]]
    if not limited:
        return None
    shown = sorted(limited, key=_rank)[:_MOST_ROWS]
    left_out = len(rows) - len(shown)
    notes = [note.replace("\n", " ") for note in limits_notes(rows)]
    if left_out:
        notes.append(
            f"{things_text(left_out, 'more is', 'more are')} left out, those throttled least and with the smallest "
            "limits."
        )
    names = ("throttles nothing", "delays 1 % by 1 s", "throttled as recorded")
    table = Table(
        caption="Smallest limits, per second and broker",
        columns=[Column("user and client"), Column("quota"), *(Column(name, True) for name in names)],
        rows=[_cells(row) for row in shown],
    )
    sentence = (
        "For each user and client by itself: the smallest limit that would have throttled nothing, and the one that "
        "would have delayed at most one percent, and that by at most a second."
    )
    return Section(anchor="limits", title="The smallest limits", sentences=[sentence, *notes], tables=[table])


def _rank(row: Row) -> tuple[Any, ...]:
    entity = row["quota_type"], row["entity_user"] or "", row["entity_client_id"] or ""
    return -row["recorded_throttled_requests"], -row["never_throttled"], *entity


def _cells(row: Row) -> list[str]:
    limits = [limit_text(row["quota_type"], row[name]) for name in _LIMITS]
    return [
        entity_text(row),
        QUOTA_NAMES[row["quota_type"]],
        *limits,
        count_text(row["recorded_throttled_requests"]),
    ]
