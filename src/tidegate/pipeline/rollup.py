"""Who used what: usage per client and minute, and per client in all, with Spark's own functions only.

A *client* is a pair of user and client id. Fetched bytes are the delivered ones: what a throttled fetch attempted
was taken back (B§6.3) and is not counted. A peak is the largest number of bytes charged within one second of the
clock on one node: what a byte quota per node, with no burst at all, would have to allow.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tidegate.pipeline.schemas import USAGE_BY_CLIENT, USAGE_BY_MINUTE

__all__ = ["COUNTED_KINDS", "PEAKS", "SUMS", "THROTTLES", "usage_by_client", "usage_by_minute"]

COUNTED_KINDS = ("request", "network", "mutation")
_MS_PER_SECOND = 1000
_MS_PER_MINUTE = 60_000
_CLIENT = ("user", "client_id")
SUMS = [
    field.name
    for field in USAGE_BY_MINUTE
    if field.name not in {"minute_ms", "node_id", *_CLIENT} and not field.name.startswith("peak_")
]
"""What is added up, of each second and of all."""
PEAKS = {
    "peak_produce_bytes_per_second": "produce_bytes",
    "peak_fetch_bytes_per_second": "fetch_bytes",
}
"""Columns that are the largest sum of a second, and of what."""
THROTTLES = ("produce_throttle_ms", "fetch_throttle_ms", "request_throttle_ms", "mutation_throttle_ms")


def usage_by_minute(events: DataFrame) -> DataFrame:
    """Return one row per minute, node and client out of the usage record, columns `USAGE_BY_MINUTE`."""
    seconds = _usage_by_second(events)
    minute = _floor_to("second_ms", _MS_PER_MINUTE).alias("minute_ms")
    peaks = [F.max(amount).alias(peak) for peak, amount in PEAKS.items()]
    return seconds.groupBy(minute, "node_id", *_CLIENT).agg(*_sums(), *peaks).select(USAGE_BY_MINUTE.names)


def usage_by_client(events: DataFrame) -> DataFrame:
    """Return one row per client out of the usage record, columns `USAGE_BY_CLIENT`."""
    seconds = _usage_by_second(events)
    times = [F.min("first_ts_ms").alias("first_ts_ms"), F.max("last_ts_ms").alias("last_ts_ms")]
    peaks = [F.max(amount).alias(peak) for peak, amount in PEAKS.items()]
    return seconds.groupBy(*_CLIENT).agg(*times, *_sums(), *peaks).select(USAGE_BY_CLIENT.names)


def _usage_by_second(events: DataFrame) -> DataFrame:
    """Return sums per second, node and client: peaks are taken from these."""
    second = _floor_to("ts_ms", _MS_PER_SECOND).alias("second_ms")
    times = [F.min("ts_ms").alias("first_ts_ms"), F.max("ts_ms").alias("last_ts_ms")]
    counted = events.where(F.col("kind").isin(*COUNTED_KINDS)).select(
        "ts_ms", "node_id", *_client(), *_amounts()
    )
    return counted.groupBy(second, "node_id", *_CLIENT).agg(*times, *_sums())


def _client() -> list[Column]:
    """Return the client's columns, a missing name as the empty one."""
    return [F.coalesce(name, F.lit("")).alias(name) for name in _CLIENT]


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
    return [F.sum(name).alias(name) for name in SUMS]


def _floor_to(column: str, step_ms: int) -> Column:
    """Return a time in ms rounded down to a whole step, also before the epoch."""
    return F.col(column) - F.pmod(F.col(column), F.lit(step_ms))
