"""The jobs: read, transform, write. The one place in the pipeline that does input and output."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tidegate.pipeline.errors import spark_errors_as_ours
from tidegate.pipeline.ingest import check_files, find_files, read_events
from tidegate.pipeline.output import prepare_output, write_table
from tidegate.pipeline.progress import progress_of
from tidegate.pipeline.rollup import usage_by_client, usage_by_minute
from tidegate.pipeline.session import RunningSpark

__all__ = ["USAGE_TABLES", "UsageFiles", "UsageSummary", "open_usage", "usage_job"]

USAGE_TABLES = ("usage_by_client", "usage_by_minute")


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
    spark: RunningSpark, files: UsageFiles, *, out: Path | None, overwrite: bool, top: int
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
