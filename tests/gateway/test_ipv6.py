"""A gateway at an IPv6 address, before a broker at one: real clients, and the limits of addresses."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from bench.ports import free_port
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from tests.e2e.plain_client import receive_frame
from tests.gateway.conftest import ALONE
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import BROKER_ID, LyingBroker
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import METADATA
from tidegate.wire import encode_request

RECORDS = 200
TIMEOUT_S = 30.0
PROTOCOLS = "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SIX:PLAINTEXT,CONTROLLER:PLAINTEXT"
UNTIL_CLOSED_S = 3.0
LIMIT, LIMIT_OF_ONE = 3, 2
MANY = 16
"""Connections that are too many, one after the other, for a rate of 1 per second."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway at [::1] that reaches Apache Kafka at [::1] only."""
    port = free_port()
    kafka = KafkaBench(
        "kafka",
        tmp_path_factory.mktemp("kafka"),
        overrides=(*ALONE, PROTOCOLS, "inter.broker.listener.name=PLAINTEXT"),
        further=(f"SIX://[::1]:{port}",),
        java_options=SHORT_LIVED,
    )
    kafka.start()
    process = new_gateway(tmp_path_factory.mktemp("gateway"), f"[::1]:{port}", "[::1]")
    try:
        yield process.start()
    finally:
        process.close()
        kafka.stop()


def new_gateway(directory: Path, upstream: str, host: str, *options: str) -> GatewayProcess:
    """Return a gateway that listens at a host."""
    process = GatewayProcess(directory, upstream, base_port=free_port(4))
    listeners = f"listeners=PLAINTEXT://{host}:{process.base_port}"
    process.options = ("--override", listeners, *options)
    return process


def address(gateway: GatewayProcess) -> str:
    """Return the address of broker 1 for clients."""
    return f"[::1]:{gateway.ports[BROKER_ID]}"


def test_confluent_kafka_works_at_ipv6_addresses(gateway):
    """It produces, consumes in a group, and sees the gateway's address of the broker."""
    topic = f"six-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": address(gateway)})
    assert admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30) is None
    (broker,) = admin.list_topics(timeout=30).brokers.values()
    assert (broker.host, broker.port) == ("::1", gateway.ports[BROKER_ID])
    producer = Producer({"bootstrap.servers": address(gateway)})
    for number in range(RECORDS):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": address(gateway), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: set[str] = set()
    until_s = time.monotonic() + TIMEOUT_S
    while len(found) < RECORDS and time.monotonic() < until_s:
        found |= {message.value().decode() for message in consumer.consume(RECORDS, 1.0)}
    consumer.close()
    assert found == {str(number) for number in range(RECORDS)}


def test_kafka_python_works_at_ipv6_addresses(gateway):
    """It produces and consumes."""
    topic = f"python-{time.time_ns()}"
    producer = KafkaProducer(bootstrap_servers=address(gateway))
    for number in range(RECORDS):
        producer.send(topic, str(number).encode())
    producer.flush(TIMEOUT_S)
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=address(gateway),
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    found = {next(consumer).value.decode() for _ in range(RECORDS)}
    consumer.close()
    assert found == {str(number) for number in range(RECORDS)}


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Return a gateway at all addresses of both kinds, with limits of connections by address."""
    broker = LyingBroker()
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(
        'quotas:\n  - ip: {name: "::1"}\n    connection_creation_rate: 1\n'
        '  - ip: {name: "127.0.0.3"}\n    connection_creation_rate: 1\n'
    )
    settings = (
        f"max.connections.per.ip={LIMIT}",
        f"max.connections.per.ip.overrides=::1:{LIMIT_OF_ONE},127.0.0.2:{LIMIT_OF_ONE}",
        "tidegate.allow.anonymous=true",
    )
    options = [word for setting in settings for word in ("--override", setting)]
    process = new_gateway(tmp_path, broker.address, "[::]", "--quotas", str(quotas), *options)
    process.options += ("--override", f"advertised.listeners=PLAINTEXT://localhost:{process.base_port}")
    try:
        yield process.start()
    finally:
        process.close()
        broker.close()


@pytest.mark.parametrize(
    ("source", "most"), [("::1", LIMIT_OF_ONE), ("127.0.0.2", LIMIT_OF_ONE), ("127.0.0.4", LIMIT)]
)
def test_max_connections_per_ip_counts_ipv6_and_mapped_addresses(limited, source, most):
    """An IPv4 client of a socket for both kinds has its IPv4 address, as in Java; overrides name either kind."""
    with ExitStack() as closing:
        clients = [closing.enter_context(connected(limited, source)) for _ in range(most)]
        assert all(map(is_served, clients))
        assert not is_served(closing.enter_context(connected(limited, source)))
        other = "127.0.0.5"
        assert is_served(closing.enter_context(connected(limited, other)), TIMEOUT_S)
        assert "::ffff" not in limited.log


@pytest.mark.parametrize("source", ["::1", "127.0.0.3"])
def test_an_ip_quota_is_of_ipv6_and_mapped_addresses(limited, source):
    """A connection above the rate is held back and closed, as in Kafka; those of other addresses are served."""
    for peer, all_served in ((source, False), ("127.0.0.6", True)):
        served = []
        for _ in range(MANY):
            with connected(limited, peer) as client:
                served.append(is_served(client, TIMEOUT_S))
        assert served[0]
        assert all(served) == all_served


def connected(gateway: GatewayProcess, source: str) -> socket.socket:
    """Return a connection from an address."""
    host = "::1" if ":" in source else "127.0.0.1"
    return socket.create_connection(
        (host, gateway.ports[BROKER_ID]), timeout=TIMEOUT_S, source_address=(source, 0)
    )


def is_served(client: socket.socket, within_s: float = UNTIL_CLOSED_S) -> bool:
    """Return whether a request is answered; false: the connection is closed."""
    client.settimeout(within_s)
    try:
        client.sendall(encode_request(METADATA, 9, 1, "x", plain_message(METADATA, 9)))
        return bool(receive_frame(client))
    except (ConnectionError, TimeoutError):
        return False
