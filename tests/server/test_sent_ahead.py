"""Produce requests that a relay has sent ahead of their turn are charged and recorded when their client leaves."""

import asyncio
import socket
import struct
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.server.nodes import (
    METADATA,
    METADATA_VERSION,
    PRODUCE,
    PRODUCE_VERSION,
    MemoryStore,
    metadata_handler,
    running_node,
    spool_events,
    until,
)
from tests.server.test_turns import NO_TOPICS

from tidegate.server.connection.channel import Channel
from tidegate.server.requests.handler import Answer, Request
from tidegate.wire import RequestHeader, encode_request

SIZES = [100, 200, 300]
RESET = struct.pack("ii", 1, 0)


class SentAhead:
    """A `Relay` that has sent three requests ahead for each channel."""

    def on_open(self, channel: Channel) -> None:
        """Prepare nothing, but be there."""
        channel.connection.upstream = SimpleNamespace(has_response=False)

    def on_close(self, channel: Channel) -> Iterable[tuple[RequestHeader, int]]:
        """Return the requests."""
        return [(RequestHeader(PRODUCE, PRODUCE_VERSION, 7, "c1", 0), size) for size in SIZES]


@pytest.mark.parametrize("leaves", ["in its turn", "between turns"])
def test_requests_ahead_are_recorded_at_once(tmp_path: Path, leaves: str) -> None:
    """Also where the client is found to have left while its answer is sent, and where nothing else happens then."""

    async def main() -> None:
        def handle(request: Request) -> Answer:
            if leaves == "in its turn":
                client.close()
            return metadata_handler(request)

        async with running_node(tmp_path, MemoryStore(), {}, handlers={METADATA: handle}) as node:
            node.node._relay = SentAhead()
            front = node.node._front
            client = socket.create_connection(("127.0.0.1", node.node.listeners["PLAINTEXT"].port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.sendall(encode_request(METADATA, METADATA_VERSION, 0, "c1", NO_TOPICS))
            await until(lambda: front.requests.listeners["PLAINTEXT"].created == 1)
            if leaves == "between turns":
                await asyncio.sleep(0.05)
                next(iter(front.channels)).close()
            await until(lambda: not front.channels)
            rows = [
                row for row in spool_events(node) if row["kind"] == "request" and row["api_key"] == PRODUCE
            ]
            assert [row["produce_bytes"] for row in rows] == SIZES
            client.close()

    asyncio.run(main())
