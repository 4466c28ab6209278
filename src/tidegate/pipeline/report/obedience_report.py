"""Client libraries that came back too early, as a table for the terminal and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from tidegate.pipeline.report.text import count_text, duration_text, name_text, percent_text
from tidegate.pipeline.schemas import EARLY_BUCKETS

__all__ = ["obedience_json", "obedience_notes", "obedience_table", "worst_first"]

Row = Mapping[str, Any]
_LAST_MS = [*EARLY_BUCKETS.values()][-2]


def worst_first(rows: Sequence[Row]) -> list[Row]:
    """Return the rows (columns `OBEDIENCE_BY_SOFTWARE`), those first who came early most often."""
    return sorted(
        rows,
        key=lambda row: (
            -row["early_requests"],
            -row["throttled_requests"],
            row["client_software"],
            row["client_software_version"],
        ),
    )


def obedience_table(rows: Sequence[Row]) -> Table:
    """Return the table of `rows`, names folded where there is no room."""
    table = Table(
        title="who came back before the throttle was over",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    table.add_column("client library", overflow="fold")
    for name in ("clients\nearly/thr.", "throttled", "early", "", "by\nmedian", "\nlongest"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, _cells(row)))
    return table


def obedience_notes(rows: Sequence[Row], *, shown: int) -> list[str]:
    """Return what is to be said below the table of the first `shown` throttled ones of `rows`."""
    throttled = [row for row in rows if row["throttled_requests"] or row["early_requests"]]
    notes = []
    if not throttled:
        notes.append("nobody was throttled")
    elif not any(row["early_requests"] for row in throttled):
        notes.append("everybody waited as long as it was told")
    if shown < len(throttled):
        notes.append(f"{count_text(len(throttled) - shown)} more: --top, --out")
    if never := len(rows) - len(throttled):
        notes.append(f"never throttled: {count_text(never)} {'library' if never == 1 else 'libraries'}")
    return notes


def obedience_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the rows with `median_early_ms`, the limit of the bucket that it lies in, in place of the buckets."""
    return [
        {name: value for name, value in row.items() if name not in EARLY_BUCKETS}
        | {"median_early_ms": _median_early_ms(row)}
        for row in rows
    ]


def _cells(row: Row) -> list[str]:
    software, version = row["client_software"], row["client_software_version"]
    library = f"{name_text(software)}\n{name_text(version)}" if software or version else "(does not say)"
    early = row["early_requests"]
    return [
        library,
        f"{count_text(row['early_clients'])}/{count_text(row['throttled_clients'])}",
        count_text(row["throttled_requests"]),
        count_text(early),
        percent_text(early, row["throttled_requests"]),
        _median_text(_median_early_ms(row)),
        duration_text(row["longest_early_ms"]) if early else "–",
    ]


def _median_text(limit_ms: int | None) -> str:
    if limit_ms is None:
        return "–"
    return f"> {duration_text(_LAST_MS)}" if limit_ms > _LAST_MS else f"≤ {duration_text(limit_ms)}"


def _median_early_ms(row: Row) -> int | None:
    """Return the limit in ms of the bucket that the median of the early returns lies in; None where there is none."""
    left = (row["early_requests"] + 1) // 2
    for name, limit_ms in EARLY_BUCKETS.items():
        left -= row[name]
        if left <= 0 < row["early_requests"]:
            return limit_ms
    return None
