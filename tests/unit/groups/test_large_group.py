"""Tests of groups with more members than are answered at once, and of what happens between two of their answers."""

import pytest
from tests.unit.groups.world import Asked, World

from tidegate import error_codes
from tidegate.groups import rebalances

MEMBERS = 10
AT_ONCE = 4


@pytest.fixture(autouse=True)
def large_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer four members in a turn."""
    monkeypatch.setattr(rebalances, "_ANSWERED_AT_ONCE", AT_ONCE)


def joining() -> tuple[World, list[str], list[Asked]]:
    """Return a group whose rebalance is over, of which four members are answered; the ids, and the answers to all."""
    world = World(initial_rebalance_delay_ms=1)
    ids = [world.join().answer["member_id"] for _ in range(MEMBERS)]
    joined = [world.join(member_id) for member_id in ids]
    while not joined[0]:
        world.now_ms += 1
        world.coordinator.run(world.now_ms, 1)
    return world, ids, joined


def answered(asked: list[Asked]) -> int:
    """Return how many have an answer."""
    return sum(map(bool, asked))


def test_members_are_answered_in_several_turns() -> None:
    """Four join in each turn, then as many have their assignment in each turn. Each is answered once."""
    world, ids, joined = joining()
    counts = [answered(joined)]
    while world.coordinator.run(world.now_ms, 1):
        counts.append(answered(joined))
    assert counts == [4, 8, 10]
    assert {asked.answer["generation_id"] for asked in joined} == {1}
    leader = joined[0].answer["leader"]
    synced = [world.sync(member_id, 1) for member_id in ids if member_id != leader]
    synced.append(world.sync(leader, 1, {member_id: member_id.encode() for member_id in ids}))
    counts = [answered(synced)]
    while world.coordinator.run(world.now_ms, 1):
        counts.append(answered(synced))
    assert counts == [4, 8, 10]
    assert sorted(asked.answer["assignment"].decode() for asked in synced) == sorted(ids)


def test_a_rebalance_between_leaves_no_one_without_an_answer() -> None:
    """Members whose turn has not come are told of their generation before the next rebalance begins."""
    world, ids, joined = joining()
    assert world.leave((ids[0], None)) == [0]
    assert {asked.answer["generation_id"] for asked in joined} == {1}
    assert (world.state, world.coordinator.groups["g"].awaiting_join) == ("PreparingRebalance", 0)
    again = [world.join(member_id) for member_id in ids[1:]]
    world.advance(1)
    assert {asked.answer["generation_id"] for asked in again} == {2}


def test_a_member_that_leaves_between_is_refused_once() -> None:
    """It is answered by its removal, and has no session any more."""
    world, ids, joined = joining()
    world.leave((ids[-1], None))
    assert joined[-1].code == error_codes.UNKNOWN_MEMBER_ID
    assert {asked.code for asked in joined[:-1]} == {0}
    world.coordinator.run(world.now_ms)
    assert world.members == ids[:-1]
    for member_id in ids[:-1]:
        world.join(member_id)
    world.advance(1)
    world.advance(9_000)
    assert world.members == ids[:-1]


def test_a_member_that_joins_again_between_joins_the_next_generation() -> None:
    """With other protocols it begins a rebalance; its first request is refused, the second waits for the others."""
    world, ids, joined = joining()
    again = world.join(ids[-1], protocols=[("range", b"other")])
    assert joined[-1].code == error_codes.UNKNOWN_MEMBER_ID
    assert {asked.code for asked in joined[:-1]} == {0}
    assert not again
    assert world.coordinator.groups["g"].awaiting_join == 1
    others = [world.join(member_id) for member_id in ids[:-1]]
    world.advance(1)
    assert {asked.answer["generation_id"] for asked in [again, *others]} == {2}


def test_sessions_begin_with_the_answer() -> None:
    """A member that is answered in a later turn has a session like the others, and loses it like the others."""
    world, ids, joined = joining()
    world.coordinator.run(world.now_ms)
    assert answered(joined) == MEMBERS
    world.advance(10_000 - 1)
    assert world.members == ids
    world.advance(1)
    assert world.member_count == 0
