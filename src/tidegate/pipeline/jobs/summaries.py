"""Results of the jobs, the same on Spark and in this process, and the names of their tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipeline.proposals.evidence import Evidence, internal_names
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.read.timeline import callback_in
from tidegate.pipeline.replay.task import Layout
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.manifest import made_of
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.rollup.groups import UNKNOWN_TOPIC
from tidegate.pipeline.schemas import CLIENT

__all__ = [
    "LimitsSummary",
    "ObedienceSummary",
    "ReplaySummary",
    "UsageSummary",
    "evidence_of",
    "replay_made_of",
    "topic_counts",
    "usage_tables",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSummary:
    """The result of `usage`: the number of groups (clients by default), the groups with most bytes (columns
    `usage_schema`), and missing rows. topics: of usage by topic.
    """

    groups: int
    top: Sequence[dict[str, Any]]
    missing: Sequence[Missing]
    topics: TopicCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObedienceSummary:
    """The result of `obedience`: rows of `OBEDIENCE_BY_SOFTWARE`, and missing rows."""

    libraries: Sequence[dict[str, Any]]
    missing: Sequence[Missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSummary:
    """The result of `limits`: rows of `LIMITS_BY_ENTITY` and of `LIMITS_BY_NODE`, and missing rows.

    callback: the setting of the quota callback that was in use during the recording; None if there was none.
    """

    entities: Sequence[dict[str, Any]]
    nodes: Sequence[dict[str, Any]]
    missing: Sequence[Missing]
    callback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """The result of `replay`: rows of `REPLAY_BY_ENTITY`, plan entries that match no client, and missing rows."""

    entities: Sequence[dict[str, Any]]
    unmatched: Sequence[Unmatched]
    missing: Sequence[Missing]


def topic_counts(groups: pa.Table, before: TopicCounts | None = None) -> TopicCounts:
    """Return the counts of groups of usage by topic, with those `before` them."""
    unknown = groups.filter(pc.equal(groups["topic"], UNKNOWN_TOPIC))
    found = before or TopicCounts()
    return TopicCounts(
        multi_topic_requests=found.multi_topic_requests
        + (pc.sum(groups["multi_topic_requests"]).as_py() or 0),
        multi_topic_bytes=found.multi_topic_bytes + (pc.sum(groups["multi_topic_bytes"]).as_py() or 0),
        unknown_requests=found.unknown_requests + (pc.sum(unknown["requests"]).as_py() or 0),
    )


def usage_tables(by: Sequence[str]) -> tuple[str, str]:
    """Return the names of the tables of usage by the columns `by`: in all, and by minute."""
    return f"usage_by_{'client' if tuple(by) == CLIENT else '_'.join(by)}", "usage_by_minute"


def evidence_of(layout: Layout, by: str, *, windows: int) -> Evidence:
    """Return what a record proves beside its limits. windows: as `evidence.windows_in` counts them."""
    return Evidence(
        windows=windows,
        internal=internal_names(by, layout.users, layout.client_ids),
        is_imported=any(timeline.is_imported for timeline in layout.timelines.values()),
        missing=layout.missing,
        callback=callback_in(layout.timelines),
    )


def replay_made_of(files: UsageFiles, layout: Layout, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest of a replay's results says."""
    nodes = {node_id: [end] for node_id, end in layout.ends.items()}
    return made_of(files, nodes=nodes, missing=layout.missing, plans=layout.task.plans, options=options)
