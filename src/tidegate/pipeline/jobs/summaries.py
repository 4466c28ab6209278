"""The parts of the jobs' results that commands print."""

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.results.table_rows import Row, TableRows

__all__ = ["LimitsSummary", "ObedienceSummary", "ReplaySummary", "UsageSummary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSummary:
    """The result of `usage`: the number of groups (clients by default), the groups with most bytes (columns
    `usage_schema`), and missing rows. topics: of usage by topic.
    """

    groups: int
    top: Sequence[Row]
    missing: Sequence[Missing]
    topics: TopicCounts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObedienceSummary:
    """The result of `obedience`: rows of `OBEDIENCE_BY_SOFTWARE`, and missing rows."""

    libraries: Sequence[Row]
    missing: Sequence[Missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSummary:
    """The result of `limits`: rows of `LIMITS_BY_ENTITY` and of `LIMITS_BY_NODE`, and missing rows.

    callback: the setting of the quota callback that was in use during the recording; None if there was none.
    """

    entities: TableRows
    nodes: TableRows
    missing: Sequence[Missing]
    callback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """The result of `replay`: rows of `REPLAY_BY_ENTITY`, plan entries that match no client, and missing rows."""

    entities: TableRows
    unmatched: Sequence[Unmatched]
    missing: Sequence[Missing]
