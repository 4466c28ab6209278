"""The findings of a report: usage by client, quotas in force, effects of other quotas, and usage over time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.config.quotas_file import QuotaEntry
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.jobs.summaries import UsageSummary
from tidegate.pipeline.proposals.needs import rows_touched
from tidegate.pipeline.proposals.notes import recommend_notes
from tidegate.pipeline.proposals.recommend import Recommendation
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.read.timeline import callback_in, timelines
from tidegate.pipeline.replay.limits import Tolerance, levels_of
from tidegate.pipeline.replay.plan import IN_FORCE, Definitions, Plan, in_force_plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.groups import API, TOPIC
from tidegate.pipeline.rollup.history import (
    Entity,
    History,
    WantedEntities,
    definitions_over_time,
    history_of,
)
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["MOST_STEPS", "TOP_CLIENTS", "Findings", "Proposed", "run_jobs", "wanted_entities"]

MOST_STEPS = 200
"""The largest number of time steps in a history, which are the points of a chart."""

TOP_CLIENTS = 20
TOP_TOPICS = 20
TOP_APIS = 20
_LIMITS_BY = "both"
_WANTED = Wanted()
_ENTITIES = 20  # with a history
_NAMES = ("quota_type", "entity_user", "entity_client_id")
_RANKED = (*_NAMES, "amount", "recorded_throttle_ms", "bound", "bound_changed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposed:
    """The proposed quotas, the notes on them, and how many entities they throttle in a forecast."""

    entries: Sequence[QuotaEntry]
    notes: Sequence[str]
    throttled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results that the sections of a report need.

    topics, apis: usage by topic and by API. plans: by name, without the quotas in force. replayed: rows
    `REPLAY_BY_ENTITY` by plan, of the quotas in force first. is_forecast: the plans were replayed in closed loop.
    callback: the setting of the quota callback that decided which clients share a limit, or None. limits: rows
    `LIMITS_BY_ENTITY`, None if not wanted. obedience: rows `OBEDIENCE_BY_SOFTWARE`, None if unknown. proposed: quotas,
    or the reason why there are none; None if not wanted.
    """

    rows: int
    usage: UsageSummary
    topics: UsageSummary
    apis: UsageSummary
    plans: Mapping[str, Plan]
    replayed: Mapping[str, TableRows]
    unmatched: Sequence[Unmatched]
    history: History
    limits: TableRows | None
    obedience: Sequence[Mapping[str, Any]] | None
    proposed: Proposed | str | None
    is_imported: bool
    nodes: Sequence[int]
    missing: Sequence[Missing]
    is_forecast: bool
    callback: str | None


def run_jobs(
    jobs: Jobs,
    plans: Sequence[Plan],
    *,
    rows: int,
    is_imported: bool = False,
    with_limits: bool = False,
    with_recommendation: bool = False,
) -> Findings:
    """Run the jobs. is_imported: the record was made from request logs. Raises `TidegateError`.

    The replay runs last: its results are the largest, and stay in memory to the end.
    """
    events = jobs.quota_events()
    found = timelines(events)
    callback = callback_in(found)
    limits = jobs.limits(levels_of(_LIMITS_BY), Tolerance(), out=None).entities if with_limits else None
    obedience = None if is_imported else jobs.obedience(out=None).libraries
    usage = jobs.usage(out=None, top=TOP_CLIENTS)
    topics = jobs.usage(out=None, top=TOP_TOPICS, by=(TOPIC,))
    apis = jobs.usage(out=None, top=TOP_APIS, by=(API,))
    wanted_plans = [in_force_plan(), *plans]
    proposed: Proposed | str | None = None
    if with_recommendation:
        take = partial(_proposed, rows=rows)
        proposal, summary = jobs.recommend_and_replay(_WANTED, wanted_plans, take)
        proposed = proposal if isinstance(proposal, Proposed) else f"No quotas are proposed: {proposal}."
    else:
        summary = jobs.replay(wanted_plans, out=None)
    replayed = {plan.name: summary.entities.where(plan=plan.name) for plan in wanted_plans}
    known = {} if callback is not None else found
    definitions = definitions_over_time(known)
    in_force = replayed[IN_FORCE] if callback is None else TableRows(summary.entities.table[:0])
    wanted = wanted_entities(in_force, definitions)
    if not wanted.entities:  # no quota in force is known
        wanted = WantedEntities(entities=_top_client_ids(usage), definitions=[Definitions()])
    buckets = jobs.history(wanted, most=MOST_STEPS)
    return Findings(
        rows=rows,
        usage=usage,
        topics=topics,
        apis=apis,
        plans={plan.name: plan for plan in plans},
        replayed=replayed,
        unmatched=summary.unmatched,
        history=history_of(buckets, wanted.entities, known),
        limits=limits,
        obedience=obedience,
        proposed=proposed,
        is_imported=is_imported,
        nodes=sorted({*found, *(row["node_id"] for row in buckets.rows)}),
        is_forecast=any(plan.is_closed for plan in plans),
        missing=usage.missing,
        callback=callback,
    )


def _proposed(found: Recommendation, *, rows: int) -> Proposed:
    """Return the proposed quotas. rows: of the record."""
    return Proposed(
        entries=found.quotas.entries,
        notes=recommend_notes(found, _WANTED, events=rows),
        throttled=len(rows_touched(found.outcomes)),
    )


def wanted_entities(in_force: TableRows, definitions: Sequence[Definitions]) -> WantedEntities:
    """Return the entities for the history: longest throttle time first, then nearest to a limit, then most used.

    in_force: rows of `REPLAY_BY_ENTITY`.
    """
    rows = TableRows(in_force.table.select(_RANKED))
    used = rows.only(rows.numbers("amount") != 0)
    used = used.that_may_be_first(_ranks(used), top=_ENTITIES)
    names = [pc.fill_null(used.table[name].cast(pa.string()), "") for name in _NAMES]
    entities = [
        Entity(quota_type=row["quota_type"], user=row["entity_user"], client_id=row["entity_client_id"])
        for row in used.first([*_ranks(used), *names], top=_ENTITIES)
    ]
    return WantedEntities(entities=entities, definitions=definitions)


def _ranks(rows: TableRows) -> list[Any]:
    """Return the columns of numbers that rank entities, the smallest values first."""
    table = rows.table
    amount = rows.numbers("amount")
    bound = pc.fill_null(table["bound"], math.inf).to_numpy()
    share = np.divide(amount, bound, out=np.zeros(len(rows)), where=np.isfinite(bound) & (bound != 0))
    has_none = pc.and_(pc.is_null(table["bound"]), pc.invert(table["bound_changed"]))
    are_of_bytes = [
        pc.equal(table["quota_type"], kind.value) for kind in (QuotaType.PRODUCE, QuotaType.FETCH)
    ]
    return [
        -rows.numbers("recorded_throttle_ms"),
        has_none.to_numpy().astype(np.int8),
        -share,
        1 - pc.or_(*are_of_bytes).to_numpy().astype(np.int8),
        -amount,
    ]


def _top_client_ids(usage: UsageSummary) -> list[Entity]:
    kinds = ((QuotaType.PRODUCE, "produce_bytes"), (QuotaType.FETCH, "fetch_bytes"))
    found = [
        Entity(quota_type=kind.value, user=None, client_id=row["client_id"] or None)
        for row in usage.top
        for kind, column in kinds
        if row[column]
    ]
    return list(dict.fromkeys(found))[:_ENTITIES]
