"""The jobs: read, transform, write. The one place in the pipeline that does input and output."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tidegate.pipeline.errors import UsageFilesError, spark_errors_as_ours
from tidegate.pipeline.ingest import check_files, find_files, read_events
from tidegate.pipeline.outcome import by_entity
from tidegate.pipeline.output import prepare_output, write_table
from tidegate.pipeline.partition import replay_decisions, replay_tallies
from tidegate.pipeline.plan import Plan
from tidegate.pipeline.prepare import client_rows, control_events, kernel_rows
from tidegate.pipeline.progress import progress_of
from tidegate.pipeline.rollup import usage_by_client, usage_by_minute
from tidegate.pipeline.schemas import DECISIONS, REPLAY_BY_CLIENT
from tidegate.pipeline.session import RunningSpark
from tidegate.pipeline.task import MAX_CLIENTS, lay_out
from tidegate.pipeline.timeline import MAX_CONTROL_EVENTS, timelines

__all__ = [
    "REPLAY_TABLES",
    "USAGE_TABLES",
    "UsageFiles",
    "UsageSummary",
    "open_usage",
    "replay_job",
    "usage_job",
]

USAGE_TABLES = ("usage_by_client", "usage_by_minute")
REPLAY_TABLES = ("replay_by_entity", "replay_by_client", "decisions")


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFiles:
    """Usage files that were looked at: all are Parquet with our columns, and hold `rows` rows."""

    paths: Sequence[Path]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSummary:
    """How many clients `usage_job` found, and those with most bytes (columns `USAGE_BY_CLIENT`)."""

    clients: int
    top: Sequence[dict[str, Any]]


def open_usage(directory: Path) -> UsageFiles:
    """Find and check the usage files in `directory`. Needs no Spark. Raises `UsageFilesError`."""
    paths = find_files(directory)
    return UsageFiles(paths=paths, rows=check_files(paths))


def usage_job(
    spark: RunningSpark, files: UsageFiles, *, out: Path | None, overwrite: bool = False, top: int
) -> UsageSummary:
    """Sum up the usage files; write the tables to `out` if given. Raises `TidegateError`."""
    if out is not None:
        prepare_output(out, command="usage", tables=USAGE_TABLES, overwrite=overwrite)
    with spark_errors_as_ours(spark_log=spark.log), progress_of(spark.session.sparkContext, "summing up"):
        events = read_events(spark.session, files.paths)
        by_client = usage_by_client(events).cache()
        if out is not None:
            by_minute = usage_by_minute(events).orderBy("minute_ms", "user", "client_id", "node_id")
            write_table(by_client.orderBy("user", "client_id"), out, "usage_by_client")
            write_table(by_minute, out, "usage_by_minute")
        most_bytes = (F.col("produce_bytes") + F.col("fetch_bytes")).desc()
        rows = (
            by_client.orderBy(most_bytes, F.col("requests").desc(), "user", "client_id").limit(top).collect()
        )
        summary = UsageSummary(clients=by_client.count(), top=[row.asDict() for row in rows])
        by_client.unpersist()
    return summary


def replay_job(
    spark: RunningSpark,
    files: UsageFiles,
    plans: Sequence[Plan],
    *,
    out: Path | None,
    overwrite: bool = False,
    with_decisions: bool = False,
) -> list[dict[str, Any]]:
    """Replay the usage files against the plans; write the tables to `out` if given.

    Returns the rows of `REPLAY_BY_ENTITY`. Raises `TidegateError`.
    """
    if out is not None:
        tables = REPLAY_TABLES if with_decisions else REPLAY_TABLES[:-1]
        prepare_output(out, command="replay", tables=tables, overwrite=overwrite)
    with spark_errors_as_ours(spark_log=spark.log), progress_of(spark.session.sparkContext, "replaying"):
        run = _replay_of(spark, read_events(spark.session, files.paths), plans)
        by_client = run(replay_tallies, REPLAY_BY_CLIENT).cache()
        entities = by_entity(by_client)
        if out is not None:
            write_table(by_client, out, "replay_by_client")
            write_table(entities, out, "replay_by_entity")
        if out is not None and with_decisions:
            write_table(run(replay_decisions, DECISIONS), out, "decisions")
        rows = [row.asDict() for row in entities.collect()]
        by_client.unpersist()
    return rows


_Kernel = Callable[..., Iterator[pa.RecordBatch]]


def _replay_of(
    spark: RunningSpark, events: DataFrame, plans: Sequence[Plan]
) -> Callable[[_Kernel, Any], DataFrame]:
    """Return a function that runs a kernel over all rows: (kernel, schema) -> table."""
    control = control_events(events).limit(MAX_CONTROL_EVENTS + 1).toArrow()
    if len(control) > MAX_CONTROL_EVENTS:
        raise UsageFilesError(
            f"more than {MAX_CONTROL_EVENTS} starts, quota changes and sweeps", hint="give fewer hours"
        )
    clients = client_rows(events).limit(MAX_CLIENTS + 1).toArrow()
    session = spark.session
    cores = session.sparkContext.defaultParallelism
    task, numbers = lay_out(clients, timelines(control.to_pylist()), plans, cores=cores)
    rows = kernel_rows(events, session.createDataFrame(numbers), partitions=max(1, len(task.node_id)))
    broadcast = session.sparkContext.broadcast(task)
    return lambda kernel, schema: rows.mapInArrow(partial(kernel, task=broadcast), schema)
