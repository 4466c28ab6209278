"""Results of the functions of `tidegate.pipeline`: tables, named as the written ones, and what is not in them.

A table is a `pyarrow.Table`, or a `pyspark.sql.DataFrame` of the session that was given. `SCHEMAS` has their columns,
which `tidegate.pipeline.schemas` describes. All results have `rows`, the number of rows that were read, and `missing`,
the rows that the record lacks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame

from tidegate.config.quotas_file import QuotasFile
from tidegate.errors import TidegateError
from tidegate.pipeline.jobs.summaries import ReplaySummary, UsageSummary
from tidegate.pipeline.proposals.recommend import Recommendation
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.missing import Missing
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.unmatched import Unmatched
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.results.writing import written_schema
from tidegate.pipeline.schemas import (
    BACKLOGS,
    DECISIONS,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    OBEDIENCE_BY_CLIENT,
    OBEDIENCE_BY_SOFTWARE,
    REPLAY_BY_CLIENT,
    REPLAY_BY_ENTITY,
    REPLAY_STATE,
    WATCHED_USAGE,
    usage_by_minute_schema,
    usage_schema,
)

__all__ = [
    "SCHEMAS",
    "Limits",
    "MissingTableError",
    "Obedience",
    "Recommended",
    "Replay",
    "Result",
    "Table",
    "TablesWhenAsked",
    "Usage",
]

SCHEMAS: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "usage_by_client": written_schema(usage_schema()),
        "usage_by_minute": written_schema(usage_by_minute_schema()),
        "replay_by_entity": written_schema(REPLAY_BY_ENTITY),
        "replay_by_client": written_schema(REPLAY_BY_CLIENT),
        "decisions": written_schema(DECISIONS),
        "state": written_schema(REPLAY_STATE),
        "limits_by_entity": written_schema(LIMITS_BY_ENTITY),
        "limits_by_node": written_schema(LIMITS_BY_NODE),
        "obedience_by_software": written_schema(OBEDIENCE_BY_SOFTWARE),
        "obedience_by_client": written_schema(OBEDIENCE_BY_CLIENT),
        "forecast": written_schema(REPLAY_BY_ENTITY),
        "backlogs": written_schema(BACKLOGS),
        "watched_usage": written_schema(WATCHED_USAGE),
    }
)
"""The columns of each table by its name; usage by other columns has these in place of `user` and `client_id`."""

Table: TypeAlias = "pa.Table | DataFrame"


class TablesWhenAsked(Mapping[str, Table]):
    """Tables that are made when they are asked for."""

    def __init__(self, made: Mapping[str, Callable[[], Table]]) -> None:
        self._made = made

    def __getitem__(self, name: str) -> Table:
        """Make a table."""
        return self._made[name]()

    def __contains__(self, name: object) -> bool:
        """Return whether there is a table of a name, without making it."""
        return name in self._made

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the tables."""
        return iter(self._made)

    def __len__(self) -> int:
        """Return how many tables there are."""
        return len(self._made)

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        """Make all tables, for `pickle`."""
        return dict, (dict(self),)


class MissingTableError(TidegateError, KeyError):
    """Raise when a result does not have a table, because it was not asked for, or was only written."""

    __str__ = Exception.__str__  # not the `repr` that a `KeyError` shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Tables by the names of the written ones. rows: that were read; missing: that the record lacks.

    hints: where tables are that the result does not have, or what returns them, by their names.
    """

    tables: Mapping[str, Table] = field(repr=False)
    rows: int
    missing: Sequence[Missing] = ()
    hints: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Table:
        """Return a table by its name. Raises `MissingTableError`, which lists the names."""
        if name not in self.tables:
            message = f"{name!r} is not among the tables {', '.join(self.tables)}"
            raise MissingTableError(message, hint=self.hints.get(name))
        return self.tables[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage(Result):
    """The result of `usage`. groups: their number; None if the tables are data frames that are not run yet.

    topics: what usage by topic cannot divide. summary: what reports are made of; None for data frames.
    """

    groups: int | None = None
    topics: TopicCounts | None = None
    summary: UsageSummary | None = field(default=None, repr=False)

    @property
    def in_all(self) -> Table:
        """Return the table with a row for each group (`usage_by_client`, ...)."""
        return next(iter(self.tables.values()))

    @property
    def by_minute(self) -> Table:
        """Return the table with a row for each minute, node and group (`usage_by_minute`, ...)."""
        names = (*self.tables, *self.hints)
        return self[next((name for name in names if name.endswith("by_minute")), "usage_by_minute")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay(Result):
    """The result of `replay`. unmatched: entries of plans that match no client; None where this is not known yet.

    summary: what reports are made of; None for data frames.
    """

    plans: Sequence[Plan] = field(repr=False)
    unmatched: Sequence[Unmatched] | None = None
    summary: ReplaySummary | None = field(default=None, repr=False)

    @property
    def by_entity(self) -> Table:
        """Return the table with a row for each plan, type of quota and entity (`replay_by_entity`)."""
        return self["replay_by_entity"]

    @property
    def by_client(self) -> Table:
        """Return the same by node and client (`replay_by_client`)."""
        return self["replay_by_client"]

    @property
    def decisions(self) -> Table:
        """Return the table with a row for each plan and request (`decisions`)."""
        return self["decisions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(Result):
    """The result of `limits`. callback: the quota callback that was in use during the recording."""

    callback: str | None = None
    is_imported: bool = False

    @property
    def by_entity(self) -> Table:
        """Return the table with a row for each entity (`limits_by_entity`)."""
        return self["limits_by_entity"]

    @property
    def by_node(self) -> Table:
        """Return the table with a row for each entity and node (`limits_by_node`)."""
        return self["limits_by_node"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Obedience(Result):
    """The result of `obedience`."""

    @property
    def by_software(self) -> Table:
        """Return the table with a row for each client library and version (`obedience_by_software`)."""
        return self["obedience_by_software"]

    @property
    def by_client(self) -> Table:
        """Return the table with a row for each client of a library (`obedience_by_client`)."""
        return self["obedience_by_client"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended(Result):
    """The result of `recommend`: quotas, and their evidence as tables.

    The tables are `limits_by_entity`, `limits_by_node`, `forecast` (columns `REPLAY_BY_ENTITY`) and `backlogs`.
    """

    found: Recommendation = field(repr=False)
    wanted: Wanted = field(repr=False)

    @property
    def quotas(self) -> QuotasFile:
        """Return the proposed quotas, to be given to `replay`, `limits` or `quotas_file`."""
        return self.found.quotas

    @property
    def by(self) -> str:
        """Return the level of the entities: `both`, `user` or `client-id`."""
        return self.found.by

    def notes(self) -> list[str]:
        """Return the reasons and the forecast as sentences."""
        from tidegate.pipeline.proposals.notes import recommend_notes

        return recommend_notes(self.found, self.wanted, events=self.rows)

    def text(self, form: str = "quotas.yaml") -> str:
        """Return the quotas as text. form: `quotas.yaml`, or `kafka-configs` for a script with Kafka's own tool."""
        from tidegate.pipeline.proposals.notes import text_of
        from tidegate.pipeline.report.notes import missing_notes
        from tidegate.pipeline.report.text import sentences

        notes = [*self.notes(), *sentences(missing_notes(self.missing, with_cold_starts=True))]
        return text_of(self.quotas, notes, form)
