"""The ledger notices what must not happen: records lost, twice, in the wrong order, changed, or never sent."""

from collections.abc import Sequence

import pytest
from tests.kills.ledger import Delivery, Partition, ViolationError, value_of

ONCE, AT_MOST, AT_LEAST = Delivery.EXACTLY_ONCE, Delivery.AT_MOST_ONCE, Delivery.AT_LEAST_ONCE


def a_partition(delivery: Delivery, sent: int) -> Partition:
    """Return a partition to which producer 3 has sent so many records."""
    partition = Partition("ledger", 0)
    stream = partition.stream(3, delivery)
    for _ in range(sent):
        stream.send()
    return partition


def read(partition: Partition, counts: Sequence[int], start: int = 0) -> None:
    """Read records of producer 3."""
    for offset, count in enumerate(counts, start):
        partition.read(offset, value_of(3, count))


@pytest.mark.parametrize(
    ("delivery", "counts"),
    [(ONCE, [0, 1, 2]), (AT_MOST, [0, 2, 5]), (AT_LEAST, [0, 1, 0, 1, 2]), (AT_LEAST, [0, 0])],
)
def test_what_a_producer_is_promised(delivery: Delivery, counts: list[int]) -> None:
    """Records that were never acknowledged may be missing or twice, by the kind of producer."""
    read(a_partition(delivery, 6), counts)


@pytest.mark.parametrize(
    ("delivery", "counts", "problem"),
    [
        (ONCE, [0, 1, 1], "ledger-0 has record 1 of producer 3 (idempotent) twice or too late, at offset 2"),
        (ONCE, [0, 2], "lacks records 1 to 1 of producer 3 (idempotent) before offset 1"),
        (AT_MOST, [0, 2, 1], "has record 1 of producer 3 (without retries) twice or too late"),
        (AT_MOST, [0, 0], "twice"),
        (AT_LEAST, [0, 2], "lacks records 1 to 1 of producer 3 (with retries)"),
        (ONCE, [0, 1, 2, 3, 4, 5, 6], "record 6 of producer 3, not sent yet"),
    ],
)
def test_what_no_log_may_have(delivery: Delivery, counts: list[int], problem: str) -> None:
    """It is said what, of whom and where."""
    with pytest.raises(ViolationError) as caught:
        read(a_partition(delivery, 6), counts)
    assert problem in str(caught.value)


@pytest.mark.parametrize("counts", [[0], [0, 2]])
def test_what_was_acknowledged_and_is_not_there(counts: list[int]) -> None:
    """The log ends before its offset, or has another record there."""
    partition = a_partition(AT_MOST, 3)
    for count in range(2):
        partition.streams[3].acknowledge(count, count)
    read(partition, counts)
    with pytest.raises(
        ViolationError, match=r"lost 1 acknowledged records of producer 3 .*: 1 at offset 1 to 1"
    ):
        partition.check(partition.unchecked())


def test_what_is_acknowledged_later_is_looked_up_later() -> None:
    """A look covers what was acknowledged before the end of the log was asked for."""
    partition = a_partition(ONCE, 3)
    stream = partition.streams[3]
    stream.acknowledge(0, 0)
    due = partition.unchecked()
    stream.acknowledge(1, 1)
    read(partition, [0])
    assert partition.check(due) == 1
    read(partition, [1], start=1)
    assert partition.check(partition.unchecked()) == 1
    assert partition.unchecked() == {3: 0}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (value_of(3, 1), "had at offset 0 record 0 of producer 3 and has record 1 of producer 3"),
        (b"x", "has at offset 0 what nobody sent: b'x'"),
        (value_of(3, 0)[:-1], "what nobody sent"),
        (value_of(4, 0), "what nobody sent"),
        (None, "what nobody sent"),
    ],
)
def test_what_was_read_stays(value: bytes | None, problem: str) -> None:
    """An offset that is read again gives the same record, whole."""
    partition = a_partition(ONCE, 2)
    read(partition, [0])
    partition.read(0, value_of(3, 0))
    with pytest.raises(ViolationError) as caught:
        partition.read(0, value)
    assert problem in str(caught.value)


def test_offsets_follow_each_other() -> None:
    """None is left out."""
    partition = a_partition(ONCE, 2)
    with pytest.raises(ViolationError, match="has offset 1 after -1"):
        partition.read(1, value_of(3, 0))


def test_what_retention_deleted_is_not_lost() -> None:
    """Records before the start of the log are missed by nobody, those behind it are."""
    partition = a_partition(ONCE, 9)
    for count in range(6):
        partition.streams[3].acknowledge(count, count)
    read(partition, [0, 1])
    partition.begin(4)
    read(partition, [4, 5], start=4)
    assert partition.check({3: 6}) == 6
    with pytest.raises(ViolationError, match="lacks records 6 to 6"):
        read(partition, [7], start=6)
