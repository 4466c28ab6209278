"""From clients to quota entities: what a plan would have done to all who share a quota, on all nodes."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tidegate.pipeline.schemas import LIMITS_BY_NODE, REPLAY_BY_CLIENT, REPLAY_BY_ENTITY

__all__ = ["ENTITY_KEYS", "NODE_KEYS", "ONLY", "PEAKS_TOGETHER", "TOGETHER", "by_entity"]

ENTITY_KEYS = ("plan", "quota_type", "entity_user", "entity_client_id", "entity_tags")
_OF_EXTREMES = {
    "longest_throttle_ms": "max",
    "recorded_longest_throttle_ms": "max",
    "first_throttled_ts_ms": "min",
    "longest_wait_ms": "max",
    "last_ts_ms": "max",
    **{f"{name}_{end}": "max" for name in ("longest_throttle_ms", "last_ts_ms") for end in ("low", "high")},
    "recorded_last_ts_ms": "max",
    "recorded_first_throttled_ts_ms": "min",
}
_LIMIT = ("bound", "bound_of", "bound_changed")
ONLY = {"only_user": "user", "only_client_id": "client_id"}
"""What of an entity is null unless all of its clients have it in common, and the column that it is of."""
TOGETHER = {
    name: _OF_EXTREMES.get(name, "sum")
    for name in REPLAY_BY_ENTITY.names
    if name not in {*ENTITY_KEYS, *ONLY, *_LIMIT}
}
"""How each column of an entity comes of those of its clients: sum, min or max."""

NODE_KEYS = ("quota_type", "entity_user", "entity_client_id", "node_id")
_OF_PEAKS = {"peak": "max", "largest_amount": "max"}
PEAKS_TOGETHER = {name: _OF_PEAKS.get(name, "sum") for name in LIMITS_BY_NODE.names if name not in NODE_KEYS}
"""The same of the columns of `LIMITS_BY_NODE`."""


def by_entity(clients: DataFrame) -> DataFrame:
    """Return one row per plan and entity out of rows per client, columns `REPLAY_BY_ENTITY`."""
    rows = clients.select(REPLAY_BY_CLIENT.names)
    columns = [getattr(F, function)(name).alias(name) for name, function in TOGETHER.items()]
    columns += [F.when(F.min(of) == F.max(of), F.min(of)).alias(name) for name, of in ONLY.items()]
    limit = F.concat_ws(" ", F.coalesce(F.col("bound").cast("string"), F.lit("none")), F.col("bound_of"))
    changed = F.max("bound_changed") | (F.min(limit) != F.max(limit))
    columns += [F.when(~changed, F.max(name)).alias(name) for name in ("bound", "bound_of")]
    columns.append(changed.alias("bound_changed"))
    return rows.groupBy(*ENTITY_KEYS).agg(*columns).select(REPLAY_BY_ENTITY.names)
