"""Results of a replay for the terminal: a table for each quota type, the record and the plans side by side."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from rich.text import Text

from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.compared import (
    KEY_OF_TYPE,
    Compared,
    Comparison,
    Row,
    delayed_amount,
    is_judged,
    record_of,
)
from tidegate.pipeline.report.side_by_side import Block, Measure, side_by_side
from tidegate.pipeline.report.text import (
    QUOTA_NAMES,
    bytes_text,
    count_text,
    duration_range_text,
    duration_text,
    entity_parts_of,
    fitted,
    name_text,
    percent_text,
    size_text,
    things_text,
    time_text,
)
from tidegate.pipeline.rounding import exact_text, limit_text
from tidegate.quota.admin.definitions import EntityParts
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["NOT_JUDGED", "limit_of_row", "range_text", "replay_lines", "replay_notes", "unmatched_notes"]

_BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}
_REQUEST = QuotaType.REQUEST.value
_NS_PER_MS = 1_000_000
_SMALLEST = {"enough": "never_throttled", "nearly": "tolerable"}
_SMALLEST_LEGEND = """\
enough: the smallest limit that would have throttled nothing; nearly: that
delays at most 1 % of it by at most 1 s, all times as recorded"""
_LEVELS = {
    "default client-id": "client default",
    "default user": "user default",
    "user and client-id": "both",
    "user and default client-id": "user+default",
    "default user and client-id": "default+client",
    "default user and default client-id": "both default",
}
"""Kinds of entities as far as a column has room for them."""
_NAMED_LEVELS = {"user", "client-id", "both"}
_LONGEST_LIMIT = 10  # characters of a limit as it was written; a longer one is written anew
_SHORTEST_NAME = 8  # cells
_MOST_UNMATCHED = 10
_NOTHING = "–"
NOT_JUDGED = "cannot be judged"
"""Stands where a record cannot tell what a quota does."""
_LEGEND = """\
delay: throttle time of all requests; longest: of one; delayed: share of the
bytes (request: of the thread time) in throttled requests; since: first
throttle, UTC"""
_RANGE_LEGEND = """\
1–2 s: between these, as the record does not tell how the client sends, see
docs/closed-loop.md"""
_REASONS = {
    "approximate_after_gap": "events were lost before (gap)",
    "approximate_missing_rows": "rows are missing before (a file is not there)",
    "approximate_cold_start": "what was before the record is not known (cold start)",
    "approximate_capped": "of fetches that the plan would have made smaller",
    "approximate_imported": "times and sizes were estimated (imported)",
}


def replay_lines(
    plans: Sequence[Plan], found: Comparison, *, top: int, show_all: bool, width: int
) -> Iterator[Text]:
    """Yield the tables, then what they leave out. found: of `compared`. width: cells of a line.

    Shown are the first `top` of those that were throttled in some plan or in the record or have a limit of their own
    in a plan; of all if `show_all`.
    """
    of_interest = len(found) if show_all else found.of_interest
    shown = found.first(top, with_all=show_all)
    names = ["recorded", *(name_text(plan.name) for plan in plans)]
    loops = Measure("loop", ["", *("closed" if plan.is_closed else "open" for plan in plans)])
    with_date = len(_dates(shown)) > 1
    for quota_type, title in QUOTA_NAMES.items():
        entities = [entity for entity in shown if entity.quota_type == quota_type]
        if entities:
            blocks = [_block(plans, entity, width=width, with_date=with_date) for entity in entities]
            is_one = found.of_type(quota_type) == 1
            together = [] if is_one else _together(plans, found, quota_type, with_date=with_date)
            yield from side_by_side(title, names, [*together, *blocks], head=loops, width=width)
    yield from (Text(line, style="dim") for line in _legend(plans, shown))
    if of_interest > len(shown):
        yield Text(f"{count_text(of_interest - len(shown))} more, see --top")
    if len(found) > of_interest:
        count = count_text(len(found) - of_interest)
        yield Text(f"{count} never throttled and without a limit of their own, see --all")


def replay_notes(plan: str, rows: Sequence[Row], *, in_force: bool) -> list[str]:
    """Return sentences on what the table does not show of a plan."""
    decisions = sum(row["requests"] for row in rows)
    different = sum(row["different_decisions"] for row in rows)
    capped = sum(row["capped_fetches"] for row in rows)
    exact = decisions - sum(row["approximate_requests"] for row in rows)
    notes = []
    if in_force and exact:
        notes.append(f"{count_text(exact - different)} of {count_text(exact)} decisions as recorded")
    elif in_force:
        notes.append("no decision could be compared with what was recorded")
    if capped:
        notes.append(
            f"{things_text(capped, 'fetch was', 'fetches were')} larger than this plan allows and replayed at its cap"
        )
    for column, reason in _REASONS.items():
        approximate = sum(row[column] for row in rows)
        if approximate:
            decided = things_text(approximate, "decision is", "decisions are")
            notes.append(f"{decided} approximate: {reason}")
    return [f"{name_text(plan)}: {note}" for note in notes]


def unmatched_notes(unmatched: Sequence[Unmatched]) -> list[str]:
    """Return a sentence for each of the first entities of plans that are for nobody."""
    by_entity: dict[EntityParts, list[Unmatched]] = {}
    for entry in unmatched:
        by_entity.setdefault(entry.entity, []).append(entry)
    notes = [_unmatched_note(entries) for entries in islice(by_entity.values(), _MOST_UNMATCHED)]
    if len(by_entity) > len(notes):
        notes.append(f"{count_text(len(by_entity) - len(notes))} more entities match nobody")
    return notes


def _unmatched_note(entries: Sequence[Unmatched]) -> str:
    """Return the sentence on one entity of one or several plans."""
    entry, plans = entries[0], ", ".join(name_text(entry.plan) for entry in entries)
    begin = f"{plans}: {_parts_text(entry.entity)} matches nobody in the record"
    if entry.no_users:
        return (
            f"{begin}: its only user is ANONYMOUS, nobody has logged in; set quotas by client-id, "
            "or let the clients authenticate"
        )
    if entry.kind is None:
        return f"{begin}: both names are there, but never together"
    return begin if entry.nearest is None else f"{begin}; did you mean {name_text(entry.nearest)}?"


def _parts_text(entity: EntityParts) -> str:
    parts = dict(entity)
    texts = {kind: "<default>" if name is None else name_text(name) for kind, name in parts.items()}
    return " ".join(f"{kind}={texts[kind]}" for kind in ("user", "client-id") if kind in texts)


def _legend(plans: Sequence[Plan], shown: Sequence[Compared]) -> Iterator[str]:
    if any(entity.is_throttled for entity in shown):
        dates = _dates(shown)
        on = f" on {dates.pop()}" if len(dates) == 1 else ""
        yield from f"{_LEGEND}{on}".splitlines()
    rows = [row for entity in shown for row in entity.rows.values()]
    if any("–" in _delay(row, "").strip(_NOTHING) for row in rows):
        yield from _RANGE_LEGEND.splitlines()
    if any("tolerable" in row for entity in shown for row in entity.rows.values()):
        yield from _SMALLEST_LEGEND.splitlines()
    if any(len(entity.rows) < len(plans) for entity in shown):
        yield "nothing below a plan: it counts these clients together with others"


def _dates(shown: Iterable[Compared]) -> set[str]:
    """Return the dates of all first throttles that are shown."""
    rows = [row for entity in shown for row in entity.rows.values()]
    return {_date(row, prefix) for row in rows for prefix in ("", "recorded_")} - {""}


def _block(plans: Sequence[Plan], entity: Compared, *, width: int, with_date: bool) -> Block:
    rows = [entity.rows.get(plan.name) for plan in plans]
    measures = [*_limits(plans, entity, rows), *_outcomes(entity.record, rows, with_date=with_date)]
    return Block(_heading(entity, width=width), measures)


def _together(plans: Sequence[Plan], found: Comparison, quota_type: str, *, with_date: bool) -> list[Block]:
    """Return the block of all entities of a quota type; none where nobody was throttled."""
    totals = [found.total(quota_type, plan.name) for plan in plans]
    measures = list(_outcomes(record_of(totals), totals, with_date=with_date))
    return [Block("all together", measures)] if len(measures) > 1 else []


def _heading(entity: Compared, *, width: int) -> str:
    """Return whose quota it is, in the words of the command line, and what there is of it in the record."""
    record = entity.record
    requests = things_text(record["requests"], "request")
    amount = f"{requests}, {_amount_text(entity.quota_type, record['amount'])}"
    client_id = entity.client_id
    if client_id is None and entity.only_client == (entity.user, "") and _has_client_id(entity):
        client_id = ""
    parts = entity_parts_of(entity.user, client_id, entity.tags)
    if not parts:
        return f"no entity · {amount}"
    taken = len(f" · {amount}") + sum(len(f"{kind}= ") for kind, _ in parts)
    room = max(_SHORTEST_NAME, (width - taken) // len(parts))
    texts = [f"{kind}={fitted(name_text(name, longest=room), room)}" for kind, name in parts]
    return f"{' '.join(texts)} · {amount}"


def _has_client_id(entity: Compared) -> bool:
    """Return whether the limit of an entity is of a client id, be it an empty one."""
    return any("client-id" in (row["bound_of"] or "") for row in entity.rows.values())


def _amount_text(quota_type: str, amount: int) -> str:
    if quota_type in _BYTE_QUOTAS:
        return bytes_text(amount)
    if quota_type == _REQUEST:
        return f"{duration_text(amount // _NS_PER_MS)} of thread time"
    return things_text(amount, "partition")


def _limits(plans: Sequence[Plan], entity: Compared, rows: Sequence[Row | None]) -> Iterator[Measure]:
    def measure(label: str, text: Callable[[Row, Plan], str]) -> Measure:
        cells = ["" if row is None else text(row, plan) for row, plan in zip(rows, plans, strict=True)]
        return Measure(label, ["", *cells])

    yield measure("limit" if entity.quota_type == _REQUEST else "limit/s", limit_of_row)
    levels = {_level(row) for row in entity.rows.values()} - {_NOTHING}
    if len(levels) > 1 or not levels <= _NAMED_LEVELS:
        yield measure("limit of", lambda row, _: _level(row))
    for label, name in _SMALLEST.items():
        if any(row.get(name) is not None for row in entity.rows.values()):
            yield measure(label, partial(_smallest_text, name=name))
    requests = [entity.record["requests"], *(row["requests"] for row in entity.rows.values())]
    if len(set(requests) - {0}) > 1:
        line = measure("requests", lambda row, _: count_text(row["requests"]))
        yield Measure(line.label, [count_text(requests[0]), *line.cells[1:]])


def _outcomes(record: Row, rows: Sequence[Row | None], *, with_date: bool) -> Iterator[Measure]:
    for label, text in _MEASURES[: None if with_date else -1]:
        cells = [text(record, "recorded_"), *("" if row is None else text(row, "") for row in rows)]
        if set(cells) - {"", _NOTHING}:
            yield Measure(label, cells)


def _level(row: Row) -> str:
    """Return whose limit it is, as far as a column has room for it."""
    bound_of = row["bound_of"] or _NOTHING
    return _LEVELS.get(bound_of, bound_of)


def limit_of_row(row: Row, plan: Plan) -> str:
    """Return a limit as it was written in the plan; where nobody wrote it, or at length, exactly."""
    quota_type, bound = row["quota_type"], row["bound"]
    if bound is None:
        return "changed" if row["bound_changed"] else "none"
    written = plan.limit_texts.get((KEY_OF_TYPE[quota_type], bound), "")
    if len(written) > _LONGEST_LIMIT:
        written = ""
    if quota_type in _BYTE_QUOTAS:
        return (f"{written} B" if written.isdecimal() else written) or size_text(bound)
    number = written or exact_text(bound)
    return f"{number} %" if quota_type == _REQUEST else number


def _smallest_text(row: Row, _: Plan, *, name: str) -> str:
    limit = row.get(name)
    return _NOTHING if limit is None else limit_text(row["quota_type"], limit)


def _throttled(row: Row, prefix: str) -> str:
    if not prefix and not is_judged(row):
        return NOT_JUDGED
    throttled = row[f"{prefix}throttled_requests"]
    if throttled:
        return percent_text(throttled, row["requests"])
    return "perhaps" if _is_throttled(row, prefix) else "never"


def _delay(row: Row, prefix: str) -> str:
    return range_text(row, f"{prefix}throttle_ms") if _is_throttled(row, prefix) else _NOTHING


def _longest(row: Row, prefix: str) -> str:
    return range_text(row, f"{prefix}longest_throttle_ms") if _is_throttled(row, prefix) else _NOTHING


def _is_throttled(row: Row, prefix: str) -> bool:
    if not prefix and not is_judged(row):
        return False
    return bool(row[f"{prefix}throttled_requests"] or row.get(f"{prefix}throttled_requests_high"))


def range_text(row: Row, name: str) -> str:
    """Return a duration of a row of `REPLAY_BY_ENTITY`, as a range where a forecast has one."""
    return duration_range_text(row[name], row.get(f"{name}_low"), row.get(f"{name}_high"))


def _delayed(row: Row, prefix: str) -> str:
    delayed = delayed_amount(row, prefix) if prefix or is_judged(row) else 0
    return percent_text(delayed, row["amount"]) if delayed else _NOTHING


def _refused(row: Row, prefix: str) -> str:
    refused = row[f"{prefix}rejected_mutations"]
    return count_text(refused) if refused else _NOTHING


def _date(row: Row, prefix: str) -> str:
    first = row[f"{prefix}first_throttled_ts_ms"]
    return "" if first is None else time_text(first).partition(" ")[0]


def _time(row: Row, prefix: str) -> str:
    first = row[f"{prefix}first_throttled_ts_ms"]
    return _NOTHING if first is None else time_text(first).partition(" ")[2]


_MEASURES = (
    ("throttled", _throttled),
    ("delay", _delay),
    ("longest", _longest),
    ("delayed", _delayed),
    ("refused", _refused),
    ("since", _time),
    ("", _date),
)
"""Lines of an entity; one that says nothing is left out."""
