"""The HTTP server under clients that are slow, silent, large or many."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.server.monitoring.http_client import ask, get

from tidegate.errors import ConfigError
from tidegate.server.connection.tls_session import TlsBuffers
from tidegate.server.listening.listener_config import ListenerAddress
from tidegate.server.listening.network import Network, SocketNetwork
from tidegate.server.listening.tls_config import TlsConfig
from tidegate.server.monitoring.http_request import MAX_HEAD_BYTES, HttpRequest
from tidegate.server.monitoring.http_server import (
    MAX_CONNECTIONS,
    REQUEST_S,
    HttpResponse,
    HttpServer,
    Respond,
)
from tidegate.server.settings.config import ServerConfig

LARGE = 4_000_000
Tls = Callable[[], TlsConfig | None]


async def respond(request: HttpRequest) -> HttpResponse:
    """Return the path, or many bytes."""
    if request.path == "/fail":
        raise RuntimeError("as asked")
    body = [b"x" * 1000] * (LARGE // 1000) if request.path == "/large" else [request.path.encode()]
    return HttpResponse(content_type="text/plain", body=body)


def start(
    network: Network,
    respond: Respond = respond,
    *,
    port: int = 0,
    request_s: float = REQUEST_S,
    tls: Tls = lambda: None,
) -> HttpServer:
    """Start a server in a network."""
    address = ListenerAddress(name="METRICS", host="127.0.0.1", port=port)
    config = ServerConfig.load({})
    return HttpServer.start(
        respond, address, network=network, config=config, tls=tls, buffers=TlsBuffers(), request_s=request_s
    )


def serve(
    scenario: Callable[[HttpServer], Awaitable[None]],
    *,
    request_s: float = 30.0,
    respond=respond,
    tls: Tls = lambda: None,
) -> None:
    """Run a scenario against a server."""

    async def main() -> None:
        network = SocketNetwork(asyncio.get_running_loop(), time.monotonic_ns)
        server = start(network, respond, request_s=request_s, tls=tls)
        try:
            async with asyncio.timeout(30):
                await scenario(server)
        finally:
            server.close()
            await asyncio.sleep(0.01)
            network.poller.close()

    asyncio.run(main())


def test_get_and_head() -> None:
    """HEAD has the headers of GET, and no body; the connection ends with the response."""

    async def scenario(server: HttpServer) -> None:
        got, head = await get(server.port, "/a"), await get(server.port, "/a", method="HEAD")
        assert (got.status, got.body, head.body) == (200, b"/a", b"")
        assert got.headers == head.headers
        assert got.headers["content-length"] == "2"
        assert got.headers["x-content-type-options"] == "nosniff"

    serve(scenario)


def test_a_large_response_arrives_whole() -> None:
    """In many chunks."""

    async def scenario(server: HttpServer) -> None:
        assert len((await get(server.port, "/large")).body) == LARGE

    serve(scenario)


def test_a_request_that_is_too_long_is_refused() -> None:
    """Before its end has come."""

    async def scenario(server: HttpServer) -> None:
        got = await ask(server.port, b"GET / HTTP/1.1\r\nA: " + b"x" * MAX_HEAD_BYTES * 2)
        assert got is None or got.status == 431  # the rest of what was sent may reset the connection

    serve(scenario)


def test_a_request_that_does_not_come_is_refused() -> None:
    """After a while, with a reason."""

    async def scenario(server: HttpServer) -> None:
        got = await ask(server.port, b"GET / HTTP/1.1\r\n")
        assert got is not None
        assert got.status == 408

    serve(scenario, request_s=0.5)


def test_a_failure_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """And is in the log; the next request is served."""

    async def scenario(server: HttpServer) -> None:
        assert await ask(server.port, b"GET /fail HTTP/1.1\r\n\r\n") is None
        assert (await get(server.port, "/")).status == 200

    serve(scenario)
    assert "as asked" in caplog.text


def test_silent_clients_make_room() -> None:
    """The oldest silent connection goes for a new one, however many there are."""

    async def scenario(server: HttpServer) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3 * MAX_CONNECTIONS)]
        for _ in range(3):
            assert (await get(server.port, "/")).status == 200
        assert len(server._waiting) <= MAX_CONNECTIONS
        for _, writer in silent:
            writer.close()

    serve(scenario)


def test_connections_that_are_answered_stay() -> None:
    """Where all are being answered, a new one gets 503."""

    async def scenario(server: HttpServer) -> None:
        asked = [asyncio.create_task(get(server.port, "/")) for _ in range(MAX_CONNECTIONS)]
        while len(server._answering) < MAX_CONNECTIONS:
            await asyncio.sleep(0.005)
        refused = await get(server.port, "/")
        assert refused.status == 503
        go_on.set()
        assert [got.status for got in await asyncio.gather(*asked)] == [200] * MAX_CONNECTIONS
        assert (await get(server.port, "/")).status == 200

    go_on = asyncio.Event()

    async def slow(request: HttpRequest) -> HttpResponse:
        await go_on.wait()
        return await respond(request)

    serve(scenario, respond=slow)


def test_one_address_does_not_take_all_places() -> None:
    """Another address gets in: of the one that has most, the oldest connection closes, silent or being answered."""
    go_on = asyncio.Event()

    async def slow(request: HttpRequest) -> HttpResponse:
        if request.path == "/slow":
            await go_on.wait()
        return await respond(request)

    async def scenario(server: HttpServer) -> None:
        asked = [
            asyncio.create_task(ask(server.port, b"GET /slow HTTP/1.1\r\n\r\n", source="127.0.0.2"))
            for _ in range(MAX_CONNECTIONS)
        ]
        while len(server._answering) < MAX_CONNECTIONS:
            await asyncio.sleep(0.005)
        silent = [
            await asyncio.open_connection("127.0.0.1", server.port, local_addr=("127.0.0.2", 0))
            for _ in range(MAX_CONNECTIONS)
        ]
        assert (await get(server.port, "/a", source="127.0.0.3")).status == 200
        done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [None]
        assert await silent[0][0].read() == b""
        go_on.set()
        got = await asyncio.gather(*asked)
        assert [each.status for each in got if each is not None] == [200] * (MAX_CONNECTIONS - 1)
        for _, writer in silent:
            writer.close()

    serve(scenario, respond=slow)


def test_no_response_is_made_for_a_client_that_has_gone() -> None:
    """It is cancelled at once; bytes behind a request are no reason."""
    ended: list[str] = []
    go_on = asyncio.Event()

    async def slow(request: HttpRequest) -> HttpResponse:
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            ended.append(request.path)
            raise
        return await respond(request)

    async def scenario(server: HttpServer) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /gone HTTP/1.1\r\n\r\n")
        stays = asyncio.create_task(ask(server.port, b"GET /stays HTTP/1.1\r\n\r\nmore"))
        while len(server._answering) < 2:
            await asyncio.sleep(0.005)
        writer.close()
        while len(server._answering) > 1:
            await asyncio.sleep(0.005)
        assert ended == ["/gone"]
        go_on.set()
        got = await stays
        assert got is not None
        assert got.body == b"/stays"

    serve(scenario, respond=slow)


def test_a_taken_port_is_named() -> None:
    """With a hint."""

    async def scenario(server: HttpServer) -> None:
        text = f"cannot serve metrics: cannot listen on 127.0.0.1:{server.port}: Address already in use"
        network = SocketNetwork(asyncio.get_running_loop(), time.monotonic_ns)
        with pytest.raises(ConfigError, match=text) as error:
            start(network, port=server.port)
        network.poller.close()
        assert "tidegate.metrics.listener" in str(error.value.hint)

    serve(scenario)
