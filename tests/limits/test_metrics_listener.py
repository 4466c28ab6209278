"""Clients of the metrics listener, slow, huge and many, delay no Kafka client."""

import contextlib
import re
import socket
import ssl
import threading
import time

import pytest
from tests.e2e.tls_broker import Certificates
from tests.limits.bounds import judge_work
from tests.limits.conftest import start_watched
from tests.limits.frames import ALTER_QUOTAS, PRODUCE, alter, produce, request
from tests.limits.tenants import first_operation
from tests.limits.test_fair_handshakes import flooding
from tests.limits.watched import TIMEOUT_S, Connection, Exchanged, WatchedBroker

from tidegate.server.monitoring.http_request import MAX_HEAD_BYTES
from tidegate.server.monitoring.http_server import MAX_CONNECTIONS

pytestmark = pytest.mark.alone

CLIENTS = 3000
"""Live quota entities, each with the longest client id that is kept and cut."""
RESPONSE_BYTES = 3_000_000
"""What one response takes: lines of 500 entities of a quota type, and their parts."""
HANDSHAKE_BYTES = 200_000
"""What a connection takes until its TLS handshake has ended: 60 KB of OpenSSL, what it sent, and its task."""
LOOKS = 8
_URL = re.compile(r"tidegate metrics at https?://127\.0\.0\.1:(\d+)/")
_GET = b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)


def _silent(port: int) -> int:
    """Connect many times and send half a request; return the bytes that were sent."""
    half, sent = b"GET / HTTP/1.1\r\nA: ", 0
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(socket.socket()) for _ in range(500)]
        for client in clients:
            client.setblocking(False)  # the listen queue is short: most of them wait in it, or before it
            client.connect_ex(("127.0.0.1", port))
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            for client in clients:
                with contextlib.suppress(OSError):
                    sent += client.send(half[:1])
            time.sleep(0.05)
    return sent


def _huge(port: int) -> int:
    """Send heads without an end; return the bytes that were sent."""
    for _ in range(50):
        with contextlib.suppress(OSError), _connected(port) as client:
            client.sendall(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * MAX_HEAD_BYTES)
    return 50 * 6 * MAX_HEAD_BYTES


def _unread(port: int) -> int:
    """Ask for all metrics many times at once, and read nothing of them; return the bytes that were sent."""
    with contextlib.ExitStack() as opened:
        for _ in range(4 * MAX_CONNECTIONS):
            with contextlib.suppress(OSError):
                opened.enter_context(_connected(port)).sendall(_GET % b"metrics")
        with _connected(port) as last:  # a response to it, of whatever kind, comes behind the others
            last.sendall(_GET % b"entities")
            last.recv(1)
    return 4 * MAX_CONNECTIONS * len(_GET)


def _read(port: int) -> int:
    """Read all kinds of responses from as many connections as are answered at a time; return the bytes read."""
    read = []

    def read_some() -> None:
        for path in (b"metrics", b"entities", b"explain?client-id=c1"):
            with _connected(port) as client:
                client.sendall(_GET % path)
                while part := client.recv(1 << 16):
                    read.append(len(part))

    readers = [threading.Thread(target=read_some) for _ in range(MAX_CONNECTIONS)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert sum(read) > 1_000_000
    return sum(read)


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory):
    """Return a watched broker with many live quota entities, and the port of its metrics."""
    broker = start_watched(tmp_path_factory.mktemp("metered"), tidegate_metrics_listener="127.0.0.1:0")
    with Connection(broker.port) as client:
        client.ask(ALTER_QUOTAS, 0, alter([{"client-id": None}], {"producer_byte_rate": 1e12}))
        client.ask_all(
            request(PRODUCE, 8, produce("none", [b""]), client_id=f"{number}-" + "x" * 190)
            for number in range(CLIENTS)
        )
    yield broker, int(broker.wait_log(_URL)[1])
    broker.close()
    assert "Traceback" not in broker.log, broker.log


@pytest.mark.parametrize("attack", [_silent, _huge, _unread, _read], ids=lambda attack: attack.__name__)
def test_kafka_clients_go_on(crowded: tuple[WatchedBroker, int], attack) -> None:
    """No step holds the loop, the memory has a bound, and the neighbour is served meanwhile."""
    broker, port = crowded
    judge_work(
        broker,
        lambda: Exchanged(sent_bytes=attack(port)),
        may_take_bytes=(MAX_CONNECTIONS + 1) * RESPONSE_BYTES,
    )


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory):
    """Return a watched broker whose metrics are served over TLS, their port, and a context that trusts them."""
    directory = tmp_path_factory.mktemp("encrypted")
    certificates = Certificates.make(directory, "localhost")
    settings = {name.replace(".", "_"): text for name, text in certificates.settings("localhost").items()}
    broker = start_watched(directory, tidegate_metrics_listener="https://127.0.0.1:0", **settings)
    context = ssl.create_default_context(cafile=str(certificates.authority_file))
    yield broker, int(broker.wait_log(_URL)[1]), context
    broker.close()
    assert "Traceback" not in broker.log, broker.log


def _scraped(port: int, context: ssl.SSLContext) -> None:
    """Read the metrics over TLS."""
    with context.wrap_socket(_connected(port), server_hostname="localhost") as client:
        client.sendall(_GET % b"metrics")
        received = b""
        while part := client.recv(1 << 16):
            received += part
    assert b"\ntidegate_build_info{" in received


@pytest.mark.parametrize("how", ["leave", "stay"])
def test_handshakes_of_one_address_delay_no_other(
    encrypted: tuple[WatchedBroker, int, ssl.SSLContext], how: str
) -> None:
    """Another address is served within a second, time after time; Kafka clients go on, and the memory has a bound."""
    broker, port, context = encrypted

    def work() -> Exchanged:
        with flooding(port, how, "127.0.0.2"):
            for _ in range(LOOKS):
                with first_operation():
                    _scraped(port, context)
                time.sleep(0.1)
        return Exchanged(sent_bytes=0)

    judge_work(broker, work, may_take_bytes=(MAX_CONNECTIONS + 1) * HANDSHAKE_BYTES)
