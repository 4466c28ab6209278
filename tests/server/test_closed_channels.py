"""Closed connections are gone at once, without the garbage collector, whatever they were in the middle of."""

import asyncio
import gc
import socket
import struct

import pytest
from tests.server.nodes import CLIENT, RunningNode, until

from tidegate.server.connection.channel import Channel
from tidegate.wire import encode_request

EACH = 10


def fetch(*, max_bytes: int, max_wait_ms: int) -> bytes:
    """Return a Fetch of the client `c1`."""
    return encode_request(
        1,
        12,
        1,
        "c1",
        {
            "replica_id": -1, "max_wait_ms": max_wait_ms, "min_bytes": 1, "max_bytes": max_bytes,
            "isolation_level": 0, "session_id": 0, "session_epoch": -1, "topics": [],
            "forgotten_topics_data": [], "rack_id": "",
        },
    )  # fmt: skip


def produce(padding: int) -> bytes:
    """Return a Produce of the client `c1`."""
    message = {"transactional_id": "x" * padding, "acks": 1, "timeout_ms": 1, "topic_data": []}
    return encode_request(0, 9, 1, "c1", message)


STATES = {
    "idle": b"",
    "asked and answered": fetch(max_bytes=1, max_wait_ms=0),
    "half a length": b"\0\0",
    "half a small frame": struct.pack(">i", 1000) + bytes(100),
    "half a large frame": struct.pack(">i", 1_000_000) + bytes(100_000),
    "waiting": fetch(max_bytes=1, max_wait_ms=60_000),
    "waiting, with more behind": fetch(max_bytes=1, max_wait_ms=60_000) + bytes(50_000),
    "throttled": produce(30_000),
    "throttled, with more behind": produce(14_000 // EACH) + produce(10),  # served after some seconds
    "not reading its answer": fetch(max_bytes=20_000_000, max_wait_ms=0),
}


@pytest.mark.parametrize("state", STATES)
def test_a_closed_connection_leaves_nothing_to_the_collector(with_node, state: str) -> None:
    """No channel is left when its client is gone and a turn of the loop has passed, with collections off."""

    async def scenario(node: RunningNode) -> None:
        loop = asyncio.get_running_loop()
        gc.collect()
        before = [each for each in gc.get_objects() if isinstance(each, Channel)]  # of other tests
        admin = await node.connect("admin")
        await admin.alter(CLIENT, "producer_byte_rate", 1000.0)
        clients = []
        for _ in range(EACH):
            client = socket.create_connection(("127.0.0.1", node.node.listeners["PLAINTEXT"].port))
            client.setblocking(False)
            clients.append(client)
            await loop.sock_sendall(client, STATES[state])
        await until(lambda: len(node.node._front.channels) == EACH + 1)
        await asyncio.sleep(0.1)
        gc.collect()
        gc.disable()
        try:
            for client in clients:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.close()
            await until(lambda: len(node.node._front.channels) == 1)
            await asyncio.sleep(0.05)
            alive = [each for each in gc.get_objects() if isinstance(each, Channel) and each not in before]
        finally:
            gc.enable()
        assert len(alive) <= 2, "the admin's, and the one that asked last"

    with_node(scenario)
