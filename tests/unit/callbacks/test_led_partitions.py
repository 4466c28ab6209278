"""Limits in proportion to the partitions that a node leads."""

import pytest

from tidegate.callbacks import LimitsByLedPartitions
from tidegate.quota import ClusterMetadata, ClusterNode, QuotaEntity, QuotaManagers

BROKERS = {node_id: [ClusterNode(node_id, "host", 9092)] for node_id in (1, 2)}


@pytest.mark.parametrize(
    ("led", "others", "bounds"),
    [(0, 0, (900.0, 50.0)), (1, 2, (300.0, 50.0)), (3, 0, (900.0, 50.0)), (0, 9, (100.0, 50.0))],
)
def test_a_node_gives_its_share(led: int, others: int, bounds: tuple[float, float]) -> None:
    """Of byte rates; request time is a share of one node anyway. A node that leads nothing counts as leading one."""
    callback = LimitsByLedPartitions()
    managers = QuotaManagers(callback=callback, callback_config={"node.id": 1})
    managers.produce.update_quota(QuotaEntity(user="alice"), 900.0)
    managers.request.update_quota(QuotaEntity(user="alice"), 50.0)
    managers.produce.record("alice", "c", 1.0, 0)
    leaders = {("t", number): 1 if number < led else 2 for number in range(led + others)}
    changed = managers.update_cluster_metadata(ClusterMetadata.of(BROKERS, leaders))
    assert changed is (bounds[0] != 900.0)
    assert (managers.produce.bound("alice", "c"), managers.request.bound("alice", "c")) == bounds
    (sensor,) = managers.produce.sensors
    assert sensor.bound == bounds[0]
    assert not managers.update_cluster_metadata(ClusterMetadata.of(BROKERS, leaders))
