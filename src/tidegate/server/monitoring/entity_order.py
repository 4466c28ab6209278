"""Scopes of quotas and the order of entities in JSON documents, for commands, too: it imports little."""

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["BROKER", "CLUSTER", "NO_QUOTA", "entity_order", "would_be_throttled"]

BROKER, CLUSTER = "broker", "cluster"
"""Scopes of a quota: one broker, or all brokers together (`tidegate.quota.cluster.wide`)."""
NO_QUOTA = -1.0
"""The utilization that an entity without a quota is sorted by."""


def entity_order(entity: Mapping[str, Any]) -> tuple[bool, float, float]:
    """Return what entities of a document are sorted by: throttled ones first, then by utilization."""
    used = entity["utilization"]
    if used is None:
        used = NO_QUOTA if entity["limit"] is None else math.inf
    return not entity["throttled_connections"], -used, -(entity["rate"] or 0.0)


def would_be_throttled(entity: Mapping[str, Any]) -> bool:
    """Return whether clients of an entity are over their limit, but only observed (`tidegate.quota.observe`)."""
    return bool(entity.get("observed") and entity["throttle_time_ms"] and not entity["throttled_connections"])
