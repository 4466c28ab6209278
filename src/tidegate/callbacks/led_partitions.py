"""Byte rates in proportion to the partitions that a node leads: a quota is the whole cluster's, not each node's.

Kafka counts on each broker by itself, so that a client of three brokers has three times its quota. With this callback
a node that leads a third of all partitions gives a client a third of its quota. Request time and mutations stay as
stored: they are shares of one node, and of the controller.

>>> from tidegate.quota import ClusterNode, QuotaEntity
>>> limits = LimitsByLedPartitions()
>>> limits.configure({"node.id": 1})
>>> limits.update_quota(QuotaType.PRODUCE, QuotaEntity(user="alice"), 900.0)
>>> nodes = {1: [ClusterNode(1, "a", 9092)], 2: [ClusterNode(2, "b", 9092)]}
>>> limits.update_cluster_metadata(ClusterMetadata.of(nodes, {("t", 0): 1, ("t", 1): 2, ("t", 2): 2}))
True
>>> limits.quota_limit(QuotaType.PRODUCE, limits.quota_metric_tags(QuotaType.PRODUCE, "alice", "c1"))
300.0
"""

from collections.abc import Mapping
from typing import Any

from tidegate.callbacks.own_rules import OwnRules
from tidegate.quota import ClusterMetadata, QuotaType

__all__ = ["LimitsByLedPartitions"]

_OF_THE_CLUSTER = (QuotaType.PRODUCE, QuotaType.FETCH)


class LimitsByLedPartitions(OwnRules):
    """The callback. A node that leads no partition gets the share of one partition: no client produces to it."""

    def __init__(self) -> None:
        super().__init__()
        self._node_id = -1
        self._share = 1.0

    def configure(self, config: Mapping[str, Any]) -> None:
        """Set the node id from `node.id`."""
        self._node_id = int(config["node.id"])

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return this node's share of the stored quota."""
        limit = super().quota_limit(quota_type, tags)
        return limit * self._share if limit is not None and quota_type in _OF_THE_CLUSTER else limit

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Return whether this node's share has changed."""
        before = self._share
        led, all_ = cluster.partitions_led_by(self._node_id), len(cluster.leaders)
        self._share = min(1.0, max(1, led) / max(1, all_))
        return self._share != before
