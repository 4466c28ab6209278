"""Tests of groups with more members than are answered at once, and of what happens between two of their answers."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.groups.world import Asked, Connection, World

from tidegate import error_codes
from tidegate.groups import JoinRequest, rebalances
from tidegate.groups.settings import NEW_MEMBER_JOIN_TIMEOUT_MS

MEMBERS = 10
AT_ONCE = 4


@pytest.fixture(autouse=True)
def large_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer four members in a turn."""
    monkeypatch.setattr(rebalances, "_ANSWERED_AT_ONCE", AT_ONCE)


def joining(**fields: Any) -> tuple[World, list[str], list[Asked]]:
    """Return a group whose rebalance is over, of which four members are answered; the ids, and the answers to all."""
    world = World(initial_rebalance_delay_ms=1)
    ids = [world.join().answer["member_id"] for _ in range(MEMBERS)]
    joined = [world.join(member_id, **fields) for member_id in ids]
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


def test_a_session_begins_when_its_member_is_answered() -> None:
    """Also where the loop is busy for a while between two turns."""
    world, ids, joined = joining()
    world.now_ms += 500
    world.coordinator.run(world.now_ms)
    assert answered(joined) == MEMBERS
    world.advance(9_500)
    assert world.members == ids[AT_ONCE:]
    world.advance(500)
    assert world.member_count == 0


def test_answers_come_before_the_end_of_sessions() -> None:
    """A static member that has not come back has a new session with the generation, though it is answered last."""
    world = World(initial_rebalance_delay_ms=1)
    long = {"session_timeout_ms": 600_000, "rebalance_timeout_ms": 2_000}
    ids, generation = world.stable(MEMBERS, **long)
    fixed = world.join(instance_id="i", session_timeout_ms=6_000, rebalance_timeout_ms=2_000)
    for member_id in ids:
        world.join(member_id, **long)
    world.advance(0)
    ids.append(fixed.answer["member_id"])
    world.synced(ids, ids[0], generation + 1)
    world.advance(3_999)
    for member_id in ids[:-1]:
        world.join(member_id, **long)
    world.now_ms += 2_006  # the rebalance was over 7 ms ago, and the session 6 ms
    world.coordinator.run(world.now_ms)
    assert (world.state, world.members) == ("CompletingRebalance", ids)


def test_an_answer_that_fails_keeps_no_other_turn_from_its_answers() -> None:
    """A mistake in the answer to the first member ends its turn alone."""
    world = World(initial_rebalance_delay_ms=1)
    ids = [world.join().answer["member_id"] for _ in range(MEMBERS)]
    join(world, ids[0], lambda _: 1 // 0)
    joined = [world.join(member_id) for member_id in ids[1:]]
    with pytest.raises(ZeroDivisionError):
        world.advance(MEMBERS)
    assert answered(joined) == 0
    world.coordinator.run(world.now_ms)
    assert answered(joined) == MEMBERS - AT_ONCE


def test_members_that_ask_for_their_assignment_from_within_an_answer() -> None:
    """The generation is stable before all have joined it, and the others are answered all the same."""
    world = World(initial_rebalance_delay_ms=1)
    ids = [world.join().answer["member_id"] for _ in range(MEMBERS)]
    synced: list[Asked] = []

    def sync(answer: dict[str, Any]) -> None:
        assignments = {member["member_id"]: member["member_id"].encode() for member in answer["members"]}
        synced.append(world.sync(answer["member_id"], answer["generation_id"], assignments))

    for member_id in ids:
        join(world, member_id, sync)
    world.advance(MEMBERS)
    assert sorted(asked.answer["assignment"].decode() for asked in synced) == sorted(ids)
    assert (world.state, world.coordinator.groups["g"].awaiting_join) == ("Stable", 0)


def test_a_member_that_joins_again_between_is_not_new_any_more() -> None:
    """It waits for the next generation as long as the others do, without a session."""
    world, ids, joined = joining(session_timeout_ms=1_800_000, rebalance_timeout_ms=600_000)
    again = world.join(ids[-1], session_timeout_ms=1_800_000, protocols=[("range", b"other")])
    assert answered(joined) == MEMBERS
    world.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert not again
    world.advance(NEW_MEMBER_JOIN_TIMEOUT_MS)
    assert again.answer["generation_id"] == 2


def join(world: World, member_id: str, respond: Callable[[dict[str, Any]], Any]) -> None:
    """Join with a function that is called with the answer."""
    given = JoinRequest("g", member_id, None, "c", "/h", 10_000, 60_000, "consumer", [("range", b"m")])
    world.coordinator.join(given, respond, world.now_ms)


class Twins:
    """Two groups to which the same happens. The members of one are answered two at a time, of the other all at once."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rng = random.Random(seed)
        self.patch = monkeypatch
        delay_ms = self.rng.choice((0, 1, 500))
        self.worlds = [World(initial_rebalance_delay_ms=delay_ms) for _ in range(2)]
        self.sources = [[Connection() for _ in range(CLIENTS)] for _ in range(2)]
        self.ids = [[""] * CLIENTS for _ in range(2)]
        self.asked: list[list[Asked]] = [[], []]
        self.overtaken = 0

    def each(self, step: Callable[[int, World], object]) -> None:
        """Do the same step in both groups, each with its own number of members in a turn."""
        for number, world in enumerate(self.worlds):
            self.patch.setattr(rebalances, "_ANSWERED_AT_ONCE", (2, 1 << 30)[number])
            step(number, world)

    def step(self) -> None:
        """Do one random step in both groups."""
        rng, client = self.rng, self.rng.randrange(CLIENTS)
        kind = rng.choice("jjjssslbmthrrwwJJJSSS")
        protocols = [("range", b"m"), ("other", b"m")][: rng.choice((1, 2, 2))]
        behind, some = rng.choice((0, 0, 0, 0, 1)), rng.sample(range(CLIENTS), rng.choice((1, 3)))
        ms, order = rng.choice((0, 1, 600, 7_000)), rng.sample(range(CLIENTS), CLIENTS)

        def once(number: int, world: World) -> None:
            group = world.coordinator.groups.get("g")
            generation = 0 if group is None else group.generation - behind
            if kind in "jJ":
                for each in range(CLIENTS) if kind == "J" else [client]:
                    self.join(number, world, each, protocols)
            elif kind in "sS":
                parts = dict.fromkeys([] if group is None else group.members, b"%d" % ms)
                for each in order if kind == "S" else [client]:
                    asked = world.sync(
                        **self.of(number, world, each), generation=generation, assignments=parts
                    )
                    self.asked[number].append(asked)
            elif kind == "l":
                world.leave(*[(self.id_of(number, world, each), instance(each)) for each in some])
            elif kind == "b":
                world.beat(self.id_of(number, world, client), generation, instance(client))
            elif kind == "h":
                world.store.holds, world.store.fails = ms < 600, ms == 0
            elif kind == "r":
                world.store.release()
            elif kind == "w" and group is not None and group.due_answers.work:
                world.coordinator.run(world.now_ms, 1)
            elif kind in "mt":
                world.coordinator.run(world.now_ms)
                if kind == "m":
                    self.sources[number][client].throttled_ms += ms
                else:
                    world.advance(ms)

        self.each(once)
        if kind in "mt":
            assert self.look(0) == self.look(1)

    def id_of(self, number: int, world: World, client: int) -> str:
        """Return the current id of a client: of a static one as its group has it."""
        group = world.coordinator.groups.get("g")
        if group is None or instance(client) is None:
            return self.ids[number][client] or "unknown"
        return group.static_ids.get(instance(client) or "", "unknown")

    def of(self, number: int, world: World, client: int) -> dict[str, Any]:
        """Return the fields of a client's requests that say which client it is."""
        return {
            "member_id": self.id_of(number, world, client),
            "instance_id": instance(client),
            "source": self.sources[number][client],
        }

    def join(self, number: int, world: World, client: int, protocols: list[tuple[str, bytes]]) -> None:
        """Join as a client, the first time to get an id; a static client sometimes joins as if it was restarted."""
        fields = self.of(number, world, client)
        group = world.coordinator.groups.get("g")
        known = group is not None and (
            fields["member_id"] in group.members or fields["member_id"] in group.pending
        )
        if instance(client) is None and not known:
            self.ids[number][client] = world.join().answer["member_id"]
            fields["member_id"] = self.ids[number][client]
        elif not known or (instance(client) is not None and len(protocols) > 1):
            fields["member_id"] = ""
        self.asked[number].append(world.join(**fields, protocols=protocols))

    def look(self, number: int) -> dict[str, Any]:
        """Return all that is the same where all are answered."""
        world, table = self.worlds[number], self.worlds[number].coordinator.table
        group = world.coordinator.groups.get("g")
        if group is None:
            return {}
        assert group.awaiting_join == sum(member.join is not None for member in group.members.values())
        assert not group.due_answers.work
        return {
            "state": (group.state, group.generation, group.leader_id, group.protocol, group.awaiting_join),
            "bytes": (group.held_bytes, table.metadata_bytes, table.members.used, len(table.pending)),
            "waits": (list(group.pending_sync), group.join_deadline.at_ms, group.sync_deadline.at_ms),
            "members": [
                (
                    *(member.member_id, member.assignment, member.join is None, member.sync is None),
                    *(member.is_new, member.at_ms, member.session_mark_ms, member.rebalance_mark_ms),
                )
                for member in group.members.values()
            ],
            "kept": world.store.kept,
        }

    def compare(self) -> None:
        """Check that each request has one answer, the same in both unless its member was removed or asked again."""
        for mine, theirs in zip(*self.asked, strict=True):
            if mine.answer != theirs.answer and theirs.code == error_codes.NONE and mine.code:
                assert mine.code in (error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_INSTANCE_ID)
                self.overtaken += 1
            else:
                given, expected = (
                    {**answer, "members": 0, "leader": ""} for answer in (mine.answer, theirs.answer)
                )
                assert given == expected


CLIENTS = 8


def instance(client: int) -> str | None:
    """Return the instance id of a client; half of them are static."""
    return f"i{client}" if client % 2 else None


@pytest.mark.parametrize("_", range(8))
def test_answers_are_those_that_all_get_at_once(_: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens between two turns, the group becomes what it would be without them."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"{seed=}")
    twins = Twins(seed, monkeypatch)
    for _ in range(400):
        twins.step()

    def end(_: int, world: World) -> None:
        world.store.holds = False
        world.store.release()
        world.coordinator.run(world.now_ms)
        world.advance(1_000_000)

    twins.each(end)
    assert twins.look(0) == twins.look(1)
    twins.compare()
    assert twins.overtaken < len(twins.asked[0]) // 10
