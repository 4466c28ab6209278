"""Who used what: usage per client and minute, and per client in all, with Spark's own functions only.

Instead of by client, by any columns of names of the usage record.

A *client* is a pair of user and client id. Fetched bytes are the delivered ones: what a throttled fetch attempted
was taken back (B§6.3) and is not counted. A peak is the largest number of bytes charged within one second of the
clock on one node: what a byte quota per node, with no burst at all, would have to allow.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tidegate.pipeline.schemas import CLIENT, USAGE_SUMS, usage_by_minute_schema, usage_schema

__all__ = ["COUNTED_KINDS", "PEAKS", "THROTTLES", "usage_by_minute", "usage_in_all"]

COUNTED_KINDS = ("request", "network", "mutation")
_MS_PER_SECOND = 1000
_MS_PER_MINUTE = 60_000
PEAKS = {
    "peak_produce_bytes_per_second": "produce_bytes",
    "peak_fetch_bytes_per_second": "fetch_bytes",
}
"""Columns that are the largest sum of a second, and of what."""
THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")


def usage_by_minute(events: DataFrame, by: Sequence[str] = CLIENT) -> DataFrame:
    """Return one row per minute, node and `by` out of the usage record, columns `usage_by_minute_schema`."""
    seconds = _usage_by_second(events, by)
    minute = _floor_to("second_ms", _MS_PER_MINUTE).alias("minute_ms")
    peaks = [F.max(amount).alias(peak) for peak, amount in PEAKS.items()]
    names = usage_by_minute_schema(by).names
    return seconds.groupBy(minute, "node_id", *by).agg(*_sums(), *peaks).select(names)


def usage_in_all(events: DataFrame, by: Sequence[str] = CLIENT) -> DataFrame:
    """Return one row per `by` out of the usage record, columns `usage_schema`."""
    seconds = _usage_by_second(events, by)
    times = [F.min("first_ts_ms").alias("first_ts_ms"), F.max("last_ts_ms").alias("last_ts_ms")]
    peaks = [F.max(amount).alias(peak) for peak, amount in PEAKS.items()]
    return seconds.groupBy(*by).agg(*times, *_sums(), *peaks).select(usage_schema(by).names)


def _usage_by_second(events: DataFrame, by: Sequence[str]) -> DataFrame:
    """Return sums per second, node and `by`: peaks are taken from these."""
    second = _floor_to("ts_ms", _MS_PER_SECOND).alias("second_ms")
    times = [F.min("ts_ms").alias("first_ts_ms"), F.max("ts_ms").alias("last_ts_ms")]
    counted = events.where(F.col("kind").isin(*COUNTED_KINDS)).select(
        "ts_ms", "node_id", *_names(by), *_amounts()
    )
    return counted.groupBy(second, "node_id", *by).agg(*times, *_sums())


def _names(by: Sequence[str]) -> list[Column]:
    """Return the columns of names, a missing name as the empty one."""
    return [F.coalesce(name, F.lit("")).alias(name) for name in by]


def _amounts() -> list[Column]:
    """Return what each row adds to every sum."""
    is_request = F.col("kind") == "request"
    is_mutation = F.col("kind") == "mutation"
    is_throttled = is_request & ~_is_observed()
    rejected = F.coalesce("rejected", F.lit(False))
    permits = F.coalesce("mutations", F.lit(0))
    return [
        _when(is_request, F.lit(1)).alias("requests"),
        _when(is_throttled & (_throttle_ms() > 0), F.lit(1)).alias("throttled_requests"),
        *(
            _when(is_request, F.col(name)).alias(name)
            for name in ("request_bytes", "response_bytes", "produce_bytes")
        ),
        _when(is_request & ~_is_taken_back(), F.col("fetch_bytes")).alias("fetch_bytes"),
        _when(is_request, F.col("handler_ns")).alias("handler_ns"),
        _when(~is_mutation, F.col("network_ns")).alias("network_ns"),
        _when(is_mutation & ~rejected, permits).alias("mutations"),
        _when(is_mutation & rejected, permits).alias("rejected_mutations"),
        *(_when(is_throttled, F.greatest(name, F.lit(0))).alias(name) for name in THROTTLES),
    ]


def _throttle_ms() -> Column:
    """Return the throttle time that the client was answered: the largest one asked for."""
    return F.greatest(*THROTTLES)


def _is_observed() -> Column:
    """Return whether what was decided was not done."""
    return F.coalesce("observed_only", F.lit(False))


def _is_taken_back() -> Column:
    """Return whether the fetched bytes were taken back: any throttle of a fetch does that (B§6.3)."""
    is_over = F.greatest("fetch_throttle_ms", "request_throttle_ms") > 0
    return F.coalesce(is_over & ~_is_observed(), F.lit(False))


def _when(condition: Column, amount: Column) -> Column:
    """Return `amount` as a 64-bit number in rows of `condition`, 0 in others and where it is null."""
    return F.coalesce(F.when(condition, amount), F.lit(0)).cast("bigint")


def _sums() -> list[Column]:
    return [F.sum(name).alias(name) for name in USAGE_SUMS]


def _floor_to(column: str, step_ms: int) -> Column:
    """Return a time in ms rounded down to a whole step, also before the epoch."""
    return F.col(column) - F.pmod(F.col(column), F.lit(step_ms))
