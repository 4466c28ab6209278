"""Results of a replay: a table for each quota type, with the record and the plans side by side.

`MEASURES` declares the lines of an entity, which are columns on the page.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from rich.text import Text

from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.report.compared import (
    KEY_OF_TYPE,
    Compared,
    Comparison,
    Row,
    as_recorded,
    delayed_amount,
    is_judged,
    record_of,
)
from tidegate.pipeline.report.names import BYTE_QUOTAS, QUOTA_NAMES, entity_parts_of, fitted_entity, name_text
from tidegate.pipeline.report.notes import range_text
from tidegate.pipeline.report.rounding import exact_text, limit_text
from tidegate.pipeline.report.tables import Cells, Column, side_by_side
from tidegate.pipeline.report.text import (
    NOTHING,
    bytes_text,
    count_text,
    duration_text,
    percent_text,
    size_text,
    things_text,
    time_text,
)
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["MEASURES", "bound_text", "limit_of_row", "replay_lines"]

_REQUEST = QuotaType.REQUEST.value
_NS_PER_MS = 1_000_000
_SMALLEST = {"enough": "never_throttled", "nearly": "tolerable"}
_SMALLEST_LEGEND = """\
enough: the smallest limit that throttles nothing; nearly: the smallest limit
that delays at most 1 % by at most 1 s; both with the recorded times"""
_LEVELS = {
    "default client-id": "client default",
    "default user": "user default",
    "user and client-id": "both",
    "user and default client-id": "user+default",
    "default user and client-id": "default+client",
    "default user and default client-id": "both default",
}
"""Short names of the kinds of entities."""
_NAMED_LEVELS = {"user", "client-id", "both"}
_LONGEST_LIMIT = 10  # characters of a limit as it was written; a longer one is written anew
_NOT_JUDGED = "cannot be judged"
_LEGEND = """\
delay: throttle time of all requests; longest: of one request; delayed: share
of the bytes (request quotas: of the thread time) in throttled requests;
since: time of the first throttle, UTC"""
_RANGE_LEGEND = """\
a time such as 1–2 s is a range, because the record does not show how the
client sends; see docs/closed-loop.md"""


def _is_throttled(row: Row) -> bool:
    return is_judged(row) and bool(row["throttled_requests"] or row.get("throttled_requests_high"))


def _throttled(row: Row) -> str:
    if not is_judged(row):
        return _NOT_JUDGED
    if row["throttled_requests"]:
        return percent_text(row["throttled_requests"], row["requests"])
    return "perhaps" if _is_throttled(row) else "never"


def _range(name: str) -> Callable[[Row], str | None]:
    return lambda row: range_text(row, name) if _is_throttled(row) else None


def _delayed(row: Row) -> str | None:
    delayed = delayed_amount(row) if is_judged(row) else 0
    return percent_text(delayed, row["amount"]) if delayed else None


def _date(row: Row) -> str:
    first = row["first_throttled_ts_ms"]
    return "" if first is None else time_text(first).partition(" ")[0]


MEASURES = (
    Column("throttled", _throttled),
    Column("delay", _range("throttle_ms")),
    Column("longest", _range("longest_throttle_ms")),
    Column("delayed", _delayed),
    Column("refused", lambda row: row["rejected_mutations"] or None, count_text),
    Column("since", "first_throttled_ts_ms", lambda ts_ms: time_text(ts_ms).partition(" ")[2]),
    Column("", _date),
)
"""The measures of an entity under a plan and, by `as_recorded`, in the record. Those without a value are left out."""


def replay_lines(
    plans: Sequence[Plan], found: Comparison, *, top: int, show_all: bool, width: int
) -> Iterator[Text]:
    """Yield the tables, the legend, and how many entities are hidden. found: of `compared`. width: cells of a line.

    Shown are the first `top` of the entities that were throttled in a plan or in the record, or have a limit of their
    own in a plan; of all entities if `show_all`.
    """
    of_interest = len(found) if show_all else found.of_interest
    shown = found.first(top, with_all=show_all)
    names = ["recorded", *(name_text(plan.name) for plan in plans)]
    loops = ["  loop", "", *("closed" if plan.is_closed else "open" for plan in plans)]
    with_date = len(_dates(shown)) > 1
    for quota_type, title in QUOTA_NAMES.items():
        entities = [entity for entity in shown if entity.quota_type == quota_type]
        if entities:
            totals = [found.total(quota_type, plan.name) for plan in plans]
            together = (
                []
                if found.of_type(quota_type) == 1
                else _outcomes(record_of(totals), totals, with_date=with_date)
            )
            lines: list[str | Cells] = ["all entities", *together] if len(together) > 1 else []
            for entity in entities:
                rows = [entity.rows.get(plan.name) for plan in plans]
                outcomes = _outcomes(entity.record, rows, with_date=with_date)
                lines += [_heading(entity, width=width), *_limits(plans, entity, rows), *outcomes]
            yield from side_by_side(title, names, loops, lines, width=width)
    yield from (Text(line, style="dim") for line in _legend(plans, shown))
    if of_interest > len(shown):
        yield Text(f"{count_text(of_interest - len(shown))} more: see --top")
    if len(found) > of_interest:
        others = things_text(len(found) - of_interest, "entity", "entities")
        yield Text(f"not shown: {others} with no throttling and no individual limit; see --all")


def _legend(plans: Sequence[Plan], shown: Sequence[Compared]) -> Iterator[str]:
    if any(entity.is_throttled for entity in shown):
        dates = _dates(shown)
        on = f" on {dates.pop()}" if len(dates) == 1 else ""
        yield from f"{_LEGEND}{on}".splitlines()
    rows = [row for entity in shown for row in entity.rows.values()]
    if any("–" in MEASURES[1].text(row).strip(NOTHING) for row in rows):
        yield from _RANGE_LEGEND.splitlines()
    if any("tolerable" in row for row in rows):
        yield from _SMALLEST_LEGEND.splitlines()
    if any(len(entity.rows) < len(plans) for entity in shown):
        yield "blank: the plan counts these clients together with others"


def _dates(shown: Iterable[Compared]) -> set[str]:
    """Return the dates of all first throttles that are shown."""
    rows = [row for entity in shown for row in entity.rows.values()]
    return {_date(row) for each in rows for row in (each, as_recorded(each))} - {""}


def _heading(entity: Compared, *, width: int) -> str:
    """Return the entity as options of the command line name it, and its requests and amount in the record."""
    record = entity.record
    requests = things_text(record["requests"], "request")
    amount = f"{requests}, {_amount_text(entity.quota_type, record['amount'])}"
    client_id = entity.client_id
    # The limit may be that of the empty client id.
    is_of_client_id = any("client-id" in (row["bound_of"] or "") for row in entity.rows.values())
    if client_id is None and entity.only_client == (entity.user, "") and is_of_client_id:
        client_id = ""
    parts = entity_parts_of(entity.user, client_id, entity.tags)
    whose = fitted_entity(parts, width + 1 - len(f" · {amount}")) if parts else "no entity"
    return f"{whose} · {amount}"


def _amount_text(quota_type: str, amount: int) -> str:
    if quota_type in BYTE_QUOTAS:
        return bytes_text(amount)
    if quota_type == _REQUEST:
        return f"{duration_text(amount // _NS_PER_MS)} of thread time"
    return things_text(amount, "partition")


def _limits(plans: Sequence[Plan], entity: Compared, rows: Sequence[Row | None]) -> Iterator[Cells]:
    """Yield the lines of an entity on its limits, and on requests if their numbers differ."""

    def line(label: str, text: Callable[[Row, Plan], str], recorded: str = "") -> Cells:
        cells = ("" if row is None else text(row, plan) for row, plan in zip(rows, plans, strict=True))
        return [f"  {label}", recorded, *cells]

    yield line("limit" if entity.quota_type == _REQUEST else "limit/s", limit_of_row)
    levels = {_level(row) for row in entity.rows.values()} - {NOTHING}
    if len(levels) > 1 or not levels <= _NAMED_LEVELS:
        yield line("limit of", lambda row, _: _level(row))
    for label, name in _SMALLEST.items():
        if any(row.get(name) is not None for row in entity.rows.values()):
            yield line(label, partial(_smallest_text, name=name))
    requests = entity.record["requests"]
    if len({requests, *(row["requests"] for row in entity.rows.values())} - {0}) > 1:
        yield line("requests", lambda row, _: count_text(row["requests"]), count_text(requests))


def _outcomes(record: Row, rows: Sequence[Row | None], *, with_date: bool) -> list[Cells]:
    measures = MEASURES if with_date else MEASURES[:-1]
    lines = [
        [f"  {measure.heading}", *("" if row is None else measure.text(row) for row in (record, *rows))]
        for measure in measures
    ]
    return [line for line in lines if set(line[1:]) - {"", NOTHING}]


def _level(row: Row) -> str:
    """Return the kind of entity that owns the limit, in a short form."""
    bound_of = row["bound_of"] or NOTHING
    return _LEVELS.get(bound_of, bound_of)


def limit_of_row(row: Row, plan: Plan) -> str:
    """Return a limit as it was written in the plan, or exactly if it was written at length or not at all."""
    quota_type, bound = row["quota_type"], row["bound"]
    if bound is None:
        return "changed" if row["bound_changed"] else "none"
    written = plan.limit_texts.get((KEY_OF_TYPE[quota_type], bound), "")
    if len(written) > _LONGEST_LIMIT:
        written = ""
    if written and quota_type == _REQUEST:
        return f"{written} %"
    unit = " B" if quota_type in BYTE_QUOTAS and written.isdecimal() else ""
    return f"{written}{unit}" if written else bound_text(quota_type, bound)


def bound_text(quota_type: str, bound: float) -> str:
    """Return a limit exactly, without the time that it is per."""
    if quota_type in BYTE_QUOTAS:
        return size_text(bound)
    return f"{exact_text(bound)} %" if quota_type == _REQUEST else exact_text(bound)


def _smallest_text(row: Row, _: Plan, *, name: str) -> str:
    limit = row.get(name)
    return NOTHING if limit is None else limit_text(row["quota_type"], limit)
