"""Sections of a report, built from what the jobs have found.

`report_sections` lists them. A new section is a new function and a new line there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.pipeline.findings import Findings
from tidegate.pipeline.history import Entity, EntityUse, History
from tidegate.pipeline.page.charts import (
    WAIT_CLASSES,
    Bar,
    Strip,
    UsedStep,
    bar_chart,
    limit_chart,
    strip_chart,
)
from tidegate.pipeline.page.limits_section import limits_section
from tidegate.pipeline.page.obedience_section import obedience_section
from tidegate.pipeline.page.parts import Chart, Column, Section, Table
from tidegate.pipeline.page.recommend_section import recommend_section
from tidegate.pipeline.replay.plan import IN_FORCE, Plan
from tidegate.pipeline.report.compared import is_judged
from tidegate.pipeline.report.forecast_report import forecast_notes
from tidegate.pipeline.report.missing_report import missing_notes
from tidegate.pipeline.report.replay_report import (
    NOT_JUDGED,
    limit_of_row,
    range_text,
    replay_notes,
    unmatched_notes,
)
from tidegate.pipeline.report.text import (
    QUOTA_NAMES,
    bytes_text,
    count_text,
    duration_text,
    entity_parts_of,
    name_text,
    percent_text,
    size_text,
    things_text,
    time_text,
)
from tidegate.pipeline.rounding import exact_text
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["report_facts", "report_sections"]

Row = Mapping[str, Any]

_NS_PER_MS = 1_000_000
_MODEL = (
    "What is said of plans is a forecast by a model of how clients wait and send again. Where the record does not "
    "tell whether a client waits for its answers, a duration is a range, such as 10–25 s (docs/closed-loop.md)."
)
_TIMES_AS_RECORDED = (
    "Plans are replayed with the times as recorded (open loop), which foretells longer waits than "
    "clients that slow down would have."
)
_LIMIT_CHARTS = 8
_BAR_ENTITIES = 8  # of the chart of plans
_PLAN_ROWS = 50
_WAITED_NAMED = 3
_STRIP_STEPS = 100
_BYTE_QUOTAS = {QuotaType.PRODUCE.value, QuotaType.FETCH.value}
_BYTE_UNITS = ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s"))
_NS_PER_PERCENT = 10_000_000  # of a second of one thread


def report_facts(found: Findings) -> list[tuple[str, str]]:
    """Return what was looked at."""
    nodes = ", ".join(map(str, found.nodes[:5])) + (" …" if len(found.nodes) > 5 else "")
    facts = [("events", count_text(found.rows)), ("clients", count_text(found.usage.groups))]
    if found.history.uses:
        facts.append(("from (UTC)", time_text(found.history.first_ms)))
        facts.append(("to (UTC)", time_text(found.history.end_ms)))
    return [*facts, ("broker" if len(found.nodes) == 1 else "brokers", nodes or "–")]


def report_sections(found: Findings) -> list[Section]:
    """Return all sections that there is something to say in, in order."""
    sections = [
        _in_words(found),
        _clients(found),
        _over_time(found.history),
        _throttles(found.history),
        _plans(found),
        limits_section(found.limits),
        recommend_section(found.recommendation, rows=found.rows),
        obedience_section(found.obedience),
        _not_exact(found),
    ]
    return [section for section in sections if section is not None]


def _in_words(found: Findings) -> Section:
    sentences = [_waited_sentence(found)]
    for name, rows in found.replayed.items():
        if name != IN_FORCE:
            sentences.append(_plan_sentence(name, rows))
    return Section(anchor="in-words", title="In words", sentences=sentences)


def _waited_sentence(found: Findings) -> str:
    waited = sorted(found.replayed.get(IN_FORCE, ()), key=lambda row: -row["recorded_throttle_ms"])
    named = [
        f"{_row_text(row)} {duration_text(row['recorded_throttle_ms'])}"
        for row in waited[:_WAITED_NAMED]
        if row["recorded_throttle_ms"]
    ]
    if not named:
        return "Nobody was throttled."
    return f"Throttled most, in all: {', '.join(named)}."


def _plan_sentence(name: str, rows: Sequence[Row]) -> str:
    unjudged = sum(not is_judged(row) for row in rows)
    rows = [row for row in rows if is_judged(row)]
    held = sorted((row for row in rows if row["throttle_ms"]), key=lambda row: -row["throttle_ms"])
    spared = sum(bool(row["recorded_throttle_ms"]) and not row["throttle_ms"] for row in rows)
    plan = f"Plan {name_text(name)}"
    freed = f" {count_text(spared)} that waited would not." if spared else ""
    if unjudged:
        quotas = things_text(unjudged, "request quota")
        freed += f" {quotas} cannot be judged: a request log does not hold all of the time."
    if not held:
        return f"{plan} would throttle nobody.{freed}"
    longest = max(held, key=lambda row: row["longest_throttle_ms"])
    return (
        f"{plan} would throttle {count_text(len(held))} of {count_text(len(rows))} entities, most of all "
        f"{_row_text(held[0])}: {range_text(held[0], 'throttle_ms')} in all. The longest single wait would be "
        f"{range_text(longest, 'longest_throttle_ms')}, of {_row_text(longest)}.{freed}"
    )


def _clients(found: Findings) -> Section:
    shown = found.usage.top
    kept_back = (
        ""
        if len(shown) == found.usage.groups
        else f" The first {len(shown)} of {count_text(found.usage.groups)}."
    )
    columns = [Column("client"), *(Column(name, True) for name in (
        "requests", "throttled", "produced", "peak/s", "fetched", "peak/s", "thread time", "mutations", "delay",
    ))]  # fmt: skip
    table = Table(
        caption="Clients with most bytes", columns=columns, rows=[_client_cells(row) for row in shown]
    )
    bars = [
        Bar(
            text=f"{bytes_text(row['produce_bytes'] + row['fetch_bytes'])} · {_client_text(row)}",
            value=float(row["produce_bytes"] + row["fetch_bytes"]),
            colour="used",
        )
        for row in shown[:10]
    ]
    chart = Chart(
        title="Bytes by client",
        description="Produced and fetched, the ten with most.",
        spec=bar_chart(bars),
        table=table,
        is_open=True,
    )
    return Section(
        anchor="clients",
        title="Who used what",
        sentences=[
            f"By user and client id, those with most bytes.{kept_back} A peak is the largest rate on one broker, "
            "as a quota measures it."
        ],
        charts=[chart] if bars else [],
    )


def _client_cells(row: Row) -> list[str]:
    throttle_ms = sum(row[f"{kind}_throttle_ms"] for kind in ("produce", "fetch", "request", "mutation"))
    return [
        _client_text(row),
        count_text(row["requests"]),
        percent_text(row["throttled_requests"], row["requests"]) if row["throttled_requests"] else "never",
        bytes_text(row["produce_bytes"]),
        bytes_text(row["peak_produce_bytes_per_second"]),
        bytes_text(row["fetch_bytes"]),
        bytes_text(row["peak_fetch_bytes_per_second"]),
        duration_text((row["handler_ns"] + row["network_ns"]) // _NS_PER_MS),
        count_text(row["mutations"]),
        duration_text(throttle_ms) if throttle_ms else "–",
    ]


def _over_time(history: History) -> Section | None:
    shown = [use for use in history.uses if use.amounts][:_LIMIT_CHARTS]
    if not shown:
        return None
    return Section(
        anchor="over-time",
        title="Usage over time, and the limit in force",
        sentences=[
            f"Averages of {duration_text(history.step_ms)} each, on the broker where the entity used most: "
            "limits hold for each broker by itself. Kafka measures over ten seconds or so, and lets more pass at once."
        ],
        charts=[_limit_chart(use, history) for use in shown],
    )


def _limit_chart(use: EntityUse, history: History) -> Chart:
    largest = max(use.peaks.values())
    divisor, unit = _unit(use.entity.quota_type, largest)
    per_second = history.step_ms / 1000 * divisor
    starts = range(history.first_ms, history.end_ms, history.step_ms)
    limits = _limits_at_end(use.limits, starts, history.step_ms)
    steps = [
        UsedStep(
            start_ms=start,
            rate=use.amounts.get(start, 0) / per_second,
            peak=use.peaks.get(start, 0) / divisor,
            limit=None if limit is None else limit / _limit_divisor(use.entity.quota_type, divisor),
        )
        for start, limit in zip(starts, limits, strict=True)
    ]
    bounds = [bound for bound in dict.fromkeys(limits) if bound is not None]
    limit_text = "no limit" if not bounds else f"limit {_limit_text(use.entity.quota_type, bounds[-1])}"
    if len(bounds) > 1:
        limit_text = f"{limit_text}, changed"
    peak_text = "" if history.step_ms == 1000 else " Line: the busiest second of each step."
    limit_line = " Dashes: the limit." if bounds else ""
    return Chart(
        title=_entity_text(use.entity),
        description=f"Node {use.node_id}, {limit_text}.{peak_text}{limit_line}",
        spec=limit_chart(steps, step_ms=history.step_ms, unit=unit, limit_text=limit_text),
        table=Table(
            caption=f"{_entity_text(use.entity)}, in {unit}",
            columns=[
                Column("from (UTC)"),
                Column("used", True),
                Column("busiest second", True),
                Column("limit", True),
            ],
            rows=[
                [
                    time_text(step.start_ms),
                    f"{step.rate:.4g}",
                    f"{step.peak:.4g}",
                    "–" if step.limit is None else f"{step.limit:.4g}",
                ]
                for step in steps
            ],
        ),
    )


def _limits_at_end(
    limits: Sequence[tuple[int, float | None]], starts: Iterable[int], step_ms: int
) -> list[float | None]:
    """Return the limit at the end of each step."""
    found: list[float | None] = []
    left = list(limits)
    bound = None
    for start in starts:
        while left and left[0][0] < start + step_ms:
            bound = left.pop(0)[1]
        found.append(bound)
    return found


def _unit(quota_type: str, largest: float) -> tuple[float, str]:
    """Return what the amounts of a second are divided by, and the unit that gives."""
    if quota_type in _BYTE_QUOTAS:
        return next((float(size), unit) for size, unit in _BYTE_UNITS if largest >= size or size == 1)
    if quota_type == QuotaType.REQUEST.value:
        return float(_NS_PER_PERCENT), "% of a thread"
    return 1.0, "mutations/s"


def _limit_divisor(quota_type: str, divisor: float) -> float:
    return 1.0 if quota_type == QuotaType.REQUEST.value else divisor  # it is in percent as it is


def _throttles(history: History) -> Section | None:
    """The heat map: who waited when."""
    throttled = [use for use in history.uses if any(use.throttle_ms.values())]
    if not throttled:
        return None
    step_ms = history.step_ms * -(-(history.end_ms - history.first_ms) // (history.step_ms * _STRIP_STEPS))
    merged = [_merged(use.throttle_ms, history.first_ms, step_ms) for use in throttled]
    strips = [
        Strip(
            name=f"{duration_text(sum(use.throttle_ms.values()))} · {_entity_text(use.entity)}",
            waits={start: ms / step_ms for start, ms in waits.items()},
        )
        for use, waits in zip(throttled, merged, strict=True)
    ]
    levels = [f"to {limit:g}" for limit in WAIT_CLASSES] + ["more"]
    chart = Chart(
        title="Throttle time handed out",
        description=(
            f"In steps of {duration_text(step_ms)}; the higher and stronger, the more seconds of throttle a second: "
            f"{', '.join(levels)}."
        ),
        spec=strip_chart(
            strips,
            first_ms=history.first_ms,
            end_ms=max(history.end_ms, history.first_ms + step_ms),
            step_ms=step_ms,
        ),
        table=Table(
            caption="Throttle time by entity and step",
            columns=[Column("entity"), Column("from (UTC)"), Column("throttle", True)],
            rows=[
                [_entity_text(use.entity), time_text(start), duration_text(ms)]
                for use, waits in zip(throttled, merged, strict=True)
                for start, ms in sorted(waits.items())
                if ms
            ],
        ),
    )
    return Section(
        anchor="throttles",
        title="Who was throttled when",
        sentences=[
            "A throttle counts whole where it was handed out. A second of it each second: somebody waited all the time."
        ],
        charts=[chart],
    )


def _merged(throttle_ms: Mapping[int, int], first_ms: int, step_ms: int) -> dict[int, int]:
    merged: dict[int, int] = {}
    for start, ms in throttle_ms.items():
        at = first_ms + (start - first_ms) // step_ms * step_ms
        merged[at] = merged.get(at, 0) + ms
    return merged


def _plans(found: Findings) -> Section | None:
    plans = {name: rows for name, rows in found.replayed.items() if name != IN_FORCE}
    if not plans:
        return None
    tables = [_plan_table(found.plans[name], rows) for name, rows in plans.items()]
    bars = list(_plan_bars(plans))
    chart = Chart(
        title="Throttle time, recorded and under each plan",
        description="Of all requests together; those for whom it is longest.",
        spec=bar_chart(bars),
        table=tables[0],
        is_open=True,
    )
    return Section(
        anchor="plans",
        title="What other quotas would have done",
        sentences=_plan_notes(plans, found),
        charts=[chart] if bars else [],
        tables=tables[1:] if bars else tables,
    )


def _plan_notes(plans: Mapping[str, Sequence[Row]], found: Findings) -> list[str]:
    """Return how the plans were replayed, who would wait, and which entries are for nobody."""
    notes = [
        note.strip()
        for name, rows in plans.items()
        for note in forecast_notes(name, rows, is_closed=found.is_forecast, top=_WAITED_NAMED)
    ]
    return [*notes, *unmatched_notes(found.unmatched)]


def _plan_bars(plans: Mapping[str, Sequence[Row]]) -> Iterator[Bar]:
    by_entity: dict[tuple[Any, ...], dict[str, Row]] = {}
    for name, rows in plans.items():
        for row in rows:
            if row["throttle_ms"] or row["recorded_throttle_ms"]:
                key = (row["quota_type"], row["entity_user"], row["entity_client_id"], row["entity_tags"])
                by_entity.setdefault(key, {})[name] = row
    ordered = sorted(
        by_entity.values(),
        key=lambda rows: -max(max(row["throttle_ms"], row["recorded_throttle_ms"]) for row in rows.values()),
    )
    for by_plan in ordered[:_BAR_ENTITIES]:
        first = next(iter(by_plan.values()))
        yield _plan_bar("recorded", first, "recorded_", heading=_row_text(first))
        for name, row in by_plan.items():
            if is_judged(row):
                yield _plan_bar(name_text(name), row, "")


def _plan_bar(name: str, row: Row, prefix: str, *, heading: str | None = None) -> Bar:
    throttle_ms, throttled = row[f"{prefix}throttle_ms"], row[f"{prefix}throttled_requests"]
    requests = things_text(throttled, "request")
    return Bar(
        text=f"{name}: {range_text(row, f'{prefix}throttle_ms')}, {requests}",
        value=float(throttle_ms),
        colour="was" if prefix else "plan",
        heading=heading,
    )


def _plan_table(plan: Plan, rows: Sequence[Row]) -> Table:
    ordered = sorted(
        rows, key=lambda row: (-row["throttle_ms"], -row["recorded_throttle_ms"], -row["requests"])
    )
    any_refused = any(row["rejected_mutations"] or row["recorded_rejected_mutations"] for row in rows)
    came_of_it = ["throttled", "delay", "longest", *(["refused"] if any_refused else [])]
    numbers = ["limit", "requests", *came_of_it, *(f"recorded {number}" for number in came_of_it)]
    shown = (
        ""
        if len(ordered) <= _PLAN_ROWS
        else f", the first {_PLAN_ROWS} of {count_text(len(ordered))} entities"
    )
    return Table(
        caption=f"Plan {name_text(plan.name)}{shown}",
        columns=[Column("entity"), *(Column(number, True) for number in numbers)],
        rows=[
            [
                _row_text(row),
                _limit_of(row, plan),
                count_text(row["requests"]),
                *_came_of_it(row, "")[: len(came_of_it)],
                *_came_of_it(row, "recorded_")[: len(came_of_it)],
            ]
            for row in ordered[:_PLAN_ROWS]
        ],
    )


def _limit_of(row: Row, plan: Plan) -> str:
    """Return what limited, as it was written, and by a quota of what kind of entity."""
    limit = limit_of_row(row, plan)
    if row["bound"] is None:
        return limit
    limit += "" if row["quota_type"] == QuotaType.REQUEST.value else "/s"
    return limit if row["bound_of"] is None else f"{limit} ({row['bound_of']})"


def _came_of_it(row: Row, prefix: str) -> list[str]:
    if not prefix and not is_judged(row):
        return [NOT_JUDGED, "–", "–", "–"]
    return [
        count_text(row[f"{prefix}throttled_requests"]),
        range_text(row, f"{prefix}throttle_ms"),
        range_text(row, f"{prefix}longest_throttle_ms"),
        count_text(row[f"{prefix}rejected_mutations"]),
    ]


def _not_exact(found: Findings) -> Section:
    notes = [
        note
        for name, rows in found.replayed.items()
        for note in replay_notes(name, rows, in_force=name == IN_FORCE)
    ]
    if found.callback is not None:
        notes.append(
            f"{name_text(found.callback)} was set: limits over time are not shown, and usage is by client id."
        )
    notes += [f"{note[0].upper()}{note[1:]}." for note in missing_notes(found.missing, with_cold_starts=True)]
    if any(name != IN_FORCE for name in found.replayed):
        notes.append(_MODEL if found.is_forecast else _TIMES_AS_RECORDED)
    return Section(
        anchor="not-exact",
        title="What is not exact",
        sentences=notes or ["Nothing that this record tells of."],
    )


def _entity_text(entity: Entity) -> str:
    return _named(entity.quota_type, entity.user, entity.client_id)


def _row_text(row: Row) -> str:
    return _named(row["quota_type"], row["entity_user"], row["entity_client_id"], row["entity_tags"])


def _named(quota_type: str, user: str | None, client_id: str | None, tags: str | None = None) -> str:
    """Return whose quota it is, in the words of the command line, and of what."""
    parts = [f"{kind}={name_text(name)}" for kind, name in entity_parts_of(user, client_id, tags)]
    return f"{' '.join(parts) or 'clients without an id'} ({QUOTA_NAMES[quota_type]})"


def _client_text(row: Row) -> str:
    return f"{name_text(row['user'])} / {name_text(row['client_id'])}"


def _limit_text(quota_type: str, bound: float) -> str:
    if quota_type in _BYTE_QUOTAS:
        return f"{size_text(bound)}/s"
    return f"{exact_text(bound)} %" if quota_type == QuotaType.REQUEST.value else f"{exact_text(bound)}/s"
