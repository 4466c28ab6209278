"""Notes below the tables: missing rows, inexact decisions, forecasts, entries of plans that match no client."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tidegate.pipeline.report.names import QUOTA_NAMES, entity_text, name_text, parts_text
from tidegate.pipeline.report.text import (
    count_text,
    duration_range_text,
    duration_text,
    things_text,
    time_text,
)
from tidegate.quota.admin.definitions import EntityParts

if TYPE_CHECKING:
    from tidegate.pipeline.read.missing import Missing
    from tidegate.pipeline.replay.unmatched import Unmatched

__all__ = [
    "callback_note",
    "forecast_notes",
    "late_notes",
    "missing_notes",
    "range_text",
    "replay_notes",
    "unmatched_notes",
]

Row = Mapping[str, Any]

_MOST_PLACES = 5  # with missing rows
_MOST_UNMATCHED = 10
_MOST_FILES = 3  # with late events
_LONGEST_SETTING = 70  # cells, of a line
_COLD_START = "cold start"
_MISSING = {
    "gap": "node {node} lost {events} before {time} UTC (gap)",
    "missing rows": "rows of node {node} are missing before {time} UTC (missing file)",
    _COLD_START: "the usage of node {node} before {time} UTC is unknown (cold start)",
}
_APPROXIMATE = {
    "approximate_after_gap": "earlier events were lost (gap)",
    "approximate_missing_rows": "earlier rows are missing (missing file)",
    "approximate_cold_start": "the usage before the record is unknown (cold start)",
    "approximate_capped": "the plan would have made these fetches smaller",
    "approximate_imported": "times and sizes are estimates (imported)",
    "approximate_cluster_wide": "other gateway processes share the limit (cluster-wide)",
}
_SUMMED = ("requests", "approximate_requests", "different_decisions", "capped_fetches", *_APPROXIMATE)


def missing_notes(missing: "Sequence[Missing]", *, with_cold_starts: bool) -> list[str]:
    """Return the missing rows, a line for each of the first places.

    with_cold_starts: include the unknown usage before the record, which matters wherever rates are measured.
    """
    shown = [place for place in missing if with_cold_starts or place.reason != _COLD_START]
    notes = [_missing_note(place) for place in shown[:_MOST_PLACES]]
    if len(shown) > _MOST_PLACES:
        notes.append(f"rows are missing in {things_text(len(shown) - _MOST_PLACES, 'more place')}")
    return notes


def _missing_note(place: "Missing") -> str:
    events = "events" if place.lost_events is None else things_text(place.lost_events, "event")
    return _MISSING[place.reason].format(node=place.node_id, time=time_text(place.ts_ms), events=events)


def replay_notes(plan: str, rows: Sequence[Row], *, in_force: bool) -> list[str]:
    """Return how many decisions of a plan match the record, and how many are not exact, and why."""
    sums = {name: sum(row[name] for row in rows) for name in _SUMMED}
    exact = sums["requests"] - sums["approximate_requests"]
    notes = []
    if in_force and exact:
        same = count_text(exact - sums["different_decisions"])
        notes.append(f"{same} of {count_text(exact)} decisions as recorded")
    elif in_force:
        notes.append("no decision can be compared with the record")
    if sums["capped_fetches"]:
        capped = things_text(sums["capped_fetches"], "fetch was", "fetches were")
        notes.append(f"{capped} larger than the plan allows; the replay uses the plan's maximum size")
    notes += [
        f"{things_text(sums[column], 'decision is', 'decisions are')} approximate: {reason}"
        for column, reason in _APPROXIMATE.items()
        if sums[column]
    ]
    return [f"{name_text(plan)}: {note}" for note in notes]


def forecast_notes(plan: str, rows: Sequence[Row], *, is_closed: bool, top: int) -> list[str]:
    """Return the loop in which a plan was replayed and, of a forecast, how long clients wait and how late they end.

    rows: columns `REPLAY_BY_ENTITY`. At most `top` entities, those with the longest waits first.
    """
    if not is_closed:
        return [f"{name_text(plan)}: open loop, all times as recorded"]
    waiting = sorted((row for row in rows if row["waited_ms"]), key=lambda row: -row["waited_ms"])
    first = f"{name_text(plan)}: closed loop, a forecast: throttled clients send later"
    return [first, *(_forecast_note(row) for row in waiting[:top])]


def _forecast_note(row: Row) -> str:
    later, low, high = (
        None if row.get(name) is None else max(0, row[name] - row["recorded_last_ts_ms"])
        for name in ("last_ts_ms", "last_ts_ms_low", "last_ts_ms_high")
    )
    again = f", {count_text(row['sent_again'])} sent again" if row["sent_again"] else ""
    return (
        f"  {QUOTA_NAMES[row['quota_type']]} {entity_text(row, otherwise='all')}: "
        f"waits {duration_text(row['waited_ms'])}, {duration_text(row['longest_wait_ms'])} at most, "
        f"ends {duration_range_text(later or 0, low, high)} later{again}"
    )


def range_text(row: Row, name: str) -> str:
    """Return a duration of a row of `REPLAY_BY_ENTITY`, as a range if a forecast has one."""
    return duration_range_text(row[name], row.get(f"{name}_low"), row.get(f"{name}_high"))


def unmatched_notes(unmatched: "Sequence[Unmatched]") -> list[str]:
    """Return a sentence for each of the first entities of plans that match no client."""
    by_entity: dict[EntityParts, list[Unmatched]] = {}
    for entry in unmatched:
        by_entity.setdefault(entry.entity, []).append(entry)
    notes = [_unmatched_note(entries) for entries in islice(by_entity.values(), _MOST_UNMATCHED)]
    if len(by_entity) > len(notes):
        notes.append(f"{count_text(len(by_entity) - len(notes))} more entities match no client")
    return notes


def _unmatched_note(entries: "Sequence[Unmatched]") -> str:
    """Return the sentence on one entity of one or several plans."""
    entry, plans = entries[0], ", ".join(name_text(entry.plan) for entry in entries)
    begin = f"{plans}: {parts_text(entry.entity)} matches no client in the record"
    if entry.no_users:
        return (
            f"{begin}: its only user is ANONYMOUS, because no client has logged in; set quotas by client-id, or "
            "configure authentication"
        )
    if entry.kind is None:
        return f"{begin}: both names exist, but never together"
    return begin if entry.nearest is None else f"{begin}; did you mean {name_text(entry.nearest)}?"


def late_notes(events: int, files: Mapping[str, int]) -> Iterator[str]:
    """Yield how many events were skipped because they arrived too late, and the first of their files.

    files: events by path.
    """
    if events:
        names = [PurePath(path).name for path in islice(files, _MOST_FILES)]
        more = f" and {things_text(len(files) - len(names), 'more file')}" if len(files) > len(names) else ""
        yield (
            f"skipped {things_text(events, 'event')} that arrived after later events of their node were counted: "
            f"{', '.join(names)}{more}; see --lateness, or count them with `tidegate usage`"
        )


def callback_note(callback: str) -> list[str]:
    """Return the lines on limits of a record with a quota callback. callback: the setting that names it."""
    return [
        f"{name_text(callback, longest=_LONGEST_SETTING)} was set.",
        "These limits follow Kafka's own rules. They are wrong for clients that the",
        "callback puts into a group or counts differently.",
    ]
