"""The jobs on Spark that replay rows: against plans, to find limits, to recommend quotas."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema

from tidegate.config.locations import Location
from tidegate.pipeline.errors import spark_errors_as_ours
from tidegate.pipeline.jobs.spread import (
    EarlySurveys,
    Placed,
    done_on_spark,
    grouped,
    replay_blocks,
    spread_chunks,
)
from tidegate.pipeline.jobs.summaries import LimitsSummary, ReplaySummary, evidence_of, replay_made_of
from tidegate.pipeline.proposals.evidence import chunk_windows, windows_in
from tidegate.pipeline.proposals.recommend import (
    Recommendation,
    Wanted,
    chunk_users,
    forecast_levels,
    level_of,
    recommend,
)
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.timeline import callback_in
from tidegate.pipeline.replay.carried import Carried, carried_states
from tidegate.pipeline.replay.limits import Tolerance, find_limits, levels_of
from tidegate.pipeline.replay.outcome import NODE_KEYS, PEAKS_TOGETHER, by_entity
from tidegate.pipeline.replay.partition import replay_peaks, replay_tallies, replay_tallies_and_decisions
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.task import Layout, states_left
from tidegate.pipeline.replay.unmatched import unmatched_entries
from tidegate.pipeline.results.output import STATE_TABLE, opened_results, saved_table
from tidegate.pipeline.results.table_rows import TableRows
from tidegate.pipeline.rollup.backlogs import BY_CONNECTION, BY_STEP, STEP_KEYS, backlogs_of_chunks
from tidegate.pipeline.rollup.backlogs import ENTITY_KEYS as BACKLOG_KEYS
from tidegate.pipeline.rollup.sums import by_entity_table
from tidegate.pipeline.schemas import (
    BACKLOG_STEPS,
    BACKLOGS,
    DECISIONS,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    REPLAY_BY_CLIENT,
    REPLAY_LEAVING_STATE,
    REPLAY_STATE,
    REPLAY_WITH_DECISIONS,
)
from tidegate.pipeline.spark.progress import progress_of
from tidegate.pipeline.spark.session import RunningSpark

__all__ = ["SparkReplays", "limits_job", "recommend_job", "replay_job", "saved_states"]

_ADDED_UP_HERE_BYTES = 1 << 26  # tallies by client that Arrow adds up here: Spark takes longer to plan it
_TALLY_BYTES = 300  # of a client under a plan and a type of quota, without the names


def replay_job(
    spark: RunningSpark,
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    out: Location | None,
    overwrite: bool = False,
    with_decisions: bool = False,
    carried: Mapping[tuple[str, int], Carried] | None = None,
    early: EarlySurveys | None = None,
) -> ReplaySummary:
    """Replay the usage files against the plans; write the tables to `out` if given. Raises `TidegateError`.

    carried: what `saved_states` returns of the hours before, by plan and node. early: the files as surveyed for plans
    like these.
    """
    leaves_state = out is not None and any(plan.leaves_state for plan in plans)
    with (
        opened_results(out, command="replay", overwrite=overwrite) as results,
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "replaying"),
    ):
        placed = replay_blocks(spark, files, plans, carried=carried, leaves_state=leaves_state, early=early)
        layout = placed.layout
        replay, parts = placed.on_executors(replay_tallies), None
        table = REPLAY_LEAVING_STATE if leaves_state else REPLAY_BY_CLIENT
        if results is not None and with_decisions:
            parts = results.parts("decisions", to_arrow_schema(DECISIONS))
            replay = placed.on_executors(replay_tallies_and_decisions, parts=parts)
            table = REPLAY_WITH_DECISIONS
        found = placed.blocks.mapInArrow(replay, table)
        if results is not None:  # else it is read once
            found = found.cache()
        by_client = found
        for name in table.names[len(REPLAY_BY_CLIENT.names) :]:
            by_client = by_client.where(F.col(name).isNull())
        by_client = by_client.select(REPLAY_BY_CLIENT.names)
        if results is not None:
            results.write(by_client, "replay_by_client")
            results.write(by_entity(by_client), "replay_by_entity")
            if parts is not None:
                written = found.where("file is not null").select("file").toArrow()
                results.keep_files(parts, written["file"].to_pylist())
            if leaves_state:
                left = found.where("state is not null").select(REPLAY_STATE.names).toArrow()
                rows = list(states_left(layout, left.to_pylist()))
                states = pa.Table.from_pylist(rows, to_arrow_schema(REPLAY_STATE))
                results.write(spark.session.createDataFrame(states), STATE_TABLE)
            options = {"decisions": with_decisions, "continued": carried is not None}
            results.finish(replay_made_of(files, layout, options))
        of_entities = _entities(by_client, layout)
        if results is not None:
            found.unpersist()
    unmatched = unmatched_entries(plans, users=layout.users, client_ids=layout.client_ids)
    return ReplaySummary(entities=of_entities, unmatched=unmatched, missing=layout.missing)


def _entities(by_client: DataFrame, layout: Layout) -> TableRows:
    """Return the rows of `REPLAY_BY_ENTITY`."""
    names = layout.users.nbytes + layout.client_ids.nbytes
    most = (2 * names + _TALLY_BYTES * len(layout.users)) * len(QUOTA_TYPES) * len(layout.task.plans)
    if most <= _ADDED_UP_HERE_BYTES:
        return TableRows(by_entity_table(by_client.toArrow()))
    return TableRows(by_entity(by_client).toArrow())


def saved_states(directory: Location, plans: Sequence[Plan]) -> dict[tuple[str, int], Carried]:
    """Return what replays of the plans left in their results, by plan and node. Raises `ConfigError`."""
    wanted = [plan for plan in plans if plan.leaves_state]
    rows = saved_table(directory, STATE_TABLE).to_pylist()
    return carried_states(rows, wanted, of=repr(str(directory)))


def limits_job(
    spark: RunningSpark,
    files: UsageFiles,
    levels: Plan,
    tolerance: Tolerance,
    *,
    out: Location | None,
    overwrite: bool = False,
) -> LimitsSummary:
    """Find the smallest limits of the entities of `levels`; write the tables to `out` if given.

    Raises `TidegateError`.
    """
    with (
        opened_results(out, command="limits", overwrite=overwrite) as results,
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "finding limits"),
    ):
        with SparkReplays(spark, files, levels) as replays:
            entities, nodes = find_limits(replays, levels, tolerance)
        if results is not None:
            for rows, table, name in (
                (entities, LIMITS_BY_ENTITY, "limits_by_entity"),
                (nodes, LIMITS_BY_NODE, "limits_by_node"),
            ):
                written = pa.Table.from_pylist(rows, to_arrow_schema(table))
                results.write(spark.session.createDataFrame(written), name)
            results.finish(replay_made_of(files, replays.layout, asdict(tolerance)))
    layout = replays.layout
    callback = callback_in(layout.timelines)
    return LimitsSummary(entities=entities, nodes=nodes, missing=layout.missing, callback=callback)


def recommend_job(spark: RunningSpark, files: UsageFiles, by: str | None, wanted: Wanted) -> Recommendation:
    """Find quotas for the entities of the level `by` (None: `level_of`), and replay them. Raises `TidegateError`."""
    with (
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "finding limits"),
    ):
        by = by or level_of(_users(spark, files), wanted)
        windows = windows_in(done_on_spark(spark.session, chunk_windows, files.chunks))
        with SparkReplays(spark, files, levels_of(by), forecast_levels(by)) as replays:
            evidence = evidence_of(replays.layout, by, windows=windows)
            return recommend(replays, by, wanted, _backlogs(spark, files, by), evidence)


def _users(spark: RunningSpark, files: UsageFiles) -> Iterator[str]:
    yield from chain.from_iterable(done_on_spark(spark.session, chunk_users, files.chunks))


def _backlogs(spark: RunningSpark, files: UsageFiles, by: str) -> list[dict[str, Any]]:
    """Return the rows that `backlogs.backlogs_table` makes."""
    work = spread_chunks(spark.session, files.chunks)
    parts = work.mapInArrow(partial(backlogs_of_chunks, by=by), BACKLOG_STEPS)
    by_connection = grouped(parts, (*STEP_KEYS, "connection_id"), BY_CONNECTION)
    steps = grouped(by_connection, STEP_KEYS, BY_STEP)
    shown_ms = F.when(F.col("lag_bytes").isNotNull(), F.col("step_ms"))
    found = steps.groupBy(*BACKLOG_KEYS).agg(
        F.min("step_ms").alias("first_ms"),
        F.max("step_ms").alias("last_ms"),
        F.sum("fetched_bytes").alias("fetched_bytes"),
        F.min_by("lag_bytes", shown_ms).alias("first_lag_bytes"),
        F.max_by("lag_bytes", shown_ms).alias("last_lag_bytes"),
        F.max("lag_bytes").alias("largest_lag_bytes"),
    )
    return [row.asDict() for row in found.select(BACKLOGS.names).collect()]


class SparkReplays:
    """Replays of the same rows, which are read and placed once, against plans like `levels`."""

    def __init__(self, spark: RunningSpark, files: UsageFiles, *levels: Plan) -> None:
        self._context = spark.session.sparkContext
        placed = replay_blocks(spark, files, levels)
        self._placed = placed._replace(blocks=placed.blocks.persist(StorageLevel.DISK_ONLY))

    def __enter__(self) -> "SparkReplays":
        """Keep the rows."""
        return self

    def __exit__(self, *error: object) -> None:
        """Release the rows that Spark keeps."""
        self._placed.blocks.unpersist()

    def peaks(self, plan: Plan) -> pa.Table:
        """Return what was measured, columns `LIMITS_BY_NODE`."""
        replay = self._under([plan]).on_executors(replay_peaks)
        found = self._placed.blocks.mapInArrow(replay, LIMITS_BY_NODE)
        return grouped(found, NODE_KEYS, PEAKS_TOGETHER).select(LIMITS_BY_NODE.names).toArrow()

    def outcomes(self, plans: Sequence[Plan]) -> pa.Table:
        """Return what became of the plans, columns `REPLAY_BY_ENTITY`."""
        replay = self._under(plans).on_executors(replay_tallies)
        return by_entity(self._placed.blocks.mapInArrow(replay, REPLAY_BY_CLIENT)).toArrow()

    @property
    def layout(self) -> Layout:
        """Return what all of them begin with."""
        return self._placed.layout

    def _under(self, plans: Sequence[Plan]) -> Placed:
        task = replace(self._placed.layout.task, plans=tuple(plans))
        return self._placed._replace(task=self._context.broadcast(task))
