"""What lives as long as a connection has no reference cycles: nothing would collect them (`short_collections`)."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import Iterator

import pytest
from tests.server.authentication.tls_login_client import TLS_SETTINGS
from tests.server.connection.tls_client import client_context
from tests.server.monitoring.test_http_server import respond, serve
from tests.server.monitoring.test_https import hello, tls
from tests.server.nodes import METADATA, METADATA_VERSION, MemoryStore, RunningNode, running_node

from tidegate.server.monitoring.http_request import HttpRequest
from tidegate.server.monitoring.http_server import MAX_CONNECTIONS, HttpResponse, HttpServer

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


async def _come_to_metrics(server: HttpServer, go_on: asyncio.Event) -> None:
    """Be evicted, be too late, go, break, and fail to shake hands; silent, and while a response is made."""
    beginnings = [
        b"",
        b"GET /a HTTP/1.1\r\n",
        b"GET /slow HTTP/1.1\r\n\r\n",
        hello()[:50],
        hello() + b"\xff" * 99,
    ]
    for beginning in beginnings:
        opened = [
            socket.create_connection(("127.0.0.1", server.port), 5.0, source_address=(f"127.0.0.{source}", 0))
            for source in (2, 3)
            for _ in range(MAX_CONNECTIONS)
        ]
        for client in opened:
            client.sendall(beginning)
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        for number, client in enumerate(opened):
            with contextlib.suppress(OSError):  # evicted
                if number % 3 == 0:
                    client.shutdown(socket.SHUT_WR)
                if number % 3 == 1:
                    client.close()
        await asyncio.sleep(0.15)
        go_on.set()
        for client in opened:
            client.close()
    while server._tasks:
        await asyncio.sleep(0.01)
    go_on.clear()


@pytest.mark.parametrize("encrypted", [False, True])
def test_clients_of_metrics_leave_no_cycles(garbage, encrypted) -> None:
    """Whatever they do; an exception keeps the frames that it went through."""
    found: list[str] = []
    go_on = asyncio.Event()
    config = tls() if encrypted else None

    async def slow(request: HttpRequest) -> HttpResponse:
        if request.path == "/slow":
            await go_on.wait()
        return await respond(request)

    async def scenario(server: HttpServer) -> None:
        await _come_to_metrics(server, go_on)
        gc.collect()
        garbage.clear()
        await _come_to_metrics(server, go_on)
        gc.collect()
        found.extend(f"{type(each).__module__}.{type(each).__name__}" for each in garbage)

    serve(scenario, respond=slow, request_s=0.1, tls=lambda: config)
    assert [name for name in found if name.startswith(("tidegate", "asyncio"))] == []
