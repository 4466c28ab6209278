"""Tests of the table of committed offsets: what is found, what is counted, and for which principal."""

import random

import pytest
from tests.unit.storage.positions import OFFSET, commit, packed, put

from tidegate.storage.groups.committed_offsets import (
    OFFSETS_AT_ONCE,
    POSITION_BYTES,
    CommittedOffset,
    OffsetTable,
    growth,
)


@pytest.fixture
def table() -> OffsetTable:
    """Return an empty table."""
    return OffsetTable()


def test_positions_are_found_as_they_were_committed(table: OffsetTable) -> None:
    """The largest and smallest values are among them."""
    positions = [
        OFFSET,
        OFFSET._replace(partition=2, offset=2**63 - 1, leader_epoch=-1, metadata="", expire_ms=2**63 - 1),
        OFFSET._replace(partition=2**31 - 1, offset=-1, metadata="ü🌀\0x", expire_ms=-1, commit_ms=0),
        OFFSET._replace(topic="", group_id=""),
    ]
    put(table, positions)
    assert [table.position(at.group_id, at.topic, at.partition) for at in positions] == positions
    assert table.position("g", "t", 3) is None
    assert table.position("h", "t", 1) is None
    assert list(table.pages("h")) == []


def test_pages_are_bounded(table: OffsetTable) -> None:
    """In positions, and in bytes of metadata; they come by topic and partition."""
    short = [OFFSET._replace(topic=f"t{topic}", partition=part) for topic in (1, 2) for part in range(300)]
    long = [OFFSET._replace(topic="u", partition=part, metadata="m" * 4096) for part in range(100)]
    put(table, reversed(short + long))
    pages = list(table.pages("g"))
    assert [at for page in pages for at in page] == short + long
    assert max(map(len, pages)) == OFFSETS_AT_ONCE
    assert max(sum(len(at.metadata) for at in page) for page in pages) < 140_000


def test_what_goes_while_pages_are_read_is_left_out(table: OffsetTable) -> None:
    """The group itself may go."""
    positions = [OFFSET._replace(topic=f"t{part % 3}", partition=part) for part in range(900)]
    put(table, positions)
    pages = table.pages("g")
    assert len(next(pages)) == OFFSETS_AT_ONCE
    table.forget(positions[::2])
    assert all(at.partition % 2 for page in (next(pages), next(pages)) for at in page)
    table.forget(positions)
    assert sum(map(len, pages)) == 0
    assert "g" not in table


def test_what_was_committed_again_is_not_forgotten(table: OffsetTable) -> None:
    """What is to be forgotten is forgotten as it was seen."""
    put(table, [OFFSET, OFFSET._replace(commit_ms=8)])
    table.forget([OFFSET])
    assert table.position("g", "t", 1) == OFFSET._replace(commit_ms=8)


def test_a_topic_is_forgotten_in_slices(table: OffsetTable) -> None:
    """In all groups; others stay."""
    put(table, [OFFSET._replace(group_id=f"g{number}") for number in range(1000)])
    put(table, [OFFSET._replace(topic="other")])
    steps = sum(1 for _ in table.forget_topic("t"))
    assert steps >= 1000
    assert table.group_ids() == ["g"]
    assert list(table.forget_topic("absent")) == []


@pytest.mark.parametrize("seed", range(3))
def test_bytes_are_those_of_what_there_is(table: OffsetTable, seed: int) -> None:
    """After random changes each owner is counted for its groups alone, and for nothing when all is forgotten."""
    chosen = random.Random(seed)
    owners = {f"g{number}": chosen.choice(["User:a", "User:b"]) for number in range(8)}
    expected: dict[tuple[str, str, int], CommittedOffset] = {}
    for _ in range(2000):
        group_id = chosen.choice(list(owners))
        at = CommittedOffset(
            group_id, chosen.choice("tu"), chosen.randrange(5), 1, 0, "m" * chosen.randrange(9), 1
        )
        key = at[:3]
        if chosen.random() < 0.5:
            put(table, [at], owners[group_id])
            expected[key] = at
        elif key in expected:
            table.forget([expected.pop(key)])
    again = OffsetTable()
    again.load(sorted(expected.values()), owners)
    assert all(again.position(*key) == at for key, at in expected.items())
    for owner in set(owners.values()):
        assert table.bound.used_by(owner) == again.bound.used_by(owner)
    assert table.bound.used == sum(map(table.bytes_of, owners)) == again.bound.used
    table.forget(list(expected.values()))
    assert (table.bound.used, len(table)) == (0, 0)


def test_positions_that_are_set_together(table: OffsetTable) -> None:
    """They are counted and found as those that are set one by one, whatever their order."""
    chosen = random.Random(4)
    one_by_one = OffsetTable()
    for _ in range(200):
        group_id = chosen.choice("gh")
        some = [
            CommittedOffset(
                group_id, chosen.choice("tu"), chosen.randrange(9), 1, 0, "m" * chosen.randrange(3), 1
            )
            for _ in range(chosen.randrange(1, 9))
        ]
        change = commit(*some)
        for topic, positions in change.positions.items():
            table.set_positions(group_id, topic, positions, "User:a")
        put(one_by_one, some, "User:a")
        assert table.bound.used == one_by_one.bound.used
    for group_id in "gh":
        assert list(table.pages(group_id)) == list(one_by_one.pages(group_id))


def test_growth(table: OffsetTable) -> None:
    """A position counts for its metadata too; one that takes the place of another for what it has more."""
    three, one = packed(OFFSET._replace(metadata="mmm")), packed(OFFSET)
    assert growth({}, {1: three}) == POSITION_BYTES + 3
    first = table.growth_of_new("g", "t") + growth({}, {1: one})
    put(table, [OFFSET])
    assert table.bytes_of("g") == first
    before = table.partitions("g", "t")
    sizes = [growth(before, {1: packed(OFFSET._replace(metadata="m" * size))}) for size in (0, 1, 5)]
    assert sizes == [-1, 0, 4]
    assert growth(before, {1: three, 2: one}) == 2 + POSITION_BYTES + 1
    assert table.growth_of_new("g", "t") == 0 < table.growth_of_new("g", "u") < table.growth_of_new("h", "t")
