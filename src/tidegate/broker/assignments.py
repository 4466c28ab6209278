"""Check a client's own assignment of partitions to nodes; here there is one node. Shared by two handlers.

Follows: Kafka `ReplicationControlManager.validateManualPartitionAssignment` and its texts.
"""

from collections.abc import Sequence

__all__ = ["assignment_problem"]


def assignment_problem(node_ids: Sequence[int], node_id: int) -> str | None:
    """Return what is wrong with the node ids given for one partition, None where nothing is."""
    if not node_ids:
        return "The manual partition assignment includes an empty replica list."
    others = [other for other in node_ids if other != node_id]
    if others:
        return f"The manual partition assignment includes broker {min(others)}, but no such broker is registered."
    if len(node_ids) > 1:
        return f"The manual partition assignment includes the broker {node_id} more than once."
    return None
