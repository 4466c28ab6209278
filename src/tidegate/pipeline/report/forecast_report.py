"""Notes on a forecast (closed loop), in sentences: what the table of its plan does not show."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.pipeline.report.text import (
    count_text,
    duration_range_text,
    duration_text,
    entity_parts_of,
    name_text,
)
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["forecast_notes"]

_QUOTAS = {
    QuotaType.PRODUCE.value: "produce",
    QuotaType.FETCH.value: "fetch",
    QuotaType.REQUEST.value: "request",
    QuotaType.CONTROLLER_MUTATION.value: "mutation",
}


def forecast_notes(plan: str, rows: Sequence[Mapping[str, Any]], *, is_closed: bool, top: int) -> list[str]:
    """Return in which loop the plan was replayed and, of a forecast, who waits, and how late they end.

    rows: columns `REPLAY_BY_ENTITY`. At most `top` entities, those that wait longest first.
    """
    if not is_closed:
        return [f"{name_text(plan)}: open loop, all times as recorded"]
    waiting = sorted((row for row in rows if row["waited_ms"]), key=lambda row: -row["waited_ms"])
    return [
        f"{name_text(plan)}: closed loop, a forecast: who is throttled comes later",
        *(_sentence(row) for row in waiting[:top]),
    ]


def _sentence(row: Mapping[str, Any]) -> str:
    parts = entity_parts_of(row["entity_user"], row["entity_client_id"], row["entity_tags"])
    whose = " ".join(f"{kind}={name_text(name)}" for kind, name in parts) or "all"
    later = [
        None if row.get(name) is None else max(0, row[name] - row["recorded_last_ts_ms"])
        for name in ("last_ts_ms_low", "last_ts_ms_high")
    ]
    later_ms = max(0, row["last_ts_ms"] - row["recorded_last_ts_ms"])
    lines = [
        f"  {_QUOTAS[row['quota_type']]} {whose}:",
        f"waits {duration_text(row['waited_ms'])}, {duration_text(row['longest_wait_ms'])} at most,",
        f"ends {duration_range_text(later_ms, *later)} later",
    ]
    if row["sent_again"]:
        lines[-1] += f", {count_text(row['sent_again'])} sent again"
    return " ".join(lines)
