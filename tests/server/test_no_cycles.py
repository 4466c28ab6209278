"""What lives as long as a connection has no reference cycles: nothing would collect them (`short_collections`)."""

import asyncio
import gc
import ssl
from collections.abc import Iterator

import pytest
from tests.server.authentication.tls_login_client import TLS_SETTINGS
from tests.server.connection.tls_client import client_context
from tests.server.nodes import METADATA, METADATA_VERSION, MemoryStore, RunningNode, running_node

FLAGS = (
    "allow_auto_topic_creation",
    "include_cluster_authorized_operations",
    "include_topic_authorized_operations",
)


@pytest.fixture
def garbage() -> Iterator[list]:
    """Return the list that the garbage collector puts what it finds into."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


async def _come_and_go(node: RunningNode, number: int, context: ssl.SSLContext | None) -> None:
    if context is not None:
        await _fail_to_shake_hands(node, number)
    client = await node.connect(f"client-{number}", context)
    client.send_produce(padding=500)
    await client.receive()
    client.send_produce(padding=500)  # throttled
    if number % 2:
        client.send_fetch(max_bytes=10, max_wait_ms=10_000)
    if number % 3 == 0:
        client.send(METADATA, METADATA_VERSION, {"topics": []} | dict.fromkeys(FLAGS, False))
    client.writer.transport.abort()


async def _fail_to_shake_hands(node: RunningNode, number: int) -> None:
    """Connect without TLS and send what is none, half a record, or nothing; or break it afterwards."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.node.listeners["PLAINTEXT"].port)
    writer.write((b"GET / HTTP/1.1", b"\x16\x03\x01\x00\x50half", b"")[number % 3])
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


@pytest.mark.parametrize("encrypted", [False, True])
def test_connections_that_close_leave_no_cycles(tmp_path, garbage, encrypted) -> None:
    """Answered, throttled, waiting in a long poll, with requests that were not read: reference counts free it all."""

    context = client_context() if encrypted else None
    settings = {name: text for name, text in TLS_SETTINGS.items() if name.startswith("ssl.")}
    if encrypted:
        settings["listener.security.protocol.map"] = "PLAINTEXT:SSL"

    async def main() -> list[str]:
        async with running_node(tmp_path, MemoryStore(), settings) as node:
            admin = await node.connect(context=context)
            await admin.alter([("client-id", None)], "producer_byte_rate", 100.0)
            for number in range(5):
                await _come_and_go(node, number, context)
            await asyncio.sleep(0.2)
            gc.collect()
            garbage.clear()
            for number in range(30):
                await _come_and_go(node, number, context)
            await asyncio.sleep(0.3)
            gc.collect()
            return [type(found).__module__ for found in garbage]

    assert [module for module in asyncio.run(main()) if module.startswith("tidegate")] == []
