"""Clients of a port of all brokers that send a divided, malformed or incomplete ClientHello, or none."""

import contextlib
import socket
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from bench.ports import free_port
from tests.gateway.lying_broker import LyingBroker
from tests.gateway.named_brokers import NamedGateway, hello_of, name_of
from tests.waiting import wait_until

from tidegate.server.listening.acceptor import MAX_WAITING


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Iterator:
    """Return a function that starts a gateway before a cluster of one broker, with metrics at a port."""
    directory = tmp_path_factory.mktemp("hostile")
    quotas = directory / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    with ExitStack() as stack:
        cluster = stack.enter_context(contextlib.closing(LyingBroker()))

        def start_gateway(metrics_port: int) -> NamedGateway:
            options = (
                "--quotas",
                str(quotas),
                "--override",
                f"tidegate.metrics.listener=127.0.0.1:{metrics_port}",
            )
            options += ("--override", "tidegate.usage.enable=false")
            gateway = NamedGateway(directory / str(metrics_port), cluster.address, *options)
            return stack.enter_context(contextlib.closing(gateway)).start()

        yield start_gateway


@pytest.fixture(scope="module")
def gateway(start) -> NamedGateway:
    """Return a gateway."""
    return start(free_port(2))


def serve_another(gateway: NamedGateway) -> None:
    """Serve another client. The gateway has examined what came before."""
    with gateway.connect(name_of(1)) as client:
        assert client.metadata()["brokers"]


def answer_to(gateway: NamedGateway, *parts: bytes) -> bytes:
    """Return the first bytes of the answer to these parts; nothing if the connection closes.

    The gateway has examined each part before the next one is sent.
    """
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=10) as sock:
        try:
            for number, part in enumerate(parts):
                if number:
                    serve_another(gateway)
                sock.sendall(part)
            return sock.recv(7)
        except ConnectionError:
            return b""


def in_records(hello: bytes, size: int) -> list[bytes]:
    """Return a ClientHello, a record, in records of `size` bytes each."""
    parts = [hello[at : at + size] for at in range(5, len(hello), size)]
    return [b"\x16\x03\x01" + struct.pack(">H", len(part)) + part for part in parts]


def test_a_divided_hello_is_served(gateway):
    """Within a header or a record, or in many records, it gets a ServerHello (record type 22, message type 2)."""
    hello = hello_of(gateway.context(), name_of(1))
    records = in_records(hello, 40)
    for parts in (
        [hello[:1], hello[1:7], hello[7:99], hello[99:-1], hello[-1:]],
        [*records[:4], b"".join(records[4:])],
        [b"".join(records)],
    ):
        answer = answer_to(gateway, *parts)
        assert (answer[0], answer[5]) == (22, 2), answer


@pytest.mark.parametrize(
    ("beginning", "alert", "line"),
    [
        (b"\x16\x03\x01\x40\x00\x01\x00\x90\x00", 50, "ClientHello is 36864 bytes, expected at most 32768"),
        (b"\x16\x03\x01\x00\x00", 50, "a record of a ClientHello is 0 bytes"),
        (b"\x16\x03\x01\x00\x28\x01\x00\x00\x24" + b"\xff" * 36, 50, "malformed ClientHello"),
        (b"GET / HTTP/1.1\r\n\r\n", None, "looks like an HTTP request"),
        (b"\x00\x00\x00\x10\x00\x12\x00\x03", None, "looks like a Kafka client without TLS"),
        (b"\xde\xad\xbe\xef\x00", None, "client sent data that is not TLS"),
    ],
)
def test_malformed_hello_is_refused_in_one_line(start, beginning, alert, line):
    """A TLS client gets an alert, another one no bytes; of 30 such clients the log has one line, and a metric all."""
    metrics_port = free_port(2)
    gateway = start(metrics_port)
    wanted = b"" if alert is None else b"\x15\x03\x03\x00\x02\x02" + bytes((alert,))
    for _ in range(30):
        assert answer_to(gateway, beginning) == wanted
    assert gateway.log.count(line) == 1, gateway.log
    assert gateway.log.count("rejected connection from 127.0.0.1 (listener SSL)") == 1
    assert "Traceback" not in gateway.log
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port + 1}/metrics", timeout=10) as response:
        assert "\ntidegate_gateway_refused_connections 30" in response.read().decode()
    gateway.close()


def test_clients_that_send_no_hello_keep_no_other_out(gateway):
    """At most 1,000 of 1,500 silent connections stay, in little memory; another client is served meanwhile."""
    before_mb, before_fds = gateway.resident_mb(), gateway.descriptors()
    beginnings = (b"", b"\x16", hello_of(gateway.context(), name_of(1))[:-1])
    silent = []
    for number in range(MAX_WAITING * 3 // 2):
        silent.append(socket.create_connection(("127.0.0.1", gateway.port), timeout=10))
        silent[-1].sendall(beginnings[number % 3])
    serve_another(gateway)
    wait_until(lambda: gateway.descriptors() <= before_fds + MAX_WAITING + 20, 10, told=gateway.descriptors)
    assert gateway.resident_mb() - before_mb < 5
    for sock in silent:
        sock.close()
    wait_until(lambda: gateway.descriptors() <= before_fds + 20, 10, told=gateway.descriptors)
    assert "Traceback" not in gateway.log
