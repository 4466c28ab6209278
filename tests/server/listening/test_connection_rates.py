"""Rates of new connections on real sockets (KIP-612, B§6.9): the listener accepts nobody for as long as Kafka waits."""

import asyncio
import time
from pathlib import Path

import pytest
from tests.server.whole_node import RawClient, whole_node

from tidegate.wire import encode_request

WHICH_VERSIONS = encode_request(18, 0, 1, "c", {})[4:]
AT_ONCE = 10
"""Connections that a rate of one a second allows at once: ten seconds' worth, as with bytes."""
MOST_MS = 1000
"""No wait is longer than one sample's window."""


@pytest.mark.alone
@pytest.mark.parametrize(
    "setting", ["max.connection.creation.rate", "listener.name.plaintext.max.connection.creation.rate"]
)
def test_too_fast_ones_wait_for_a_window(tmp_path: Path, setting: str) -> None:
    """Ten are served at once, the next when the wait is over; those that are there go on meanwhile."""

    async def main() -> None:
        async with whole_node(tmp_path, **{setting.replace(".", "_"): "1"}) as node:
            clients = [RawClient(node.node.listeners["PLAINTEXT"].port) for _ in range(AT_ONCE + 1)]
            for client in clients[:AT_ONCE]:
                assert await client.ask(WHICH_VERSIONS) is not None
            begun = time.monotonic()
            late = asyncio.ensure_future(clients[AT_ONCE].ask(WHICH_VERSIONS))
            assert await clients[0].ask(WHICH_VERSIONS) is not None
            assert not late.done()
            assert await late is not None
            waited_ms = (time.monotonic() - begun) * 1000
            metrics = list(node.node.metrics(node.node.clock.now_ms()))
            waits = [m.value for m in metrics if m.name == "connection-accept-throttle-time"]
            assert 0 < waits[0] <= min(waited_ms, MOST_MS)
            for client in clients:
                await client.close()

    asyncio.run(main())
