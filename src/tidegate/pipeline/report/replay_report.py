"""What a replay found, as tables for the terminal: one per plan, next to what really happened."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tidegate.pipeline.report.text import (
    bytes_text,
    count_text,
    duration_text,
    name_text,
    percent_text,
    time_text,
)
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["replay_notes", "replay_table"]

_QUOTA_NAMES = {
    QuotaType.PRODUCE.value: "produce",
    QuotaType.FETCH.value: "fetch",
    QuotaType.REQUEST.value: "request",
    QuotaType.CONTROLLER_MUTATION.value: "mutation",
}
_BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}
_COLUMNS = (
    "limit",
    "requests",
    "throttled",
    "delay",
    "longest",
    "since (UTC)",
    "delayed",
    "refused",
    "recorded",
    "delay",
    "refused",
)
_REFUSED = [place for place, name in enumerate(_COLUMNS) if name == "refused"]


def replay_table(plan: str, rows: Sequence[Mapping[str, Any]], *, top: int) -> Table:
    """Return the table of one plan: the entities that waited longest, then those that really did.

    rows: columns `REPLAY_BY_ENTITY`. From `recorded` on it is what really happened.
    """
    ordered = sorted(rows, key=_rank)
    shown = "" if len(ordered) <= top else f" (the first {top} of {count_text(len(ordered))} entities)"
    table = Table(title=f"plan {name_text(plan)}{shown}", title_justify="left", box=SIMPLE_HEAD)
    any_refused = any(row["rejected_mutations"] or row["recorded_rejected_mutations"] for row in rows)
    left_out = set() if any_refused else set(_REFUSED)
    table.add_column("quota")
    table.add_column("entity", overflow="fold")
    for place, name in enumerate(_COLUMNS):
        if place not in left_out:
            table.add_column(name, justify="right")
    for row in ordered[:top]:
        cells = [cell for place, cell in enumerate(_cells(row)) if place not in left_out]
        table.add_row(_QUOTA_NAMES[row["quota_type"]], Text(_entity(row)), *cells)
    return table


def replay_notes(plan: str, rows: Sequence[Mapping[str, Any]], *, in_force: bool) -> list[str]:
    """Return sentences on what the table of a plan does not show."""
    decisions = sum(row["requests"] for row in rows)
    different = sum(row["different_decisions"] for row in rows)
    capped = sum(row["capped_fetches"] for row in rows)
    warming_up = sum(row["warming_up_requests"] for row in rows)
    notes = []
    if in_force:
        notes.append(f"{count_text(decisions - different)} of {count_text(decisions)} decisions as recorded")
    if capped:
        notes.append(
            f"{count_text(capped)} fetches were larger than this plan allows and were replayed at its cap"
        )
    if warming_up:
        reason = (
            "before the first start, or too soon after lost events"
            if in_force
            else "too soon after lost events"
        )
        notes.append(f"{count_text(warming_up)} decisions not counted: {reason}")
    return [f"{name_text(plan)}: {note}" for note in notes]


def _rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
    entity = (row["quota_type"], row["entity_user"] or "", row["entity_client_id"] or "")
    return -row["throttle_ms"], -row["recorded_throttle_ms"], -row["requests"], *entity


def _entity(row: Mapping[str, Any]) -> str:
    """Return whose quota it is, in the words of the command line."""
    parts = (("user", row["entity_user"]), ("client-id", row["entity_client_id"]))
    return " ".join(f"{kind}={name_text(name)}" for kind, name in parts if name is not None) or "–"


def _cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of `_COLUMNS`."""
    return [
        _limit(row),
        count_text(row["requests"]),
        _throttled(row, ""),
        duration_text(row["throttle_ms"]),
        duration_text(row["longest_throttle_ms"]),
        "–" if row["first_throttled_ts_ms"] is None else time_text(row["first_throttled_ts_ms"]),
        percent_text(row["delayed_amount"], row["amount"]),
        count_text(row["rejected_mutations"]),
        _throttled(row, "recorded_"),
        duration_text(row["recorded_throttle_ms"]),
        count_text(row["recorded_rejected_mutations"]),
    ]


def _throttled(row: Mapping[str, Any], prefix: str) -> str:
    throttled = row[f"{prefix}throttled_requests"]
    return f"{count_text(throttled)} ({percent_text(throttled, row['requests'])})" if throttled else "0"


def _limit(row: Mapping[str, Any]) -> str:
    bound = row["bound"]
    if bound is None:
        return "none"
    if row["quota_type"] in _BYTE_QUOTAS:
        return f"{bytes_text(bound)}/s"
    return f"{bound:g} %" if row["quota_type"] == QuotaType.REQUEST.value else f"{bound:g}/s"
