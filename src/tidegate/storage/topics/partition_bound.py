"""The bound of partitions of a node, divided between the principals that create them.

A partition belongs to the principal that created it: with its topic, or later by adding partitions to a topic. Those
that a client with rights to the whole cluster creates belong to `UNKNOWN_OWNER`, as do those that were stored before
owners were: they count, and their creators are not limited by them.

>>> bound = PartitionBound(100)
>>> bound.count_use("User:mallory", 50)
>>> print(bound.problem("User:mallory", 1))
User:mallory has 50 partitions and requests 1 more; 50 of this node's 100 (tidegate.max.partitions) are free. A \
principal may add partitions while it has no more than are free.
>>> bound.problem("User:alice", 25), bound.problem(UNKNOWN_OWNER, 50)
(None, None)
"""

from tidegate.fair_share import UNKNOWN_OWNER, ThresholdBound

__all__ = ["PartitionBound"]


class PartitionBound(ThresholdBound):
    """Existing and pending partitions, counted by owner. capacity: `tidegate.max.partitions`."""

    __slots__ = ()

    @property
    def free(self) -> int:
        """Return how many more partitions the node can hold; below 0 if the setting was lowered."""
        return self.capacity - self.used

    def problem(self, owner: str, partitions: int) -> str | None:
        """Return why a principal may not add so many partitions, as a text for the client; None where it may.

        owner: `UNKNOWN_OWNER` where the client's use is not divided.
        """
        if not self.fits(partitions):
            most = f"at most {self.capacity} partitions (tidegate.max.partitions)"
            return f"This node may have {most} and has {self.used}."
        if owner == UNKNOWN_OWNER or self.may_add(owner, partitions):
            return None
        return (
            f"{owner} has {self.used_by(owner)} partitions and requests {partitions} more; {self.free} of this node's"
            f" {self.capacity} (tidegate.max.partitions) are free. A principal may add partitions while it"
            " has no more than are free."
        )
