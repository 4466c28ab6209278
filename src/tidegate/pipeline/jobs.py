"""The jobs: read, transform, write. The one place in the pipeline that does input and output."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import StorageLevel
from pyspark.core.broadcast import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Location
from tidegate.pipeline.backlogs import BY_CONNECTION, BY_STEP, STEP_KEYS, backlogs_of_chunks
from tidegate.pipeline.backlogs import ENTITY_KEYS as BACKLOG_KEYS
from tidegate.pipeline.errors import VanishedFileError, spark_errors_as_ours
from tidegate.pipeline.history import (
    BUCKET_SUMS,
    SECOND_KEYS,
    SECOND_SUMS,
    Buckets,
    WantedEntities,
    entity_seconds_of_chunks,
    quota_events,
    step_ms,
)
from tidegate.pipeline.manifest import made_of
from tidegate.pipeline.obedience import (
    CLIENT_KEYS,
    CLIENT_SUMS,
    SOFTWARE_KEYS,
    SOFTWARE_SUMS,
    obedience_of_chunks,
)
from tidegate.pipeline.output import STATE_TABLE, opened_results, saved_table
from tidegate.pipeline.progress import progress_of
from tidegate.pipeline.read.chunks import Chunk, survey_chunk
from tidegate.pipeline.read.ingest import UsageFiles, find_all_files, list_chunks
from tidegate.pipeline.read.missing import Coverage, Missing, NodeChunk, chunk_evidence, coverage_of
from tidegate.pipeline.recommend import Recommendation, Wanted, recommend
from tidegate.pipeline.replay.carried import Carried, carried_states
from tidegate.pipeline.replay.limits import Tolerance, find_limits, levels_of
from tidegate.pipeline.replay.outcome import NODE_KEYS, PEAKS_TOGETHER, by_entity
from tidegate.pipeline.replay.partition import (
    Grouped,
    ReplayTask,
    pack_chunks,
    replay_peaks,
    replay_tallies,
    replay_tallies_and_decisions,
)
from tidegate.pipeline.replay.plan import QUOTA_TYPES, Plan
from tidegate.pipeline.replay.task import Layout, lay_out, states_left
from tidegate.pipeline.replay.unmatched import Unmatched, unmatched_entries
from tidegate.pipeline.rollup.parts import usage_parts_of_nodes
from tidegate.pipeline.rollup.tables import minute_keys, put_together_batches
from tidegate.pipeline.schemas import (
    BACKLOG_STEPS,
    BACKLOGS,
    BLOCKS,
    CHUNKS_OF_NODES,
    CLIENT,
    DECISIONS,
    ENTITY_SECONDS,
    LIMITS_BY_ENTITY,
    LIMITS_BY_NODE,
    NUMBERED_CHUNKS,
    OBEDIENCE_BY_CLIENT,
    OBEDIENCE_BY_SOFTWARE,
    REPLAY_BY_CLIENT,
    REPLAY_LEAVING_STATE,
    REPLAY_STATE,
    REPLAY_WITH_DECISIONS,
    usage_by_minute_schema,
    usage_parts_schema,
    usage_schema,
)
from tidegate.pipeline.session import RunningSpark
from tidegate.pipeline.sums import by_entity_table
from tidegate.pipeline.table_rows import TableRows

__all__ = [
    "LimitsSummary",
    "ObedienceSummary",
    "ReplaySummary",
    "SparkReplays",
    "UsageFiles",
    "UsageSummary",
    "history_job",
    "limits_job",
    "obedience_job",
    "open_usage",
    "quota_events_job",
    "recommend_job",
    "replay_blocks",
    "replay_job",
    "replay_made_of",
    "saved_states",
    "slices_of",
    "usage_job",
    "usage_tables",
]

_SLICES_PER_CORE = 4  # tasks of the passes over the files, at least
_SLICE_BYTES = 1 << 28  # uncompressed, at most
_ADDED_UP_HERE_BYTES = 1 << 26  # tallies by client that Arrow adds up here: Spark takes longer to plan it
_TALLY_BYTES = 300  # of a client under a plan and a type of quota, without the names
_MEMBER_GROUPS = 16  # broadcasts of what partitions need: each is for as many of the tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSummary:
    """What `usage_job` found: how many groups (by default clients), those with most bytes (columns `usage_schema`), and
    missing rows.
    """

    groups: int
    top: Sequence[dict[str, Any]]
    missing: Sequence[Missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObedienceSummary:
    """What `obedience_job` found: rows of `OBEDIENCE_BY_SOFTWARE`, and missing rows."""

    libraries: Sequence[dict[str, Any]]
    missing: Sequence[Missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSummary:
    """What `limits_job` found: rows of `LIMITS_BY_ENTITY` and of `LIMITS_BY_NODE`, and missing rows."""

    entities: Sequence[dict[str, Any]]
    nodes: Sequence[dict[str, Any]]
    missing: Sequence[Missing]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySummary:
    """What `replay_job` found: rows of `REPLAY_BY_ENTITY`, entries of plans that are for nobody, and missing rows."""

    entities: Sequence[dict[str, Any]]
    unmatched: Sequence[Unmatched]
    missing: Sequence[Missing]


@contextmanager
def open_usage(
    directory: Location, *, from_ms: int | None = None, to_ms: int | None = None
) -> Iterator[UsageFiles]:
    """Find and check the usage files in `directory`, to be read meanwhile; its spool is in copies.

    from_ms, to_ms: only those of the hours in between; None: no end. Where a file has gone since it was listed, the
    files are listed once more.

    Needs no Spark. Raises `UsageFilesError`.
    """
    with ExitStack() as stack:
        for is_last in (False, True):
            paths = stack.enter_context(find_all_files(directory, from_ms=from_ms, to_ms=to_ms))
            try:
                chunks = list_chunks(paths)
                files = UsageFiles(paths=paths, chunks=chunks, record=directory, from_ms=from_ms, to_ms=to_ms)
                break
            except VanishedFileError:
                if is_last:
                    raise
        yield files


def usage_tables(by: Sequence[str]) -> tuple[str, str]:
    """Return the names of the tables of usage by the columns `by`: in all, and by minute."""
    return f"usage_by_{'client' if tuple(by) == CLIENT else '_'.join(by)}", "usage_by_minute"


def usage_job(
    spark: RunningSpark,
    files: UsageFiles,
    *,
    out: Location | None,
    overwrite: bool = False,
    top: int,
    by: Sequence[str] = CLIENT,
) -> UsageSummary:
    """Sum up the usage files by the columns `by`; write the tables to `out` if given. Raises `TidegateError`."""
    in_all_name, by_minute_name = usage_tables(by)
    with (
        opened_results(out, command="usage", overwrite=overwrite) as results,
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "summing up"),
    ):
        coverage = _coverage(spark.session, files)
        parts = _usage_parts(spark.session, coverage.nodes, by, with_minutes=results is not None).cache()
        in_all = _put_together(parts, by, by, usage_schema(by)).cache()
        if results is not None:
            keys = minute_keys(by)
            by_minute = _put_together(parts, by, keys, usage_by_minute_schema(by)).orderBy(*keys)
            results.write(in_all.orderBy(*by), in_all_name)
            results.write(by_minute, by_minute_name)
            options = {"by": list(by)}
            results.finish(made_of(files, nodes=coverage.nodes, missing=coverage.missing, options=options))
        most_bytes = (F.col("produce_bytes") + F.col("fetch_bytes")).desc()
        rows = in_all.orderBy(most_bytes, F.col("requests").desc(), *by).limit(top).collect()
        summary = UsageSummary(
            groups=in_all.count(), top=[row.asDict() for row in rows], missing=coverage.missing
        )
        in_all.unpersist()
        parts.unpersist()
    return summary


def _usage_parts(
    session: SparkSession, nodes: Mapping[int, Sequence[NodeChunk]], by: Sequence[str], *, with_minutes: bool
) -> DataFrame:
    """Return the parts of usage: a task goes through the rows of some nodes, in order."""
    rows = [
        {"node_id": node_id, "chunks": [_chunk_row(each) for each in chunks]}
        for node_id, chunks in nodes.items()
    ]
    slices = max(1, min(len(rows), _SLICES_PER_CORE * session.sparkContext.defaultParallelism))
    table = pa.Table.from_pylist(rows, to_arrow_schema(CHUNKS_OF_NODES))
    slice_of = pa.array([at * slices // len(rows) for at in range(len(rows))], pa.int32())
    spread = session.createDataFrame(table.append_column("slice", slice_of))
    work = spread.repartitionById(slices, F.col("slice")).select(CHUNKS_OF_NODES.names)
    function = partial(usage_parts_of_nodes, by=by, with_minutes=with_minutes)
    return work.mapInArrow(function, usage_parts_schema(by))


def _chunk_row(each: NodeChunk) -> dict[str, Any]:
    return {"first_seq": each.first_seq, "last_seq": each.last_seq, **asdict(each.chunk)}


def _put_together(parts: DataFrame, by: Sequence[str], keys: Sequence[str], table: StructType) -> DataFrame:
    function = partial(put_together_batches, by=by, keys=keys, table=table)
    return parts.repartition(*keys).mapInArrow(function, table)


def _coverage(session: SparkSession, files: UsageFiles) -> Coverage:
    work = session.sparkContext.parallelize(files.chunks, slices_of(session, files.chunks))
    return coverage_of(work.map(chunk_evidence).collect())


def obedience_job(
    spark: RunningSpark, files: UsageFiles, *, out: Location | None, overwrite: bool = False
) -> ObedienceSummary:
    """Find out which client libraries came back too early; write the tables to `out` if given.

    Raises `TidegateError`.
    """
    with (
        opened_results(out, command="obedience", overwrite=overwrite) as results,
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "summing up"),
    ):
        coverage = _coverage(spark.session, files)
        work = _spread(spark.session, files.chunks)
        parts = work.mapInArrow(obedience_of_chunks, OBEDIENCE_BY_CLIENT)
        by_client = _grouped(parts, CLIENT_KEYS, CLIENT_SUMS).cache()
        counted = by_client.withColumns(
            {
                "clients": F.lit(1),
                "throttled_clients": (F.col("throttled_requests") > 0).cast("bigint"),
                "early_clients": (F.col("early_requests") > 0).cast("bigint"),
            }
        )
        by_software = _grouped(counted, SOFTWARE_KEYS, SOFTWARE_SUMS).select(OBEDIENCE_BY_SOFTWARE.names)
        if results is not None:
            results.write(by_client.orderBy(*CLIENT_KEYS), "obedience_by_client")
            results.write(by_software, "obedience_by_software")
            results.finish(made_of(files, nodes=coverage.nodes, missing=coverage.missing, options={}))
        rows = [row.asDict() for row in by_software.orderBy(*SOFTWARE_KEYS).collect()]
        by_client.unpersist()
    return ObedienceSummary(libraries=rows, missing=coverage.missing)


def quota_events_job(spark: RunningSpark, files: UsageFiles) -> list[dict[str, Any]]:
    """Return what `history.quota_events` finds in the usage files. Raises `TidegateError`."""
    with spark_errors_as_ours(spark_log=spark.log), progress_of(spark.session.sparkContext, "looking"):
        work = spark.session.sparkContext.parallelize(files.chunks, slices_of(spark.session, files.chunks))
        events: list[dict[str, Any]] = work.flatMap(quota_events).collect()
    return events


def history_job(spark: RunningSpark, files: UsageFiles, wanted: WantedEntities, *, most: int) -> Buckets:
    """Return what the entities used, in `most` steps of time at the most. Raises `TidegateError`."""
    with spark_errors_as_ours(spark_log=spark.log), progress_of(spark.session.sparkContext, "summing up"):
        work = _spread(spark.session, files.chunks)
        parts = work.mapInArrow(partial(entity_seconds_of_chunks, wanted=wanted), ENTITY_SECONDS)
        seconds = _grouped(parts, SECOND_KEYS, SECOND_SUMS).cache()
        [(first_ms, last_ms)] = seconds.agg(F.min("second_ms"), F.max("second_ms")).collect()
        step = step_ms(first_ms or 0, last_ms or 0, most=most)
        bucket_ms = F.col("second_ms") - F.pmod("second_ms", F.lit(step))
        peaks = seconds.withColumns({"bucket_ms": bucket_ms, "peak_amount": F.col("amount")})
        rows = [
            row.asDict() for row in _grouped(peaks, ("bucket_ms", *SECOND_KEYS[1:]), BUCKET_SUMS).collect()
        ]
        seconds.unpersist()
    return Buckets(step_ms=step, rows=rows)


def _grouped(table: DataFrame, keys: Sequence[str], wanted: Mapping[str, str]) -> DataFrame:
    """Return what `sums.grouped` returns."""
    functions = {"sum": F.sum, "max": F.max}
    return table.groupBy(*keys).agg(
        *(functions[function](name).alias(name) for name, function in wanted.items())
    )


def slices_of(session: SparkSession, chunks: Sequence[Chunk]) -> int:
    """Return in how many tasks the chunks are read: by their bytes, and by the executors that have registered."""
    wanted = -(-sum(chunk.size_bytes for chunk in chunks) // _SLICE_BYTES)
    return max(1, min(len(chunks), max(wanted, _SLICES_PER_CORE * session.sparkContext.defaultParallelism)))


def replay_job(
    spark: RunningSpark,
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    out: Location | None,
    overwrite: bool = False,
    with_decisions: bool = False,
    carried: Mapping[tuple[str, int], Carried] | None = None,
) -> ReplaySummary:
    """Replay the usage files against the plans; write the tables to `out` if given. Raises `TidegateError`.

    carried: what `saved_states` returns of the hours before, by plan and node.
    """
    leaves_state = out is not None and any(plan.leaves_state for plan in plans)
    with (
        opened_results(out, command="replay", overwrite=overwrite) as results,
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "replaying"),
    ):
        placed = replay_blocks(spark, files, plans, carried=carried, leaves_state=leaves_state)
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
                results.keep(parts, written["file"].to_pylist())
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


def replay_made_of(files: UsageFiles, layout: Layout, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the manifest of a replay's results says."""
    nodes = {node_id: [end] for node_id, end in layout.ends.items()}
    return made_of(files, nodes=nodes, missing=layout.missing, plans=layout.task.plans, options=options)


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
    return LimitsSummary(entities=entities, nodes=nodes, missing=replays.layout.missing)


def recommend_job(spark: RunningSpark, files: UsageFiles, by: str, wanted: Wanted) -> Recommendation:
    """Find quotas for the entities of the level `by`, and replay them. Raises `TidegateError`."""
    with (
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "finding limits"),
        SparkReplays(spark, files, levels_of(by)) as replays,
    ):
        return recommend(replays, by, wanted, _backlogs(spark, files, by), missing=replays.layout.missing)


def _backlogs(spark: RunningSpark, files: UsageFiles, by: str) -> list[dict[str, Any]]:
    """Return the rows that `backlogs.backlogs_table` makes."""
    work = _spread(spark.session, files.chunks)
    parts = work.mapInArrow(partial(backlogs_of_chunks, by=by), BACKLOG_STEPS)
    by_connection = _grouped(parts, (*STEP_KEYS, "connection_id"), BY_CONNECTION)
    steps = _grouped(by_connection, STEP_KEYS, BY_STEP)
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
    """Replays of the same rows, which are read and placed once, against plans of the same levels."""

    def __init__(self, spark: RunningSpark, files: UsageFiles, levels: Plan) -> None:
        self._context = spark.session.sparkContext
        placed = replay_blocks(spark, files, [levels])
        self._placed = placed._replace(blocks=placed.blocks.persist(StorageLevel.DISK_ONLY))

    def __enter__(self) -> "SparkReplays":
        """Keep the rows."""
        return self

    def __exit__(self, *error: object) -> None:
        """Let go of the rows."""
        self._placed.blocks.unpersist()

    def peaks(self, plan: Plan) -> pa.Table:
        """Return what was measured, columns `LIMITS_BY_NODE`."""
        replay = self._under([plan]).on_executors(replay_peaks)
        found = self._placed.blocks.mapInArrow(replay, LIMITS_BY_NODE)
        return _grouped(found, NODE_KEYS, PEAKS_TOGETHER).select(LIMITS_BY_NODE.names).toArrow()

    def outcomes(self, plans: Sequence[Plan]) -> pa.Table:
        """Return what became of the plans, columns `REPLAY_BY_ENTITY`."""
        replay = self._under(plans).on_executors(replay_tallies)
        return by_entity(self._placed.blocks.mapInArrow(replay, REPLAY_BY_CLIENT)).toArrow()

    @property
    def layout(self) -> Layout:
        """Return what all of them begin with."""
        return self._placed.layout

    def _under(self, plans: Sequence[Plan]) -> "Placed":
        task = replace(self._placed.layout.task, plans=tuple(plans))
        return self._placed._replace(task=self._context.broadcast(task))


class Placed(NamedTuple):
    """The rows of files as blocks, where they belong and in order, and what a replay of them needs."""

    blocks: DataFrame
    layout: Layout
    task: Broadcast[ReplayTask]
    members: Grouped

    def on_executors(self, function: Callable[..., Any], **more: Any) -> Callable[..., Any]:
        """Return a function of `replay.partition` with what it needs there; in: the blocks."""
        return partial(function, task=self.task, members=self.members, **more)


def replay_blocks(
    spark: RunningSpark,
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    carried: Mapping[tuple[str, int], Carried] | None = None,
    leaves_state: bool = False,
) -> Placed:
    """Return the rows of the files where they belong.

    The first pass over the files finds out who there is; the second, which is still to be run, reads the rows.
    """
    session, context = spark.session, spark.session.sparkContext
    survey = partial(
        survey_chunk,
        with_connections=any(plan.is_closed for plan in plans),
        with_answers=any(plan.is_in_force for plan in plans),
    )
    surveys = context.parallelize(files.chunks, slices_of(session, files.chunks)).map(survey).collect()
    cores = context.defaultParallelism
    layout = lay_out(files.chunks, surveys, plans, cores=cores, carried=carried, leaves_state=leaves_state)
    task = context.broadcast(layout.task)
    tasks = layout.task.tasks
    members: Grouped = [context.broadcast(group) for group in layout.members(min(tasks, _MEMBER_GROUPS))]
    blocks = _spread(session, files.chunks, layout.numbers).mapInArrow(
        partial(pack_chunks, task=task), BLOCKS
    )
    placed = blocks.repartitionById(tasks, F.col("task")).sortWithinPartitions("partition", "first_seq")
    return Placed(placed, layout, task, members)


def _spread(
    session: SparkSession,
    chunks: Sequence[Chunk],
    numbers: Sequence[Sequence[int] | npt.NDArray[np.int64]] | None = None,
) -> DataFrame:
    """Return the table `NUMBERED_CHUNKS` in as many partitions, each a run of chunks, of about equally many bytes."""
    schema, slices = to_arrow_schema(NUMBERED_CHUNKS), slices_of(session, chunks)
    numbers = [[]] * len(chunks) if numbers is None else numbers
    columns = [[chunk.path for chunk in chunks], [chunk.row_group for chunk in chunks], numbers]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    table = pa.table(arrays, schema=schema)
    ends = list(accumulate(max(1, chunk.size_bytes) for chunk in chunks))
    slice_of = pa.array([(end - 1) * slices // ends[-1] for end in ends], pa.int32())
    spread = session.createDataFrame(table.append_column("slice", slice_of))
    return spread.repartitionById(slices, F.col("slice")).select(NUMBERED_CHUNKS.names)
