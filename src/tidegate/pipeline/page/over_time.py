"""The sections with a time axis: usage and limits over time, and throttling over time."""

from collections.abc import Iterable, Mapping, Sequence

from tidegate.pipeline.page.charts import WAIT_CLASSES, Strip, UsedStep, limit_chart, strip_chart
from tidegate.pipeline.page.html import Chart, Section
from tidegate.pipeline.report.names import BYTE_QUOTAS, quota_text
from tidegate.pipeline.report.replay_report import bound_text
from tidegate.pipeline.report.tables import Column, Table
from tidegate.pipeline.report.text import duration_text, time_text
from tidegate.pipeline.rollup.history import EntityUse, History
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["PlanLimits", "per_second", "throttles_section", "usage_section"]

_LIMIT_CHARTS = 8
_STRIP_STEPS = 100
_BYTE_UNITS = ((1 << 30, "GiB/s"), (1 << 20, "MiB/s"), (1 << 10, "KiB/s"), (1, "B/s"))
_NS_PER_PERCENT = 10_000_000  # of a second of one thread
_STEP_COLUMNS = (
    Column("from (UTC)", lambda step: time_text(step.start_ms), is_name=True),
    Column("used", lambda step: step.rate, "{:.4g}".format),
    Column("busiest second", lambda step: step.peak, "{:.4g}".format),
    Column("limit", lambda step: step.limit, "{:.4g}".format),
    Column("throttle", lambda step: step.throttle_ms or None, duration_text),
)

PlanLimits = Mapping[tuple[str, str | None, str | None], Sequence[tuple[str, float]]]
"""Limits per second by plan name, for each entity by its quota type, user and client id."""


def usage_section(history: History, plan_limits: PlanLimits) -> Section | None:
    """Return the section with usage and limits over time; None without usage."""
    shown = [use for use in history.uses if use.amounts][:_LIMIT_CHARTS]
    if not shown:
        return None
    return Section(
        anchor="over-time",
        title="Usage over time, and the limit in force",
        sentences=[
            f"Averages over {duration_text(history.step_ms)}, on the broker that the entity used most, because each "
            "broker applies limits by itself. Kafka measures rates over about ten seconds, and allows short bursts "
            "above the limit."
        ],
        charts=[_limit_chart(use, history, plan_limits) for use in shown],
    )


def throttles_section(history: History) -> Section | None:
    """Return the section with the throttle times over time; None if no client was throttled."""
    throttled = [use for use in history.uses if any(use.throttle_ms.values())]
    if not throttled:
        return None
    step_ms = history.step_ms * -(-(history.end_ms - history.first_ms) // (history.step_ms * _STRIP_STEPS))
    merged = [_merged(use.throttle_ms, history.first_ms, step_ms) for use in throttled]
    strips = [
        Strip(
            name=f"{duration_text(sum(use.throttle_ms.values()))} · {_entity_text(use)}",
            waits={start: ms / step_ms for start, ms in waits.items()},
        )
        for use, waits in zip(throttled, merged, strict=True)
    ]
    end_ms = max(history.end_ms, history.first_ms + step_ms)
    levels = [f"up to {limit:g}" for limit in WAIT_CLASSES] + ["more"]
    chart = Chart(
        title="Throttle time",
        description=(
            f"In steps of {duration_text(step_ms)}. Height and colour show the seconds of throttle time per second: "
            f"{', '.join(levels)}."
        ),
        spec=strip_chart(strips, first_ms=history.first_ms, end_ms=end_ms, step_ms=step_ms),
        table=Table(
            caption="Throttle time by entity and step",
            columns=[
                Column("entity", lambda row: row[0], is_name=True),
                Column("from (UTC)", lambda row: row[1], time_text, is_name=True),
                Column("throttle", lambda row: row[2], duration_text),
            ],
            rows=[
                (_entity_text(use), start, ms)
                for use, waits in zip(throttled, merged, strict=True)
                for start, ms in sorted(waits.items())
                if ms
            ],
        ),
    )
    sentence = (
        "The whole throttle time counts in the step of the throttled request. One second per second means that a "
        "client waited all the time."
    )
    return Section(anchor="throttles", title="Throttling over time", sentences=[sentence], charts=[chart])


def per_second(quota_type: str, limit: str) -> str:
    """Return the text of a limit per second; a percentage has no time."""
    return limit if quota_type == QuotaType.REQUEST.value else f"{limit}/s"


def _limit_chart(use: EntityUse, history: History, plan_limits: PlanLimits) -> Chart:
    quota_type, step_ms = use.entity.quota_type, history.step_ms
    divisor, unit = _unit(quota_type, max(use.peaks.values()))
    of_limit = 1.0 if quota_type == QuotaType.REQUEST.value else divisor  # a limit in percent stays as it is
    starts = range(history.first_ms, history.end_ms, step_ms)
    limits = _limits_at_end(use.limits, starts, step_ms)
    steps = [
        UsedStep(
            start_ms=start,
            rate=use.amounts.get(start, 0) / (step_ms / 1000 * divisor),
            peak=use.peaks.get(start, 0) / divisor,
            limit=None if limit is None else limit / of_limit,
            throttle_ms=use.throttle_ms.get(start, 0),
        )
        for start, limit in zip(starts, limits, strict=True)
    ]
    bounds = [bound for bound in dict.fromkeys(limits) if bound is not None]
    limit_text = (
        f"limit {per_second(quota_type, bound_text(quota_type, bounds[-1]))}" if bounds else "no limit"
    )
    limit_text += ", changed" if len(bounds) > 1 else ""
    peak_line = "" if step_ms == 1000 else " Line: the busiest second of each step."
    limit_line = " Dashes: the limit." if bounds else ""
    planned = plan_limits.get((quota_type, use.entity.user, use.entity.client_id), ())
    if planned:
        texts = (f"{name} {per_second(quota_type, bound_text(quota_type, limit))}" for name, limit in planned)
        limit_line += f" Dots: the limits of plans, {', '.join(texts)}."
    if any(step.throttle_ms for step in steps):
        limit_line += " Marks at the bottom: times with throttled requests."
    return Chart(
        title=_entity_text(use),
        description=f"Node {use.node_id}, {limit_text}.{peak_line}{limit_line}",
        spec=limit_chart(
            steps,
            step_ms=step_ms,
            unit=unit,
            limit_text=limit_text,
            plan_limits=[limit / of_limit for _, limit in planned],
        ),
        table=Table(caption=f"{_entity_text(use)}, in {unit}", columns=_STEP_COLUMNS, rows=steps),
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
    """Return the divisor of amounts per second, and the unit of the quotients."""
    if quota_type in BYTE_QUOTAS:
        return next((float(size), unit) for size, unit in _BYTE_UNITS if largest >= size or size == 1)
    if quota_type == QuotaType.REQUEST.value:
        return float(_NS_PER_PERCENT), "% of a thread"
    return 1.0, "mutations/s"


def _merged(throttle_ms: Mapping[int, int], first_ms: int, step_ms: int) -> dict[int, int]:
    merged: dict[int, int] = {}
    for start, ms in throttle_ms.items():
        at = first_ms + (start - first_ms) // step_ms * step_ms
        merged[at] = merged.get(at, 0) + ms
    return merged


def _entity_text(use: EntityUse) -> str:
    entity = use.entity
    return quota_text(
        {
            "quota_type": entity.quota_type,
            "entity_user": entity.user,
            "entity_client_id": entity.client_id,
        }
    )
