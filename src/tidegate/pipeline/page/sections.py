"""Sections of a report, built from the findings of the jobs.

`report_sections` lists them. A new section is a new function and a new line there.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

import numpy as np
import pyarrow.compute as pc

from tidegate.config.quotas_file import QuotaEntry
from tidegate.pipeline.jobs.summaries import UsageSummary
from tidegate.pipeline.page.charts import Bar, bar_chart
from tidegate.pipeline.page.findings import Findings, Proposed
from tidegate.pipeline.page.html import Chart, Section
from tidegate.pipeline.page.over_time import throttles_section, usage_section
from tidegate.pipeline.page.plans import MOST_NAMED, plan_limits, plan_sentence, plans_section
from tidegate.pipeline.proposals.limits_of_type import LEAST
from tidegate.pipeline.replay.plan import IN_FORCE, QUOTA_TYPES
from tidegate.pipeline.report.limits_report import limits_notes, limits_table
from tidegate.pipeline.report.names import QUOTA_NAMES, name_text, parts_text, quota_text
from tidegate.pipeline.report.notes import missing_notes, replay_notes
from tidegate.pipeline.report.obedience_report import (
    obedience_notes,
    obedience_table,
    was_throttled,
    worst_first,
)
from tidegate.pipeline.report.rounding import given_text
from tidegate.pipeline.report.tables import Column, Row, Table
from tidegate.pipeline.report.text import (
    NOTHING,
    bytes_text,
    count_text,
    duration_text,
    sentences,
    things_text,
    time_text,
)
from tidegate.pipeline.report.usage_report import SEVERAL_TOPICS, USAGE, topic_notes
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.groups import API, NO_TOPICS, TOPIC
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["report_facts", "report_sections"]

_MODEL = (
    "The effects of plans are forecasts by a model of how clients wait and send again. If the record does not show "
    "whether a client waits for its responses, a duration is a range, such as 10–25 s (docs/closed-loop.md)."
)
_TIMES_AS_RECORDED = (
    "Plans are replayed at recorded times (open loop). Real clients slow down, and wait less."
)
_OBEDIENCE_UNKNOWN = (
    "Unknown: a request log of Apache Kafka does not contain which requests were sent too early."
)
_BAR_CLIENTS = 10
_LIMITS_ROWS, _QUOTAS_ROWS, _LIBRARIES = 20, 40, 20
_MOST_NODES = 5
_PLANS_FIRST = 2  # plans that the first section names
_FEW_SENTENCES = 3
"""With fewer sentences, the first section also names the client with the most usage."""
_LONGEST = 1000  # characters of a sentence


def report_facts(found: Findings) -> list[tuple[str, str]]:
    """Return the extent of the record."""
    nodes = ", ".join(map(str, found.nodes[:_MOST_NODES])) + (" …" if len(found.nodes) > _MOST_NODES else "")
    facts = [("events", count_text(found.rows)), ("clients", count_text(found.usage.groups))]
    if found.history.uses:
        facts.append(("from (UTC)", time_text(found.history.first_ms)))
        facts.append(("to (UTC)", time_text(found.history.end_ms)))
    return [*facts, ("broker" if len(found.nodes) == 1 else "brokers", nodes or NOTHING)]


def report_sections(found: Findings) -> list[Section]:
    """Return all sections with contents, in order."""
    sections = [
        _first(found),
        _clients(found),
        _topics(found.topics),
        _apis(found.apis),
        usage_section(found.history, plan_limits(found)),
        throttles_section(found.history),
        plans_section(found),
        _limits(found.limits),
        _recommendation(found.proposed),
        _obedience(found.obedience),
        _not_exact(found),
    ]
    return [section for section in sections if section is not None]


# --- what to do, and usage --------------------------------------------------------------------------------------------


def _first(found: Findings) -> Section:
    """Return what was throttled, what each plan changes, and what to do, in a few sentences with numbers."""
    plans = [(name, rows) for name, rows in found.replayed.items() if name != IN_FORCE]
    sentences_of_plans = [plan_sentence(name, rows) for name, rows in plans[:_PLANS_FIRST]]
    if len(plans) > _PLANS_FIRST:
        more = things_text(len(plans) - _PLANS_FIRST, "more plan")
        sentences_of_plans.append(f"{more}: see Effect of other quotas.")
    said = [_throttled_sentence(found), *sentences_of_plans, *_proposal_sentences(found)]
    if len(said) < _FEW_SENTENCES:
        said.insert(1, _usage_sentence(found.usage))
    return Section(anchor="what-to-do", title="What to do", sentences=said)


def _throttled_sentence(found: Findings) -> str:
    rows = found.replayed[IN_FORCE]
    waited = int(np.count_nonzero(rows.numbers("recorded_throttle_ms")))
    if not waited:
        return "No client was throttled."
    longest = rows.largest("recorded_throttle_ms", top=MOST_NAMED)
    named = ", ".join(f"{quota_text(row)} {duration_text(row['recorded_throttle_ms'])}" for row in longest)
    of = things_text(len(rows), "entity", "entities")
    return f"{count_text(waited)} of {of} were throttled. Longest total throttle times: {named}."


def _usage_sentence(usage: UsageSummary) -> str:
    if not usage.top:
        return "No client sent a request."
    most = usage.top[0]
    return (
        f"{things_text(usage.groups, 'client')} sent requests. Most bytes were produced and fetched by "
        f"{_client_text(most)}: {bytes_text(_bytes(most))}."
    )


def _proposal_sentences(found: Findings) -> list[str]:
    """Return which quotas are proposed, what they do in the forecast, and how to set them."""
    proposal = found.proposed
    if proposal is None and found.plans:
        return ["Set a plan with tidegate quotas apply, after tidegate quotas plan."]
    if proposal is None:
        return ["To see what other quotas would have done, add --quotas FILE."]
    if isinstance(proposal, str):
        return [proposal]
    entries = proposal.entries
    defaults = [entry for entry in entries if all(name is None for _, name in entry.entity)]
    own = [entry for entry in entries if entry not in defaults]
    parts = [f"a default of {_values_text(entry)}" for entry in defaults]
    if own:
        named = "; ".join(f"{parts_text(entry.entity)} {_values_text(entry)}" for entry in own[:MOST_NAMED])
        more = "; …" if len(own) > MOST_NAMED else ""
        parts.append(f"{things_text(len(own), 'override')} ({named}{more})")
    throttled = proposal.throttled
    effect = f"{things_text(throttled, 'entity', 'entities')}" if throttled else "no client"
    return [
        f"Proposed quotas, per second and broker: {' and '.join(parts)}. In a forecast for this record they throttle "
        f"{effect}.",
        "To set them, write them to a file with tidegate recommend, check the changes with tidegate quotas plan, "
        "and run tidegate quotas apply.",
    ]


def _values_text(entry: QuotaEntry) -> str:
    return ", ".join(
        f"{QUOTA_NAMES[quota_type.value]} {given_text(quota_type.value, entry.values[quota_type.key])}"
        for quota_type in QUOTA_TYPES
        if quota_type.key in entry.values
    )


def _clients(found: Findings) -> Section:
    shown = found.usage.top
    cut = (
        ""
        if len(shown) == found.usage.groups
        else f" {len(shown)} of {count_text(found.usage.groups)} are shown."
    )
    bars = [
        Bar(text=f"{bytes_text(_bytes(row))} · {_client_text(row)}", value=float(_bytes(row)), colour="used")
        for row in shown[:_BAR_CLIENTS]
    ]
    columns = [Column("client", _client_text, is_name=True), *_measures()]
    chart = Chart(
        title="Bytes by client",
        description=f"Produced and fetched, at most {_BAR_CLIENTS} clients.",
        spec=bar_chart(bars),
        table=Table(caption="Clients with most bytes", columns=columns, rows=shown),
        is_open=True,
    )
    sentence = (
        f"By user and client id, clients with most bytes first.{cut} A peak is the largest rate on one broker, as a "
        "quota measures it. Time is thread time; its peak is in percent of a thread."
    )
    return Section(
        anchor="clients", title="Usage by client", sentences=[sentence], charts=[chart] if bars else []
    )


def _topics(usage: UsageSummary) -> Section | None:
    """Return usage by topic; None where the record has no topic."""
    if not any(row[TOPIC] not in NO_TOPICS for row in usage.top):
        return None
    shown = "" if len(usage.top) == usage.groups else f", {len(usage.top)} of {count_text(usage.groups)}"
    columns = [Column("topic", TOPIC, name_text, is_name=True), *_measures(), *SEVERAL_TOPICS]
    notes = [] if usage.topics is None else sentences(topic_notes(usage.topics))
    return Section(
        anchor="topics",
        title="Usage by topic",
        sentences=[f"Produce and Fetch requests by topic, most bytes first{shown}.", *notes],
        tables=[Table(caption="Topics with most bytes", columns=columns, rows=usage.top)],
    )


def _apis(usage: UsageSummary) -> Section | None:
    """Return usage by type of request; None without requests."""
    if not usage.top:
        return None
    columns = [Column("API", API, name_text, is_name=True), *_measures()]
    return Section(
        anchor="apis",
        title="Usage by API",
        sentences=["Requests by their type, most bytes first."],
        tables=[Table(caption="APIs with most bytes", columns=columns, rows=usage.top)],
    )


def _measures() -> Iterator[Column]:
    """Return the columns of usage that a page has room for."""
    return chain.from_iterable(columns[:2] for columns in USAGE)


def _bytes(row: Row) -> int:
    found: int = row["produce_bytes"] + row["fetch_bytes"]
    return found


def _client_text(row: Row) -> str:
    return f"{name_text(row['user'])} / {name_text(row['client_id'])}"


# --- limits, proposed quotas, client libraries ------------------------------------------------------------------------


def _limits(rows: TableRows | None) -> Section | None:
    if rows is None or not pc.any(pc.not_equal(rows.table["never_throttled"], 0)).as_py():
        return None
    table = limits_table(rows, top=_LIMITS_ROWS, tolerated="delays 1 %\nby 1 s")
    sentence = (
        "For each user and client: the smallest limit that throttles nothing, and the smallest limit that delays at "
        f"most one percent, by at most a second. At most {_LIMITS_ROWS} entities of each quota type."
    )
    notes = sentences(note.replace("\n", " ") for note in limits_notes(rows))
    return Section(anchor="limits", title="Smallest limits", sentences=[sentence, *notes], tables=[table])


def _recommendation(found: Proposed | str | None) -> Section | None:
    """Return the section; None if no proposal was wanted. found: the quotas, or why there are none."""
    title = "Proposed quotas"
    if found is None:
        return None
    if isinstance(found, str):
        return Section(anchor="recommendation", title=title, sentences=[found])
    entries = found.entries
    notes = _joined(found.notes)
    if len(entries) > _QUOTAS_ROWS:
        notes.append(f"{count_text(len(entries) - _QUOTAS_ROWS)} more quotas are not shown.")
    notes.append("The command tidegate recommend prints them as a quotas.yaml, or as commands of Kafka.")
    limits = [
        Column(QUOTA_NAMES[quota_type.value], partial(_proposed_text, quota_type))
        for quota_type in QUOTA_TYPES
    ]
    table = Table(
        caption="Proposed quotas, per second and broker",
        columns=[
            Column("entity", lambda entry: parts_text(entry.entity), is_name=True),
            *limits,
            Column("reason", lambda entry: name_text(entry.reason or "", longest=_LONGEST), is_name=True),
        ],
        rows=entries[:_QUOTAS_ROWS],
    )
    return Section(anchor="recommendation", title=title, sentences=notes, tables=[table])


def _joined(notes: Sequence[str]) -> list[str]:
    """Return notes as sentences; the items of a list follow the line above it."""
    found: list[str] = []
    for note in notes:
        shown = name_text(note.strip(), longest=_LONGEST)
        if note.startswith(" "):
            found[-1] += (" " if found[-1].endswith(":") else "; ") + shown
        else:
            found.append(shown)
    return found


def _proposed_text(quota_type: QuotaType, entry: QuotaEntry) -> str | None:
    value = entry.values.get(quota_type.key)
    if value is None:
        return None
    floor = " (floor)" if value == LEAST[quota_type.value] else ""
    return given_text(quota_type.value, value) + floor


def _obedience(rows: Sequence[Row] | None) -> Section:
    """Return the section on client libraries. rows: columns `OBEDIENCE_BY_SOFTWARE`; None: unknown."""
    title = "Client libraries that ignore throttle times"
    if rows is None:
        return Section(anchor="obedience", title=title, sentences=[_OBEDIENCE_UNKNOWN])
    ordered = worst_first(rows)
    shown = [row for row in ordered if was_throttled(row)][:_LIBRARIES]
    sentence = "How often the clients of a library sent a request before their throttle time was over."
    notes = sentences(obedience_notes(ordered, shown=len(shown)))
    tables = [obedience_table(shown)] if shown else []
    return Section(anchor="obedience", title=title, sentences=[sentence, *notes], tables=tables)


def _not_exact(found: Findings) -> Section:
    notes = [
        note
        for name, rows in found.replayed.items()
        for note in replay_notes(name, [rows.sums()], in_force=name == IN_FORCE)
    ]
    if found.callback is not None:
        notes.append(
            f"{name_text(found.callback)} was set: limits over time are not shown, and usage is by client id."
        )
    notes += sentences(missing_notes(found.missing, with_cold_starts=True))
    if any(name != IN_FORCE for name in found.replayed):
        notes.append(_MODEL if found.is_forecast else _TIMES_AS_RECORDED)
    return Section(
        anchor="not-exact",
        title="Inexact results",
        sentences=notes or ["The record shows no reason for inexact results."],
    )
