"""A whole node in memory, on a loop and a clock that stand still until they are moved."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.batches import build_batch
from tests.server.memory_network import ManualLoop, MemoryNode
from tests.server.nodes import fetch_body

from tidegate.in_slices import run_at_once
from tidegate.quota import QuotaRecord
from tidegate.server.requests.handler import Answer, FetchAnswer, Request
from tidegate.testing import ManualClock
from tidegate.wire import encode_request, read_response

PRODUCE, PRODUCE_VERSION = 0, 9
METADATA, METADATA_VERSION = 3, 9
FETCH, FETCH_VERSION = 1, 12
ALL_TOPICS = {
    "topics": None, "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}  # fmt: skip
ANSWER_BYTES = 100_000


def fetch(request: Request) -> Answer:
    """Answer with many bytes, unless throttled."""
    return FetchAnswer(
        request.encode(fetch_body(bytes(ANSWER_BYTES))), lambda: request.encode(fetch_body(None))
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MemoryNode]:
    """Return a node in memory."""
    world = MemoryNode(tmp_path, {FETCH: fetch})
    world.node.managers.apply(
        QuotaRecord(entity=(("client-id", "limited"),), key="consumer_byte_rate", value=ANSWER_BYTES / 20)
    )
    yield world
    world.close()


class TickingClock(ManualClock):
    """A clock that goes on by a millisecond whenever it is looked at: everything takes some time."""

    def monotonic_ns(self) -> int:
        """Return the time, a millisecond later."""
        self.advance(1)
        return super().monotonic_ns()


def ask_metadata(correlation_id: int) -> bytes:
    """Return a request for all topics."""
    return encode_request(METADATA, METADATA_VERSION, correlation_id, "c1", ALL_TOPICS)


def ask_fetch(client_id: str) -> bytes:
    """Return a Fetch."""
    message = {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 30, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [], "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip
    return encode_request(FETCH, FETCH_VERSION, 1, client_id, message)


def produce_unanswered(topic: str) -> bytes:
    """Return a Produce of one record with acks=0."""
    records = build_batch([(None, b"v")])
    message = {
        "transactional_id": None, "acks": 0, "timeout_ms": 1000,
        "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": records}]}],
    }  # fmt: skip
    return encode_request(PRODUCE, PRODUCE_VERSION, 0, "c1", message)


def answers(data: bytes) -> list[bytes]:
    """Return the answers in `data`, without their lengths; each is whole."""
    found = []
    while data:
        (size,) = struct.unpack_from(">i", data)
        assert len(data) >= 4 + size, "half an answer"
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def test_a_node_serves_without_a_socket(world: MemoryNode) -> None:
    """A request in memory has its answer after the loop's turn, with the listener's address."""
    client = world.connect()
    client.client_send(ask_metadata(7))
    assert not client.received
    world.loop.turn()
    (answer,) = answers(client.client_take())
    (broker,) = read_response(METADATA, METADATA_VERSION, answer, 5)["brokers"]
    assert (broker["host"], broker["port"]) == ("127.0.0.1", 9092)


@pytest.mark.parametrize("most_bytes", [1, 7, 1000])
def test_bytes_come_and_go_in_any_portions(world: MemoryNode, most_bytes: int) -> None:
    """What arrives in pieces is served, in order, and what leaves in pieces is whole."""
    client = world.connect(most_bytes=most_bytes, room=0)
    client.client_send(ask_metadata(1) + ask_fetch("free") + ask_metadata(2))
    world.loop.turn()
    received = b""
    while (part := client.client_take(room=333)) or not received:
        received += part
        world.loop.turn()
    sizes = [len(answer) for answer in answers(received)]
    assert sizes[0] == sizes[2] < ANSWER_BYTES < sizes[1]


def test_a_throttle_ends_on_the_virtual_clock_to_the_millisecond(world: MemoryNode) -> None:
    """What a muted client sends is left in the transport, and served when its throttle is over."""
    client = world.connect()
    client.client_send(ask_fetch("limited"))
    world.loop.turn()
    (answer,) = answers(client.client_take())
    throttle_ms = read_response(FETCH, FETCH_VERSION, answer, 5)["throttle_time_ms"]
    assert throttle_ms > 100
    client.client_send(ask_metadata(2))
    world.loop.advance(throttle_ms - 1)
    assert (client.unread_bytes() > 0, bytes(client.received)) == (True, b"")
    world.loop.advance(1)
    assert len(answers(client.client_take())) == 1


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_client_that_leaves_while_muted_is_let_go_at_once(world: MemoryNode, is_broken: bool) -> None:
    """Nobody waits for a throttle of who is gone, in memory as on sockets."""
    client = world.connect()
    client.client_send(ask_fetch("limited"))
    world.loop.turn()
    (client.client_break if is_broken else client.client_end)()
    world.loop.turn()
    assert client.closed
    assert world.node.connections.total == 0


def test_a_client_that_does_not_read_is_given_up(world: MemoryNode) -> None:
    """After a minute, in no time."""
    client = world.connect(room=10)
    client.client_send(ask_fetch("free"))
    world.loop.turn()
    assert not client.closed
    world.loop.advance(70_000)
    assert client.closed


def test_who_takes_an_answer_late_and_asks_for_none_meanwhile_is_served(tmp_path: Path) -> None:
    """What sending costs after a request without an answer is charged to the one whose answer it is."""
    world = MemoryNode(tmp_path, loop=ManualLoop(TickingClock()))
    run_at_once(world.storage.topics.create_in_slices("t", 1, {}))
    client = world.connect(room=10)
    client.client_send(ask_metadata(1) + produce_unanswered("t"))  # the answer waits for that to the second
    world.loop.turn()
    client.client_send(produce_unanswered("t"))
    world.loop.turn()
    received = client.client_take()
    world.loop.turn()
    client.client_send(ask_metadata(2))
    world.loop.turn()
    received += client.client_take()
    assert [int.from_bytes(answer[:4], "big") for answer in answers(received)] == [1, 2]
    world.close()


def test_connections_close_in_the_order_in_which_they_came(
    world: MemoryNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever closes many at once: what they are charged with then has the same order in every run."""
    clients = [world.connect(room=10) for _ in range(30)]
    for client in clients:
        client.client_send(ask_fetch("free"))
    world.loop.advance(70_000)
    assert all(client.closed for client in clients)
    closed = [int(found) for found in re.findall(r"closed connection (\d+)", caplog.text)]
    assert len(closed) == 30
    assert closed == sorted(closed)
