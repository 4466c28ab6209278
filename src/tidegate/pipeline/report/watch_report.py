"""Output of a watch: a screen of the last minutes for a terminal, lines for a pipe, documents for programs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any

from rich.text import Text

from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import Row, compared
from tidegate.pipeline.report.documents import replay_document
from tidegate.pipeline.report.replay_report import (
    replay_lines,
    replay_notes,
    unmatched_notes,
)
from tidegate.pipeline.report.text import (
    QUOTA_NAMES,
    bytes_text,
    count_text,
    duration_text,
    entity_parts_of,
    fitted,
    name_text,
    percent_text,
    things_text,
    time_text,
)

__all__ = ["late_notes", "notes", "screen_lines", "update_lines", "watch_document"]

_WIDTH = 80
_NS_PER_MS = 1_000_000
_MS_PER_S = 1000
_MS_PER_MINUTE = 60_000
_CLIENT_CELLS, _USER_CELLS = 18, 10
_HEADER = ("client-id", "user", "requests", "throttled", "produced/s", "fetched/s", "thread")
_CELLS = (_CLIENT_CELLS, _USER_CELLS, 9, 9, 10, 10, 8)
_SHORTEST = 8  # cells of a name
_NAMED_FILES = 3  # with late events, in a note
_MORE = "further entities, see --json"

Rows = Sequence[Mapping[str, Any]]


def screen_lines(
    plans: Sequence[Plan],
    *,
    window: tuple[Rows, Sequence[Row]],
    in_all: Sequence[Row],
    unmatched: Sequence[Unmatched],
    late: Iterable[str],
    window_ms: int,
    last_ts_ms: int,
    events: int,
    top: int,
    show_all: bool,
    width: int,
) -> Iterator[Text]:
    """Yield the screen: who used what in the last minutes, what the plans make of it, and what is not exact.

    window: usage by client, and rows of `REPLAY_BY_ENTITY`, of the last minutes; in_all: of all rows so far.
    late: notes about rows that arrived too late.
    """
    clients, entities = window
    of_plans = replay_lines(plans, compared(plans, entities), top=top, show_all=show_all, width=width)
    for line in (
        *_usage_lines(clients, window_ms=window_ms, last_ts_ms=last_ts_ms, events=events, top=top),
        *of_plans,
    ):
        line.no_wrap, line.overflow = True, "ignore"
        yield line
    for note in (*notes(plans, in_all, unmatched), *late):
        yield Text(note, style="dim")


def _usage_lines(clients: Rows, *, window_ms: int, last_ts_ms: int, events: int, top: int) -> Iterator[Text]:
    last = f"last {window_ms // _MS_PER_MINUTE} min" if window_ms > _MS_PER_MINUTE else "last minute"
    until = f"{time_text(last_ts_ms)} UTC" if events else "no rows"
    yield Text(f"{until} · {last} · {things_text(events, 'event')} so far", style="italic")
    yield Text()
    yield _line(_HEADER, style="bold")
    elapsed_ms = _elapsed_ms(clients, last_ts_ms)
    for row in clients[:top]:
        yield _line(_cells(row, elapsed_ms))
    if len(clients) > top:
        yield Text(f"{things_text(len(clients) - top, 'more client')}, see --top")
    yield Text()


def update_lines(
    plans: Sequence[Plan],
    *,
    entities: Sequence[Row],
    clients: Rows,
    events: int,
    last_ts_ms: int,
    top: int,
) -> Iterator[str]:
    """Yield what came of the rows of one update: a line for it, and one for each quota that throttled in it."""
    requests, produced, fetched = (
        sum(row[name] for row in clients) for name in ("requests", "produce_bytes", "fetch_bytes")
    )
    yield (
        f"{time_text(last_ts_ms)}  {things_text(events, 'event')}: {things_text(requests, 'request')}, "
        f"{bytes_text(produced)} produced, {bytes_text(fetched)} fetched"
    )
    order = {plan.name: place for place, plan in enumerate(plans)}
    held_back = [row for row in entities if row["throttled_requests"] or row["rejected_mutations"]]
    held_back.sort(key=lambda row: (order[row["plan"]], -row["throttle_ms"], -row["rejected_mutations"]))
    yield from (_throttled_line(row) for row in islice(held_back, top))
    if len(held_back) > top:
        yield f"  {count_text(len(held_back) - top)} {_MORE}"


def watch_document(
    plans: Sequence[Plan],
    *,
    parts: Mapping[str, tuple[Rows, Sequence[Row]]],
    unmatched: Sequence[Unmatched],
    top: int,
    **facts: Any,
) -> dict[str, Any]:
    """Return one update as a document. parts: usage by client and entities, by name; facts: stand as they are."""
    begin = {"format": 1, "command": "watch", **facts}
    documents = {}
    for name, (clients, entities) in parts.items():
        found = compared(plans, entities)
        document = replay_document(plans, found, top=top, unmatched=unmatched, events=0, out=None)
        documents[name] = {
            "groups_in_all": len(clients),
            "groups": list(clients[:top]),
            "entities_in_all": document["entities_in_all"],
            "entities": document["entities"],
        }
        begin["plans"], begin["unmatched"] = document["plans"], document["unmatched"]
    return begin | documents


def notes(plans: Sequence[Plan], entities: Sequence[Row], unmatched: Sequence[Unmatched]) -> Iterator[str]:
    """Yield what is not exact and why, what is not as recorded, and the entries of plans that match nobody."""
    for plan in plans:
        of_plan = [row for row in entities if row["plan"] == plan.name]
        differ = any(row["different_decisions"] for row in of_plan)
        yield from replay_notes(plan.name, of_plan, in_force=plan.is_in_force and differ)
    yield from unmatched_notes(unmatched)


def late_notes(events: int, files: Mapping[str, int]) -> Iterator[str]:
    """Yield what was left out because it arrived too late, and in which files it lies. files: events by path."""
    if events:
        names = [PurePath(path).name for path in islice(files, _NAMED_FILES)]
        more = f" and {things_text(len(files) - len(names), 'more file')}" if len(files) > len(names) else ""
        yield (
            f"left out {things_text(events, 'event')} that arrived after later ones of their node had been counted: "
            f"{', '.join(names)}{more}; see --lateness, or count them with `tidegate usage`"
        )


def _elapsed_ms(clients: Rows, last_ts_ms: int) -> int:
    """Return how long the rows of the window go back, a second at least."""
    return max(_MS_PER_S, last_ts_ms - min((row["first_ts_ms"] for row in clients), default=last_ts_ms))


def _cells(row: Mapping[str, Any], elapsed_ms: int) -> tuple[str, ...]:
    throttled = row["throttled_requests"]
    return (
        fitted(name_text(row["client_id"]), _CLIENT_CELLS),
        fitted(name_text(row["user"]), _USER_CELLS),
        count_text(row["requests"]),
        percent_text(throttled, row["requests"]) if throttled else "never",
        bytes_text(row["produce_bytes"] * _MS_PER_S / elapsed_ms),
        bytes_text(row["fetch_bytes"] * _MS_PER_S / elapsed_ms),
        duration_text((row["handler_ns"] + row["network_ns"]) // _NS_PER_MS),
    )


def _line(cells: Sequence[str], *, style: str = "") -> Text:
    line = Text(style=style)
    for place, (cell, width) in enumerate(zip(cells, _CELLS, strict=True)):
        text = Text(cell)
        text.align("left" if place < 2 else "right", width)
        line.append_text(text).append(" " if place < len(_CELLS) - 1 else "")
    return line


def _throttled_line(row: Row) -> str:
    rejected, throttled = row["rejected_mutations"], row["throttled_requests"]
    found = []
    if throttled:
        of_all = f"{count_text(throttled)} of {count_text(row['requests'])}"
        found.append(f"{of_all} throttled, {duration_text(row['throttle_ms'])}")
    if rejected:
        found.append(f"{things_text(rejected, 'partition')} refused")
    end = ": " + ", ".join(found)
    named = entity_parts_of(row["entity_user"], row["entity_client_id"], row["entity_tags"])
    begin = f"  {name_text(row['plan'])} {QUOTA_NAMES[row['quota_type']]}"
    room = _WIDTH - len(begin) - len(end) - sum(len(f" {kind}=") for kind, _ in named)
    cells = max(_SHORTEST, room // max(1, len(named)))
    return begin + "".join(f" {kind}={fitted(name_text(name), cells)}" for kind, name in named) + end
