"""Cluster metadata for a custom callback: the nodes, and the leader of each partition.

>>> brokers = {1: (ClusterNode(1, "a", 9092),), 2: (ClusterNode(2, "b", 9092), ClusterNode(2, "b", 9093))}
>>> cluster = ClusterMetadata.of(brokers, {("orders", 0): 1, ("orders", 1): 2, ("lost", 0): 7})
>>> len(cluster.nodes), sorted(cluster.topics), cluster.partitions_led_by(2)
(3, ['orders'], 1)

Follows: Kafka `KRaftMetadataCache.toCluster`, B§8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["ClusterMetadata", "ClusterNode"]


class ClusterNode(NamedTuple):
    """One listener of one broker."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """A node for every listener of every live broker; the leader of every partition that such a broker leads."""

    nodes: tuple[ClusterNode, ...]
    leaders: Mapping[tuple[str, int], int]

    @classmethod
    def of(
        cls, brokers: Mapping[int, Sequence[ClusterNode]], leaders: Mapping[tuple[str, int], int]
    ) -> "ClusterMetadata":
        """Return what is known of live `brokers` (listeners by id) and partitions, without those led by others."""
        return cls(
            nodes=tuple(node for listeners in brokers.values() for node in listeners),
            leaders={partition: leader for partition, leader in leaders.items() if leader in brokers},
        )

    @property
    def topics(self) -> frozenset[str]:
        """The topics with at least one partition that a live broker leads."""
        return frozenset(topic for topic, _ in self.leaders)

    def partitions_led_by(self, broker_id: int) -> int:
        """Return how many partitions a broker leads: what a limit in proportion to them needs."""
        return sum(leader == broker_id for leader in self.leaders.values())
