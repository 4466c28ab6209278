"""What groups may cost others: large ones, many of them, and what their members say."""

import struct
import time

import pytest
from tests.limits.bounds import ANY, Memory, judge, judge_work
from tests.limits.frames import OFFSET_COMMIT, commit, request, size
from tests.limits.watched import Connection, Exchanged

from tidegate.storage.groups.group_writes import CHECKPOINT_AT_BYTES

pytestmark = pytest.mark.alone

TWICE = Memory(per_byte=2, why="a request as it came, and what is kept of it")
JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 11, 13, 14, 16, 42, 47


def test_a_subscription_to_very_many_topics(broker):
    """A member's metadata are its own: nothing of them is read when its generation begins."""
    count = size(300_000, 5_000_000)
    metadata = struct.pack(">hi", 0, count) + b"\0\0" * count + struct.pack(">i", -1)
    with Connection(broker.port) as admin:
        admin.ask(OFFSET_COMMIT, 5, {**commit({"limits": 1}), "group_id": "first"})
    protocols = [{"name": "range", "metadata": metadata}]
    joining = {
        "session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000, "member_id": "",
        "protocol_type": "consumer", "protocols": protocols,
    }  # fmt: skip
    groups = iter(["first", "second", "third"])

    def join_and_ask() -> Exchanged:
        group = {"group_id": next(groups)}
        frame = request(JOIN_GROUP, 3, {**joining, **group})
        topics = [{"name": "limits", "partitions": [{"partition_index": 0}]}]
        asking = request(OFFSET_DELETE, 0, {**group, "topics": topics})
        with Connection(broker.port) as member:
            member.socket.sendall(frame)
            answer_bytes = member.skip_answer()
            member.socket.sendall(asking)
            answer_bytes += member.skip_answer()
        return Exchanged(len(frame) + len(asking), answer_bytes)

    judge_work(
        broker, join_and_ask, memory=ANY, may_take_bytes=4 * len(metadata), may_keep_bytes=2 * len(metadata)
    )


def test_groups_beside_one_of_very_many_positions(new_broker):
    """The next group is looked up, not looked for among all positions."""
    broker = new_broker()
    with Connection(broker.port) as client:
        client.create("wide", 2000)
        part = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        named = [{"name": "wide", "partitions": [{**part, "partition_index": at} for at in range(2000)]}]
        client.ask_all(
            [
                request(OFFSET_COMMIT, 5, {**commit({}), "group_id": f"g{at:03}", "topics": named})
                for at in range(size(60, 500))
            ],
            together=5,
        )
    judge(broker, "ListGroups", [request(LIST_GROUPS, 4, {"states_filter": []})])


@pytest.mark.parametrize("metadata", ["", "m" * 4096])
def test_a_flood_of_commits(new_broker, metadata):
    """Hundreds of MB of changes, and the deletion of all of it: no COMMIT and no checkpoint holds the loop.

    The files do not grow with the flood: the write-ahead log begins anew, and the database gives room back.
    """
    broker = new_broker()
    data = broker.data_dir
    count = size(60, 600)
    part = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": metadata}
    named = [{"name": "wide", "partitions": [{**part, "partition_index": at} for at in range(1000)]}]
    groups = [f"g{at % 20}" for at in range(count)]
    frames = [
        request(OFFSET_COMMIT, 5, {**commit({}), "group_id": group, "topics": named}) for group in groups
    ]
    deletion = request(DELETE_GROUPS, 1, {"groups_names": groups})
    with Connection(broker.port) as client:
        client.create("wide", 1000)

    def flood_and_delete() -> Exchanged:
        with Connection(broker.port) as client:
            client.ask_all([*frames, deletion], together=5)
        return Exchanged(sum(map(len, frames)))

    judge_work(broker, flood_and_delete, memory=ANY, may_take_bytes=200_000_000, may_keep_bytes=20_000_000)
    assert (data / "tidegate.db-wal").stat().st_size < 2 * CHECKPOINT_AT_BYTES
    deadline = time.monotonic() + 60
    while (data / "tidegate.db").stat().st_size > 20_000_000:
        assert time.monotonic() < deadline, "the file has not become smaller"
        time.sleep(0.5)


def test_many_groups_of_which_one_is_there(broker):
    """The answer comes later, when the one is forgotten: in slices all the same."""
    count = size(60_000, 99_000)
    there = request(OFFSET_COMMIT, 5, commit({"limits": 1}))
    unknown = [f"unknown-{at}" for at in range(count)]
    with Connection(broker.port) as client:
        client.ask_all([there])
    judge(
        broker, "DeleteGroups", [request(DELETE_GROUPS, 1, {"groups_names": ["limits", *unknown]}), there] * 2
    )


@pytest.mark.parametrize(
    ("metadata_bytes", "assigned_bytes"),
    [(15_000_000, 0), (size(30_000_000, 90_000_000), 0), (9, size(30_000_000, 90_000_000)), (9, 1_000_000)],
)
def test_members_with_much_to_say(broker, metadata_bytes, assigned_bytes):
    """Metadata and assignments of megabytes: what is kept is copied and sent in slices, what is not is not copied."""
    groups = iter(range(100))
    joining = {
        "session_timeout_ms": 300_000, "rebalance_timeout_ms": 300_000, "member_id": "", "protocol_type": "x",
    }  # fmt: skip

    def come_and_go() -> Exchanged:
        group = {"group_id": f"{metadata_bytes}-{assigned_bytes}-{next(groups)}"}
        protocols = [{"name": "x", "metadata": bytes(metadata_bytes)}]
        with Connection(broker.port) as member:
            joined = member.ask(JOIN_GROUP, 3, {**joining, **group, "protocols": protocols})
            ids = {**group, "member_id": joined["member_id"], "generation_id": 1}
            assigned = [{"member_id": joined["member_id"], "assignment": bytes(assigned_bytes)}]
            member.ask(SYNC_GROUP, 1, {**ids, "assignments": assigned})
            member.ask(LEAVE_GROUP, 1, ids)
        return Exchanged(metadata_bytes + assigned_bytes, min(metadata_bytes, 15_000_000) + assigned_bytes)

    judge_work(
        broker, come_and_go, memory=TWICE, may_keep_bytes=4 * assigned_bytes * (assigned_bytes <= 1_000_000)
    )
