"""Tests of OffsetCommit, OffsetFetch and FindCoordinator."""

import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node, decoded
from tests.unit.in_slices import MOST_STEP_MS, longest_step_ms

from tidegate.broker.handlers import offset_fetch
from tidegate.wire import encode_request

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR = 8, 9, 10


def commit(node: Node, version: int, offset: int, **fields: Any) -> int:
    """Commit an offset of group g in one partition of `orders`; return the error code."""
    topic = node.storage.topics.by_name["orders"]
    request = {
        "group_id": fields.get("group_id", "g"),
        "generation_id_or_member_epoch": fields.get("generation", -1),
        "member_id": fields.get("member_id", ""),
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [
            {
                "name": fields.get("topic", "orders"),
                "topic_id": fields.get("topic_id", topic.topic_id),
                "partitions": [
                    {
                        "partition_index": fields.get("index", 0),
                        "committed_offset": offset,
                        "committed_leader_epoch": 0,
                        "committed_metadata": fields.get("metadata", "m"),
                    }
                ],
            }
        ],
    }
    answer = node.call(OFFSET_COMMIT, version, request)
    return answer["topics"][0]["partitions"][0]["error_code"]


def fetch(node: Node, version: int, partitions: list[int] | None) -> dict[int, int]:
    """Return the committed offsets of group g in `orders` by partition."""
    topic = node.storage.topics.by_name["orders"]
    part = {"name": "orders", "topic_id": topic.topic_id, "partition_indexes": partitions}
    topics = None if partitions is None else [part]
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": topics}
    answer = node.call(OFFSET_FETCH, version, {**group, "groups": [group], "require_stable": False})
    found = answer["topics"] if version < 8 else answer["groups"][0]["topics"]
    return {
        part["partition_index"]: part["committed_offset"] for topic in found for part in topic["partitions"]
    }


@pytest.mark.parametrize("version", range(2, 11))
def test_commit_in_every_version(node: Node, version: int) -> None:
    """A position is kept and found again."""
    node.create("orders", 2)
    assert commit(node, version, 7) == 0
    assert fetch(node, 5, [0, 1, 9]) == {0: 7, 1: -1, 9: -1}


@pytest.mark.parametrize("version", range(1, 11))
def test_fetch_in_every_version(node: Node, version: int) -> None:
    """Named partitions are answered in every version, all of the group's from 2 on."""
    node.create("orders", 2)
    commit(node, 8, 7, index=1)
    assert fetch(node, version, [0, 1]) == {0: -1, 1: 7}
    if version >= 2:
        assert fetch(node, version, None) == {1: 7}


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    """Committed offsets are on disk when the commit is answered."""
    node = Node(tmp_path)
    node.create("orders")
    commit(node, 8, 7)
    node.storage.close()
    again = Node(tmp_path)
    assert fetch(again, 8, [0]) == {0: 7}
    again.storage.close()


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "absent"}, 3),
        ({"index": 4}, 3),
        ({"metadata": "x" * 4097}, 12),
        ({"generation": 3, "member_id": "x"}, 22),
    ],
)
def test_commits_that_are_refused(node: Node, fields: dict[str, Any], code: int) -> None:
    """Refused commits keep nothing."""
    node.create("orders")
    assert commit(node, 8, 7, **fields) == code
    assert fetch(node, 8, None) == {}


def test_member_of_a_known_group_is_unknown(node: Node) -> None:
    """Nobody is a member: error 25 in a group with offsets, as on Apache Kafka."""
    node.create("orders")
    commit(node, 8, 7)
    assert commit(node, 8, 8, generation=3, member_id="x") == 25


@pytest.mark.parametrize(("version", "code"), [(8, 22), (9, 69), (10, 69)])
def test_generation_of_a_group_that_is_not_known(node: Node, version: int, code: int) -> None:
    """From version 9 on Kafka says that there is no such group."""
    node.create("orders")
    assert commit(node, version, 7, generation=0) == code


def test_member_without_a_generation_may_commit(node: Node) -> None:
    """Kafka looks at the id of a member only where there is a generation."""
    node.create("orders")
    assert commit(node, 9, 7, member_id="m") == 0
    assert fetch(node, 8, None) == {0: 7}


def test_topics_named_often_are_answered_as_often(node: Node) -> None:
    """Kafka puts a topic's partitions together only where something could not be found."""
    node.create("orders")
    assert commit_all(node, 8, ("orders", [(0, 5, "")]), ("orders", [(0, 6, "")])) == [
        ("orders", [(0, 0)]),
        ("orders", [(0, 0)]),
    ]
    assert fetch(node, 7, None) == {0: 6}


def test_unknown_topics_are_answered_without_partitions(node: Node) -> None:
    """Where no partition is asked for: a known topic is left out, as by Kafka."""
    node.create("orders")
    assert commit_all(node, 8, ("absent", []), ("orders", [])) == [("absent", [])]


def test_kind_of_coordinator_that_is_not_served_is_told(node: Node) -> None:
    """Before version 4 with a text whatever the kind; later share groups have none. As Kafka 4.3.1 answers."""
    for version, kind, has_text in ((2, 2, True), (2, 9, True), (5, 2, False), (5, 9, True)):
        request = {"key": "g", "key_type": kind, "coordinator_keys": ["g"]}
        answer = node.call(FIND_COORDINATOR, version, request)
        found = answer if version < 4 else answer["coordinators"][0]
        assert (found["error_code"], found["error_message"].startswith("This most likely")) == (42, has_text)


def test_unknown_topic_id(node: Node) -> None:
    """From version 10 on topics have ids."""
    node.create("orders")
    assert commit(node, 10, 7, topic_id="11111111-2222-3333-4444-555555555555") == 100


@pytest.mark.parametrize("version", range(7))
def test_this_node_coordinates_groups(node: Node, version: int) -> None:
    """Every version names this node for a group; transactions are refused for good from 1 on."""
    for kind, code in ((0, 0), (1, 53), (9, 42))[: 3 if version else 1]:
        request = {"key": "g", "key_type": kind, "coordinator_keys": ["g"]}
        answer = node.call(FIND_COORDINATOR, version, request)
        found = answer if version < 4 else answer["coordinators"][0]
        assert (found["error_code"], found["node_id"]) == (code, 1 if code == 0 else -1)


def commit_all(node: Node, version: int, *topics: tuple[str, list[tuple[int, int, str]]]) -> list[Any]:
    """Commit (partition, offset, metadata) of topics of group g; return (partition, error code) by topic."""
    field = "name" if version < 10 else "topic_id"
    request = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": [
            {
                field: name,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": 0,
                        "committed_metadata": metadata,
                    }
                    for index, offset, metadata in parts
                ],
            }
            for name, parts in topics
        ],
    }
    return [
        (topic[field], [(part["partition_index"], part["error_code"]) for part in topic["partitions"]])
        for topic in node.call(OFFSET_COMMIT, version, request)["topics"]
    ]


def test_metadata_that_is_committed_between_two_slices(node: Node) -> None:
    """Positions without metadata are packed together; one that gets metadata meanwhile is answered with it."""
    node.create("orders", 1000)
    commit_all(node, 9, ("orders", [(index, 7, "") for index in range(1000)]))
    topics = [{"name": "orders", "partition_indexes": list(range(1000))}]
    message = {"group_id": "g", "topics": topics, "require_stable": False}
    work = node.begin(memoryview(bytearray(encode_request(OFFSET_FETCH, 7, 7, "t", message)[4:])))
    steps = 0
    while True:
        try:
            next(work)
        except StopIteration as stop:
            answer = decoded(OFFSET_FETCH, 7, stop.value)
            break
        steps += 1
        if steps == 2:
            commit_all(node, 9, ("orders", [(999, 8, "late")]))
    parts = answer["topics"][0]["partitions"]
    assert [part["metadata"] for part in parts] == [""] * 999 + ["late"]
    assert [part["committed_offset"] for part in parts] == [7] * 999 + [8]


def fetch_all(node: Node, version: int, *topics: tuple[str, list[int]]) -> list[Any]:
    """Return (partition, offset, error code) of group g by topic."""
    field = "name" if version < 10 else "topic_id"
    group = {
        "group_id": "g",
        "member_id": None,
        "member_epoch": -1,
        "topics": [{field: name, "partition_indexes": indexes} for name, indexes in topics],
    }
    answer = node.call(OFFSET_FETCH, version, {**group, "groups": [group], "require_stable": False})
    found = answer["topics"] if version < 8 else answer["groups"][0]["topics"]
    return [
        (
            topic[field],
            [
                (part["partition_index"], part["committed_offset"], part["error_code"])
                for part in topic["partitions"]
            ],
        )
        for topic in found
    ]


def test_of_several_positions_for_a_partition_the_last_is_kept(node: Node) -> None:
    """Each is answered, with its topic, what cannot be found first, as Kafka 4.3.1 answers."""
    node.create("orders", 3)
    assert commit_all(node, 8, ("orders", [(0, 5, ""), (0, 7, ""), (1, 3, "")])) == [
        ("orders", [(0, 0), (0, 0), (1, 0)])
    ]
    assert fetch_all(node, 7, ("orders", [0, 0, 1, 2, 9])) == [
        ("orders", [(0, 7, 0), (0, 7, 0), (1, 3, 0), (2, -1, 0), (9, -1, 0)])
    ]
    twice = ("orders", [(0, 9, "")]), ("u", [(0, 1, ""), (0, 1, "")]), ("orders", [(0, 8, "")])
    assert commit_all(node, 8, *twice) == [("u", [(0, 3), (0, 3)]), ("orders", [(0, 0), (0, 0)])]
    mixed = [(0, 9, ""), (9, 1, ""), (9, 2, ""), (1, 5, "x" * 5000), (1, 6, "")]
    assert commit_all(node, 8, ("orders", mixed)) == [("orders", [(9, 3), (9, 3), (0, 0), (1, 12), (1, 0)])]
    assert fetch(node, 7, None) == {0: 9, 1: 6}


def test_commits_are_answered_alike_with_and_without_the_journal(tmp_path: Path) -> None:
    """With it, positions of one topic without metadata are kept in one step; without it, a sync is waited for."""
    nodes = Node(tmp_path / "journal"), Node(tmp_path / "sync", log_flush_interval_messages=1)
    random_ = random.Random(7)
    for node in nodes:
        node.create("orders", 3)
    for _ in range(300):
        parts = [
            (random_.randrange(-1, 5), random_.randrange(9), random_.choice(("", "", "", "m")))
            for _ in range(random_.randrange(4))
        ]
        topics = [(name, parts) for name in random_.choice((("orders",), ("orders",), ("orders", "u")))]
        version = random_.choice((2, 5, 6, 8, 9))
        answers, kept = zip(
            *[(commit_all(node, version, *topics), fetch(node, 7, None)) for node in nodes], strict=True
        )
        assert answers[0] == answers[1]
        assert kept[0] == kept[1]
    assert nodes[0].storage.offsets.bytes_of("g") == nodes[1].storage.offsets.bytes_of("g") > 0
    for node in nodes:
        node.storage.close()


def test_repeated_ids(node: Node) -> None:
    """Commits are answered unknown ids first; fetches as asked, unknown ids last, as Kafka 4.3.1 does."""
    known, unknown = node.create("orders", 3), "11111111-2222-3333-4444-555555555555"
    committed = (
        (known, [(0, 31, ""), (0, 32, "")]),
        (unknown, [(0, 3, ""), (0, 3, "")]),
        (known, [(0, 33, "")]),
    )
    assert commit_all(node, 10, *committed) == [
        (unknown, [(0, 100), (0, 100)]),
        (known, [(0, 0), (0, 0), (0, 0)]),
    ]
    assert fetch_all(node, 10, (known, [0, 0]), (unknown, [0]), (known, [0])) == [
        (known, [(0, 33, 0), (0, 33, 0)]),
        (known, [(0, 33, 0)]),
        (unknown, [(0, -1, 100)]),
    ]


@pytest.mark.alone
def test_many_positions_take_no_long_step(node: Node) -> None:
    """30,000 positions are kept, answered by name, and twice all together, without a long step."""
    for topic in range(10):
        node.create(f"t{topic}", 300)
    parts = [(index, 5, "") for index in range(300)]
    longest: list[float] = []
    topics = [
        {
            "name": f"t{topic}",
            "partitions": [
                {
                    "partition_index": index,
                    "committed_offset": offset,
                    "committed_leader_epoch": 0,
                    "committed_metadata": metadata,
                }
                for index, offset, metadata in parts
            ],
        }
        for topic in range(10)
    ]
    commit_request = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": topics * 10,
    }
    named = [{"name": f"t{topic}", "partition_indexes": list(range(300))} for topic in range(10)] * 10
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": named}
    whole_group = {**group, "topics": None}
    for api_key, request in (
        (OFFSET_COMMIT, commit_request),
        (OFFSET_FETCH, {"groups": [group], "require_stable": False}),
        (OFFSET_FETCH, {"groups": [whole_group] * 10, "require_stable": False}),
    ):
        frame = memoryview(encode_request(api_key, 8, 7, "tester", request)[4:])
        _, longest_ms = longest_step_ms(lambda at=frame: node.begin(at))
        longest.append(longest_ms)
    assert max(longest) < MOST_STEP_MS


def test_answers_with_too_many_positions_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is past the bound gets error 42, group by group."""
    monkeypatch.setattr(offset_fetch, "MAX_POSITIONS", 5)
    node.create("orders", 3)
    commit_all(node, 8, ("orders", [(0, 5, ""), (1, 7, ""), (2, 3, "")]))
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}
    answer = node.call(OFFSET_FETCH, 9, {"groups": [group, group], "require_stable": False})
    assert [(found["error_code"], len(found["topics"])) for found in answer["groups"]] == [(0, 1), (42, 0)]
    single = {**group, "topics": [{"name": "orders", "partition_indexes": [0] * 6}], "require_stable": False}
    answer = node.call(OFFSET_FETCH, 7, single)
    assert (answer["error_code"], answer["topics"]) == (42, [])


def test_much_metadata_is_encoded_in_small_steps(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """About 128 KB in a step: many clients may ask at the same moment. All of it is answered."""
    node.create("orders", 1000)
    metadata = [f"{index:4}" + "m" * 4000 for index in range(1000)]
    commit_all(node, 5, ("orders", [(index, 1, metadata[index]) for index in range(1000)]))
    message = {"group_id": "g", "topics": None}
    frame = memoryview(encode_request(OFFSET_FETCH, 5, 7, "tester", message)[4:])

    def steps() -> int:
        return sum(1 for _ in node.begin(frame))

    found = steps()
    (topic,) = node.call(OFFSET_FETCH, 5, message)["topics"]
    assert [part["metadata"] for part in topic["partitions"]] == metadata
    monkeypatch.setattr(offset_fetch, "METADATA_AT_ONCE", 1 << 30)
    assert found - steps() >= 4_000_000 // (128 * 1024) - 1000 // 200


def test_answers_with_too_much_metadata_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """So few bytes ask for so much: metadata have a bound of their own, counted as they are sent."""
    monkeypatch.setattr(offset_fetch, "MAX_METADATA_BYTES", 250)
    node.create("orders", 3)
    commit_all(node, 8, ("orders", [(0, 5, "é" * 50), (1, 7, ""), (2, 3, "")]))
    group = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}
    answer = node.call(OFFSET_FETCH, 9, {"groups": [group] * 3, "require_stable": False})
    assert [found["error_code"] for found in answer["groups"]] == [0, 0, 42]
    single = {**group, "topics": [{"name": "orders", "partition_indexes": [0] * 3}], "require_stable": False}
    answer = node.call(OFFSET_FETCH, 7, single)
    assert (answer["error_code"], answer["topics"]) == (42, [])


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_in_every_shape(node: Node, version: int) -> None:
    """With and without metadata, the same partition twice, some that are not there: answered and kept alike."""
    node.create("orders", 60)
    topic_id = node.storage.topics.by_name["orders"].topic_id
    chosen = random.Random(version)
    kept: dict[int, int] = {}
    for _ in range(60):
        metadata = chosen.choice((None, "", "m", "ü" * 300))
        most = chosen.choice((60, 60, 61))
        partitions = [
            {
                "partition_index": chosen.randrange(-1 if most > 60 else 0, most),
                "committed_offset": chosen.randrange(2**40),
                "committed_leader_epoch": 3,
                "committed_metadata": metadata if chosen.random() < 0.3 else "",
            }
            for _ in range(chosen.choice((0, 1, 3, 150, 600)))
        ]
        answer = node.call(
            OFFSET_COMMIT,
            version,
            {
                "group_id": "g",
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "retention_time_ms": -1,
                "topics": [{"name": "orders", "topic_id": topic_id, "partitions": partitions}],
            },
        )
        codes = {
            index: 0 if 0 <= index < 60 else 3 for index in (part["partition_index"] for part in partitions)
        }
        results = [part for topic in answer["topics"] for part in topic["partitions"]]
        assert {part["partition_index"]: part["error_code"] for part in results} == codes
        assert len(results) == len(partitions)
        kept |= {
            part["partition_index"]: part["committed_offset"]
            for part in partitions
            if codes[part["partition_index"]] == 0
        }
        assert fetch(node, 8, None) == dict(sorted(kept.items()))
    used = node.storage.offsets.bound.used
    assert used == node.storage.offsets.bytes_of("g")
    epochs = {at.leader_epoch for page in node.storage.offsets.pages("g") for at in page}
    assert epochs == {3 if version >= 6 else -1}


@pytest.mark.alone
@pytest.mark.parametrize("name", ["orders", "absent", ""])
@pytest.mark.parametrize(("api_key", "version"), [(OFFSET_COMMIT, 5), (OFFSET_FETCH, 5), (OFFSET_FETCH, 1)])
def test_topics_without_partitions_take_no_long_step(
    node: Node, api_key: int, version: int, name: str
) -> None:
    """90,000 of them, the same or all different, known or not."""
    node.create("orders", 2)
    topics = [
        {"name": name or f"t{number}", "partitions": [], "partition_indexes": []} for number in range(90_000)
    ]
    request = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1}
    message = {"group_id": "g", "topics": topics, **request}
    frame = memoryview(encode_request(api_key, version, 7, "tester", message)[4:])
    _, longest_ms = longest_step_ms(lambda: node.begin(frame))
    assert longest_ms < MOST_STEP_MS


@pytest.mark.alone
def test_a_commit_that_fails_in_the_end_takes_no_long_step(node: Node) -> None:
    """All of its positions are answered the error, in time that grows with their number alone."""
    topics = []
    for number in range(40):
        node.create(f"t{number}", 50)
        part = {"committed_offset": 1, "committed_leader_epoch": 1, "committed_metadata": "m"}
        partitions = [{**part, "partition_index": index % 50} for index in range(2000)]
        topics.append({"name": f"t{number}", "partitions": partitions})
    message = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": topics,
    }
    frame = memoryview(encode_request(OFFSET_COMMIT, 7, 7, "tester", message)[4:])
    node.storage.store._lost = "the file is gone"
    deferred, longest_ms = longest_step_ms(lambda: node.begin(frame), times=1)
    begun_ns = time.thread_time_ns()
    answer = decoded(OFFSET_COMMIT, 7, node.awaited(deferred))
    assert time.thread_time_ns() - begun_ns < 3_000_000_000
    assert longest_ms < 20.0
    codes = {part["error_code"] for topic in answer["topics"] for part in topic["partitions"]}
    assert codes == {15}
    assert node.storage.offsets.bound.used == 0
