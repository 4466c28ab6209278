"""Tests of topics whose partitions count for the principals that create them."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.limits.frames import create_topics, new_topic
from tests.unit.broker.node import Node, decoded
from tests.unit.in_slices import whole

from tidegate import error_codes
from tidegate.acl import Acl, Authorizer
from tidegate.acl import codes as acl
from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.server.requests.handler import Answer, Connection, Request, Work
from tidegate.wire import decode_request_header, encode_request

MOST = 40


def rights() -> Authorizer:
    """Return an authorizer: all may do everything to topics; `root` is a super user, `ops` may alter the cluster."""
    authorizer = Authorizer(super_users=frozenset(("User:root",)))
    authorizer.add_acls(
        [
            Acl(acl.TOPIC, "*", acl.LITERAL, "User:*", "*", acl.ALL, acl.ALLOW),
            Acl(acl.CLUSTER, acl.CLUSTER_NAME, acl.LITERAL, "User:ops", "*", acl.ALTER, acl.ALLOW),
        ]
    )
    return authorizer


AUTHORIZER = rights()


def begin(node: Node, user: str, api_key: int, message: dict[str, Any], host: str = "10.0.0.7") -> Work:
    """Return the work that a request of a user begins."""
    connection = Connection(1, "PLAINTEXT", host, "127.0.0.1", 9092, user=user, authorizer=AUTHORIZER)
    version = 2 if api_key == CREATE_PARTITIONS else 5
    frame = memoryview(bytearray(encode_request(api_key, version, 7, "tester", message)[4:]))
    request = Request(decode_request_header(frame), frame, connection, node.permits, 0)
    work = node.handlers[api_key](request)
    assert not isinstance(work, Answer)
    return work  # type: ignore[return-value]


def codes(api_key: int, answer: Any) -> list[int]:
    """Return the error codes of an answer."""
    version = 2 if api_key == CREATE_PARTITIONS else 5
    (parts,) = [value for value in decoded(api_key, version, answer).values() if isinstance(value, list)]
    return [part["error_code"] for part in parts]


def create(node: Node, user: str, name: str, partitions: int, host: str = "10.0.0.7") -> int:
    """Create a topic and return the error code."""
    message = create_topics([new_topic(name, partitions)])
    return codes(CREATE_TOPICS, whole(begin(node, user, CREATE_TOPICS, message, host)))[0]


def growth(name: str, count: int, assignments: Any = None) -> dict[str, Any]:
    """Return a CreatePartitions."""
    topic = {"name": name, "count": count, "assignments": assignments}
    return {"topics": [topic], "timeout_ms": 1000, "validate_only": False}


def grow(node: Node, user: str, name: str, count: int) -> int:
    """Add partitions to a topic and return the error code."""
    return codes(CREATE_PARTITIONS, whole(begin(node, user, CREATE_PARTITIONS, growth(name, count))))[0]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node that holds few partitions."""
    made = Node(tmp_path / "data", max_partitions=MOST)
    yield made
    made.storage.close()


def again(node: Node) -> Node:
    """Return the node after a restart."""
    node.storage.close()
    return Node(node.storage.directory, max_partitions=MOST)


def test_owners_survive_a_restart(node: Node) -> None:
    """What a principal created counts for it after a restart, and until its topics are deleted."""
    assert create(node, "mallory", "m", MOST // 2) == 0
    restarted = again(node)
    try:
        assert create(restarted, "mallory", "n", 1) == error_codes.POLICY_VIOLATION
        assert create(restarted, "alice", "a", 10) == 0
        deletion = {"topic_names": ["m"], "timeout_ms": 1000}
        assert codes(DELETE_TOPICS, whole(begin(restarted, "mallory", DELETE_TOPICS, deletion))) == [0]
        assert create(restarted, "mallory", "n", 15) == 0
    finally:
        restarted.storage.close()


@pytest.mark.parametrize("user", ["root", "ops"])
def test_clients_that_administer_the_cluster_are_not_limited(node: Node, user: str) -> None:
    """Super users and principals with ALTER on the cluster may take all, and their topics are no tenant's."""
    assert create(node, user, "a", MOST - 2) == 0
    assert create(node, user, "b", 1) == 0
    assert create(node, "alice", "c", 1) == error_codes.POLICY_VIOLATION
    assert create(node, user, "d", 1) == 0
    assert {owner for topic in node.storage.topics for owner in topic.owners} == set()


def test_partitions_count_for_who_adds_them(node: Node) -> None:
    """A tenant that may alter another's topic uses its own share, and that of the topic's creator stays as it is."""
    assert create(node, "alice", "a", 2) == 0
    assert grow(node, "mallory", "a", 20) == 0
    assert grow(node, "mallory", "a", 22) == error_codes.POLICY_VIOLATION
    assert grow(node, "alice", "a", 22) == 0
    assert node.storage.topics.by_name["a"].owners == {"User:alice": 4, "User:mallory": 18}
    restarted = again(node)
    try:
        assert restarted.storage.topics.by_name["a"].owners == {"User:alice": 4, "User:mallory": 18}
    finally:
        restarted.storage.close()


def test_users_without_a_login_are_divided_by_address(node: Node) -> None:
    """ANONYMOUS is a principal for each address, and for each /64 of IPv6."""
    assert create(node, "ANONYMOUS", "a", MOST // 2) == 0
    assert create(node, "ANONYMOUS", "b", 1) == error_codes.POLICY_VIOLATION
    assert create(node, "ANONYMOUS", "b", 10, host="2001:db8::1") == 0
    assert create(node, "ANONYMOUS", "c", 1, host="2001:db8::2") == error_codes.POLICY_VIOLATION


def test_topics_of_an_earlier_version_have_no_owner(node: Node) -> None:
    """A store without owners opens; its topics count, and tenants may still add to them."""
    assert create(node, "mallory", "m", 16) == 0
    node.storage.close()
    with sqlite3.connect(node.storage.directory / "tidegate.db") as db:
        db.execute("DROP TABLE topic_owners")
    db.close()
    restarted = Node(node.storage.directory, max_partitions=MOST)
    try:
        assert restarted.storage.topics.by_name["m"].owners == {}
        assert restarted.storage.topics.bound.free == MOST - 16
        assert grow(restarted, "mallory", "m", 16 + 12) == 0
        assert create(restarted, "mallory", "n", 1) == error_codes.POLICY_VIOLATION
        assert create(restarted, "alice", "a", 6) == 0
    finally:
        restarted.storage.close()


def test_room_is_looked_at_again_when_an_assignment_was_read(node: Node) -> None:
    """Requests whose long assignments are read side by side get no more together than one after the other."""
    for name in ("a", "b", "c"):
        assert create(node, "mallory", name, 1) == 0
    assignments = [{"broker_ids": [1]} for _ in range(12)]
    works = [begin(node, "mallory", CREATE_PARTITIONS, growth(name, 13, assignments)) for name in "abc"]
    for work in works:
        for _ in range(6):
            next(work)
    found = [codes(CREATE_PARTITIONS, whole(work))[0] for work in works]
    assert found == [0, error_codes.POLICY_VIOLATION, error_codes.POLICY_VIOLATION]


def test_two_growths_of_one_topic_by_assignment(node: Node) -> None:
    """The second is refused by what the first has made of the topic."""
    assert create(node, "alice", "a", 1) == 0
    assignments = [{"broker_ids": [1]} for _ in range(9)]
    works = [begin(node, "alice", CREATE_PARTITIONS, growth("a", 10, assignments)) for _ in range(2)]
    for work in works:
        for _ in range(6):
            next(work)
    found = [codes(CREATE_PARTITIONS, whole(work))[0] for work in works]
    assert found == [0, error_codes.INVALID_PARTITIONS]
    assert len(node.storage.topics.by_name["a"].logs) == 10
