"""What a replay found, as tables for the terminal: one per plan, next to what really happened."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tidegate.pipeline.text import bytes_text, count_text, duration_text, name_text, percent_text, time_text
from tidegate.quota.quota_type import QuotaType

__all__ = ["replay_notes", "replay_table"]

_NS_PER_MS = 1_000_000
_QUOTA_NAMES = {quota_type.value: quota_type.key for quota_type in QuotaType}
_BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}
_COLUMNS = (
    "requests",
    "used",
    "throttled",
    "delay",
    "longest",
    "first throttled (UTC)",
    "delayed",
    "refused",
    "then: throttled",
    "delay",
    "longest",
)


def replay_table(plan: str, rows: Sequence[Mapping[str, Any]], *, top: int) -> Table:
    """Return the table of one plan: the entities that waited longest, then those that used most.

    rows: columns `REPLAY_BY_ENTITY`. The last columns, after `then:`, are what was recorded.
    """
    ordered = sorted(rows, key=_rank)
    shown = "" if len(ordered) <= top else f" (the first {top} of {count_text(len(ordered))} entities)"
    table = Table(title=f"plan {name_text(plan)}{shown}", title_justify="left")
    for name in ("quota", "user", "client-id"):
        table.add_column(name)
    for name in ("limit", *_COLUMNS):
        table.add_column(name, justify="right")
    for row in ordered[:top]:
        table.add_row(*(Text(cell) for cell in _cells(row)))
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


def _cells(row: Mapping[str, Any]) -> list[str]:
    return [
        _QUOTA_NAMES[row["quota_type"]],
        name_text(row["entity_user"]),
        name_text(row["entity_client_id"]),
        _limit(row),
        count_text(row["requests"]),
        _amount(row, "amount"),
        _throttled(row, ""),
        duration_text(row["throttle_ms"]),
        duration_text(row["longest_throttle_ms"]),
        "–" if row["first_throttled_ts_ms"] is None else time_text(row["first_throttled_ts_ms"]),
        percent_text(row["delayed_amount"], row["amount"]),
        count_text(row["rejected_mutations"]),
        _throttled(row, "recorded_"),
        duration_text(row["recorded_throttle_ms"]),
        duration_text(row["recorded_longest_throttle_ms"]),
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


def _amount(row: Mapping[str, Any], column: str) -> str:
    amount = row[column]
    if row["quota_type"] in _BYTE_QUOTAS:
        return bytes_text(amount)
    return (
        duration_text(amount // _NS_PER_MS)
        if row["quota_type"] == QuotaType.REQUEST.value
        else count_text(amount)
    )
