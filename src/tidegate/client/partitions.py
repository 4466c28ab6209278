"""The leaders of partitions: the brokers that a producer and a consumer ask."""

import asyncio
from typing import NamedTuple

from tidegate import error_codes
from tidegate.client.cluster import Cluster, Node, TopicPartitions
from tidegate.client.errors import BrokerError

__all__ = ["MOVED", "Leaders", "TopicPartition"]

MOVED = frozenset(
    {
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        error_codes.LEADER_NOT_AVAILABLE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.FENCED_LEADER_EPOCH,
        error_codes.UNKNOWN_LEADER_EPOCH,
    }
)
"""Errors after which a client looks for the leader again. Nothing was stored."""
_LOOKUPS = 20
"""Attempts to find a leader, `retry.backoff.ms` apart: 2 s. All brokers know a new topic by then."""


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Leaders:
    """The leaders of the partitions that were asked for, as far as they are known."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics: dict[str, TopicPartitions] = {}
        self._forgotten: set[str] = set()

    async def find(self, partition: TopicPartition) -> Node:
        """Return the leader of a partition. Raises `ClientError`; a `BrokerError` where there is none for 2 s."""
        for _ in range(_LOOKUPS):
            if partition.topic in self._forgotten:
                await asyncio.sleep(self._cluster.settings.retry_backoff_s)
            if partition.topic not in self._topics:
                found = await self._cluster.refresh([partition.topic])
                self._topics |= {topic.name: topic for topic in found if topic.name == partition.topic}
            topic = self._topics.get(partition.topic)
            code = error_codes.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            leader_id = -1 if topic is None else topic.leaders.get(partition.partition, -1)
            if leader_id >= 0:
                self._forgotten.discard(partition.topic)
                return await self._cluster.node(leader_id)
            self.forget(partition)
            if code and code not in MOVED:
                break
        code = code or error_codes.UNKNOWN_TOPIC_OR_PARTITION
        raise BrokerError(code, f"partition {partition}: {BrokerError(code).text}")

    def forget(self, partition: TopicPartition) -> None:
        """Look for the leaders of a topic anew at the next request, after `retry.backoff.ms`."""
        self._forgotten.add(partition.topic)
        self._topics.pop(partition.topic, None)
