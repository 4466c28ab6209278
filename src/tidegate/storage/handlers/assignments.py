"""Check a client's own assignment of partitions to nodes; here there is one node. Shared by two handlers.

Follows: Kafka `ReplicationControlManager.validateManualPartitionAssignment` and its texts.
"""

from collections.abc import Iterable, Sequence

__all__ = ["assignment_problem"]


def assignment_problem(assignments: Iterable[Sequence[int]], node_id: int) -> str | None:
    """Return what is wrong with the node ids given for each partition, None where nothing is."""
    for node_ids in assignments:
        if not node_ids:
            return "The manual partition assignment includes an empty replica list."
        for other in sorted(node_ids):
            if other != node_id:
                return f"The manual partition assignment includes broker {other}, but no such broker is registered."
        if len(node_ids) > 1:
            return f"The manual partition assignment includes the broker {node_id} more than once."
    return None
