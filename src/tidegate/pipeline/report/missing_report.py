"""Missing parts of a record, in sentences and for programs. Every job reports them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from tidegate.pipeline.manifest import MOST_LISTED
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.report.text import count_text, time_text

__all__ = ["missing_document", "missing_notes"]

_MOST = 5  # places that are told of
_COLD_START = "cold start"
_REASONS = {
    "gap": "events of node {node} were lost before {time} UTC (gap)",
    "missing rows": "rows of node {node} are missing before {time} UTC (a file is not there)",
    _COLD_START: "what was before {time} UTC on node {node} is not known (cold start)",
}


def missing_notes(missing: Sequence[Missing], *, with_cold_starts: bool) -> list[str]:
    """Return what is missing, a line for each of the first places.

    with_cold_starts: what was before the record counts too, as it does wherever rates are measured.
    """
    told = [place for place in missing if with_cold_starts or place.reason != _COLD_START]
    notes = [_note(place) for place in told[:_MOST]]
    if len(told) > _MOST:
        notes.append(f"rows are missing in {count_text(len(told) - _MOST)} more places")
    return notes


def missing_document(missing: Sequence[Missing]) -> dict[str, Any]:
    """Return what is missing as a part of a document: the first places, and how many there are."""
    listed = [asdict(place) for place in missing[:MOST_LISTED]]
    return {"missing_in_all": len(missing), "missing": listed}


def _note(place: Missing) -> str:
    note = _REASONS[place.reason].format(node=place.node_id, time=time_text(place.ts_ms))
    return note if place.lost_events is None else f"{note}: {count_text(place.lost_events)}"
