"""What a callback is told of the cluster."""

from tidegate.quota.managers.callback import ClusterMetadata, ClusterNode


def test_partitions_without_a_live_leader_are_left_out() -> None:
    """A topic is known while a live broker leads one of its partitions; a broker counts once per listener."""
    listeners = [ClusterNode(2, "h", 1), ClusterNode(2, "h", 2)]
    cluster = ClusterMetadata.of({2: listeners}, {("a", 0): 2, ("a", 1): 1, ("b", 0): 1, ("c", 0): -1})
    assert cluster.nodes == tuple(listeners)
    assert cluster.topics == {"a"}
    assert (cluster.partitions_led_by(2), cluster.partitions_led_by(1)) == (1, 0)
