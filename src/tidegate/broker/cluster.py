"""The cluster as one of its nodes sees it: brokers and their addresses, the controller, the leader of each partition.

Handlers get every node that they name in an answer from this module. Every partition has one replica. The brokers lead
the partitions of a topic in turn, beginning with a broker that follows from the topic's id, so all nodes compute the
same leaders. A restart with the same number of brokers keeps them; with more or fewer, most partitions change leaders.
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from typing import Final

from tidegate.acl import codes as acl
from tidegate.in_slices import batched
from tidegate.quota.admin.java_hash import string_hash
from tidegate.quota.managers.callback import ClusterMetadata, ClusterNode
from tidegate.server.requests.handler import Connection, Message, Request
from tidegate.storage.log.partition_log import LEADER_EPOCH
from tidegate.storage.topics.topic import Topic
from tidegate.storage.topics.topics import Topics

__all__ = ["NO_OPERATIONS", "ClusterView", "Endpoints", "cluster_operations"]

NO_OPERATIONS: Final = -(2**31)
"""Value of the authorized operations if the client did not ask for them."""

Endpoints = Mapping[int, Mapping[str, tuple[str, int]]]
"""Node id → listener → the host and port that clients connect to. For a client whose listener a node does not have, the
node's address is the one that the client connected to."""

_GROUP_PARTITIONS: Final = 50
"""Partitions that groups are spread over: Kafka's `offsets.topic.num.partitions`."""
_CHOSEN_HERE = "This server chooses the broker of each partition itself."


def cluster_operations(request: Request) -> int:
    """Return what the client may do to the cluster, as a bit set; 0 where it may not describe it."""
    if not request.authorized(acl.DESCRIBE, acl.CLUSTER):
        return 0
    return request.authorized_operations(acl.CLUSTER)


class ClusterView:
    """The cluster as node `node_id` sees it. endpoints: the live brokers, at least this one."""

    def __init__(self, node_id: int, endpoints: Endpoints, topics: Topics) -> None:
        assert node_id in endpoints
        self.node_id = node_id
        self.ids = tuple(sorted(endpoints))
        self._endpoints = endpoints
        self._advertised = set.intersection(*map(set, endpoints.values()))  # listeners that every node has
        self._topics = topics

    @property
    def controller_id(self) -> int:
        """The node that decides changes of topics and quotas: the first."""
        return self.ids[0]

    def broker(self, node_id: int, connection: Connection) -> ClusterNode:
        """Return one broker, with its address for the client's listener."""
        address = self._endpoints[node_id].get(connection.listener)
        if address is None:
            address = connection.local_host, connection.local_port
        return ClusterNode(node_id, *address)

    def brokers(self, connection: Connection) -> tuple[ClusterNode, ...]:
        """Return all brokers in the order of their ids, with their addresses for the client's listener."""
        return tuple([self.broker(node_id, connection) for node_id in self.ids])

    def way_in(self, connection: Connection) -> tuple[str, ...]:
        """Return a cache key for answers with addresses: connections with the same key get the same addresses."""
        if connection.listener in self._advertised:
            return (connection.listener,)
        return connection.listener, connection.local_host, str(connection.local_port)

    def first_leader(self, topic: Topic) -> int:
        """Return the place in `ids` of the broker that leads partition 0."""
        return int(topic.topic_id[:8], 16) % len(self.ids) if len(self.ids) > 1 else 0

    def leader_at(self, first_leader: int, partition: int) -> int:
        """Return the id of the broker that leads a partition of a topic whose first leader is known."""
        return self.ids[(first_leader + partition) % len(self.ids)]

    def leader(self, topic: Topic, partition: int) -> int:
        """Return the id of the broker that leads a partition."""
        return self.leader_at(self.first_leader(topic), partition)

    def leads(self, topic: Topic, partition: int) -> bool:
        """Return whether this node leads a partition."""
        return len(self.ids) == 1 or self.leader(topic, partition) == self.node_id

    def coordinator(self, group_id: str) -> int:
        """Return the id of the broker that keeps a group's offsets.

        Follows: Kafka `GroupCoordinatorService.partitionFor`.
        """
        if len(self.ids) == 1:
            return self.node_id
        hash_code = string_hash(group_id)
        absolute = hash_code if hash_code < 1 << 31 else ((1 << 32) - hash_code) & 0x7FFFFFFF
        return self.ids[absolute % _GROUP_PARTITIONS % len(self.ids)]

    def current_leader(self, topic: Topic, partition: int) -> Message:
        """Return the leader of a partition, for a client that asked another broker (KIP-951)."""
        return {"leader_id": self.leader(topic, partition), "leader_epoch": LEADER_EPOCH}

    def node_endpoints(self, node_ids: Collection[int], connection: Connection) -> list[Message]:
        """Return the addresses of brokers, for a client that is redirected to them (KIP-951)."""
        return [
            {"node_id": broker.id, "host": broker.host, "port": broker.port, "rack": None}
            for broker in self.brokers(connection)
            if broker.id in node_ids
        ]

    def metadata(self) -> ClusterMetadata:
        """Return the metadata for a custom quota callback (B§8): every listener of every broker, all leaders."""
        brokers = {
            node_id: [ClusterNode(node_id, *address) for address in self._endpoints[node_id].values()]
            for node_id in self.ids
        }
        leaders = {}
        for topic in self._topics:
            first = self.first_leader(topic)
            for partition in range(len(topic.logs)):
                leaders[topic.name, partition] = self.leader_at(first, partition)
        return ClusterMetadata.of(brokers, leaders)

    def assignment_problem_in_slices(self, node_ids: Sequence[int]) -> Generator[None, None, str | None]:
        """Return the error text for the node ids that a client assigns to a partition, None if they are valid.

        Follows: Kafka `ReplicationControlManager.validateManualPartitionAssignment` and its texts.
        """
        if not node_ids:
            return "The manual partition assignment includes an empty replica list."
        times = dict.fromkeys(self.ids, 0)
        unknown: int | None = None
        for some in batched(node_ids):
            for node_id in some:
                if node_id in times:
                    times[node_id] += 1
                elif unknown is None or node_id < unknown:
                    unknown = node_id
            yield
        repeated = [node_id for node_id in self.ids if times[node_id] > 1]
        if unknown is not None and (not repeated or unknown < repeated[0]):
            return (
                f"The manual partition assignment includes broker {unknown}, but no such broker is"
                " registered."
            )
        if repeated:
            return f"The manual partition assignment includes the broker {repeated[0]} more than once."
        return _CHOSEN_HERE if len(self.ids) > 1 else None

    def replicas_problem(self, replicas: int) -> str | None:
        """Return the error text for a number of replicas, None if it is valid.

        Follows: Kafka `StripedReplicaPlacer` and its text. If there are enough brokers, the text is Tidegate's own,
        because it does not replicate.
        """
        if replicas <= 1:
            return None
        if replicas <= len(self.ids):
            return "This server keeps one replica of each partition."
        return (
            f"Unable to replicate the partition {replicas} time(s): The target replication factor of {replicas} cannot"
            f" be reached because only {len(self.ids)} broker(s) are registered or some brokers have all their log"
            " directories cordoned."
        )
