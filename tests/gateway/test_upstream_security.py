"""Connections of the gateway to the brokers by TLS, and with its own login."""

import subprocess
import sys
import threading
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.gateway.login_client import LoginClient
from tests.gateway.secure_kafka import PASSWORDS, SESSION_MS

RECORDS, RECORD_BYTES = 40, 100_000
CHANNELS = [
    ("LOGIN", "PLAIN"),
    ("LOGIN", "SCRAM-SHA-256"),
    ("SECURE", "SCRAM-SHA-512"),
    ("TLS", ""),
]


def new_topic(address: str) -> str:
    """Create a topic through a gateway and return its name."""
    name = f"topic-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    return name


@pytest.mark.parametrize(("listener", "mechanism"), CHANNELS)
def test_clients_use_the_cluster_through_the_login_of_the_gateway(
    secure_kafka, gateway_before, tmp_path, listener, mechanism
):
    """Small and large requests and responses pass by TLS and by plain TCP, after a login of the gateway's own."""
    more = secure_kafka.certificates.settings("gateway") if not mechanism else {}
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", listener, mechanism, **more)
    gateway = gateway_before(
        secure_kafka.address(listener), "--upstream-config", str(config), "--login", "gateway"
    )
    topic = new_topic(gateway.address)
    producer = Producer({"bootstrap.servers": gateway.address, "linger.ms": 50, "batch.size": 900_000})
    values = [bytes([number]) * RECORD_BYTES for number in range(RECORDS)]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": gateway.address, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found = []
    deadline = time.monotonic() + 30
    while len(found) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(100, 1.0):
            assert not message.error(), message.error()
            found.append(message.value())
    consumer.close()
    assert found == values
    shared = "CN=gateway" if not mechanism else "gateway"
    assert "without a login of their own" in gateway.log
    assert shared.removeprefix("CN=") in gateway.log


def test_many_clients_connect_at_once_by_scram(secure_kafka, gateway_before, tmp_path):
    """The password is salted once, so that fifty connections at a time wait for no fifty hashes."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "SECURE", "SCRAM-SHA-512")
    gateway = gateway_before(
        secure_kafka.address("SECURE"), "--upstream-config", str(config), "--login", "gateway"
    )
    clients = [LoginClient(port) for port in gateway.ports.values() for _ in range(50)]
    found = []
    threads = [
        threading.Thread(target=lambda client=client: found.append(client.metadata())) for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.socket.close()
    assert [len(answer["brokers"]) for answer in found] == [1] * len(clients)


def test_gateway_logs_in_again_before_its_session_ends(secure_kafka, gateway_before, tmp_path):
    """A connection that is used, and one that is idle longer than the session, stay open."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "SHORT", "SCRAM-SHA-256")
    gateway = gateway_before(
        secure_kafka.address("SHORT"), "--upstream-config", str(config), "--login", "gateway"
    )
    (port,) = gateway.ports.values()
    with LoginClient(port) as busy, LoginClient(port) as idle:
        idle.metadata()
        deadline = time.monotonic() + 1.5 * SESSION_MS / 1000
        while time.monotonic() < deadline:
            assert busy.metadata()["brokers"]
            time.sleep(0.02)
        assert idle.metadata()["brokers"]


@pytest.mark.parametrize(
    ("listener", "mechanism", "more", "error", "hint"),
    [
        (
            "LOGIN",
            "PLAIN",
            {"password": "wrong"},
            "refused the login of 'gateway'",
            "check username and password",
        ),
        ("SECURE", "PLAIN", {"ssl_truststore_location": "/dev/null"}, "ssl.truststore.location", ""),
        ("TLS", "", {"security_protocol": "PLAINTEXT"}, "answered by TLS", "security.protocol"),
        ("LOGIN", "", {"security_protocol": "PLAINTEXT"}, "closed the connection", "security.protocol"),
    ],
)
def test_wrong_settings_are_an_error_at_the_start(
    secure_kafka, tmp_path, listener, mechanism, more, error, hint
):
    """One sentence says what is wrong, and no password."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", listener, mechanism, **more)
    command = [sys.executable, "-m", "tidegate", "gateway", "--upstream", secure_kafka.address(listener)]
    command += [
        "--upstream-config",
        str(config),
        "--listen",
        "127.0.0.1:29092",
        "--data",
        str(tmp_path / "data"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done
    assert error in done.stderr
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert PASSWORDS["gateway"] not in done.stderr
