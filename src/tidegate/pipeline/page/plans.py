"""The sections on plans: what they would throttle, of a few entities and in all.

A record may have a million entities. They stay columns: only those that are shown become rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tidegate.pipeline.page.charts import Bar, bar_chart
from tidegate.pipeline.page.findings import Findings
from tidegate.pipeline.page.html import Chart, Section
from tidegate.pipeline.page.over_time import per_second
from tidegate.pipeline.replay.plan import IN_FORCE, Plan
from tidegate.pipeline.report.compared import as_recorded, is_judged, judged_rows
from tidegate.pipeline.report.names import name_text, quota_text
from tidegate.pipeline.report.notes import forecast_notes, range_text, unmatched_notes
from tidegate.pipeline.report.replay_report import MEASURES, limit_of_row
from tidegate.pipeline.report.tables import Column, Row, Table
from tidegate.pipeline.report.text import NOTHING, count_text, duration_text, things_text
from tidegate.pipeline.results.table_rows import TableRows

__all__ = ["MOST_NAMED", "plan_limits", "plan_sentence", "plans_section"]

MOST_NAMED = 3
"""The largest number of entities that a sentence names."""

_BAR_ENTITIES, _PLAN_ROWS = 8, 50
_THROTTLES = ("throttle_ms", "recorded_throttle_ms")
_ENTITY = ("quota_type", "entity_user", "entity_client_id", "entity_tags")
_WITHOUT_TAGS = _ENTITY[:3]


def plan_sentence(name: str, rows: TableRows) -> str:
    """Return how much a plan throttles, and how many throttled entities it spares.

    rows: columns `REPLAY_BY_ENTITY`.
    """
    judged = judged_rows(rows)
    is_held = judged.numbers("throttle_ms") > 0
    spared = np.count_nonzero(~is_held & (judged.numbers("recorded_throttle_ms") > 0))
    plan = f"Plan {name_text(name)}"
    end = ""
    if spared:
        entities = things_text(int(spared), "entity", "entities")
        end += f" It does not throttle {entities} that the record shows as throttled."
    if len(judged) < len(rows):
        quotas = things_text(len(rows) - len(judged), "request quota")
        end += f" {quotas} cannot be judged, because a request log contains only a part of the request time."
    if not is_held.any():
        return f"{plan} throttles no client.{end}"
    held = judged.only(is_held)
    (most,) = held.largest("throttle_ms", top=1)
    (longest,) = held.first([-held.numbers(name) for name in ("longest_throttle_ms", "throttle_ms")], top=1)
    return (
        f"{plan} throttles {count_text(len(held))} of {things_text(len(judged), 'entity', 'entities')}. The longest "
        f"total throttle time is {range_text(most, 'throttle_ms')}, of {quota_text(most)}. The longest single "
        f"wait is {range_text(longest, 'longest_throttle_ms')}, of {quota_text(longest)}.{end}"
    )


def plan_limits(found: Findings) -> dict[tuple[str, str | None, str | None], list[tuple[str, float]]]:
    """Return the limits that the plans set for the entities with a history, as `over_time.PlanLimits`."""
    shown = [(use.entity.quota_type, use.entity.user, use.entity.client_id) for use in found.history.uses]
    limits: dict[tuple[str, str | None, str | None], list[tuple[str, float]]] = {}
    for name, rows in _plans(found).items():
        of_shown = rows.of_entities(shown, _WITHOUT_TAGS).table
        for row in of_shown.group_by([*_WITHOUT_TAGS, "bound"], use_threads=False).aggregate([]).to_pylist():
            if row["bound"] is not None and math.isfinite(row["bound"]):
                entity = row["quota_type"], row["entity_user"], row["entity_client_id"]
                limits.setdefault(entity, []).append((name_text(name), row["bound"]))
    return limits


def plans_section(found: Findings) -> Section | None:
    """Return the section with the effect of each plan; None without plans."""
    plans = _plans(found)
    if not plans:
        return None
    tops = {name: _foremost(rows) for name, rows in plans.items()}
    tables = [_plan_table(found.plans[name], top, of=len(plans[name])) for name, top in tops.items()]
    bars = list(_plan_bars(plans))
    chart = Chart(
        title="Throttle time, recorded and under each plan",
        description="Sums over all requests, for the entities with the longest throttle times.",
        spec=bar_chart(bars),
        table=tables[0],
        is_open=True,
    )
    notes = [
        note.strip()
        for name, rows in plans.items()
        for note in [
            *_notes_of_others(name, rows, tops[name]),
            *forecast_notes(
                name,
                rows.largest("waited_ms", top=MOST_NAMED),
                is_closed=found.is_forecast,
                top=MOST_NAMED,
            ),
        ]
    ]
    return Section(
        anchor="plans",
        title="Effect of other quotas",
        sentences=[*notes, *unmatched_notes(found.unmatched)],
        charts=[chart] if bars else [],
        tables=tables[1:] if bars else tables,
    )


def _plans(found: Findings) -> dict[str, TableRows]:
    return {name: rows for name, rows in found.replayed.items() if name != IN_FORCE}


def _foremost(rows: TableRows) -> list[dict[str, Any]]:
    """Return the rows that the table of a plan shows, longest throttle time first."""
    return rows.first([-rows.numbers(name) for name in (*_THROTTLES, "requests")], top=_PLAN_ROWS)


def _notes_of_others(name: str, rows: TableRows, shown: Sequence[Row]) -> Iterator[str]:
    """Yield the sums of the entities that the table of a plan does not show."""
    if len(rows) > len(shown):
        in_all = rows.sums()
        requests, throttle_ms, recorded_ms = (
            in_all[column] - sum(row[column] for row in shown) for column in ("requests", *_THROTTLES)
        )
        yield (
            f"{name_text(name)}: {things_text(len(rows) - len(shown), 'more entity', 'more entities')}, not shown: "
            f"{things_text(requests, 'request')}, {duration_text(throttle_ms)} of throttle time, "
            f"{duration_text(recorded_ms)} when recorded"
        )


def _plan_bars(plans: Mapping[str, TableRows]) -> Iterator[Bar]:
    wanted: dict[tuple[Any, ...], dict[str, Row]] = {}
    for rows in plans.values():
        longest = np.maximum(*(rows.numbers(name) for name in _THROTTLES))
        throttled = rows.only(longest > 0)
        wanted |= {_entity(row): {} for row in throttled.first([-longest[longest > 0]], top=_BAR_ENTITIES)}
    for name, rows in plans.items():
        for row in rows.of_entities(wanted, _ENTITY):
            if any(row[column] for column in _THROTTLES):
                wanted[_entity(row)][name] = row
    ordered = sorted(
        wanted.values(),
        key=lambda rows: -max(max(row[name] for name in _THROTTLES) for row in rows.values()),
    )
    for by_plan in ordered[:_BAR_ENTITIES]:
        first = next(iter(by_plan.values()))
        yield _plan_bar("recorded", as_recorded(first), colour="was", heading=quota_text(first))
        yield from (
            _plan_bar(name_text(name), row, colour="plan") for name, row in by_plan.items() if is_judged(row)
        )


def _plan_bar(name: str, row: Row, *, colour: str, heading: str | None = None) -> Bar:
    requests = things_text(row["throttled_requests"], "request")
    text = f"{name}: {range_text(row, 'throttle_ms')}, {requests}"
    return Bar(text=text, value=float(row["throttle_ms"]), colour=colour, heading=heading)


def _entity(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _ENTITY)


def _plan_table(plan: Plan, shown: Sequence[Row], *, of: int) -> Table:
    """Return the table of a plan. of: how many entities the plan has."""
    cut = "" if len(shown) == of else f", {len(shown)} of {count_text(of)} entities"
    measures = MEASURES[:-2]
    recorded = [Column(f"recorded {measure.heading}", as_recorded, measure.text) for measure in measures]
    columns = [
        Column("entity", quota_text, is_name=True),
        Column("limit", lambda row: _limit_and_owner(row, plan)),
        Column("requests", "requests", count_text),
        *(column for column in (*measures, *recorded) if any(column.text(row) != NOTHING for row in shown)),
    ]
    return Table(caption=f"Plan {name_text(plan.name)}{cut}", columns=columns, rows=shown)


def _limit_and_owner(row: Row, plan: Plan) -> str:
    """Return the limit as it was written, and the kind of entity that owns it."""
    limit = limit_of_row(row, plan)
    if row["bound"] is None:
        return limit
    owner = "" if row["bound_of"] is None else f" ({row['bound_of']})"
    return f"{per_second(row['quota_type'], limit)}{owner}"
