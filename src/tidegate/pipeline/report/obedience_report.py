"""Client libraries that sent requests before their throttle time was over: table, notes and JSON."""

from collections.abc import Sequence
from typing import Any

from tidegate.pipeline.report.names import name_text
from tidegate.pipeline.report.tables import Column, Row, Table
from tidegate.pipeline.report.text import count_text, duration_text, percent_text, things_text
from tidegate.pipeline.schemas import EARLY_BUCKETS

__all__ = ["obedience_json", "obedience_notes", "obedience_table", "was_throttled", "worst_first"]

_LAST_MS = [*EARLY_BUCKETS.values()][-2]


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows (columns `OBEDIENCE_BY_SOFTWARE`), those with most early requests first."""
    return sorted(
        rows,
        key=lambda row: (
            -row["early_requests"],
            -row["throttled_requests"],
            row["client_software"],
            row["client_software_version"],
        ),
    )


def was_throttled(row: Row) -> bool:
    """Return whether clients of a library were throttled: only those can send too early."""
    return bool(row["throttled_requests"] or row["early_requests"])


def obedience_table(rows: Sequence[Row]) -> Table:
    """Return the table of `rows`, columns `OBEDIENCE_BY_SOFTWARE`."""
    columns = [
        Column("client library", _library_text, is_name=True),
        Column(
            "clients\nearly/thr.",
            lambda row: f"{count_text(row['early_clients'])}/{count_text(row['throttled_clients'])}",
        ),
        Column("throttled", "throttled_requests", count_text),
        Column("early", "early_requests", count_text),
        Column("early\nshare", lambda row: percent_text(row["early_requests"], row["throttled_requests"])),
        Column("early by\nmedian", _median_early_ms, _median_text),
        Column(
            "early by\nlongest",
            lambda row: row["longest_early_ms"] if row["early_requests"] else None,
            duration_text,
        ),
    ]
    return Table(caption="requests sent before the throttle time was over", columns=columns, rows=rows)


def obedience_notes(rows: Sequence[Row], *, shown: int) -> list[str]:
    """Return the notes below the table of the first `shown` throttled ones of `rows`."""
    throttled = [row for row in rows if was_throttled(row)]
    notes = []
    if not throttled:
        notes.append("no client was throttled")
    elif not any(row["early_requests"] for row in throttled):
        notes.append("every client waited for its throttle time")
    if shown < len(throttled):
        notes.append(f"{count_text(len(throttled) - shown)} more: see --top")
    if never := len(rows) - len(throttled):
        notes.append(f"never throttled: {things_text(never, 'library', 'libraries')}")
    return notes


def obedience_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows with `median_early_ms`, the limit of the bucket of the median, in place of the buckets."""
    return [
        {name: value for name, value in row.items() if name not in EARLY_BUCKETS}
        | {"median_early_ms": _median_early_ms(row)}
        for row in rows
    ]


def _library_text(row: Row) -> str:
    software, version = row["client_software"], row["client_software_version"]
    return f"{name_text(software)}\n{name_text(version)}" if software or version else "(unknown)"


def _median_text(limit_ms: int) -> str:
    return f"> {duration_text(_LAST_MS)}" if limit_ms > _LAST_MS else f"≤ {duration_text(limit_ms)}"


def _median_early_ms(row: Row) -> int | None:
    """Return the limit in ms of the bucket of the median early request; None without early requests."""
    left = (row["early_requests"] + 1) // 2
    for name, limit_ms in EARLY_BUCKETS.items():
        left -= row[name]
        if left <= 0 < row["early_requests"]:
            return limit_ms
    return None
