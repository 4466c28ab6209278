"""The jobs in this process or on Spark: both take the same arguments and return the same results."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from tidegate.pipeline.jobs.local import (
    local_history,
    local_limits,
    local_obedience,
    local_quota_events,
    local_recommend,
    local_replay,
    local_usage,
)
from tidegate.pipeline.jobs.replay import limits_job, recommend_job, replay_job
from tidegate.pipeline.jobs.spread import EarlySurveys
from tidegate.pipeline.jobs.summaries import LimitsSummary, ObedienceSummary, ReplaySummary, UsageSummary
from tidegate.pipeline.jobs.usage import history_job, obedience_job, quota_events_job, usage_job
from tidegate.pipeline.proposals.recommend import Recommendation
from tidegate.pipeline.read.ingest import UsageFiles
from tidegate.pipeline.read.steps import ControlEvents
from tidegate.pipeline.rollup.history import Buckets
from tidegate.pipeline.spark.session import RunningSpark, is_submitted

__all__ = ["LOCAL_ROWS", "Jobs", "jobs_here", "jobs_on_spark", "where_and_why"]

LOCAL_ROWS = 20_000_000
"""Most rows that are read in this process: some 20 bytes of memory each."""

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """The jobs over some usage files; each takes what the job of that name on Spark takes after the files."""

    usage: Callable[..., UsageSummary]
    obedience: Callable[..., ObedienceSummary]
    quota_events: Callable[..., ControlEvents]
    history: Callable[..., Buckets]
    replay: Callable[..., ReplaySummary]
    limits: Callable[..., LimitsSummary]
    recommend: Callable[..., Recommendation]


def where_and_why(*, master: str | None, rows: int) -> tuple[bool, str]:
    """Return whether a job is done in this process, and the reason in a few words."""
    if master is not None:
        return False, f"on Spark: --master {master}"
    if is_submitted():
        return False, "on Spark: started by spark-submit"
    if SparkSession.getActiveSession() is not None:
        return False, "on Spark: a Spark session is already running"
    if rows > LOCAL_ROWS:
        return False, f"on Spark: {rows:,} rows, more than the {LOCAL_ROWS:,} that one process reads"
    return True, f"in this process: {rows:,} rows; Spark is used for more than {LOCAL_ROWS:,}"


def jobs_here(files: UsageFiles) -> Jobs:
    """Return the jobs in this process."""
    return Jobs(
        usage=partial(local_usage, files),
        obedience=partial(local_obedience, files),
        quota_events=partial(local_quota_events, files),
        history=partial(local_history, files),
        replay=partial(local_replay, files),
        limits=partial(local_limits, files),
        recommend=partial(local_recommend, files),
    )


def jobs_on_spark(spark: RunningSpark, files: UsageFiles, early: EarlySurveys | None = None) -> Jobs:
    """Return the jobs on Spark. early: what was found in the files meanwhile."""
    return Jobs(
        usage=partial(usage_job, spark, files),
        obedience=partial(obedience_job, spark, files),
        quota_events=partial(quota_events_job, spark, files),
        history=partial(history_job, spark, files),
        replay=partial(replay_job, spark, files, early=early),
        limits=partial(limits_job, spark, files),
        recommend=partial(recommend_job, spark, files),
    )
