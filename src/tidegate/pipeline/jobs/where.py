"""The choice of the back end: this process or Spark."""

from pyspark.sql import SparkSession

from tidegate.pipeline.errors import spark_errors_as_ours
from tidegate.pipeline.jobs.here import Here
from tidegate.pipeline.jobs.jobs import Jobs
from tidegate.pipeline.jobs.on_spark import EarlySurveys, OnSpark
from tidegate.pipeline.progress import OnProgress, silent
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.spark.session import RunningSpark, connect_address, is_submitted
from tidegate.pipeline.spark.sessions import send_package

__all__ = ["LOCAL_ROWS", "jobs_here", "jobs_in_session", "jobs_on_spark", "where_and_why"]

LOCAL_ROWS = 20_000_000
"""Most rows that are read in this process: some 20 bytes of memory each."""


def where_and_why(*, master: str | None, rows: int) -> tuple[bool, str]:
    """Return whether a job is done in this process, and the reason in a few words."""
    if master is not None:
        return False, f"on Spark: --master {master}"
    if connect_address(master) is not None:
        return False, "on Spark Connect: SPARK_REMOTE"
    if is_submitted():
        return False, "on Spark: started by spark-submit"
    if SparkSession.getActiveSession() is not None:
        return False, "on Spark: a Spark session is already running"
    if rows > LOCAL_ROWS:
        return False, f"on Spark: {rows:,} rows, more than the {LOCAL_ROWS:,} that one process reads"
    return True, f"in this process: {rows:,} rows; Spark is used for more than {LOCAL_ROWS:,}"


def jobs_in_session(spark: SparkSession, files: UsageFiles, on_progress: OnProgress = silent) -> Jobs:
    """Return the jobs in a session of the caller, whose settings stay as they are."""
    with spark_errors_as_ours(spark_log=None):
        send_package(spark)
    return jobs_on_spark(RunningSpark(session=spark, log=None), files, on_progress=on_progress)


def jobs_here(files: UsageFiles, on_progress: OnProgress = silent) -> Jobs:
    """Return the jobs in this process."""
    return Jobs(files=files, back_end=Here(on_progress))


def jobs_on_spark(
    spark: RunningSpark,
    files: UsageFiles,
    early: EarlySurveys | None = None,
    on_progress: OnProgress = silent,
) -> Jobs:
    """Return the jobs on Spark. early: what was found in the files meanwhile."""
    return Jobs(files=files, back_end=OnSpark(spark, early, on_progress))
