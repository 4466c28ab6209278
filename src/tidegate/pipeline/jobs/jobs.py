"""The jobs over a usage record: each runs in this process or on Spark."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from tidegate.config.locations import Location
from tidegate.errors import TidegateError
from tidegate.pipeline.jobs.back_end import BackEnd, KeptTables, Rows, Target
from tidegate.pipeline.jobs.looked_through import NOTHING_PROPOSED, look_through
from tidegate.pipeline.jobs.summaries import LimitsSummary, ObedienceSummary, ReplaySummary, UsageSummary
from tidegate.pipeline.proposals.recommend import Recommendation
from tidegate.pipeline.proposals.wanted import Wanted
from tidegate.pipeline.read.chunks import bundled
from tidegate.pipeline.read.control_events import ControlEvents, events_together
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Coverage, NodeRows, chunk_evidence, coverage_of
from tidegate.pipeline.read.timeline import callback_in
from tidegate.pipeline.replay.carried import Carried, carried_states
from tidegate.pipeline.replay.limits import Tolerance
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import Layout, states_left
from tidegate.pipeline.replay.unmatched import unmatched_entries
from tidegate.pipeline.report.documents import made_of
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.results.output import STATE_TABLE, opened_results, saved_table
from tidegate.pipeline.results.table_rows import Row, TableRows
from tidegate.pipeline.rollup import parts
from tidegate.pipeline.rollup.cells import are_more_groups, chunk_groups
from tidegate.pipeline.rollup.groups import (
    UNKNOWN_TOPIC,
    first_chunks,
    has_topics,
    source_columns,
)
from tidegate.pipeline.rollup.history import (
    Buckets,
    WantedEntities,
    chunk_entity_seconds,
    entity_buckets,
    first_and_last,
    quota_events,
    step_ms,
)
from tidegate.pipeline.rollup.limits import limits_of_shares
from tidegate.pipeline.rollup.merging import (
    BYTES_AND_REQUESTS,
    merge_parts,
    minute_keys,
    most_bytes,
    sums_together,
    topic_totals,
)
from tidegate.pipeline.rollup.obedience import (
    CLIENT_KEYS,
    SOFTWARE_KEYS,
    chunk_obedience,
    clients_by_software,
    obedience_by_client_table,
    obedience_by_software_table,
    software_together,
)
from tidegate.pipeline.rollup.sums import plain, release_free_memory, table_of
from tidegate.pipeline.rollup.sums_alone import group_sums
from tidegate.pipeline.schemas import (
    CLIENT,
    ENTITY_BUCKETS,
    ENTITY_SECONDS,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    OBEDIENCE_BY_CLIENT,
    OBEDIENCE_BY_SOFTWARE,
    REPLAY_STATE,
    usage_by_minute_schema,
    usage_parts_schema,
    usage_schema,
    usage_sums_schema,
)

__all__ = [
    "Jobs",
    "saved_states",
    "usage_by_minute_table_name",
    "usage_table_name",
]

_GROUPS_SHOWN = 1000  # most groups that are measured without the others
T = TypeVar("T")
Out: TypeAlias = Location | KeptTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs over some usage files. All raise `TidegateError`; with `out`, they write or keep their tables."""

    files: UsageFiles
    back_end: BackEnd

    def usage(
        self,
        *,
        out: Out | None,
        overwrite: bool = False,
        top: int,
        by: Sequence[str] = CLIENT,
        with_peaks: bool = True,
        only: Collection[tuple[str | None, ...]] | None = None,
    ) -> UsageSummary:
        """Sum up the usage files by the columns `by`. with_peaks: False: peaks and percentiles are null.

        only: the groups to sum up; None: all. If there are many groups, and their table is not written, peaks and
        percentiles are computed only for the first `top`: for all groups that would take several passes over the files.
        """
        name = usage_table_name(by)
        minutes = usage_by_minute_table_name(by)
        is_written = _wants(out, name) or _wants(out, minutes)
        is_cut = only is None and with_peaks and not is_written
        wait_for_kernel = self.back_end.load_usage_kernel() if with_peaks else None
        if is_cut and top <= min(_GROUPS_SHOWN, parts.GROUPS_AT_ONCE) and self._has_many_groups(by):
            groups, shown = self._first_groups(by, top)
            if wait_for_kernel is not None:
                wait_for_kernel()
            return replace(self.usage(out=None, top=top, by=by, only=shown), groups=groups)
        in_all, by_minute = usage_schema(by), usage_by_minute_schema(by)
        with self._results(out, "usage", overwrite) as results, self.back_end.running("aggregating"):
            coverage = self.coverage()
            if wait_for_kernel is not None:
                wait_for_kernel()
                self.back_end.prepare((), with_usage=True, rows=self.files.rows)
            with_minutes = _wants(out, minutes)
            found = self._usage_parts(
                coverage, by=by, with_minutes=with_minutes, with_peaks=with_peaks, only=only
            )
            with found.kept() as kept:
                takes = [partial(most_bytes, by=by, top=top), *([topic_totals] if has_topics(by) else ())]
                groups, (most, *topics) = kept.together(
                    by, partial(merge_parts, keys=by, table=in_all), in_all
                ).written(results, name, *takes)
                if with_minutes:
                    keys = minute_keys(by)
                    merge = partial(merge_parts, keys=keys, table=by_minute)
                    kept.together(keys, merge, by_minute).write(results, minutes)
                if out is not None:
                    results.finish(self._made_of(coverage, {"by": list(by), "peaks": with_peaks}))
        return UsageSummary(
            groups=groups,
            top=most.to_pylist(),
            missing=coverage.missing,
            topics=_topic_counts(topics[0].to_pylist()) if topics and groups else None,
        )

    def _first_groups(self, by: Sequence[str], top: int) -> tuple[int, set[tuple[str | None, ...]]]:
        """Return the number of groups, and the groups with most bytes."""
        table = usage_sums_schema(by, BYTES_AND_REQUESTS)
        with self.back_end.running("aggregating"):
            make = partial(group_sums, by=by, wanted=BYTES_AND_REQUESTS, threads=self.back_end.threads)
            found = self.back_end.tables(make, _nodes_of(self.coverage()), table, "aggregating")
            groups = found.together(by, partial(sums_together, keys=by, table=table), table)
            count, (most,) = groups.written(KeptTables(), "", partial(most_bytes, by=by, top=top))
        return count, {tuple(row[column] for column in by) for row in most.to_pylist()}

    def _usage_parts(self, coverage: Coverage, *, by: Sequence[str], **options: Any) -> Rows:
        """Return the parts of usage of all nodes. options: of `parts.usage_parts`."""
        release_free_memory()  # memory of the scan before
        make = partial(parts.usage_parts, by=by, threads=self.back_end.threads, **options)
        return self.back_end.tables(make, _nodes_of(coverage), usage_parts_schema(by), "aggregating")

    def _has_many_groups(self, by: Sequence[str]) -> bool:
        """Return whether the first rows have more groups than are measured in one pass."""
        if self.files.rows <= parts.GROUPS_AT_ONCE or source_columns(by) != [*by]:
            return False
        found = self.back_end.map(partial(chunk_groups, by=by), first_chunks(self.files.chunks), "scanning")
        return are_more_groups(found, parts.GROUPS_AT_ONCE)

    def obedience(self, *, out: Out | None, overwrite: bool = False) -> ObedienceSummary:
        """Find the client libraries that send requests before their throttle time is over."""
        with self._results(out, "obedience", overwrite) as results, self.back_end.running("aggregating"):
            coverage = self.coverage()
            by_chunk = self.back_end.tables(
                chunk_obedience, self.files.chunks, OBEDIENCE_BY_CLIENT, "aggregating"
            )
            if out is None:
                some = by_chunk.together(CLIENT_KEYS, clients_by_software, OBEDIENCE_BY_SOFTWARE)
                libraries = some.together(SOFTWARE_KEYS, software_together, OBEDIENCE_BY_SOFTWARE).collect()
                return ObedienceSummary(libraries=libraries.to_pylist(), missing=coverage.missing)
            found = by_chunk.together(CLIENT_KEYS, obedience_by_client_table, OBEDIENCE_BY_CLIENT)
            with found.kept() as by_client:
                by_software = by_client.together(
                    SOFTWARE_KEYS, obedience_by_software_table, OBEDIENCE_BY_SOFTWARE
                )
                by_client.write(results, "obedience_by_client")
                by_software.write(results, "obedience_by_software")
                results.finish(self._made_of(coverage, {}))
                libraries = by_software.collect()
        return ObedienceSummary(libraries=libraries.to_pylist(), missing=coverage.missing)

    def quota_events(self) -> ControlEvents:
        """Return starts, changed quotas, gaps and callbacks."""
        with self.back_end.running("scanning"):
            return events_together(self.back_end.map(quota_events, self.files.replayed, "scanning"))

    def history(self, wanted: WantedEntities, *, most: int) -> Buckets:
        """Return the usage of entities over time, in at most `most` steps."""
        with self.back_end.running("aggregating"):
            release_free_memory()  # memory of a replay
            make = partial(chunk_entity_seconds, wanted=wanted)
            found = self.back_end.tables(make, self.files.chunks, ENTITY_SECONDS, "aggregating")
            with found.kept() as seconds:
                _, (ends,) = seconds.written(KeptTables(), "", first_and_last)
                step = step_ms(*(ends["second_ms"].to_pylist() or (0, 0)), most=most)
                rows = seconds.together(
                    ("node_id", "entity"), partial(entity_buckets, step=step), ENTITY_BUCKETS
                )
                return Buckets(step_ms=step, rows=rows.collect().to_pylist())

    def replay(
        self,
        plans: Sequence[Plan],
        *,
        out: Out | None,
        overwrite: bool = False,
        with_decisions: bool = False,
        carried: Mapping[tuple[str, int], Carried] | None = None,
    ) -> ReplaySummary:
        """Replay the usage files against the plans.

        carried: the state after the hours before, by plan and node (`saved_states`).
        """
        leaves_state = _wants(out, STATE_TABLE) and any(plan.leaves_state for plan in plans)
        with self._results(out, "replay", overwrite) as results, self.back_end.running("replaying"):
            place = self.back_end.place(
                self.files, plans, carried=carried, leaves_state=leaves_state, repeats=False
            )
            with place as rows:
                layout = rows.layout
                entities, left = rows.replay(results, with_decisions=with_decisions)
            if leaves_state:
                results.put(table_of(states_left(layout, left), REPLAY_STATE), STATE_TABLE)
            if out is not None:
                options = {"decisions": with_decisions, "continued": carried is not None}
                # A state of an earlier run does not continue from the end of this one.
                without = () if leaves_state else (STATE_TABLE,)
                results.finish(self._replay_made_of(layout, options), without=without)
        return _replay_summary(layout, plans, entities)

    def limits(
        self, levels: Plan, tolerance: Tolerance, *, out: Out | None, overwrite: bool = False
    ) -> LimitsSummary:
        """Find the smallest limits of the entities of `levels`."""
        with self._results(out, "limits", overwrite) as results, self.back_end.running("finding limits"):
            with self.back_end.place(self.files, [levels], searches=True) as rows:
                layout = rows.layout
                entities, nodes = limits_of_shares(rows, levels, tolerance)
            if out is not None:
                results.put(plain(entities, LIMITS_BY_ENTITY), "limits_by_entity")
                results.put(plain(nodes, LIMITS_BY_NODE), "limits_by_node")
                results.finish(self._replay_made_of(layout, asdict(tolerance)))
        callback = callback_in(layout.timelines)
        return LimitsSummary(
            entities=TableRows(entities), nodes=TableRows(nodes), missing=layout.missing, callback=callback
        )

    def recommend(self, by: str | None, wanted: Wanted, *, only_throttled: bool = False) -> Recommendation:
        """Find quotas for the entities of the level `by` (None: `level_of`), and replay them.

        only_throttled: the outcomes are those of the entities that the quotas throttle.
        """
        with self.back_end.running("finding limits"):
            looked = look_through(self.files, self.back_end, by, wanted)
            with self.back_end.place(self.files, looked.plans) as rows:
                return looked.recommend(rows, wanted, only_throttled=only_throttled)

    def recommend_and_replay(
        self, wanted: Wanted, plans: Sequence[Plan], take: Callable[[Recommendation], T]
    ) -> tuple[T | TidegateError, ReplaySummary]:
        """Return the result of `take` for a recommendation (or the reason why there is none), and that of `replay`.

        The rows are read and placed once for both. take: gets the recommendation with outcomes `only_throttled`, which
        is then dropped: with many clients it takes much memory.
        """
        found: T | TidegateError
        try:
            with self.back_end.running("finding limits"):
                looked = look_through(self.files, self.back_end, None, wanted)
        except NOTHING_PROPOSED as error:
            return error, self.replay(plans, out=None)
        with (
            self.back_end.running("finding limits"),
            self.back_end.place(self.files, looked.plans, others=plans) as rows,
        ):
            try:
                found = take(looked.recommend(rows, wanted, only_throttled=True))
            except NOTHING_PROPOSED as error:
                found = error.with_traceback(None)  # a traceback would keep the tables of the recommendation
            del looked
            release_free_memory()
            entities, _ = rows.narrowed(plans).replay(KeptTables(), with_decisions=False)
            return found, _replay_summary(rows.layout, plans, entities)

    def _results(self, out: Out | None, command: str, overwrite: bool) -> AbstractContextManager[Target]:
        if out is None or isinstance(out, KeptTables):
            return nullcontext(out or KeptTables())
        ends = {"from_ms": self.files.from_ms, "to_ms": self.files.to_ms}
        return opened_results(out, command=command, overwrite=overwrite, **ends)

    def coverage(self) -> Coverage:
        """Return the nodes of the record, and the rows that it lacks."""
        return coverage_of(self.back_end.map(chunk_evidence, bundled(self.files.chunks), "scanning"))

    def _made_of(self, coverage: Coverage, options: Mapping[str, Any]) -> dict[str, Any]:
        return made_of(self.files, nodes=coverage.nodes, missing=coverage.missing, options=options)

    def _replay_made_of(self, layout: Layout, options: Mapping[str, Any]) -> dict[str, Any]:
        nodes = {node_id: [end] for node_id, end in layout.ends.items()}
        return made_of(
            self.files, nodes=nodes, missing=layout.missing, plans=layout.task.plans, options=options
        )


def _replay_summary(layout: Layout, plans: Sequence[Plan], entities: pa.Table) -> ReplaySummary:
    unmatched = unmatched_entries(plans, users=layout.users, client_ids=layout.client_ids)
    return ReplaySummary(entities=TableRows(entities), unmatched=unmatched, missing=layout.missing)


def _nodes_of(coverage: Coverage) -> list[NodeRows]:
    """Return the rows of each node."""
    return [NodeRows(node_id=node_id, chunks=chunks) for node_id, chunks in coverage.nodes.items()]


def usage_table_name(by: Sequence[str]) -> str:
    """Return the name of the table of usage by the columns `by`."""
    return f"usage_by_{'client' if tuple(by) == CLIENT else '_'.join(by)}"


def usage_by_minute_table_name(by: Sequence[str]) -> str:
    """Return the name of the table of usage by minute and by the columns `by`."""
    return "usage_by_minute" if tuple(by) == CLIENT else f"{usage_table_name(by)}_by_minute"


def saved_states(directory: Location, plans: Sequence[Plan]) -> dict[tuple[str, int], Carried]:
    """Return the states that replays of the plans have saved in `directory`, by plan and node. Raises `ConfigError`."""
    wanted = [plan for plan in plans if plan.leaves_state]
    rows = saved_table(directory, STATE_TABLE).to_pylist()
    return carried_states(rows, wanted, of=repr(str(directory)))


def _wants(out: Out | None, name: str) -> bool:
    """Return whether a table is needed. Every table is written to files."""
    return name in out.wanted if isinstance(out, KeptTables) else out is not None


def _topic_counts(totals: Sequence[Row]) -> TopicCounts:
    """Return the counts of usage by topic. totals: rows of `topic_totals`."""
    return TopicCounts(
        multi_topic_requests=sum(row["multi_topic_requests"] for row in totals),
        multi_topic_bytes=sum(row["multi_topic_bytes"] for row in totals),
        unknown_requests=sum(row["requests"] for row in totals if row["topic"] == UNKNOWN_TOPIC),
    )
