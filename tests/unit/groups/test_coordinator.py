"""Tests of the state machine of consumer groups: what each request is answered, and what time does."""

import pytest
from tests.unit.groups.world import Asked, Connection, World

from tidegate.error_codes import (
    COORDINATOR_NOT_AVAILABLE,
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    ILLEGAL_GENERATION,
    INCONSISTENT_GROUP_PROTOCOL,
    INVALID_GROUP_ID,
    INVALID_SESSION_TIMEOUT,
    MEMBER_ID_REQUIRED,
    NON_EMPTY_GROUP,
    NONE,
    REBALANCE_IN_PROGRESS,
    UNKNOWN_MEMBER_ID,
    UNKNOWN_SERVER_ERROR,
)
from tidegate.groups import GroupState, settings
from tidegate.in_slices import run_at_once

SUBSCRIBED = bytes.fromhex("00000000000100017400000000")  # to topic t


@pytest.fixture
def world() -> World:
    """Return a coordinator that waits 3 s for more members."""
    return World()


def test_member_is_given_an_id_first(world: World) -> None:
    """KIP-394: who comes without an id comes back with it; the group is known, and kept, from there on."""
    asked = world.join()
    assert (asked.code, asked.answer["member_id"], world.state) == (MEMBER_ID_REQUIRED, "c-0001", "Empty")
    assert world.store.kept["g"].generation == 0
    assert not world.join("c-0001")
    world.advance(2_999)
    assert world.state == "PreparingRebalance"


@pytest.mark.parametrize("fields", [{"client_id": "\U0001f300" * 8191}, {"instance_id": "\U0001f300" * 8191}])
def test_member_id_of_a_client_with_the_longest_name(world: World, fields: dict) -> None:
    """It can be sent: a string has 32,767 bytes at the most."""
    world.join(**fields, needs_known_id=False)
    assert [len(member_id.encode()) for member_id in world.members] == [32_005]


def test_old_clients_join_at_once(world: World) -> None:
    """Before version 4 nobody comes back for an id."""
    asked = world.join(needs_known_id=False)
    world.advance(3_000)
    assert (asked.code, asked.answer["generation_id"]) == (NONE, 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"group_id": ""}, INVALID_GROUP_ID),
        ({"session_timeout_ms": 5_999}, INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, INVALID_SESSION_TIMEOUT),
        ({"protocols": []}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": [(str(number), b"") for number in range(21)]}, INCONSISTENT_GROUP_PROTOCOL),
        (
            {"protocols": [("range", b""), ("range", b"")], "needs_known_id": False},
            INCONSISTENT_GROUP_PROTOCOL,
        ),
        ({"member_id": "nobody"}, UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "protocols": []}, UNKNOWN_MEMBER_ID),
        ({"member_id": "nobody", "protocols": [], "is_known": True}, INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_joins_that_are_refused(world: World, fields: dict, code: int) -> None:
    """Refused joins are answered at once and leave no member."""
    assert world.join(**fields).code == code
    assert world.member_count == 0


def test_protocols_that_are_named_twice(world: World) -> None:
    """A client is given an id, as by Kafka, and refused then, where Kafka never answers; with another it may join."""
    twice = [("range", b""), ("range", b"")]
    first = world.join(protocols=twice)
    assert first.code == MEMBER_ID_REQUIRED
    assert world.join(first.answer["member_id"], protocols=twice).code == INCONSISTENT_GROUP_PROTOCOL
    assert world.join(first.answer["member_id"], protocols=[("other", b""), *twice]) == []
    world.advance(3_000)
    assert world.coordinator.groups["g"].protocol == "other"


def test_first_rebalance_waits_for_more_members(world: World) -> None:
    """Each that comes in the meantime prolongs the wait, up to the rebalance timeout."""
    first, asked = world.enter(rebalance_timeout_ms=7_000)
    for _ in range(2):
        world.advance(2_900)
        world.enter(rebalance_timeout_ms=7_000)
    assert not asked
    world.advance(1_199)
    assert not asked
    world.advance(1)
    assert asked.answer["generation_id"] == 1
    assert (asked.answer["leader"], len(asked.answer["members"])) == (first, 3)
    assert world.state == "CompletingRebalance"


def test_assignment_reaches_every_member(world: World) -> None:
    """Followers wait for the leader; what it brings is kept before anybody has it."""
    ids = [world.enter()[0] for _ in range(2)]
    world.advance(6_000)
    world.store.holds = True
    follower = world.sync(ids[1], 1)
    leader = world.sync(ids[0], 1, {ids[0]: b"a", ids[1]: b"b", "other": b"c"})
    assert (follower, leader, world.state) == ([], [], "CompletingRebalance")
    world.store.release()
    assert (leader.answer["assignment"], follower.answer["assignment"]) == (b"a", b"b")
    assert follower.answer["protocol_name"] == "range"
    assert world.state == "Stable"
    assert [member.assignment for member in world.store.kept["g"].members] == [b"a", b"b"]
    assert world.sync(ids[1], 1).answer["assignment"] == b"b"


def test_assignment_that_cannot_be_kept_is_not_given(world: World) -> None:
    """All are told to look for their coordinator, and the group is rebalanced."""
    world.enter()
    world.advance(3_000)
    world.store.fails = True
    assert world.sync("c-0001", 1, {"c-0001": b"a"}).code == COORDINATOR_NOT_AVAILABLE
    assert world.state == "PreparingRebalance"


def test_assignment_that_is_too_large_is_refused() -> None:
    """As by Kafka, whose record of the group would be larger than `message.max.bytes`."""
    world = World()
    world.store.max_bytes = 100
    world.enter()
    world.advance(3_000)
    assert world.sync("c-0001", 1, {"c-0001": b"a" * 100}).code == UNKNOWN_SERVER_ERROR


def test_new_member_has_the_others_join_again(world: World) -> None:
    """They learn it by their heartbeat; the rebalance ends when all have joined."""
    (first,), generation = world.stable()
    second, joined = world.enter()
    assert world.beat(first, generation) == REBALANCE_IN_PROGRESS
    assert world.commit(first, generation) == NONE
    again = world.join(first)
    assert (again.answer["generation_id"], joined.answer["generation_id"]) == (2, 2)
    assert (again.answer["leader"], joined.answer["leader"]) == (first, first)
    assert joined.answer["members"] == []
    assert world.beat(first, 1) == ILLEGAL_GENERATION
    assert world.commit(first, 1) == ILLEGAL_GENERATION
    assert world.commit(first, 2) == REBALANCE_IN_PROGRESS
    world.synced([first, second], first, 2)
    assert world.beat(second, 2) == NONE


def test_who_does_not_join_again_is_let_go(world: World) -> None:
    """After the longest rebalance timeout of all members the next generation begins without it."""
    ids, generation = world.stable(2, session_timeout_ms=100_000)
    asked = world.join(ids[0], session_timeout_ms=100_000)
    world.advance(59_999)
    assert not asked
    world.advance(1)
    assert asked.answer["generation_id"] == generation + 1
    assert world.members == [ids[0]]
    assert world.beat(ids[1], generation) == UNKNOWN_MEMBER_ID


def test_leader_that_does_not_assign_is_let_go(world: World) -> None:
    """As is any member that has joined a generation and does not ask for its assignment."""
    ids = [world.enter(session_timeout_ms=100_000)[0] for _ in range(2)]
    world.advance(6_000)
    waiting = world.sync(ids[1], 1)
    world.advance(59_999)
    assert not waiting
    world.advance(1)
    assert (waiting.code, world.members) == (REBALANCE_IN_PROGRESS, [ids[1]])
    assert world.join(ids[1]).answer["leader"] == ids[1]


def test_silent_member_is_let_go(world: World) -> None:
    """Its session is over; heartbeats and commits keep it."""
    ids, generation = world.stable(2)
    world.advance(9_999)
    assert world.beat(ids[0], generation) == NONE
    world.advance(1)
    assert world.members == [ids[0]]
    assert world.state == "PreparingRebalance"
    world.advance(9_998)
    assert world.commit(ids[0], generation) == NONE
    world.advance(9_999)
    assert world.members == [ids[0]]
    world.advance(1)
    assert (world.members, world.state) == ([], "Empty")
    assert world.store.kept["g"].members == ()


def test_waiting_members_are_not_silent(world: World) -> None:
    """Who waits for others to join, or for an assignment, cannot send heartbeats."""
    ids, generation = world.stable(2, session_timeout_ms=10_000)
    joining = world.join(ids[0])
    world.advance(5_000)
    world.beat(ids[1], generation)
    world.advance(9_000)
    assert world.beat(ids[1], generation) == REBALANCE_IN_PROGRESS
    world.advance(9_000)
    world.join(ids[1])
    assert joining.answer["generation_id"] == generation + 1
    waiting = world.sync(ids[1], generation + 1)
    for _ in range(4):
        world.advance(9_000)
        assert world.beat(ids[0], generation + 1) == NONE
    assert not waiting
    assert world.members == ids


def test_id_that_nobody_comes_with_is_forgotten(world: World) -> None:
    """A rebalance waits for it, for a session."""
    (first,), _ = world.stable()
    world.join()
    asked = world.join(first)
    assert not asked
    world.advance(10_000)
    assert asked.answer["generation_id"] == 2
    assert world.member_count == 1


def test_new_member_waits_for_five_minutes_at_most(world: World) -> None:
    """It cannot send heartbeats: its JoinGroup is answered, so that it comes again if it is still there."""
    world.stable(1, session_timeout_ms=1_000_000, rebalance_timeout_ms=1_000_000)
    _, asked = world.enter()
    world.advance(299_999)
    assert not asked
    world.advance(1)
    assert (asked.code, asked.answer["member_id"]) == (UNKNOWN_MEMBER_ID, "")


def test_member_that_joins_twice_answers_the_first(world: World) -> None:
    """Where Kafka leaves one of the two without an answer."""
    world.stable(1, session_timeout_ms=100_000)
    member_id, first = world.enter()
    second = world.join(member_id)
    assert (first.code, second) == (UNKNOWN_MEMBER_ID, [])


def test_followers_may_ask_again_without_a_rebalance(world: World) -> None:
    """The leader's JoinGroup begins one, a follower's with the same metadata does not."""
    ids, generation = world.stable(2)
    assert world.join(ids[1]).answer["generation_id"] == generation
    assert world.join(ids[1], protocols=[("range", b"other")]) == []
    assert world.join(ids[0]).answer["generation_id"] == generation + 1


def test_joined_member_may_ask_again(world: World) -> None:
    """While the group waits for its leader: the answer may have been lost."""
    ids = [world.enter()[0] for _ in range(2)]
    world.advance(6_000)
    again = world.join(ids[0])
    assert (again.answer["generation_id"], len(again.answer["members"])) == (1, 2)
    changed = world.join(ids[1], protocols=[("range", b"other")])
    assert (changed, world.state) == ([], "PreparingRebalance")


def test_sync_of_another_generation_or_protocol(world: World) -> None:
    """Errors in Kafka's order."""
    assert world.sync("nobody", 1, group_id="").code == INVALID_GROUP_ID
    assert world.sync("nobody", 1).code == UNKNOWN_MEMBER_ID
    (first,), generation = world.stable()
    assert world.sync("nobody", generation).code == UNKNOWN_MEMBER_ID
    assert world.sync(first, generation + 1).code == ILLEGAL_GENERATION
    assert world.sync(first, generation, protocol="other").code == INCONSISTENT_GROUP_PROTOCOL
    assert world.sync(first, generation, protocol_type="other").code == INCONSISTENT_GROUP_PROTOCOL
    world.enter()
    assert world.sync(first, generation).code == REBALANCE_IN_PROGRESS


def test_protocols_that_not_all_speak(world: World) -> None:
    """Of those that all do most votes win."""
    world.stable(1, protocols=[("a", b""), ("b", b"")])
    assert world.join(protocols=[("c", b"")]).code == INCONSISTENT_GROUP_PROTOCOL
    assert world.join(protocol_type="connect", protocols=[("a", b"")]).code == INCONSISTENT_GROUP_PROTOCOL
    _, asked = world.enter(protocols=[("a", b""), ("a", b""), ("b", b"1"), ("c", b"")])
    world.join("c-0001", protocols=[("a", b""), ("b", b"2")])
    assert asked.answer["protocol_name"] == "b"


def test_static_member_comes_back_without_a_rebalance(world: World) -> None:
    """KIP-345: it has its assignment; the one that it was is fenced. KIP-814: a leader need not assign again."""
    world.join(instance_id="i")
    world.advance(3_000)
    world.sync("i-0001", 1, {"i-0001": b"a"}, instance_id="i")
    asked = world.join(instance_id="i")
    assert (asked.code, asked.answer["member_id"], asked.answer["skip_assignment"]) == (NONE, "i-0002", True)
    assert (asked.answer["generation_id"], asked.answer["leader"]) == (1, "i-0002")
    assert len(asked.answer["members"]) == 1
    assert world.sync("i-0002", 1, instance_id="i").answer["assignment"] == b"a"
    assert world.beat("i-0001", 1, "i") == FENCED_INSTANCE_ID
    assert world.commit("i-0001", 1, "i") == FENCED_INSTANCE_ID
    assert world.join("i-0001", instance_id="i").code == FENCED_INSTANCE_ID
    assert world.sync("i-0001", 1, instance_id="i").code == FENCED_INSTANCE_ID
    assert world.store.kept["g"].members[0].member_id == "i-0002"


def test_static_leader_of_an_old_client_comes_back(world: World) -> None:
    """Before version 9 it is told that another leads, so that it does not assign."""
    world.join(instance_id="i")
    world.advance(3_000)
    world.sync("i-0001", 1, {}, instance_id="i")
    asked = world.join(instance_id="i", skips_assignment=False)
    assert (asked.answer["leader"], asked.answer["members"]) == ("i-0001", [])


def test_static_member_that_comes_twice_fences_the_first(world: World) -> None:
    """Its waiting JoinGroup or SyncGroup is answered so."""
    first = world.join(instance_id="i")
    second = world.join(instance_id="i")
    assert (first.code, second) == (FENCED_INSTANCE_ID, [])
    other = world.join(instance_id="j")
    world.advance(6_000)
    assert (second.code, other.code) == (NONE, NONE)
    waiting = world.sync(other.answer["member_id"], 1, instance_id="j")
    third = world.join(instance_id="j")
    assert (waiting.code, third, world.state) == (FENCED_INSTANCE_ID, [], "PreparingRebalance")


@pytest.mark.parametrize("asks", [True, False])
def test_static_member_comes_back_before_it_had_its_assignment(world: World, asks: bool) -> None:
    """It has to ask for it under its new id, or goes when the rebalance timeout is over."""
    leader, other = (world.join(instance_id=name, session_timeout_ms=600_000) for name in "ij")
    world.advance(6_000)
    leader_id, other_id = leader.answer["member_id"], other.answer["member_id"]
    world.sync(leader_id, 1, {leader_id: b"a", other_id: b"b"}, instance_id="i")
    assert world.state == "Stable"
    new_id = world.join(instance_id="j", session_timeout_ms=600_000).answer["member_id"]
    if asks:
        assert world.sync(new_id, 1, instance_id="j").answer["assignment"] == b"b"
    world.advance(60_000)
    assert world.state == ("Stable" if asks else "PreparingRebalance")
    assert world.members == [leader_id, new_id][: 2 if asks else 1]


def test_static_member_that_comes_back_too_large_is_what_it_was() -> None:
    """Its group could not be kept: who it was goes on. Others come back all the same."""
    world = World()
    world.store.max_bytes = 100
    for name in "ij":
        world.join(instance_id=name)
    world.advance(6_000)
    ids = list(world.members)
    for member_id, name in zip(ids, "ij", strict=True):
        world.sync(member_id, 1, instance_id=name)
    before = world.coordinator.table.metadata_bytes
    assert world.join(instance_id="i", protocols=[("range", b"m" * 100)]).code == UNKNOWN_SERVER_ERROR
    assert world.beat(ids[0], 1, "i") == NONE
    assert (sorted(world.members), world.coordinator.table.metadata_bytes) == (ids, before)
    assert world.join(instance_id="j").answer["member_id"] == "j-0004"
    assert world.join(instance_id="i").answer["member_id"] == "i-0005"


def test_two_static_members_come_back_at_once(world: World) -> None:
    """The leader is told of the members that there are when it is answered, the other under its new id."""
    leader, other = (world.join(instance_id=name) for name in "ij")
    world.advance(6_000)
    for asked, name in ((other, "j"), (leader, "i")):
        world.sync(asked.answer["member_id"], 1, instance_id=name)
    world.store.holds = True
    leader, other = (world.join(instance_id=name) for name in "ij")
    assert not leader
    world.store.release()
    assert leader.answer["skip_assignment"]
    told = [member["member_id"] for member in leader.answer["members"]]
    assert sorted(told) == sorted(world.members)
    assert other.answer["member_id"] in told


def test_static_member_stays_while_its_session_lasts(world: World) -> None:
    """A rebalance goes on without its JoinGroup, and keeps it."""
    ids, generation = world.stable(1, session_timeout_ms=600_000)
    asked = world.join(instance_id="i", session_timeout_ms=600_000)
    world.join(ids[0], session_timeout_ms=600_000)
    static_id = asked.answer["member_id"]
    world.synced([*ids, static_id], ids[0], generation + 1)
    again = world.join(ids[0], session_timeout_ms=600_000)
    world.advance(60_000)
    assert again.answer["generation_id"] == generation + 2
    assert world.members == [ids[0], static_id]


def test_leaving(world: World) -> None:
    """Members go, static ones by their instance alone, ids that were given out too; the rest are rebalanced."""
    ids, generation = world.stable(2)
    assert world.leave(("nobody", None), ("", "i"), ("", None)) == [UNKNOWN_MEMBER_ID] * 3
    assert world.state == "Stable"
    pending = world.join().answer["member_id"]
    assert world.leave((pending, None), (ids[1], None)) == [NONE, NONE]
    assert world.beat(ids[0], generation) == REBALANCE_IN_PROGRESS
    assert world.leave((ids[0], None)) == [NONE]
    assert (world.state, world.coordinator.groups["g"].generation) == ("Empty", generation + 1)
    assert world.member_count == 0
    world.join(instance_id="i")
    world.advance(3_000)
    assert world.leave(("wrong", "i"), ("", "i")) == [FENCED_INSTANCE_ID, NONE]


def test_commits(world: World) -> None:
    """Only members commit in a group that has any; without members a commit needs no generation."""
    assert world.commit("m", 1) is None
    (first,), generation = world.stable()
    assert world.commit() == UNKNOWN_MEMBER_ID
    assert world.commit(first, -1) == ILLEGAL_GENERATION
    assert world.commit("nobody", generation) == UNKNOWN_MEMBER_ID
    assert world.commit(first, generation, "i") == UNKNOWN_MEMBER_ID
    world.leave((first, None))
    assert world.commit() == NONE
    assert world.commit(first, generation) == UNKNOWN_MEMBER_ID


def test_group_of_max_size(world: World) -> None:
    """Who is one too many is told so; members come back as long as there is room."""
    world = World(max_size=2)
    ids, _ = world.stable(2)
    assert world.join().code == GROUP_MAX_SIZE_REACHED
    world.join(ids[0])
    assert world.join(ids[1]).code == NONE


def test_group_that_is_larger_than_allowed_after_a_restart() -> None:
    """It is rebalanced, and the last that come back are let go."""
    world = World()
    ids, _ = world.stable(3)
    world.settings = type(world.settings)(max_size=2)
    world.start()
    assert world.state == "PreparingRebalance"
    asked = [world.join(member_id) for member_id in ids]
    assert [one.code for one in asked] == [NONE, NONE, GROUP_MAX_SIZE_REACHED]


def test_restart(world: World) -> None:
    """Members go on where they were; who does not come back is let go after its session."""
    ids, generation = world.stable(2)
    world.start()
    assert world.beat(ids[0], generation) == NONE
    assert world.sync(ids[0], generation).answer["assignment"] == ids[0].encode()
    world.advance(9_000)
    world.beat(ids[0], generation)
    world.advance(1_000)
    assert world.members == [ids[0]]


def test_restart_in_a_rebalance(world: World) -> None:
    """The last generation that was kept is there; those of the lost one join again."""
    (first,), generation = world.stable()
    second, _ = world.enter()
    world.join(first)
    world.start()
    assert world.beat(first, generation + 1) == ILLEGAL_GENERATION
    assert world.join(second).code == UNKNOWN_MEMBER_ID
    assert world.join(first).answer["generation_id"] == generation + 1


def test_throttled_time_does_not_count_against_a_session(world: World) -> None:
    """A member whose connection the broker mutes for longer than its session is not let go."""
    (first,), generation = world.stable()
    connection = Connection()
    assert world.beat(first, generation, source=connection) == NONE
    connection.throttled_ms += 60_000
    world.advance(69_999)
    assert world.members == [first]
    world.advance(1)
    assert world.members == []


def test_throttled_time_counts_where_all_is_to_be_as_in_kafka() -> None:
    """`exact`: silence is silence."""
    world = World(exact=True)
    (first,), generation = world.stable()
    connection = Connection()
    world.beat(first, generation, source=connection)
    connection.throttled_ms += 60_000
    world.advance(10_000)
    assert world.members == []


def test_throttled_member_is_waited_for(world: World) -> None:
    """A rebalance is prolonged by the time that a member was muted, once over at the most."""
    ids, generation = world.stable(2, session_timeout_ms=1_000_000)
    connection = Connection()
    world.beat(ids[1], generation, source=connection)
    asked = world.join(ids[0], session_timeout_ms=1_000_000)
    connection.throttled_ms += 30_000
    world.advance(89_999)
    assert not asked
    connection.throttled_ms += 500_000
    world.advance(30_001)
    assert asked.answer["generation_id"] == generation + 1
    assert world.members == [ids[0]]


def test_throttled_member_that_has_joined_is_waited_for(world: World) -> None:
    """So is who has joined a generation and asks late for its assignment."""
    connection = Connection()
    member_id, _ = world.enter(source=connection, session_timeout_ms=1_000_000)
    world.advance(3_000)
    connection.throttled_ms += 30_000
    world.advance(89_999)
    assert world.members == [member_id]
    world.advance(1)
    assert world.members == []


def test_subscribed_topics(world: World) -> None:
    """A stable group subscribes to what its members' metadata say, one without members to nothing."""
    (first,), _ = world.stable(1, protocols=[("range", SUBSCRIBED)])
    group = world.coordinator.groups["g"]

    def reads(topic: str) -> bool:
        return run_at_once(group.subscription_in_slices({"t", "u"})).has(topic)

    assert (reads("t"), reads("u")) == (True, False)
    world.join(first, protocols=[("range", b"?")])
    assert reads("u")
    world.leave((first, None))
    assert not reads("t")


def test_deletion(world: World) -> None:
    """Only of a group without members; ids that were given out are forgotten with it."""
    assert world.coordinator.delete_problem("g") is None
    (first,), _ = world.stable()
    assert world.coordinator.delete_problem("g") == NON_EMPTY_GROUP
    world.leave((first, None))
    world.join()
    assert world.coordinator.delete_problem("g") == NONE
    world.coordinator.delete("g")
    assert (world.member_count, world.coordinator.table.metadata_bytes) == (0, 0)
    world.advance(100_000)
    assert not world.coordinator.groups


def test_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups, members and their metadata are bounded; a client beyond is told that the group is full."""
    module = "tidegate.groups.table."
    monkeypatch.setattr(module + "MAX_GROUP_MEMBERS", 2)
    table = world.coordinator.table
    table.members.capacity = 6
    full = GROUP_MAX_SIZE_REACHED
    joined = [world.join(needs_known_id=False) for _ in range(3)]
    assert joined[2].code == full
    assert world.join(group_id="h", needs_known_id=False) == []
    assert world.join(group_id="h", needs_known_id=False).code == full, "half of all is one principal's"
    assert world.join(group_id="h", needs_known_id=False, owner="User:b") == []
    world.advance(100_000)
    assert world.member_count == 0
    monkeypatch.setattr(module + "MAX_GROUP_BYTES", 5_000)
    assert world.join(protocols=[("range", b"m" * 5_000)]).code == full
    too_long = {"protocols": [("range", b"m" * 5_001)], "needs_known_id": False}
    assert world.join(group_id="h", **too_long).code == full
    world.coordinator.delete("h")
    assert world.join(group_id="h", **too_long).code == full
    assert list(world.coordinator.groups) == ["g"]
    table.metadata.capacity = 5_000
    assert world.join(group_id="h", protocols=[("range", b"m" * 3_000)]).code == full


def test_members_and_their_bytes_are_divided(world: World) -> None:
    """A principal alone gets half, the next half of the rest; a member counts for the principal that speaks for it."""
    table = world.coordinator.table
    table.members.capacity = 8
    for owner, many in (("User:a", 4), ("User:b", 2), ("User:c", 1)):
        joined = [
            world.join(group_id=f"{owner}{at}", needs_known_id=False, owner=owner) for at in range(many + 1)
        ]
        assert joined.pop().code == GROUP_MAX_SIZE_REACHED
        assert joined == [[]] * many
    world.advance(9_000)
    world.start()
    table = world.coordinator.table
    assert table.members.used == 0, "none had its assignment"
    table.metadata.capacity = 10_000
    large = {"protocols": [("range", bytes(2_000))], "needs_known_id": False}
    first = world.join(owner="User:a", **large)
    assert world.join(group_id="h", owner="User:a", **large).code == GROUP_MAX_SIZE_REACHED
    assert world.join(owner="User:b", **large) == []
    world.advance(9_000)
    member_id = first.answer["member_id"]
    used = table.metadata.used
    assert world.join(member_id, owner="User:a", **large).code == NONE, "it has no more to say than before"
    larger = {**large, "protocols": [("range", bytes(3_000))]}
    assert world.join(member_id, owner="User:a", **larger).code == GROUP_MAX_SIZE_REACHED
    assert world.join(member_id, owner="User:c", **{**large, "protocols": [("range", b"")]}) == []
    assert (table.members.used_by("User:a"), table.members.used_by("User:c")) == (0, 1)
    assert table.metadata.used == used - 2_000
    world.advance(200_000)
    assert (table.members.used, table.metadata.used) == (0, 0)


def test_owners_are_kept(world: World) -> None:
    """After a restart members and groups count for the same principals, those of an earlier version for none."""
    leader = world.join(owner="User:a", needs_known_id=False)
    world.join(owner="User:b", needs_known_id=False)
    world.advance(9_000)
    member_id = leader.answer["member_id"]
    world.sync(member_id, 1, {member_id: b"x" * 100})
    before = world.coordinator.table
    world.start()
    table = world.coordinator.table
    assert world.coordinator.groups["g"].owner == "User:a"
    for owner in ("User:a", "User:b"):
        assert table.members.used_by(owner) == 1
        assert table.metadata.used_by(owner) == before.metadata.used_by(owner)


def test_assignments_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one group's nor those of all together, the ones that are still to be kept among them, are too large."""
    module = "tidegate.groups.assigning."
    joined = {group_id: world.join(group_id=group_id, needs_known_id=False) for group_id in "ghi"}
    world.advance(3_000)

    def sync(group_id: str, size: int) -> Asked:
        leader = joined[group_id].answer["member_id"]
        return world.sync(leader, 1, {leader: bytes(size)}, group_id=group_id)

    monkeypatch.setattr(module + "MAX_GROUP_BYTES", 2_000)
    assert sync("g", 2_000).code == UNKNOWN_SERVER_ERROR
    table = world.coordinator.table
    table.metadata.capacity = 2 * table.metadata.used + 4_000
    world.store.holds = True
    first = sync("h", 1_500)
    assert sync("i", 1_500).code == GROUP_MAX_SIZE_REACHED
    assert not first
    world.store.release()
    assert (
        first.code,
        world.coordinator.groups["h"].members[joined["h"].answer["member_id"]].assignment,
    ) == (
        NONE,
        bytes(1_500),
    )


def test_bytes_are_given_back(world: World) -> None:
    """What all groups take is counted down when members go."""
    ids, _ = world.stable(3)
    world.join(ids[1], protocols=[("range", b"m" * 1000)])
    world.advance(100_000)
    assert world.state == GroupState.EMPTY.value
    assert world.coordinator.table.metadata_bytes == world.coordinator.groups["g"].size
    assert world.coordinator.table.metadata_bytes < settings.MAX_METADATA_BYTES


def test_an_empty_group_makes_room_for_another(world: World) -> None:
    """Of the principal that has most groups without members the oldest goes, and is kept no more."""
    world.coordinator.table.empty.capacity = 3_100
    for group_id in "abc":
        world.join(group_id=group_id, owner="User:a")
        world.advance(10)
    assert world.join(group_id="d", owner="User:b").code == MEMBER_ID_REQUIRED
    assert (list(world.coordinator.groups), list(world.store.kept)) == (["b", "c", "d"], ["b", "c", "d"])
    assert world.join(group_id="b", needs_known_id=False) == []
    assert world.join(group_id="e", owner="User:b").code == MEMBER_ID_REQUIRED, "b is not empty any more"
    assert world.join(group_id="f", owner="User:c").code == MEMBER_ID_REQUIRED
    assert list(world.coordinator.groups) == ["b", "c", "e", "f"], "User:b had most"


def test_ids_that_no_member_comes_with_make_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first in its group goes, or the first of the principal that has most; a client that uses it asks again."""
    monkeypatch.setattr("tidegate.groups.table.MAX_GROUP_MEMBERS", 2)
    first, second, third = (world.join(owner="User:a").answer["member_id"] for _ in range(3))
    assert world.member_count == 2
    assert world.join(first).code == UNKNOWN_MEMBER_ID
    world.coordinator.table.pending.capacity = world.coordinator.table.pending.used + 600
    other = world.join(group_id="h", owner="User:b").answer["member_id"]
    assert world.join(group_id="i", owner="User:c").code == MEMBER_ID_REQUIRED, "in the place of the second"
    assert world.join(second).code == UNKNOWN_MEMBER_ID
    assert world.join(third) == []
    assert world.join(other, group_id="h") == []
    assert world.member_count == 3
