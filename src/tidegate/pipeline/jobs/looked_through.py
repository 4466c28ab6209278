"""Data for a recommendation besides its replays: windows with requests, backlogs, and evidence about the record."""

from dataclasses import dataclass
from functools import partial
from itertools import chain

import pyarrow as pa

from tidegate.pipeline.jobs.back_end import BackEnd, PlacedRows
from tidegate.pipeline.proposals.evidence import (
    Evidence,
    TooLittleDataError,
    chunk_windows,
    internal_names,
    windows_in,
)
from tidegate.pipeline.proposals.propose import NothingToRecommendError
from tidegate.pipeline.proposals.recommend import Recommendation, forecast_levels, recommend
from tidegate.pipeline.proposals.wanted import Wanted, chunk_users, level_of
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.timeline import callback_in
from tidegate.pipeline.replay.limits import TooManyEntitiesError, levels_of
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import Layout
from tidegate.pipeline.rollup.backlogs import ENTITY_KEYS, backlogs_table, chunk_backlogs
from tidegate.pipeline.rollup.sums import compact
from tidegate.pipeline.schemas import BACKLOG_STEPS, BACKLOGS

__all__ = ["NOTHING_PROPOSED", "LookedThrough", "look_through"]

NOTHING_PROPOSED = (NothingToRecommendError, TooLittleDataError, TooManyEntitiesError)
"""Errors that mean that nothing can be proposed. A report prints their reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedThrough:
    """Windows with requests, and rows of `BACKLOGS`, for a recommendation for the level `by`."""

    by: str
    windows: int
    backlogs: pa.Table

    @property
    def plans(self) -> list[Plan]:
        """Return the plans that rows are placed for."""
        return [levels_of(self.by), forecast_levels(self.by)]

    def recommend(self, rows: PlacedRows, wanted: Wanted, *, only_throttled: bool) -> Recommendation:
        """Return the recommendation. Raises what `recommend` raises."""
        evidence = _evidence(rows.layout, self.by, self.windows)
        return recommend(rows, self.by, wanted, self.backlogs, evidence, only_throttled=only_throttled)


def look_through(files: UsageFiles, back_end: BackEnd, by: str | None, wanted: Wanted) -> LookedThrough:
    """Scan the files for the data that a recommendation needs. by: the level; None: `level_of`."""
    chunks = files.chunks
    users = chain.from_iterable(back_end.map(chunk_users, chunks, "scanning"))
    by = by or level_of(users, wanted)
    windows = windows_in(back_end.map(chunk_windows, chunks, "scanning"))
    steps = back_end.tables(partial(chunk_backlogs, by=by), chunks, BACKLOG_STEPS, "scanning")
    backlogs = compact(steps.together(ENTITY_KEYS, backlogs_table, BACKLOGS).collect())
    return LookedThrough(by=by, windows=windows, backlogs=backlogs)


def _evidence(layout: Layout, by: str, windows: int) -> Evidence:
    """Return the evidence in a record besides its limits."""
    return Evidence(
        windows=windows,
        internal=internal_names(by, layout.users, layout.client_ids),
        is_imported=any(timeline.is_imported for timeline in layout.timelines.values()),
        missing=layout.missing,
        callback=callback_in(layout.timelines),
        has_before=layout.task.counted_from_ms is not None,
    )
