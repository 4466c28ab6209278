"""Rules for which clients share a quota and how high it is: the callback of KIP-257, and Kafka's own rules.

A custom callback is called on every request, so that it may answer differently each time:

1. `quota_metric_tags`: clients with equal tags share one quota
2. `quota_limit`, when the tags are new
3. `quota_reset_required`; if it returns true: `quota_limit` again for all tags of that type

Errors that a callback raises are not caught here.

Follows: Kafka `ClientQuotaCallback`, B§8. Differs: methods have Python's names; `close` is not part of it, as
Kafka never calls it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidegate.quota.admin.entity import EntityQuotas, Level, QuotaEntity, Tags
from tidegate.quota.admin.sanitizer import sanitize
from tidegate.quota.managers.quota_type import QuotaType

__all__ = ["ClientQuotaCallback", "ClusterMetadata", "ClusterNode", "DefaultQuotaCallback", "tags_of"]


class ClusterNode(NamedTuple):
    """One listener of one broker."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterMetadata:
    """A node for every listener of every live broker; the leader of every partition that such a broker leads.

    >>> brokers = {1: (ClusterNode(1, "a", 9092),), 2: (ClusterNode(2, "b", 9092), ClusterNode(2, "b", 9093))}
    >>> cluster = ClusterMetadata.of(brokers, {("orders", 0): 1, ("orders", 1): 2, ("lost", 0): 7})
    >>> len(cluster.nodes), sorted(cluster.topics), cluster.partitions_led_by(2)
    (3, ['orders'], 1)

    Follows: Kafka `KRaftMetadataCache.toCluster`, B§8.
    """

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


class ClientQuotaCallback(Protocol):
    """The interface of a custom callback. One instance serves all quota types of a node."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Receive the node's settings. Called once, before all other methods."""

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Return the tags that the usage of this client is counted under; `user` is not sanitised."""

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return the bound for `tags`, per second; None: unlimited."""

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        """Register a stored quota."""

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        """Remove a quota that is no longer stored."""

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        """Return whether the limits of this type have changed since the last call."""

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Receive changed topics or brokers; return whether limits have changed."""


class DefaultQuotaCallback:
    """Kafka's own rules for one quota type (B§3.4). Never needs a reset; ignores cluster metadata.

    >>> callback = DefaultQuotaCallback()
    >>> callback.update_quota(QuotaType.PRODUCE, QuotaEntity(user="a b"), 100.0)
    >>> callback.quota_metric_tags(QuotaType.PRODUCE, "a b", "c1")
    {'user': 'a%20b', 'client-id': ''}
    """

    def __init__(self) -> None:
        self.quotas = EntityQuotas()

    @property
    def levels(self) -> Level:
        """The levels in use."""
        return self.quotas.levels

    def configure(self, config: Mapping[str, Any]) -> None:
        """Need nothing."""

    def quota_metric_tags(self, quota_type: QuotaType, user: str, client_id: str) -> Mapping[str, str]:
        """Return the tags `user` and `client-id`, either of them empty where it does not count."""
        return tags_of(self.quotas.tags(sanitize(user), client_id))

    def quota_limit(self, quota_type: QuotaType, tags: Mapping[str, str]) -> float | None:
        """Return the bound of the most specific entity; None where a tag is missing."""
        if "user" not in tags or "client-id" not in tags:
            return None
        return self.quotas.bound((tags["user"], tags["client-id"]))

    def update_quota(self, quota_type: QuotaType, entity: QuotaEntity, value: float) -> None:
        """Set the bound of `entity`."""
        self.quotas.set(sanitized(entity), value)

    def remove_quota(self, quota_type: QuotaType, entity: QuotaEntity) -> None:
        """Remove the bound of `entity`."""
        self.quotas.remove(sanitized(entity))

    def quota_reset_required(self, quota_type: QuotaType) -> bool:
        """Return False: changes take effect at once."""
        return False

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        """Return False: no limit depends on the cluster."""
        return False


def sanitized(entity: QuotaEntity) -> QuotaEntity:
    """Return `entity` with the name of its user sanitised; client ids stay raw (B§3.9)."""
    if isinstance(entity.user, str):
        return QuotaEntity(user=sanitize(entity.user), client_id=entity.client_id)
    return entity


def tags_of(tags: Tags) -> dict[str, str]:
    """Return a pair of tags under their names."""
    return {"user": tags[0], "client-id": tags[1]}
