"""What is kept of requests that come again is bounded in bytes, whatever the requests hold."""

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.node import Node
from tests.unit.storage.logs import batch

from tidegate.broker import known_requests
from tidegate.broker.known_requests import MAX_ENTRY_BYTES, KnownRequests
from tidegate.broker.topic_names import MAX_NAME_LENGTH
from tidegate.wire import API_BY_KEY

PRODUCE, FETCH = 0, 1
NAME = "n" * MAX_NAME_LENGTH
MORE = 100


def produce(number: int, **more: Any) -> dict[str, Any]:
    """Return a Produce that begins like no other with another number."""
    data = {"index": 0, "records": batch()}
    part = {"name": NAME, "partition_data": [data]}
    return {"transactional_id": None, "acks": 1, "timeout_ms": number, "topic_data": [part], **more}


def fetch(number: int, **more: Any) -> dict[str, Any]:
    """Return a Fetch that begins like no other with another number."""
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1000,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": number, "max_bytes": 1000, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": NAME, "partitions": [partition]}],
        "forgotten_topics_data": [], "rack_id": "", **more,
    }  # fmt: skip


MESSAGES = {PRODUCE: produce, FETCH: fetch}
BY_NAME = [(PRODUCE, version) for version in range(3, 13)] + [(FETCH, version) for version in range(4, 13)]


@contextmanager
def grown_bytes() -> Iterator[list[int]]:
    """Give a list that holds, afterwards, by how many bytes memory has grown."""
    grown: list[int] = []
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield grown
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Return a node with a topic of the longest name."""
    node = Node(tmp_path)
    node.create(NAME)
    yield node
    node.storage.close()


@pytest.mark.parametrize(("api_key", "version"), BY_NAME, ids=lambda value: str(value))
def test_an_entry_has_its_named_size(node: Node, api_key: int, version: int) -> None:
    """One kept request, that of the longest topic name, takes no more than is said."""
    make = MESSAGES[api_key]
    node.ask(api_key, version, make(2**20))
    with grown_bytes() as grown:
        for number in range(MORE):
            node.ask(api_key, version, make(number))
    assert grown[0] <= MORE * MAX_ENTRY_BYTES


@pytest.mark.parametrize(
    "large",
    [
        {"_unknown_tags": {77: bytes(1000)}},
        {"rack_id": "r" * 30_000},
        {"cluster_id": "c" * 30_000},
        {"forgotten_topics_data": [{"topic": "f" * 30_000, "partitions": list(range(1000))}]},
    ],
    ids=lambda large: next(iter(large)),
)
def test_nothing_large_is_kept(node: Node, large: dict[str, Any]) -> None:
    """A Fetch with large or unknown fields is answered, and keeps no more than another."""
    node.ask(FETCH, 12, fetch(2**20, **large))
    with grown_bytes() as grown:
        for number in range(MORE):
            node.ask(FETCH, 12, fetch(number, **large))
    assert grown[0] <= MORE * MAX_ENTRY_BYTES


def test_all_versions_share_one_bound(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks in every version has no more kept than one that asks in a single one."""
    monkeypatch.setattr(known_requests, "MAX_KEPT", 20)
    known: list[KnownRequests[Any]] = []
    keep = KnownRequests.store_value

    def noted(self: KnownRequests[Any], *args: Any) -> None:
        known.append(self)
        keep(self, *args)

    monkeypatch.setattr(KnownRequests, "store_value", noted)
    for version in range(API_BY_KEY[FETCH].min_version, 13):
        for number in range(7):
            node.ask(FETCH, version, fetch(number))
            assert sum(len(kept) for _, kept in known[-1].values()) <= 20
    assert len(known) == 9 * 7
