"""The jobs on Spark that add rows up: who used what, when, and who came back too early."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tidegate.config.locations import Location
from tidegate.pipeline.errors import spark_errors_as_ours
from tidegate.pipeline.jobs.spread import (
    SLICES_PER_CORE,
    coverage_on_spark,
    done_on_spark,
    grouped,
    spread_chunks,
)
from tidegate.pipeline.jobs.summaries import ObedienceSummary, UsageSummary, usage_tables
from tidegate.pipeline.read.chunks import chunk_row
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.missing import NodeChunk
from tidegate.pipeline.read.steps import ControlEvents, events_together
from tidegate.pipeline.report.manifest import made_of
from tidegate.pipeline.report.usage_report import TopicCounts
from tidegate.pipeline.results.output import opened_results
from tidegate.pipeline.rollup.groups import UNKNOWN_TOPIC, has_topics
from tidegate.pipeline.rollup.history import (
    BUCKET_SUMS,
    SECOND_KEYS,
    SECOND_SUMS,
    Buckets,
    WantedEntities,
    entity_seconds_of_chunks,
    quota_events,
    step_ms,
)
from tidegate.pipeline.rollup.obedience import (
    CLIENT_KEYS,
    CLIENT_SUMS,
    SOFTWARE_KEYS,
    SOFTWARE_SUMS,
    obedience_of_chunks,
)
from tidegate.pipeline.rollup.parts import usage_parts_of_nodes
from tidegate.pipeline.rollup.tables import minute_keys, put_together_batches
from tidegate.pipeline.schemas import (
    CHUNKS_OF_NODES,
    CLIENT,
    ENTITY_SECONDS,
    OBEDIENCE_BY_CLIENT,
    OBEDIENCE_BY_SOFTWARE,
    TOPIC_SUMS,
    usage_by_minute_schema,
    usage_parts_schema,
    usage_schema,
)
from tidegate.pipeline.spark.progress import progress_of
from tidegate.pipeline.spark.session import RunningSpark

__all__ = ["history_job", "obedience_job", "quota_events_job", "usage_job"]


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
        progress_of(spark.session.sparkContext, "aggregating"),
    ):
        coverage = coverage_on_spark(spark.session, files)
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
        groups = in_all.count()
        summary = UsageSummary(
            groups=groups,
            top=[row.asDict() for row in rows],
            missing=coverage.missing,
            topics=_topic_counts(in_all) if groups and has_topics(by) else None,
        )
        in_all.unpersist()
        parts.unpersist()
    return summary


def _topic_counts(groups: DataFrame) -> TopicCounts:
    """Run the equivalent of `summaries.topic_counts` on Spark."""
    requests = F.when(F.col("topic") == UNKNOWN_TOPIC, F.col("requests")).otherwise(0)
    sums = groups.agg(
        *(F.sum(name).alias(name) for name in TOPIC_SUMS), F.sum(requests).alias("unknown_requests")
    )
    (row,) = sums.collect()
    return TopicCounts(**row.asDict())


def _usage_parts(
    session: SparkSession, nodes: Mapping[int, Sequence[NodeChunk]], by: Sequence[str], *, with_minutes: bool
) -> DataFrame:
    """Return the parts of usage: a task goes through the rows of some nodes, in order."""
    rows = [
        {"node_id": node_id, "chunks": [_chunk_row(each) for each in chunks]}
        for node_id, chunks in nodes.items()
    ]
    slices = max(1, min(len(rows), SLICES_PER_CORE * session.sparkContext.defaultParallelism))
    table = pa.Table.from_pylist(rows, to_arrow_schema(CHUNKS_OF_NODES))
    slice_of = pa.array([at * slices // len(rows) for at in range(len(rows))], pa.int32())
    spread = session.createDataFrame(table.append_column("slice", slice_of))
    work = spread.repartitionById(slices, F.col("slice")).select(CHUNKS_OF_NODES.names)
    function = partial(usage_parts_of_nodes, by=by, with_minutes=with_minutes)
    return work.mapInArrow(function, usage_parts_schema(by))


def _chunk_row(each: NodeChunk) -> dict[str, Any]:
    return {"first_seq": each.first_seq, "last_seq": each.last_seq, **chunk_row(each.chunk)}


def _put_together(parts: DataFrame, by: Sequence[str], keys: Sequence[str], table: StructType) -> DataFrame:
    function = partial(put_together_batches, by=by, keys=keys, table=table)
    return parts.repartition(*keys).mapInArrow(function, table)


def obedience_job(
    spark: RunningSpark, files: UsageFiles, *, out: Location | None, overwrite: bool = False
) -> ObedienceSummary:
    """Find out which client libraries came back too early; write the tables to `out` if given.

    Raises `TidegateError`.
    """
    with (
        opened_results(out, command="obedience", overwrite=overwrite) as results,
        spark_errors_as_ours(spark_log=spark.log),
        progress_of(spark.session.sparkContext, "aggregating"),
    ):
        coverage = coverage_on_spark(spark.session, files)
        work = spread_chunks(spark.session, files.chunks)
        parts = work.mapInArrow(obedience_of_chunks, OBEDIENCE_BY_CLIENT)
        by_client = grouped(parts, CLIENT_KEYS, CLIENT_SUMS).cache()
        counted = by_client.withColumns(
            {
                "clients": F.lit(1),
                "throttled_clients": (F.col("throttled_requests") > 0).cast("bigint"),
                "early_clients": (F.col("early_requests") > 0).cast("bigint"),
            }
        )
        by_software = grouped(counted, SOFTWARE_KEYS, SOFTWARE_SUMS).select(OBEDIENCE_BY_SOFTWARE.names)
        if results is not None:
            results.write(by_client.orderBy(*CLIENT_KEYS), "obedience_by_client")
            results.write(by_software, "obedience_by_software")
            results.finish(made_of(files, nodes=coverage.nodes, missing=coverage.missing, options={}))
        rows = [row.asDict() for row in by_software.orderBy(*SOFTWARE_KEYS).collect()]
        by_client.unpersist()
    return ObedienceSummary(libraries=rows, missing=coverage.missing)


def quota_events_job(spark: RunningSpark, files: UsageFiles) -> ControlEvents:
    """Return what `history.quota_events` finds in the usage files. Raises `TidegateError`."""
    with spark_errors_as_ours(spark_log=spark.log), progress_of(spark.session.sparkContext, "scanning"):
        return events_together(done_on_spark(spark.session, quota_events, files.replayed))


def history_job(spark: RunningSpark, files: UsageFiles, wanted: WantedEntities, *, most: int) -> Buckets:
    """Return what the entities used, in `most` steps of time at the most. Raises `TidegateError`."""
    with spark_errors_as_ours(spark_log=spark.log), progress_of(spark.session.sparkContext, "aggregating"):
        work = spread_chunks(spark.session, files.chunks)
        parts = work.mapInArrow(partial(entity_seconds_of_chunks, wanted=wanted), ENTITY_SECONDS)
        seconds = grouped(parts, SECOND_KEYS, SECOND_SUMS).cache()
        [(first_ms, last_ms)] = seconds.agg(F.min("second_ms"), F.max("second_ms")).collect()
        step = step_ms(first_ms or 0, last_ms or 0, most=most)
        bucket_ms = F.col("second_ms") - F.pmod("second_ms", F.lit(step))
        peaks = seconds.withColumns({"bucket_ms": bucket_ms, "peak_amount": F.col("amount")})
        rows = [
            row.asDict() for row in grouped(peaks, ("bucket_ms", *SECOND_KEYS[1:]), BUCKET_SUMS).collect()
        ]
        seconds.unpersist()
    return Buckets(step_ms=step, rows=rows)
