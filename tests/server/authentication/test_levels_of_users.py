"""The eight levels of quotas for clients that have logged in (KIP-13, KIP-55, B§3.4)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.batches import build_batch
from tests.server.authentication.login_client import SETTINGS, LoginClient, add_user
from tests.server.memory_network import MemoryNode

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, PRODUCE

ALICE, CLIENT, ANY_USER, ANY_CLIENT = (
    ("user", "alice"),
    ("client-id", "c1"),
    ("user", None),
    ("client-id", None),
)
LEVELS = (
    ((ALICE, CLIENT), ("alice", "c1")),
    ((ALICE, ANY_CLIENT), ("alice", "c1")),
    ((ALICE,), ("alice", "")),
    ((ANY_USER, CLIENT), ("alice", "c1")),
    ((ANY_USER, ANY_CLIENT), ("alice", "c1")),
    ((ANY_USER,), ("alice", "")),
    ((CLIENT,), ("", "c1")),
    ((ANY_CLIENT,), ("", "c1")),
)
"""The entity of each level, the most specific first, and by which tags alice's client c1 is counted."""
BATCH = build_batch([(b"k", bytes(9000))], timestamp_ms=0)
OTHERS = (
    (("user", "bob"),),
    (("user", "bob"), CLIENT),
    (("user", "ANONYMOUS"),),
    (ALICE, ("client-id", "c2")),
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[MemoryNode]:
    """Return a node with logins in memory."""
    made = MemoryNode(tmp_path / "data", texts=SETTINGS)
    add_user(made, "sam", "s1")
    yield made
    made.close()


def alter(
    node: MemoryNode, entity: tuple[tuple[str, str | None], ...], key: str, value: float | None
) -> None:
    """Set or remove a quota, by a client of the listener without logins."""
    parts = [{"entity_type": kind, "entity_name": name} for kind, name in entity]
    ops = [{"key": key, "value": value or 0.0, "remove": value is None}]
    message = {"entries": [{"entity": parts, "ops": ops}], "validate_only": False}
    answer = LoginClient(node, "PLAINTEXT", "admin").ask(ALTER_CLIENT_QUOTAS, 1, message)
    assert answer is not None
    assert answer["entries"][0]["error_code"] == 0


def throttle_ms(
    node: MemoryNode, user: str, password: str, mechanism: str = "PLAIN", client_id: str = "c1"
) -> int:
    """Log in on a new connection, produce some kilobytes, and return the throttle time."""
    client = LoginClient(node, client_id=client_id)
    client.log_in(user, password, mechanism)
    topic = {"name": "t", "partition_data": [{"index": 0, "records": BATCH}]}
    message: dict[str, Any] = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": [topic]}
    answer = client.ask(PRODUCE, 9, message)
    assert answer is not None
    client.transport.client_break()
    node.loop.turn()
    return int(answer["throttle_time_ms"])


def bounds(node: MemoryNode) -> dict[tuple[str, str], float | None]:
    """Return the bound by which each client's bytes are measured, by user and client id."""
    return {
        (metric.tags["user"], metric.tags["client-id"]): metric.bound
        for metric in node.node.metrics(node.clock.now_ms())
        if (metric.group, metric.name) == ("Produce", "byte-rate")
    }


def test_the_most_specific_of_all_levels_holds_for_a_user(node: MemoryNode) -> None:
    """The first that is defined throttles; when it goes the next; those of other users never, in the end none."""
    for entity in OTHERS:
        alter(node, entity, "producer_byte_rate", 5.0)
    for number, (entity, _) in enumerate(LEVELS):
        alter(node, entity, "producer_byte_rate", 10.0 + number)
    for number, (entity, tags) in enumerate(LEVELS):
        assert throttle_ms(node, "alice", "alice-secret") > 0, entity
        assert bounds(node)[tags] == 10.0 + number, entity
        alter(node, entity, "producer_byte_rate", None)
        node.loop.advance(20_000)
    assert throttle_ms(node, "alice", "alice-secret") == 0


def test_connections_of_a_user_share_its_quota_and_others_do_not(node: MemoryNode) -> None:
    """Whatever their client ids; a user of SCRAM has one like a user of PLAIN."""
    for user in ("alice", "sam"):
        alter(node, (("user", user),), "producer_byte_rate", 1000.0)
    assert throttle_ms(node, "alice", "alice-secret", client_id="one") == 0
    assert throttle_ms(node, "alice", "alice-secret", client_id="two") > 0
    assert throttle_ms(node, "bob", "bob-secret") == 0
    assert throttle_ms(node, "sam", "s1", "SCRAM-SHA-256", client_id="one") == 0
    assert throttle_ms(node, "sam", "s1", "SCRAM-SHA-256", client_id="two") > 0
