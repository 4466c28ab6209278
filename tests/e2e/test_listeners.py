"""A broker with two listeners and an unmodified client at each."""

import re
import subprocess
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.e2e.broker import Broker

LISTENING = re.compile(r"listening on 127\.0\.0\.1:(\d+) \(IN\), localhost:(\d+) \(OUT\), data in")


def test_each_client_goes_where_its_listener_sends_it(new_broker: Callable[..., Broker]) -> None:
    """What one client produces by one listener, another consumes by the other; both are named at the start."""
    broker = new_broker(
        listeners="IN://127.0.0.1:0,OUT://127.0.0.1:0",
        advertised_listeners="OUT://localhost:0",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:PLAINTEXT",
    )
    ports = [int(port) for port in broker.wait_log(LISTENING).groups()]
    assert ports[0] != ports[1]
    servers = {"bootstrap.servers": f"127.0.0.1:{ports[0]}"}, {"bootstrap.servers": f"127.0.0.1:{ports[1]}"}
    told = [AdminClient(each).list_topics(timeout=10).brokers for each in servers]
    assert [(node.host, node.port) for brokers in told for node in brokers.values()] == [
        ("127.0.0.1", ports[0]),
        ("localhost", ports[1]),
    ]
    producer = Producer(servers[0])
    producer.produce("both", b"by IN")
    assert producer.flush(20) == 0
    consumer = Consumer({**servers[1], "group.id": "g", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([TopicPartition("both", 0, OFFSET_BEGINNING)])
        assert consumer.poll(20).value() == b"by IN"
    finally:
        consumer.close()


def test_a_port_is_for_one_listener(tmp_path, broker: Broker) -> None:
    """`--port` with two listeners is refused, as are TLS without a key and anybody from elsewhere; each in one line."""
    for arguments, message in (
        (
            ["--port", "0", "--override", "listeners=A://:0,B://:0"],
            "--port is 0, expected no --port with several listeners",
        ),
        (
            ["--override", "listeners=SSL://127.0.0.1:0"],
            "ssl.keystore",
        ),
        (
            ["--override", "listeners=PLAINTEXT://0.0.0.0:0"],
            "accepts unauthenticated clients at 0.0.0.0 (PLAINTEXT), expected 127.0.0.1",
        ),
    ):
        ended = subprocess.run(
            [*broker.command(), "serve", "--data", str(tmp_path / "data"), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert ended.returncode != 0
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr
