"""Tests of how partitions are divided between principals."""

from tidegate.fair_share import UNKNOWN_OWNER
from tidegate.storage.topics.partition_bound import PartitionBound


def test_each_principal_gets_half_of_what_is_left() -> None:
    """One gets half, the next half of the rest; what is given back is free for all."""
    bound = PartitionBound(100)
    taken = []
    for owner in ("User:a", "User:b", "User:c"):
        while bound.problem(owner, 1) is None:
            bound.count_use(owner, 1)
        taken.append(100 - bound.free - sum(taken))
    assert taken == [50, 25, 12]
    bound.remove("User:a", 50)
    assert bound.free == 63
    assert bound.problem("User:d", 31) is None
    assert bound.problem("User:d", 32) is not None


def test_partitions_of_no_tenant_limit_their_creators_only_by_what_is_free() -> None:
    """A client that administers the cluster may take all that is free; the text names the setting."""
    bound = PartitionBound(100)
    bound.count_use(UNKNOWN_OWNER, 90)
    assert bound.problem(UNKNOWN_OWNER, 10) is None
    assert bound.problem("User:a", 5) is None
    assert bound.problem("User:a", 6) is not None
    assert bound.problem(UNKNOWN_OWNER, 11) == (
        "This node may have at most 100 partitions (tidegate.max.partitions) and has 90."
    )


def test_a_lowered_bound_refuses_more() -> None:
    """A node that holds more than a new bound allows keeps them."""
    bound = PartitionBound(10)
    bound.count_use("User:a", 30)
    assert bound.free == -20
    assert bound.problem("User:b", 1) is not None
    assert bound.problem(UNKNOWN_OWNER, 1) is not None
