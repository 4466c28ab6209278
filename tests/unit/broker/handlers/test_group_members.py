"""Tests of the handlers of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and those that look after groups."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.handlers.test_groups import commit, fetch
from tests.unit.broker.node import CONNECTION, Node
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms
from tests.unit.storage.positions import stored_offsets

from tidegate.api_keys import (
    CONSUMER_GROUP_HEARTBEAT,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_GROUPS,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from tidegate.broker.handlers import groups as group_handlers
from tidegate.error_codes import OFFSET_METADATA_TOO_LARGE
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Answer, Deferred
from tidegate.storage import StorageError
from tidegate.storage.groups import committed_offsets
from tidegate.storage.groups.committed_offsets import CommittedOffset
from tidegate.storage.groups.group_journal import GroupJournal
from tidegate.wire import ZERO_ID, encode_request

SUBSCRIPTION = bytes.fromhex("0000000000010006 6f7264657273 00000000")
MINUTE_MS = 60_000


@pytest.fixture
def at_once(tmp_path: Path) -> Any:
    """Return a node whose groups do not wait for more members."""
    node = Node(tmp_path / "at-once", group_initial_rebalance_delay_ms=0)
    yield node
    node.storage.close()


def joining(member_id: str = "", **fields: Any) -> dict[str, Any]:
    """Return a JoinGroup of group g."""
    return {
        "group_id": "g",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        "reason": None,
        **fields,
    }


def syncing(
    member_id: str, generation: int, assignment: bytes | None = b"a", **fields: Any
) -> dict[str, Any]:
    """Return a SyncGroup of group g."""
    given = [] if assignment is None else [{"member_id": member_id, "assignment": assignment}]
    return {
        "group_id": "g",
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": given,
        **fields,
    }


def beating(member_id: str, generation: int, group_id: str = "g") -> dict[str, Any]:
    """Return a Heartbeat."""
    return {
        "group_id": group_id,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": None,
    }


def enter(node: Node, **fields: Any) -> tuple[str, int]:
    """Bring one member into a stable group; return its id and the generation."""
    member_id = node.call(JOIN_GROUP, 9, joining(**fields))["member_id"]
    generation = node.call(JOIN_GROUP, 9, joining(member_id, **fields))["generation_id"]
    group_id = fields.get("group_id", "g")
    name = joining(**fields)["protocols"][0]["name"]
    kind = joining(**fields)["protocol_type"]
    found = node.call(
        SYNC_GROUP,
        5,
        syncing(member_id, generation, group_id=group_id, protocol_name=name, protocol_type=kind),
    )
    assert (found["error_code"], found["assignment"]) == (0, b"a")
    return member_id, generation


def positions(node: Node, group_id: str) -> list[CommittedOffset]:
    """Return a group's positions."""
    return [at for page in node.storage.offsets.pages(group_id) for at in page]


def pass_time(node: Node, ms: int) -> None:
    """Let time pass on the clock and the scheduler."""
    for _ in range(ms // 1000):
        node.clock.advance(1000)
        node.scheduler.advance(1)
        node.round()


def test_a_group_is_shown_from_its_first_join_on(at_once: Node) -> None:
    """Also after a commit that was refused, where Kafka shows the group from its first SyncGroup on (row L7)."""
    node = at_once
    node.create("orders")
    assert commit(node, 8, 0, metadata="m" * 5000) == OFFSET_METADATA_TOO_LARGE
    asked = {"groups": ["g"], "include_authorized_operations": False}
    assert node.call(DESCRIBE_GROUPS, 5, asked)["groups"][0]["group_state"] == "Dead"
    node.call(JOIN_GROUP, 9, joining(group_instance_id="i"))
    assert node.call(DESCRIBE_GROUPS, 5, asked)["groups"][0]["group_state"] == "CompletingRebalance"


def test_member_in_every_version(at_once: Node) -> None:
    """Whatever versions it speaks, a member joins, syncs, beats and leaves."""
    node = at_once
    for version in range(10):
        found = node.call(JOIN_GROUP, version, joining())
        if version >= 4:
            assert found["error_code"] == 79
            found = node.call(JOIN_GROUP, version, joining(found["member_id"]))
        member_id, generation = found["member_id"], found["generation_id"]
        assert (found["error_code"], found["leader"], found["protocol_name"]) == (0, member_id, "range")
        assert [member["metadata"] for member in found["members"]] == [SUBSCRIPTION]
        found = node.call(SYNC_GROUP, min(version, 5), syncing(member_id, generation))
        assert (found["error_code"], found["assignment"]) == (0, b"a")
        assert node.call(HEARTBEAT, min(version, 4), beating(member_id, generation))["error_code"] == 0
        leaving = {"group_id": "g", "member_id": member_id, "members": []}
        leaving["members"] = [{"member_id": member_id, "group_instance_id": None, "reason": "over"}]
        assert node.call(LEAVE_GROUP, min(version, 5), leaving)["error_code"] == 0
        assert node.call(LEAVE_GROUP, 2, leaving)["error_code"] == 25


def test_member_waits_without_the_memory_of_its_request(node: Node) -> None:
    """The answer comes when the rebalance is over; whoever has left by then is not answered, and is a member still."""
    member_id = node.call(JOIN_GROUP, 9, joining())["member_id"]
    waiting = node.ask(JOIN_GROUP, 9, joining(member_id))
    other = node.ask(JOIN_GROUP, 2, joining())
    assert isinstance(waiting, Deferred)
    assert isinstance(other, Deferred)
    answers: list[Answer] = []
    waiting.when_ready(lambda: answers.append(waiting.answer()))
    other.cancel()
    assert other.cancelled
    pass_time(node, 5_000)
    assert not answers
    pass_time(node, 2_000)
    assert len(answers) == 1
    groups = node.call(DESCRIBE_GROUPS, 6, {"groups": ["g"], "include_authorized_operations": False})
    assert len(groups["groups"][0]["members"]) == 2


def test_groups_survive_a_restart(tmp_path: Path) -> None:
    """Members, generation and assignments are on disk before they are answered."""
    node = Node(tmp_path, group_initial_rebalance_delay_ms=0)
    node.create("orders")
    member_id, generation = enter(node)
    assert commit(node, 9, 7, generation=generation, member_id=member_id) == 0
    node.storage.close()
    again = Node(tmp_path)
    assert again.call(HEARTBEAT, 4, beating(member_id, generation))["error_code"] == 0
    assert commit(again, 9, 8, generation=generation, member_id=member_id) == 0
    assert again.call(SYNC_GROUP, 5, syncing(member_id, generation, None))["assignment"] == b"a"
    pass_time(again, 11_000)
    assert again.call(HEARTBEAT, 4, beating(member_id, generation))["error_code"] == 25
    assert fetch(again, 8, None) == {0: 8}
    again.storage.close()


def killed(node: Node, directory: Path) -> Node:
    """Return a node that starts from what this one has written when it is killed now."""
    node.storage._removal.wait()  # files that go meanwhile cannot be copied
    shutil.copytree(node.storage.directory, directory)
    node.storage.close()
    return Node(directory)


def test_acknowledged_commits_survive_a_kill(tmp_path: Path) -> None:
    """They are in the journal alone; the members of the group are, too. A second kill changes nothing."""
    node = Node(tmp_path / "0", group_initial_rebalance_delay_ms=0)
    node.create("orders", 3)
    member_id, generation = enter(node)
    for index, offset in ((0, 7), (1, 8), (0, 9)):
        assert commit(node, 9, offset, index=index, generation=generation, member_id=member_id) == 0
    assert stored_offsets(node.storage.store, "g") == []
    for number in ("1", "2"):
        node = killed(node, tmp_path / number)
        assert fetch(node, 8, None) == {0: 9, 1: 8}
        assert node.call(HEARTBEAT, 4, beating(member_id, generation))["error_code"] == 0
        assert node.call(SYNC_GROUP, 5, syncing(member_id, generation, None))["assignment"] == b"a"
        assert node.storage.offsets.owner("g") == CONNECTION.owner
        assert commit(node, 9, 9, generation=generation, member_id=member_id) == 0
    node.storage.close()
    assert {path.stat().st_size for path in (tmp_path / "2").glob("*.journal")} == {0}


def test_a_topic_that_is_created_anew_has_no_offsets_after_a_kill(tmp_path: Path) -> None:
    """Records of the journal are of the topic that was deleted."""
    node = Node(tmp_path / "0")
    node.create("orders", 2)
    assert commit(node, 9, 7) == 0
    node.call(DELETE_TOPICS, 6, {"topics": [{"name": "orders", "topic_id": ZERO_ID}], "timeout_ms": 9000})
    node.create("orders", 2)
    assert commit(node, 9, 8, index=1) == 0
    node = killed(node, tmp_path / "1")
    assert fetch(node, 8, [0, 1]) == {0: -1, 1: 8}
    node.storage.close()


def test_deleted_offsets_stay_deleted_after_a_kill(tmp_path: Path) -> None:
    """A deletion that was answered is in the database, with all that came before it."""
    node = Node(tmp_path / "0")
    node.create("orders", 2)
    assert [commit(node, 9, 7, index=index) for index in (0, 1)] == [0, 0]
    topics = [{"name": "orders", "partitions": [{"partition_index": 0}]}]
    answer = node.call(OFFSET_DELETE, 0, {"group_id": "g", "topics": topics})
    assert answer["topics"][0]["partitions"][0]["error_code"] == 0
    assert commit(node, 9, 9, group_id="h") == 0
    assert node.call(DELETE_GROUPS, 2, {"groups_names": ["h"]})["results"][0]["error_code"] == 0
    node = killed(node, tmp_path / "1")
    assert fetch(node, 8, None) == {1: 7}
    assert "h" not in node.storage.offsets
    node.storage.close()


def test_a_damaged_journal_is_named(tmp_path: Path) -> None:
    """A record that is whole and says nothing that is known ends the start, with its reason."""
    node = Node(tmp_path / "0")
    node.storage.close()
    journal = GroupJournal(tmp_path / "0")
    journal.read(node.storage._journal.number)
    assert journal.append(b"\x09" * 20) is not None
    journal.close()
    with pytest.raises(
        StorageError, match="cannot read a record of the groups' journal: kind must be 1 or 2, got 9"
    ):
        Node(tmp_path / "0")


def test_commits_of_a_generation(at_once: Node) -> None:
    """Members commit in their generation; nobody else does while there are members."""
    at_once.create("orders")
    member_id, generation = enter(at_once)
    assert commit(at_once, 9, 7, generation=generation, member_id=member_id) == 0
    assert commit(at_once, 9, 8, generation=generation - 1, member_id=member_id) == 22
    assert commit(at_once, 9, 8, generation=generation, member_id="other") == 25
    assert commit(at_once, 9, 8) == 25
    assert fetch(at_once, 8, None) == {0: 7}


def test_longest_metadata(tmp_path: Path) -> None:
    """`offset.metadata.max.bytes` counts what Java calls the length of a text."""
    node = Node(tmp_path, offset_metadata_max_bytes=3)
    node.create("orders")
    assert commit(node, 9, 7, metadata="äöü") == 0
    assert commit(node, 9, 7, metadata="\U0001f300\U0001f300") == 12
    assert commit(node, 9, 7, metadata="abcd") == 12
    node.storage.close()


def test_no_room_for_offsets(node: Node) -> None:
    """Error 28, and nothing is kept; a position may be moved: nobody fills the memory to stop all others."""
    node.create("orders", 2)
    assert commit(node, 9, 7) == 0
    before = fetch(node, 8, None)
    node.storage.offsets.bound.capacity = 1
    assert commit(node, 9, 7, index=1) == 28
    assert commit(node, 9, 9, metadata="longer than it was") == 28
    assert fetch(node, 8, None) == before == {0: 7}
    assert commit(node, 9, 9) == 0
    assert fetch(node, 8, None) == {0: 9}


def test_room_is_given_back(node: Node) -> None:
    """What is reserved for a commit is counted once, whatever becomes of it."""
    node.create("orders")
    bound = node.storage.offsets.bound
    assert commit(node, 9, 7, metadata="") == 0
    used = node.storage.offsets.bytes_of("g")
    assert bound.used == used > committed_offsets.POSITION_BYTES
    assert commit(node, 9, 8, metadata="four") == 0
    assert bound.used == used + 4
    node.storage.store._lost = "the file is gone"
    assert commit(node, 9, 9, metadata="longer") == 15
    assert bound.used == used + 4
    node.storage.store._lost = None
    node.call(DELETE_GROUPS, 2, {"groups_names": ["g"]})
    assert (bound.used, len(node.storage.offsets)) == (0, 0)


def test_large_commits_at_once_share_the_room(node: Node) -> None:
    """What one has accepted counts for the others before it is written."""
    node.create("orders", 1000)
    part = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "m" * 1000}
    parts = [{**part, "partition_index": index} for index in range(1000)]
    bound = node.storage.offsets.bound
    bound.capacity = 2_400_000
    works = []
    for group_id in ("g", "h", "i"):
        named = [{"name": "orders", "partitions": parts}]
        message = {**commit_request(node), "group_id": group_id, "topics": named}
        works.append(node.begin(memoryview(bytearray(encode_request(OFFSET_COMMIT, 9, 7, "t", message)[4:]))))
    results = []
    while works:
        for work in list(works):
            try:
                next(work)
            except StopIteration as stop:
                works.remove(work)
                results.append(stop.value)
    for result in results:
        node.awaited(result)
    assert 0.9 * bound.capacity / 2 < bound.used <= bound.capacity / 2
    assert bound.used == sum(map(node.storage.offsets.bytes_of, "ghi"))


def test_failed_write_is_told(node: Node) -> None:
    """Offsets that could not be kept are error 15."""
    node.create("orders")
    node.storage.store._lost = "the file is gone"
    assert commit(node, 9, 7) == 15


def test_describe_and_list(at_once: Node) -> None:
    """A stable group shows its members' metadata, one with offsets alone is empty, one that is not known dead."""
    node = at_once
    node.create("orders")
    commit(node, 9, 7)
    member_id, _ = enter(node, group_id="h")
    described = node.call(
        DESCRIBE_GROUPS, 6, {"groups": ["h", "g", "x", "x"], "include_authorized_operations": True}
    )
    shown = [
        (group["group_state"], group["error_code"], group["authorized_operations"])
        for group in described["groups"]
    ]
    assert shown == [("Stable", 0, 3400), ("Empty", 0, 3400), *[("Dead", 69, -(2**31))] * 2]
    (member,) = described["groups"][0]["members"]
    assert member == {
        "member_id": member_id,
        "group_instance_id": None,
        "client_id": "tester",
        "client_host": "/127.0.0.1",
        "member_metadata": SUBSCRIPTION,
        "member_assignment": b"a",
    }

    def listed(states: list[str], types: list[str]) -> list[tuple[str, ...]]:
        found = node.call(LIST_GROUPS, 5, {"states_filter": states, "types_filter": types})
        return sorted(tuple(group.values()) for group in found["groups"])

    both = [("g", "", "Empty", "classic"), ("h", "consumer", "Stable", "classic")]
    assert listed([], []) == listed(["stable", "EMPTY"], ["Classic"]) == both
    assert listed(["empty"], []) == both[:1]
    assert listed(["Stable"], []) == both[1:]
    assert listed(["nonsense"], []) == listed([], ["consumer"]) == []


def test_large_answers_are_refused(at_once: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that is named again and again, and more groups than one answer has room for: error 42."""
    at_once.create("orders")
    enter(at_once)
    commit_to = {**commit_request(at_once), "group_id": "h"}
    at_once.call(OFFSET_COMMIT, 9, commit_to)
    monkeypatch.setattr(group_handlers, "MAX_ANSWER_BYTES", 3_000)
    monkeypatch.setattr(group_handlers, "MAX_LISTED", 1)
    described = at_once.call(
        DESCRIBE_GROUPS, 6, {"groups": ["g"] * 30, "include_authorized_operations": False}
    )
    codes = [group["error_code"] for group in described["groups"]]
    assert (codes[0], codes[-1]) == (0, 42)
    found = at_once.call(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
    assert (found["error_code"], found["groups"]) == (42, [])


def commit_request(node: Node) -> dict[str, Any]:
    """Return an OffsetCommit of offset 5 in `orders`."""
    part = {
        "partition_index": 0,
        "committed_offset": 5,
        "committed_leader_epoch": 0,
        "committed_metadata": "",
    }
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "orders", "partitions": [part]}],
    }


def test_deletion(at_once: Node) -> None:
    """Groups without members go with their offsets, once each, and stay away; others and unknown ones are errors."""
    node = at_once
    node.create("orders", 300)
    member_id, generation = enter(node)
    assert commit(node, 9, 7, generation=generation, member_id=member_id) == 0

    def deleted(*names: str) -> dict[str, int]:
        found = node.call(DELETE_GROUPS, 2, {"groups_names": list(names)})
        return {result["group_id"]: result["error_code"] for result in found["results"]}

    assert deleted("g", "x", "g") == {"g": 68, "x": 69}
    leaving = [{"member_id": member_id, "group_instance_id": None, "reason": None}]
    node.call(LEAVE_GROUP, 5, {"group_id": "g", "members": leaving})
    assert deleted("g") == {"g": 0}
    assert fetch(node, 8, None) == {}
    assert deleted("g") == {"g": 69}
    assert list(node.storage.store.groups.load()) == []
    commit(node, 9, 7)
    assert deleted("g") == {"g": 0}


def test_deletion_of_offsets(at_once: Node) -> None:
    """Not in topics that a member subscribes to; what there is not is no error."""
    node = at_once
    for name in ("orders", "others"):
        node.create(name, 2)
    member_id, generation = enter(node)
    for topic in ("orders", "others"):
        commit(node, 9, 7, generation=generation, member_id=member_id, topic=topic)

    def deleted(group_id: str, *topics: str) -> Any:
        wanted = [
            {"name": name, "partitions": [{"partition_index": at} for at in (0, 1, 9)]} for name in topics
        ]
        found = node.call(OFFSET_DELETE, 0, {"group_id": group_id, "topics": wanted})
        parts = [[part["error_code"] for part in topic["partitions"]] for topic in found["topics"]]
        return found["error_code"], parts

    assert deleted("x", "orders") == (69, [])
    assert deleted("g", "orders", "others", "absent") == (0, [[3, 86, 86], [3, 0, 0], [3, 3, 3]])
    left = {at.topic for at in positions(node, "g")}
    assert left == {"orders"}
    enter(node, group_id="h", protocol_type="connect")
    assert deleted("h", "orders") == (68, [])
    assert commit(node, 9, 7, group_id="") == 0
    assert deleted("", "orders") == (24, []), "though it has positions, as in Kafka"


def test_offsets_of_clients_that_cut_their_subscription(at_once: Node) -> None:
    """@platformatic/kafka says version 1 and sends the fields of version 0: what it does not read may be deleted."""
    node = at_once
    for name in ("orders", "others"):
        node.create(name)
    short = SUBSCRIPTION[:1] + b"\1" + SUBSCRIPTION[2:]
    member_id, generation = enter(node, protocols=[{"name": "range", "metadata": short}])
    for topic in ("orders", "others"):
        commit(node, 9, 7, generation=generation, member_id=member_id, topic=topic)
    wanted = [{"name": name, "partitions": [{"partition_index": 0}]} for name in ("orders", "others")]
    found = node.call(OFFSET_DELETE, 0, {"group_id": "g", "topics": wanted})
    assert [topic["partitions"][0]["error_code"] for topic in found["topics"]] == [86, 0]


def test_offsets_expire(tmp_path: Path) -> None:
    """Those of a group without members after the retention, and the group with them."""
    settings = {"offsets_retention_minutes": 1, "offsets_retention_check_interval_ms": 10_000}
    node = Node(tmp_path, group_initial_rebalance_delay_ms=0, **settings)
    for name in ("orders", "others"):
        node.create(name)
    member_id, generation = enter(node, session_timeout_ms=200_000)
    for topic in ("orders", "others"):
        commit(node, 9, 7, generation=generation, member_id=member_id, topic=topic)
    simple = {**commit_request(node), "group_id": "simple"}
    node.call(OFFSET_COMMIT, 9, simple)
    brief = {**commit_request(node), "group_id": "brief", "retention_time_ms": 5_000}
    node.call(OFFSET_COMMIT, 4, brief)
    long = {**commit_request(node), "group_id": "long", "retention_time_ms": 2**63 - 1}
    node.call(OFFSET_COMMIT, 4, long)

    def kept() -> set[tuple[str, str]]:
        return {
            (group_id, at.topic)
            for group_id in ("g", "simple", "brief", "long")
            for at in positions(node, group_id)
        }

    pass_time(node, 30_000)
    everything = {("g", "orders"), ("g", "others"), ("simple", "orders"), ("long", "orders")}
    assert kept() == everything
    pass_time(node, MINUTE_MS)
    assert kept() == {
        ("g", "orders"),
        ("long", "orders"),
    }  # which a member subscribes to, and what is to stay
    leaving = [{"member_id": member_id, "group_instance_id": None, "reason": None}]
    node.call(LEAVE_GROUP, 5, {"group_id": "g", "members": leaving})
    pass_time(node, MINUTE_MS // 2)
    assert kept() == {("g", "orders"), ("long", "orders")}
    pass_time(node, MINUTE_MS)
    assert kept() == {("long", "orders")}
    assert list(node.storage.store.groups.load()) == []
    node.storage.close()


def test_other_coordinators(tmp_path: Path) -> None:
    """A node of several coordinates its own groups alone: the others are error 16 by every API, and are not listed."""
    endpoints: Any = {1: {}, 2: {}, 3: {}}
    node = Node(tmp_path, endpoints=endpoints, group_initial_rebalance_delay_ms=0)
    node.create("orders")
    own = next(name for name in map(str, range(100)) if node.cluster.coordinator(name) == 1)
    foreign = next(name for name in map(str, range(100)) if node.cluster.coordinator(name) == 2)
    enter(node, group_id=own)
    assert node.call(JOIN_GROUP, 9, joining(group_id=foreign))["error_code"] == 16
    assert node.call(SYNC_GROUP, 5, syncing("m", 1, group_id=foreign))["error_code"] == 16
    assert node.call(HEARTBEAT, 4, beating("m", 1, foreign))["error_code"] == 16
    assert node.call(LEAVE_GROUP, 5, {"group_id": foreign, "members": []})["error_code"] == 16
    described = node.call(DESCRIBE_GROUPS, 6, {"groups": [foreign], "include_authorized_operations": False})
    assert described["groups"][0]["error_code"] == 16
    assert node.call(DELETE_GROUPS, 2, {"groups_names": [foreign]})["results"][0]["error_code"] == 16
    assert node.call(OFFSET_DELETE, 0, {"group_id": foreign, "topics": []})["error_code"] == 16
    listed = node.call(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})["groups"]
    assert [group["group_id"] for group in listed] == [own]
    node.storage.close()


def test_sync_without_a_protocol_is_refused(at_once: Node) -> None:
    """From version 5 on it has to name it (KIP-559)."""
    member_id, generation = enter(at_once)
    unnamed = syncing(member_id, generation, protocol_name=None)
    assert at_once.call(SYNC_GROUP, 5, unnamed)["error_code"] == 23
    assert at_once.call(SYNC_GROUP, 4, unnamed)["error_code"] == 0


def test_largest_group_follows_a_change_while_running(at_once: Node) -> None:
    """An assignment that exceeds `message.max.bytes` as it is now is refused."""
    smaller = dataclasses.replace(at_once.storage.config, message_max_bytes=200)
    run_at_once(at_once.storage.follow_in_slices(smaller))
    member_id = at_once.call(JOIN_GROUP, 9, joining())["member_id"]
    for assignment, error_code in ((b"a" * 200, -1), (b"a", 0)):
        generation = at_once.call(JOIN_GROUP, 9, joining(member_id))["generation_id"]
        answer = at_once.call(SYNC_GROUP, 5, syncing(member_id, generation, assignment))
        assert answer["error_code"] == error_code


def test_throttled_member_is_not_thrown_out(at_once: Node) -> None:
    """A connection that the broker mutes for longer than its member's session keeps that member."""
    member_id, generation = enter(at_once)
    before = CONNECTION.throttled_ms
    try:
        CONNECTION.throttled_ms += 30_000
        pass_time(at_once, 39_000)
        assert at_once.call(HEARTBEAT, 4, beating(member_id, generation))["error_code"] == 0
        pass_time(at_once, 11_000)
        assert at_once.call(HEARTBEAT, 4, beating(member_id, generation))["error_code"] == 25
    finally:
        CONNECTION.throttled_ms = before


@pytest.mark.alone
def test_large_groups_take_no_long_step(at_once: Node) -> None:
    """A commit, a deletion and a description of many take no long step."""
    names = {"groups": [str(number) for number in range(20_000)], "include_authorized_operations": True}
    leaving = [{"member_id": str(at), "group_instance_id": None, "reason": None} for at in range(20_000)]
    parts = [{"member_id": str(at), "assignment": b""} for at in range(20_000)]
    for api_key, version, request in (
        (DESCRIBE_GROUPS, 6, names),
        (DELETE_GROUPS, 2, {"groups_names": names["groups"]}),
        (LEAVE_GROUP, 5, {"group_id": "g", "members": leaving}),
        (SYNC_GROUP, 5, {**syncing("m", 1), "assignments": parts}),
    ):
        frame = memoryview(encode_request(api_key, version, 7, "tester", request)[4:])
        _, longest_ms = longest_step_ms(lambda at=frame: at_once.begin(at))
        assert longest_ms < MOST_STEP_MS, api_key


def test_positions_of_unknown_groups(node: Node) -> None:
    """They are none, whoever asks."""
    node.create("orders")
    group = {"group_id": "x", "member_id": "m", "member_epoch": 3, "topics": None}
    found = node.call(OFFSET_FETCH, 9, {"groups": [group], "require_stable": True})
    assert found["groups"] == [{"group_id": "x", "error_code": 0, "topics": []}]


@pytest.mark.parametrize("version", [0, 1])
def test_the_newer_protocol_is_not_there(node: Node, version: int) -> None:
    """Its heartbeat is answered with error 35 and nothing else, by whatever group (what Kafka's class answers)."""
    message = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout_ms": 1000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    assert node.call(CONSUMER_GROUP_HEARTBEAT, version, message) == {
        "throttle_time_ms": 0, "error_code": 35, "error_message": None, "member_id": None, "member_epoch": 0,
        "heartbeat_interval_ms": 0, "assignment": None,
    }  # fmt: skip
