"""From clients to quota entities: what a plan would have done to all who share a quota, on all nodes."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from tidegate.pipeline.schemas import REPLAY_BY_CLIENT, REPLAY_BY_ENTITY

__all__ = ["by_entity"]

_KEYS = ("plan", "quota_type", "entity_user", "entity_client_id")
_LARGEST = {"bound", "longest_throttle_ms", "recorded_longest_throttle_ms"}
_SMALLEST = {"first_throttled_ts_ms", "recorded_first_throttled_ts_ms"}


def by_entity(clients: DataFrame) -> DataFrame:
    """Return one row per plan and entity out of rows per client, columns `REPLAY_BY_ENTITY`."""
    rows = clients.select(REPLAY_BY_CLIENT.names)
    columns = [_together(name) for name in REPLAY_BY_ENTITY.names if name not in _KEYS]
    return rows.groupBy(*_KEYS).agg(*columns).select(REPLAY_BY_ENTITY.names)


def _together(name: str) -> Column:
    if name in _LARGEST:
        return F.max(name).alias(name)
    return (F.min(name) if name in _SMALLEST else F.sum(name)).alias(name)
