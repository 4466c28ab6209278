"""The section on client libraries: who came back before its throttle was over."""

from collections.abc import Mapping, Sequence
from typing import Any

from tidegate.pipeline.page.parts import Column, Section, Table
from tidegate.pipeline.report.obedience_report import obedience_json, obedience_notes, worst_first
from tidegate.pipeline.report.text import count_text, duration_text, name_text, percent_text

__all__ = ["obedience_section"]

Row = Mapping[str, Any]
_MOST_ROWS = 20
_NOT_KNOWN = "A request log of Apache Kafka does not say when a client came back: this cannot be known here."


def obedience_section(rows: Sequence[Row] | None) -> Section:
    """Return the section. rows: columns `OBEDIENCE_BY_SOFTWARE`; None: it cannot be known."""
    title = "Who waited as told"
    if rows is None:
        return Section(anchor="obedience", title=title, sentences=[_NOT_KNOWN])
    ordered = worst_first(rows)
    shown = [row for row in ordered if row["throttled_requests"] or row["early_requests"]][:_MOST_ROWS]
    names = ("clients", "came early", "throttled requests", "early", "of them", "by, median up to", "longest")
    table = Table(
        caption="Client libraries that were throttled",
        columns=[Column("library"), *(Column(name, True) for name in names)],
        rows=[_cells(row) for row in obedience_json(shown)],
    )
    notes = [f"{note[:1].upper()}{note[1:]}." for note in obedience_notes(ordered, shown=len(shown))]
    sentence = "How often a client of a library sent again before the time that it was told to wait was over."
    return Section(
        anchor="obedience", title=title, sentences=[sentence, *notes], tables=[table] if shown else []
    )


def _cells(row: Row) -> list[str]:
    named = f"{name_text(row['client_software'])} {name_text(row['client_software_version'])}"
    median_ms, early = row["median_early_ms"], row["early_requests"]
    return [
        named if row["client_software"] else "(does not say)",
        count_text(row["throttled_clients"]),
        count_text(row["early_clients"]),
        count_text(row["throttled_requests"]),
        count_text(early),
        percent_text(early, row["throttled_requests"]),
        "–" if median_ms is None else duration_text(median_ms),
        duration_text(row["longest_early_ms"]) if early else "–",
    ]
