"""Random traffic under quota callbacks that are exchanged and change their minds, and under what goes beyond Kafka."""

from random import Random

from tests.replaying.logs import START_MS, random_records, random_traffic, random_window
from tests.replaying.node import RecordingNode

from tidegate.callbacks import LimitsByLedPartitions, QuotaGroups
from tidegate.callbacks.own_rules import OwnRules
from tidegate.quota import ClusterMetadata, QuotaRecord, QuotaType

__all__ = ["Fickle", "disturbed_node", "quota_groups"]


class Fickle(OwnRules):
    """Counts a client under other tags, with other limits, whenever it is told to change its mind."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._salt, self._rng, self._changed = rng.randrange(1000), rng, set(QuotaType)

    def change(self) -> None:
        """Change its mind."""
        self._salt, self._changed = self._rng.randrange(1000), set(QuotaType)

    def quota_metric_tags(self, quota_type, user, client_id):
        """Return one of five shelves, by turns under another name."""
        place = sum(map(ord, f"{quota_type.key}{user}{client_id}")) + self._salt
        return {("shelf", "Regal")[self._salt % 2]: str(place % 5), "é": "\ud800"}

    def quota_limit(self, quota_type, tags):
        """Return one of some limits, or none."""
        limits = (None, 0.01, 3.0, 100.0, 2000.0, 50_000.0)
        return limits[(sum(map(ord, "".join(tags.values()))) + self._salt) % len(limits)]

    def quota_reset_required(self, quota_type):
        """Return True once after a change."""
        changed = quota_type in self._changed
        self._changed.discard(quota_type)
        return changed


def quota_groups() -> QuotaGroups:
    groups, prefix = QuotaGroups(), "client.quota.callback.group.etl"
    limits = {"producer_byte_rate": 2000, "request_percentage": 0.5, "controller_mutation_rate": 2}
    members = {f"{prefix}.members": "user:alice, user:bob, client-id:c2"}
    groups.configure(members | {f"{prefix}.{key}": value for key, value in limits.items()})
    return groups


def _led() -> LimitsByLedPartitions:
    callback = LimitsByLedPartitions()
    callback.configure({"node.id": 1})
    return callback


def _disturb(node: RecordingNode, rng: Random, now_ms: int) -> None:
    """Exchange the callback, have it change its mind, or move partitions."""
    current = node.managers.callback
    if isinstance(current, Fickle) and rng.random() < 0.6:
        current.change()
    elif isinstance(current, LimitsByLedPartitions) and rng.random() < 0.7:
        leaders = {("t", number): rng.choice((1, 1, 2)) for number in range(4)}
        node.managers.update_cluster_metadata(ClusterMetadata(nodes={}, leaders=leaders))
    else:
        name, make = rng.choice([
            ("groups", quota_groups), ("led", _led), ("fickle", lambda: Fickle(rng)), (None, lambda: None)
        ])  # fmt: skip
        node.exchange(make(), name, now_ms)


def disturbed_node(
    seed: int, *, extensions: tuple[QuotaRecord, ...] = (), callbacks: bool = True, node_id: int = 1
) -> RecordingNode:
    """Return a node with the traffic of a seed. extensions: settings beyond Kafka that are switched on and off."""
    rng = Random(seed)
    node, now_ms = RecordingNode(node_id), START_MS
    node.start(
        now_ms,
        window=random_window(rng),
        controller_window=random_window(rng),
        records=random_records(rng, at_most=8),
    )
    for _ in range(10):
        if extensions:
            record = rng.choice(extensions)
            value = rng.choice((record.value, None))
            node.quota(QuotaRecord(entity=record.entity, key=record.key, value=value), now_ms)
        if rng.random() < 0.5:
            node.segment()
        if callbacks:
            _disturb(node, rng, now_ms)
        now_ms = random_traffic(node, rng, events=40, now_ms=now_ms)
    return node
