"""The jobs in this process, without Java: for what one machine reads in the time that Spark takes to start.

The functions are those that Spark's executors run; what Spark adds up with functions of its own is added up by Arrow's.
Results are equal, which `tests/spark/test_local.py` holds.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rich.console import Console
from rich.progress import track

from tidegate.config.locations import Location
from tidegate.pipeline.jobs.summaries import (
    LimitsSummary,
    ObedienceSummary,
    ReplaySummary,
    UsageSummary,
    evidence_of,
    replay_made_of,
    topic_counts,
    usage_tables,
)
from tidegate.pipeline.memory import give_back
from tidegate.pipeline.proposals.evidence import chunk_windows, windows_in
from tidegate.pipeline.proposals.recommend import (
    Recommendation,
    Wanted,
    chunk_users,
    forecast_levels,
    level_of,
    recommend,
)
from tidegate.pipeline.read.chunks import Bundle, bundled
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import Coverage, chunk_evidence, coverage_of
from tidegate.pipeline.read.steps import ControlEvents, events_together
from tidegate.pipeline.read.survey import survey_chunk
from tidegate.pipeline.read.timeline import callback_in
from tidegate.pipeline.replay.carried import Carried
from tidegate.pipeline.replay.limits import Tolerance, find_limits, levels_of
from tidegate.pipeline.replay.outcome import NODE_KEYS, PEAKS_TOGETHER
from tidegate.pipeline.replay.partition import (
    chunk_rows,
    pack_chunks,
    replay_peaks,
    replay_tallies,
)
from tidegate.pipeline.replay.plan import Plan
from tidegate.pipeline.replay.task import Layout, lay_out, states_left
from tidegate.pipeline.replay.unmatched import unmatched_entries
from tidegate.pipeline.report.manifest import made_of
from tidegate.pipeline.results.output import STATE_TABLE, Results, opened_results
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.backlogs import backlogs_table, chunk_backlogs
from tidegate.pipeline.rollup.groups import has_topics
from tidegate.pipeline.rollup.history import (
    Buckets,
    WantedEntities,
    chunk_entity_seconds,
    entity_buckets,
    quota_events,
)
from tidegate.pipeline.rollup.obedience import (
    chunk_obedience,
    obedience_by_client_table,
    obedience_by_software_table,
)
from tidegate.pipeline.rollup.parts import usage_parts
from tidegate.pipeline.rollup.sums import by_entity_table, compact, entities_together, grouped, together
from tidegate.pipeline.rollup.tables import minute_keys, put_together
from tidegate.pipeline.schemas import (
    BACKLOG_STEPS,
    CLIENT,
    DECISIONS,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    NUMBERED_BUNDLES,
    OBEDIENCE_BY_CLIENT,
    OBEDIENCE_BY_SOFTWARE,
    REPLAY_BY_CLIENT,
    REPLAY_BY_ENTITY,
    REPLAY_LEAVING_STATE,
    REPLAY_STATE,
    usage_by_minute_schema,
    usage_parts_schema,
    usage_schema,
)
from tidegate.pipeline.warm_up import kernel_at_hand

__all__ = [
    "LocalReplays",
    "local_history",
    "local_limits",
    "local_obedience",
    "local_quota_events",
    "local_recommend",
    "local_replay",
    "local_usage",
]

_ROWS_AT_ONCE = 1 << 15  # of results

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Held:
    """Stands where executors have a broadcast value."""

    value: Any


def local_replay(
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    out: Location | None,
    overwrite: bool = False,
    with_decisions: bool = False,
    carried: Mapping[tuple[str, int], Carried] | None = None,
) -> ReplaySummary:
    """Run the equivalent of `replay.replay_job` in this process."""
    leaves_state = out is not None and any(plan.leaves_state for plan in plans)
    with opened_results(out, command="replay", overwrite=overwrite) as results:
        layout, partitions = _laid_out(files, plans, carried=carried, leaves_state=leaves_state)
        kernel_at_hand(plans, timelines=layout.timelines.values())
        parts: list[pa.Table] = []
        left: list[dict[str, Any]] = []
        schema = _schema(REPLAY_LEAVING_STATE if leaves_state else REPLAY_BY_CLIENT)
        with (
            _decisions(results if with_decisions else None) as decided,
            _rows(results, "replay_by_client", REPLAY_BY_CLIENT) as write_clients,
        ):
            task, members = _held(layout)
            blocks = _blocks(partitions, "replaying")
            batches = replay_tallies(blocks, task=task, members=members, decided=decided)
            for found in _tables(batches, schema):
                by_client = found
                if leaves_state:
                    is_state = pc.field("state").is_valid()
                    left += found.filter(is_state).select(REPLAY_STATE.names).to_pylist()
                    by_client = found.filter(~is_state).select(REPLAY_BY_CLIENT.names)
                parts.append(compact(by_entity_table(by_client)))
                write_clients(by_client)
                give_back()
        by_entity = entities_together(parts)
        give_back()
        if results is not None:
            with _rows(results, "replay_by_entity", REPLAY_BY_ENTITY) as write_entities:
                for batch in by_entity.to_batches(max_chunksize=_ROWS_AT_ONCE):
                    write_entities(pa.Table.from_batches([batch]))
            if leaves_state:
                rows = list(states_left(layout, left))
                _write(pa.Table.from_pylist(rows, _schema(REPLAY_STATE)), results, STATE_TABLE)
            options = {"decisions": with_decisions, "continued": carried is not None}
            results.finish(replay_made_of(files, layout, options))
    unmatched = unmatched_entries(plans, users=layout.users, client_ids=layout.client_ids)
    return ReplaySummary(entities=TableRows(by_entity), unmatched=unmatched, missing=layout.missing)


def local_limits(
    files: UsageFiles, levels: Plan, tolerance: Tolerance, *, out: Location | None, overwrite: bool = False
) -> LimitsSummary:
    """Run the equivalent of `replay.limits_job` in this process."""
    with opened_results(out, command="limits", overwrite=overwrite) as results:
        replays = LocalReplays(files, levels)
        entities, nodes = find_limits(replays, levels, tolerance)
        if results is not None:
            _write(pa.Table.from_pylist(entities, _schema(LIMITS_BY_ENTITY)), results, "limits_by_entity")
            _write(pa.Table.from_pylist(nodes, _schema(LIMITS_BY_NODE)), results, "limits_by_node")
            results.finish(replay_made_of(files, replays.layout, asdict(tolerance)))
    layout = replays.layout
    callback = callback_in(layout.timelines)
    return LimitsSummary(entities=entities, nodes=nodes, missing=layout.missing, callback=callback)


def local_recommend(files: UsageFiles, by: str | None, wanted: Wanted) -> Recommendation:
    """Run the equivalent of `replay.recommend_job` in this process."""
    by = by or level_of((user for chunk in files.chunks for user in chunk_users(chunk)), wanted)
    empty = _schema(BACKLOG_STEPS).empty_table()
    parts = [chunk_backlogs(chunk, by) for chunk in _shown(files.chunks, "scanning")]
    backlogs = backlogs_table(pa.concat_tables(parts or [empty])).to_pylist()
    windows = windows_in(chunk_windows(chunk) for chunk in files.chunks)
    replays = LocalReplays(files, levels_of(by), forecast_levels(by))
    evidence = evidence_of(replays.layout, by, windows=windows)
    return recommend(replays, by, wanted, backlogs, evidence)


class LocalReplays:
    """Replays of the same rows, which are read and kept once, against plans like `levels`."""

    def __init__(self, files: UsageFiles, *levels: Plan) -> None:
        kernel_at_hand(levels)
        self.layout, self._partitions = _laid_out(files, levels)
        _, self._members = _held(self.layout)

    def peaks(self, plan: Plan) -> pa.Table:
        """Return what was measured, columns `LIMITS_BY_NODE`."""
        found = self._run(replay_peaks, [plan], LIMITS_BY_NODE, "measuring rates")
        return grouped(found, NODE_KEYS, PEAKS_TOGETHER).cast(_schema(LIMITS_BY_NODE))

    def outcomes(self, plans: Sequence[Plan]) -> pa.Table:
        """Return what became of the plans, columns `REPLAY_BY_ENTITY`."""
        return by_entity_table(
            self._run(replay_tallies, plans, REPLAY_BY_CLIENT, f"replaying {len(plans)} plans")
        )

    def _run(
        self,
        function: Callable[..., Iterator[pa.RecordBatch]],
        plans: Sequence[Plan],
        table: StructType,
        what: str,
    ) -> pa.Table:
        task: Any = _Held(replace(self.layout.task, plans=tuple(plans)))
        # A copy of the dict: `_blocks` removes the partitions that it yields, and later passes need them again.
        batches = function(_blocks(dict(self._partitions), what), task=task, members=self._members)
        return pa.Table.from_batches(batches, _schema(table))


def local_usage(
    files: UsageFiles,
    *,
    out: Location | None,
    overwrite: bool = False,
    top: int,
    by: Sequence[str] = CLIENT,
) -> UsageSummary:
    """Run the equivalent of `usage.usage_job` in this process."""
    in_all_name, by_minute_name = usage_tables(by)
    with opened_results(out, command="usage", overwrite=overwrite) as results:
        coverage = _coverage(files)
        kernel_at_hand((), with_usage=True)
        found = [compact(_schema(usage_parts_schema(by)).empty_table())]
        for node_id, chunks in _shown(list(coverage.nodes.items()), "aggregating"):
            found += usage_parts(node_id, chunks, by, with_minutes=results is not None)
        parts = together(found)
        give_back()
        summary = usage_schema(by)
        most, groups, topics = _schema(summary).empty_table(), 0, None
        with _rows(results, in_all_name, summary) as write:
            for some in put_together(parts, by, summary):
                most = _most_bytes(pa.concat_tables([most, some]), by, top)
                groups += len(some)
                topics = topic_counts(some, topics) if has_topics(by) else None
                write(some)
        if results is not None:
            minutes = usage_by_minute_schema(by)
            with _rows(results, by_minute_name, minutes) as write:
                for some in put_together(parts, minute_keys(by), minutes):
                    write(some)
            options = {"by": list(by)}
            results.finish(made_of(files, nodes=coverage.nodes, missing=coverage.missing, options=options))
    return UsageSummary(groups=groups, top=most.to_pylist(), missing=coverage.missing, topics=topics)


def _most_bytes(table: pa.Table, by: Sequence[str], top: int) -> pa.Table:
    """Return the `top` rows with most bytes, then requests, in this order."""
    all_bytes = table.append_column("bytes", pc.add(table["produce_bytes"], table["fetch_bytes"]))
    order = [("bytes", "descending"), ("requests", "descending"), *((name, "ascending") for name in by)]
    if not len(table):
        return table
    return table.take(pc.select_k_unstable(all_bytes, min(top, len(table)), sort_keys=order))


def _coverage(files: UsageFiles) -> Coverage:
    return coverage_of(chunk_evidence(bundle) for bundle in _shown(bundled(files.chunks), "scanning"))


def local_obedience(files: UsageFiles, *, out: Location | None, overwrite: bool = False) -> ObedienceSummary:
    """Run the equivalent of `usage.obedience_job` in this process."""
    with opened_results(out, command="obedience", overwrite=overwrite) as results:
        coverage = _coverage(files)
        parts = [chunk_obedience(chunk) for chunk in _shown(files.chunks, "aggregating")]
        empty = _schema(OBEDIENCE_BY_CLIENT).empty_table()
        by_client = obedience_by_client_table(pa.concat_tables(parts or [empty]))
        by_software = obedience_by_software_table(by_client).cast(_schema(OBEDIENCE_BY_SOFTWARE))
        if results is not None:
            _write(by_client.cast(_schema(OBEDIENCE_BY_CLIENT)), results, "obedience_by_client")
            _write(by_software, results, "obedience_by_software")
            results.finish(made_of(files, nodes=coverage.nodes, missing=coverage.missing, options={}))
    return ObedienceSummary(libraries=by_software.to_pylist(), missing=coverage.missing)


def local_quota_events(files: UsageFiles) -> ControlEvents:
    """Run the equivalent of `usage.quota_events_job` in this process."""
    return events_together(quota_events(chunk) for chunk in _shown(files.replayed, "scanning"))


def local_history(files: UsageFiles, wanted: WantedEntities, *, most: int) -> Buckets:
    """Run the equivalent of `usage.history_job` in this process."""
    chunks = _shown(files.chunks, "aggregating")
    return entity_buckets([chunk_entity_seconds(chunk, wanted) for chunk in chunks], most=most)


def _held(layout: Layout) -> Any:
    """Return what executors have of a replay."""
    return _Held(layout.task), [_Held(members) for members in layout.members(1)]


def _laid_out(
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    carried: Mapping[tuple[str, int], Carried] | None = None,
    leaves_state: bool = False,
) -> tuple[Layout, dict[int, list[pa.RecordBatch]]]:
    """Return what a replay needs, and its rows as `_partitions` has them."""
    wanted = {
        "with_connections": any(plan.is_closed for plan in plans),
        "with_answers": any(plan.is_in_force for plan in plans),
    }
    bundles = bundled(files.replayed)
    surveys = [survey_chunk(bundle, **wanted) for bundle in _shown(bundles, "scanning")]
    layout = lay_out(
        bundles,
        surveys,
        plans,
        cores=1,
        carried=carried,
        leaves_state=leaves_state,
        counted_from_ms=files.counted_from_ms,
    )
    del surveys
    give_back()
    partitions = _partitions(bundles, layout.numbers, _Held(layout.task))
    give_back()
    return layout, partitions


def _partitions(
    bundles: Sequence[Bundle], numbers: Sequence[npt.NDArray[np.int64]], task: Any
) -> dict[int, list[pa.RecordBatch]]:
    """Return the rows of the bundles as blocks, by partition, in the order in which a replay wants them."""
    schema = _schema(NUMBERED_BUNDLES)
    found: dict[int, list[tuple[int, pa.RecordBatch]]] = defaultdict(list)
    for bundle, clients in zip(_shown(bundles, "reading"), numbers, strict=True):
        row = {"chunks": chunk_rows(bundle), "numbers": clients}
        for batch in pack_chunks(iter([pa.RecordBatch.from_pylist([row], schema=schema)]), task=task):
            places = zip(batch["partition"].to_pylist(), batch["first_seq"].to_pylist(), strict=True)
            for at, (partition, first_seq) in enumerate(places):
                found[partition].append((first_seq, batch.slice(at, 1)))
    return {
        partition: [block for _, block in sorted(blocks, key=lambda block: block[0])]
        for partition, blocks in found.items()
    }


def _blocks(partitions: dict[int, list[pa.RecordBatch]], what: str) -> Iterator[pa.RecordBatch]:
    """Yield the blocks of one partition after another, and let go of them."""
    for number in _shown(sorted(partitions), what):
        yield from partitions.pop(number)


@contextmanager
def _decisions(results: Results | None) -> Iterator[Callable[[pa.RecordBatch], None] | None]:
    """Open the table of decisions, and yield the function that writes them; yield None if there are no results."""
    if results is None:
        yield None
        return
    with results.dated("decisions", _schema(DECISIONS)) as writer:
        yield writer.write


def _tables(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of the batches, about `_ROWS_AT_ONCE` of them at a time."""
    some: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        some.append(batch)
        rows += batch.num_rows
        if rows >= _ROWS_AT_ONCE:
            yield pa.Table.from_batches(some, schema)
            some, rows = [], 0
    if some:
        yield pa.Table.from_batches(some, schema)


@contextmanager
def _rows(results: Results | None, name: str, table: StructType) -> Iterator[Callable[[pa.Table], None]]:
    """Open a table, and yield the function that writes rows to it; without results, it discards them."""
    if results is None:
        yield lambda some: None
        return
    schema = _schema(table)
    with results.replaced(name) as path, pq.ParquetWriter(path, schema) as writer:
        yield lambda some: writer.write_table(some.cast(schema))


def _write(table: pa.Table, results: Results, name: str) -> None:
    with results.replaced(name) as path:
        pq.write_table(table, path)


def _schema(table: StructType) -> pa.Schema:
    return to_arrow_schema(table)


def _shown(items: Sequence[_T], description: str) -> Iterable[_T]:
    """Return the items, with a progress bar where stderr is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return items
    return track(items, description, console=console, transient=True)
