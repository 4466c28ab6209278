"""Output of a watch: a screen of the last minutes for a terminal, and lines for a pipe."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from rich.text import Text

from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import Row, compared
from tidegate.pipeline.report.names import QUOTA_NAMES, entity_parts_of, fitted, fitted_entity, name_text
from tidegate.pipeline.report.notes import replay_notes, unmatched_notes
from tidegate.pipeline.report.replay_report import replay_lines
from tidegate.pipeline.report.tables import Column, Table, table_lines
from tidegate.pipeline.report.text import (
    bytes_text,
    count_text,
    duration_text,
    things_text,
    thread_time_text,
    throttled_text,
    time_text,
)

__all__ = ["notes", "screen_lines", "update_lines"]

_WIDTH = 80
_MS_PER_S = 1000
_MS_PER_MINUTE = 60_000

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
    """Yield the screen: usage by client in the last minutes, the effect of the plans, and what is not exact.

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
    columns = _columns(_elapsed_ms(clients, last_ts_ms))
    caption = f"{until} · {last} · {things_text(events, 'event')} so far"
    yield from table_lines(Table(caption=caption, columns=columns, rows=clients[:top]), width=_WIDTH)
    if len(clients) > top:
        yield Text(f"{things_text(len(clients) - top, 'more client')}: see --top")
    yield Text()


def _columns(elapsed_ms: int) -> list[Column]:
    """Return the columns of usage in the window, of constant width, so that a screen does not move."""

    def rate(name: str) -> Callable[[Row], float]:
        return lambda row: row[name] * _MS_PER_S / elapsed_ms

    return [
        Column("client-id", "client_id", lambda name: fitted(name_text(name), 15), is_name=True, least=15),
        Column("user", "user", lambda name: fitted(name_text(name), 9), is_name=True, least=9),
        Column("requests", "requests", count_text, least=9),
        Column("throttled", throttled_text, least=9),
        Column("produced/s", rate("produce_bytes"), bytes_text, least=10),
        Column("fetched/s", rate("fetch_bytes"), bytes_text, least=10),
        Column("thread", thread_time_text, least=6),
    ]


def update_lines(
    plans: Sequence[Plan],
    *,
    entities: Sequence[Row],
    clients: Rows,
    events: int,
    last_ts_ms: int,
    top: int,
) -> Iterator[str]:
    """Yield the lines of one update: its sums, then one for each quota entity that was throttled in it."""
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
        yield f"  {things_text(len(held_back) - top, 'more entity', 'more entities')}: see --json"


def notes(plans: Sequence[Plan], entities: Sequence[Row], unmatched: Sequence[Unmatched]) -> Iterator[str]:
    """Yield which decisions are not exact or not as recorded, and the entries of plans that match no client."""
    for plan in plans:
        of_plan = [row for row in entities if row["plan"] == plan.name]
        differ = any(row["different_decisions"] for row in of_plan)
        yield from replay_notes(plan.name, of_plan, in_force=plan.is_in_force and differ)
    yield from unmatched_notes(unmatched)


def _elapsed_ms(clients: Rows, last_ts_ms: int) -> int:
    """Return the time from the first row of the window to the last, at least a second."""
    return max(_MS_PER_S, last_ts_ms - min((row["first_ts_ms"] for row in clients), default=last_ts_ms))


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
    begin = f"  {name_text(row['plan'])} {QUOTA_NAMES[row['quota_type']]} "
    return (begin + fitted_entity(named, _WIDTH + 1 - len(begin) - len(end))).rstrip() + end
