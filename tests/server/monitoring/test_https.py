"""The metrics listener over TLS, with real sockets: certificates, tokens, changed stores, floods and hostile bytes."""

import asyncio
import collections
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.e2e.lateness import Lateness
from tests.server.connection.tls_client import TlsClient
from tests.server.memory_network import ManualLoop
from tests.server.monitoring.http_client import TIMEOUT_S, Got, ask, parsed
from tests.server.monitoring.test_http_server import LARGE, serve
from tests.server.nodes import MemoryStore, RunningNode, running_node
from tests.server.test_changed_stores import SECRET as PASSWORD
from tests.server.test_changed_stores import alter, der, store
from tests.server.whole_node import whole_node
from tests.unit.tls.certificates import Identity, identity

from tidegate.errors import ConfigError
from tidegate.server.listening.tls_config import TlsConfig, tls_config
from tidegate.server.listening.tls_listeners import TlsListeners
from tidegate.server.monitoring.http_server import MAX_CONNECTIONS, HttpServer
from tidegate.server.monitoring.metrics_listener import MetricsListener
from tidegate.server.settings.config import ServerConfig
from tidegate.testing import ManualClock

AUTHORITY = identity("authority", authority=True)
BROKER = identity("localhost", AUTHORITY, hosts=("localhost", "metrics.example.com"))
SCRAPER = identity("scraper", AUTHORITY)
STRANGER = identity("stranger", identity("other authority", authority=True))
TOKEN = "0123456789abcdef-secret"
OWN = "listener.name.metrics."
REQUEST = b"GET /metrics HTTP/1.1\r\nHost: metrics.example.com:9404\r\n"
Scenario = Callable[[RunningNode, int], Awaitable[None]]


def settings(own: Identity = BROKER, **more: str) -> dict[str, str]:
    """Return the settings of a metrics listener with TLS."""
    given = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": own.key_pem(),
        "ssl.keystore.certificate.chain": own.certificate_pem,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": AUTHORITY.certificate_pem,
        **{name.replace("_", "."): text for name, text in more.items()},
    }
    return {
        "tidegate.metrics.listener": "https://127.0.0.1:0",
        **{f"{OWN}{name}": text for name, text in given.items()},
    }


def run(directory: Path, scenario: Scenario, texts: dict[str, str]) -> None:
    """Run a scenario with a node and the port of its metrics."""

    async def main() -> None:
        async with running_node(directory / "data", MemoryStore(), texts) as node:
            config = node.node.config.metrics
            assert config is not None
            listener = MetricsListener.start(node.node, config)
            assert listener.url.startswith("https://127.0.0.1:")
            try:
                async with asyncio.timeout(30):
                    await scenario(node, int(listener.url.rpartition(":")[2].strip("/")))
            finally:
                listener.close()
                await asyncio.sleep(0.01)

    (directory / "data").mkdir()
    asyncio.run(main())


def client_context(directory: Path, shown: Identity | None = None, **options: object) -> ssl.SSLContext:
    """Return a client that trusts the authority and shows a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=AUTHORITY.certificate_pem)
    if shown is not None:
        (directory / "client.pem").write_text(shown.pem)
        context.load_cert_chain(directory / "client.pem")
    for name, value in options.items():
        setattr(context, name, value)
    return context


async def get(
    port: int, context: ssl.SSLContext, *, head: bytes = REQUEST, source: str = "127.0.0.1", **headers: str
) -> Got:
    """Ask over TLS. Raises `ssl.SSLError` where TLS fails, also when that is known only afterwards."""
    lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items()).encode()
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="metrics.example.com", local_addr=(source, 0)
        )
        try:
            writer.write(head + lines + b"\r\n")
            received = await reader.read(-1)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    return parsed(received)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines about handshakes, without their common beginning."""
    start = "closed connection from 127.0.0.1 (metrics listener): TLS handshake failed: "
    return [record.getMessage().removeprefix(start) for record in caplog.records]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_metrics_over_tls(tmp_path: Path, version: ssl.TLSVersion) -> None:
    """The host of the URL may be any that the certificate has, also without a token; the end is a clean one."""

    async def scenario(node: RunningNode, port: int) -> None:
        context = client_context(tmp_path, minimum_version=version, maximum_version=version)
        got = await get(port, context)
        assert (got.status, b"\ntidegate_build_info{" in got.body) == (200, True)
        assert int(got.headers["content-length"]) == len(got.body)
        page = await get(port, context, head=b"GET / HTTP/1.1\r\nHost: metrics.example.com\r\n")
        assert page.headers["content-type"].startswith("text/html")

    run(tmp_path, scenario, settings())


def test_a_token_over_tls(tmp_path: Path) -> None:
    """It is asked for as without TLS."""
    (tmp_path / "token").write_text(TOKEN)

    async def scenario(node: RunningNode, port: int) -> None:
        context = client_context(tmp_path)
        assert (await get(port, context)).status == 401
        assert (await get(port, context, Authorization=f"Bearer {TOKEN}")).status == 200

    run(tmp_path, scenario, {**settings(), "tidegate.metrics.token.file": str(tmp_path / "token")})


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, version: ssl.TLSVersion
) -> None:
    """Without a trusted one there is no response; the client reads the alert, and the log has the reason."""

    async def scenario(node: RunningNode, port: int) -> None:
        options = {"minimum_version": version, "maximum_version": version}
        for _ in range(10):
            with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required|handshake.failure"):
                await get(port, client_context(tmp_path, **options))
        assert set(failures(caplog)) == {"client sent no certificate, but ssl.client.auth is required"}
        caplog.clear()
        for _ in range(10):
            with pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"):
                await get(port, client_context(tmp_path, STRANGER, **options))
        assert {line.partition(":")[0] for line in failures(caplog)} == {"client's certificate rejected"}
        assert (await get(port, client_context(tmp_path, SCRAPER, **options))).status == 200

    run(tmp_path, scenario, settings(ssl_client_auth="required"))


def test_a_changed_store_is_for_new_connections(tmp_path: Path) -> None:
    """By the same command as for Kafka's listeners; another name is refused."""
    first, second = (identity("localhost", AUTHORITY) for _ in range(2))
    location = f"{OWN}ssl.keystore.location"
    texts = {
        "tidegate.metrics.listener": "https://127.0.0.1:0",
        location: store(tmp_path / "store.p12", first),
        f"{OWN}ssl.keystore.password": PASSWORD,
    }

    async def shown(port: int) -> bytes | None:
        context = client_context(tmp_path)
        _, writer = await asyncio.open_connection("localhost", port, ssl=context)
        certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return certificate

    async def main() -> None:
        async with whole_node(tmp_path / "data", **texts) as node:
            config = node.node.config.metrics
            assert config is not None
            listener = MetricsListener.start(node.node, config)
            port = int(listener.url.rpartition(":")[2].strip("/"))
            assert await shown(port) == der(first)
            store(tmp_path / "store.p12", second)
            assert await shown(port) == der(first)
            assert await alter(node, {location: texts[location]}) is None
            assert await shown(port) == der(second)
            other = store(tmp_path / "other.p12", STRANGER)
            assert "Keystore DistinguishedName does not match" in str(await alter(node, {location: other}))
            assert await shown(port) == der(second)
            listener.close()
            await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_store_that_cannot_be_used_stops_the_start() -> None:
    """With the setting in the error."""
    cases = {
        "uses TLS but has no private key, expected ssl.keystore.location": {
            "tidegate.metrics.listener": "https://127.0.0.1:0"
        },
        "which cannot be read: No such file": {
            "tidegate.metrics.listener": "https://127.0.0.1:0",
            f"{OWN}ssl.keystore.location": "/nowhere.p12",
        },
        "private key does not match the first certificate": {
            **settings(),
            f"{OWN}ssl.keystore.certificate.chain": SCRAPER.certificate_pem,
        },
    }
    for text, texts in cases.items():
        with pytest.raises(ConfigError, match=text):
            TlsListeners(ServerConfig.load(texts), ManualLoop(ManualClock()))


def test_http_and_kafka_without_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """HTTP gets a response that says so, a client of Kafka is named in the log; each has one line."""

    async def scenario(node: RunningNode, port: int) -> None:
        got = await ask(port, b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        assert got is not None
        assert (got.status, got.body) == (
            400,
            b'{"error": "the metrics listener uses TLS", "hint": "write https:// in the URL"}\n',
        )
        assert await ask(port, b"\0\0\0\x1a\0\x12\0\4\0\0\0\0\0\6") is None
        assert failures(caplog) == [
            "looks like an HTTP request without TLS; hint: write https:// in the URL",
            "looks like a Kafka client; hint: this is the address of the metrics, not that of a listener",
        ]

    run(tmp_path, scenario, settings())


def test_tls_where_there_is_none() -> None:
    """The client gets a response at once, which its TLS library reports."""

    async def scenario(server: HttpServer) -> None:
        got = await ask(server.port, hello())
        assert got is not None
        assert (got.status, b"does not use TLS" in got.body) == (400, True)

    serve(scenario)


def hello() -> bytes:
    """Return what a client begins a handshake with."""
    client = TlsClient()
    with contextlib.suppress(ssl.SSLWantReadError):
        client.tls.do_handshake()
    return client.out


def begin_handshakes(port: int, source: str, stop: threading.Event, begun: list[int]) -> None:
    """Keep more connections than the server has places for, each with half a handshake. begun: what each has sent."""
    half = hello()[:-20]
    kept: collections.deque[socket.socket] = collections.deque()
    while not stop.is_set():
        client = socket.create_connection(("127.0.0.1", port), TIMEOUT_S, source_address=(source, 0))
        begun.append(client.send(half))
        kept.append(client)
        if len(kept) > 3 * MAX_CONNECTIONS:
            kept.popleft().close()
        time.sleep(0.001)
    for client in kept:
        client.close()


def test_a_flood_of_slow_handshakes_keeps_no_other_address_out(tmp_path: Path) -> None:
    """One address holds every place with half a handshake, and takes places again; another is served each time."""

    async def scenario(node: RunningNode, port: int) -> None:
        context, stop = client_context(tmp_path), threading.Event()
        begun: list[int] = []
        flood = asyncio.create_task(asyncio.to_thread(begin_handshakes, port, "127.0.0.2", stop, begun))
        try:
            served = 0
            while served < 10 or len(begun) < 10 * MAX_CONNECTIONS:
                assert (await get(port, context)).status == 200
                served += 1
        finally:
            stop.set()
            await flood

    run(tmp_path, scenario, settings())


def tls() -> TlsConfig:
    """Return the TLS of a listener."""
    texts = settings()
    return tls_config("METRICS", ServerConfig.load(texts).values, texts)


def test_a_handshake_that_does_not_end(lateness: Lateness, caplog: pytest.LogCaptureFixture) -> None:
    """Its time has a bound, and one line says so."""
    config = tls()

    async def scenario(server: HttpServer) -> None:
        begun = time.monotonic()
        assert await ask(server.port, hello()[:-1]) is None
        assert 0.2 <= time.monotonic() - begun < 2.0 + lateness.ms_since(begun) / 1000
        assert failures(caplog) == ["not complete within 0.2 s"]

    serve(scenario, request_s=0.2, tls=lambda: config)


def test_a_large_response_arrives_whole(tmp_path: Path) -> None:
    """Also where the client reads slowly."""
    config = tls()

    async def scenario(server: HttpServer) -> None:
        got = await get(server.port, client_context(tmp_path), head=b"GET /large HTTP/1.1\r\n")
        assert len(got.body) == LARGE
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", server.port, ssl=client_context(tmp_path), server_hostname="localhost", limit=1000
        )
        writer.write(b"GET /large HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0.3)
        assert len(parsed(await reader.read(-1)).body) == LARGE
        writer.close()

    serve(scenario, tls=lambda: config)


HOSTILE = [
    b"",
    b"\x16",
    b"\x16\x03\x01\xff\xff" + b"\0" * 100,
    b"\x16\x03\x01\x00\x05\x01\xff\xff\xff\0",
    b"\x17\x03\x03\x00\x01\0",
    b"\x15\x03\x03\x00\x02\x02\x28",
    b"\x14\x03\x03\x00\x01\x01" * 1000,
    b"\x80\x2e\x01\x00\x02" + b"\0" * 40,
    b"SSH-2.0-OpenSSH_9.6\r\n",
    b"\xff" * 200_000,
    hello() + b"\0" * 1000,
    hello() * 50,
    hello()[:100],
    hello() + b"\x17\x03\x03\x40\x01" + b"\0" * 16_385,
]


async def attack(port: int, sent: bytes, how: str) -> None:
    """Send bytes and leave, send the last byte and read, or stay and read; return when the server has closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    if how == "half":
        writer.write_eof()
    with contextlib.suppress(OSError):
        if how != "leave":
            await reader.read(-1)
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("how", ["leave", "half", "stay"])
def test_hostile_bytes(tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str) -> None:
    """Each ends that connection alone, and has at most one line in the log; nothing is kept of it."""
    config = tls()

    async def scenario(server: HttpServer) -> None:
        await asyncio.gather(*(attack(server.port, sent, how) for sent in HOSTILE))
        assert (await get(server.port, client_context(tmp_path), head=b"GET /a HTTP/1.1\r\n")).body == b"/a"
        while server._tasks:
            await asyncio.sleep(0.01)
        assert (len(server._waiting), len(server._answering)) == (0, 0)
        assert len(caplog.records) <= len(HOSTILE), caplog.text
        assert "Traceback" not in caplog.text

    assert len(HOSTILE) < MAX_CONNECTIONS
    serve(scenario, request_s=3.0, tls=lambda: config)
