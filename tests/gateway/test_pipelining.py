"""Clients that send several Produce requests without waiting, through a gateway to Kafka: all are stored, in order."""

import asyncio
import contextlib
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from tests.batches import build_batch
from tests.e2e.lateness import Lateness
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.java_applications import SOURCE, JavaApplication, write_properties
from tests.gateway.login_client import LoginClient
from tests.gateway.raw_client import RawClient
from tests.gateway.secure_kafka import PASSWORDS, SESSION_MS, SecureKafka

from tidegate.api_keys import PRODUCE
from tidegate.wire import encode_request

RECORDS = 3_000
WITHIN_S = 90.0
KILLED_AFTER_S = (2.0, 1.0)
QUOTAS = """\
quotas:
  - client-id: {default: true}
    producer_byte_rate: 60000
"""


def numbered(topic: str, number: int, acks: int, client_id: str) -> bytes:
    """Return a Produce of one record, which is a number, with its length. Kafka would delete an old one."""
    records = build_batch([(None, str(number).encode())], timestamp_ms=int(1000 * time.time()))
    partition = {"index": 0, "records": records}
    message = {
        "transactional_id": None,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    return encode_request(PRODUCE, 9, number, client_id, message)


def stored(address: str, topic: str) -> list[int]:
    """Return the numbers in a topic of one partition, as Kafka has them."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic})
    place = TopicPartition(topic, 0, OFFSET_BEGINNING)
    _, end = consumer.get_watermark_offsets(place, timeout=WITHIN_S)
    consumer.assign([place])
    found: list[int] = []
    last = -1
    deadline = time.monotonic() + WITHIN_S
    while last < end - 1:
        assert time.monotonic() < deadline, (len(found), end)
        for message in consumer.consume(500, 1.0):
            assert not message.error(), message.error()
            found.append(int(message.value()))
            last = message.offset()
    consumer.close()
    return found


def test_order_is_kept_whatever_acks_says(kafka, gateway, create_topic, unique):
    """Requests with and without a response, sent together: each is stored once, in the order of sending."""
    create_topic(kafka, unique)
    acks = [(1, 1, 0, 1, -1, -1, 0, 0, 1)[number % 9] for number in range(900)]
    with RawClient(gateway.port, "mixed") as client:
        requests = [numbered(unique, number, each, "mixed") for number, each in enumerate(acks)]
        sender = threading.Thread(target=lambda: client.socket.sendall(b"".join(requests)))
        sender.start()
        for number, each in enumerate(acks):
            if each:
                assert int.from_bytes(receive_frame(client.socket)[:4], "big") == number
        sender.join()
    assert stored(kafka.address, unique) == list(range(len(acks)))


def test_a_malformed_request_costs_no_answer_before_it(kafka, gateway, create_topic, unique):
    """Kafka answers what came before, and closes the connection; so does the gateway."""
    create_topic(kafka, unique)
    whole = [numbered(unique, number, 1, "malformed") for number in range(8)]
    cut = whole[-1][4:-10]
    for port in (kafka.port, *[gateway.port] * 10):
        with RawClient(port, "malformed") as client:
            client.socket.sendall(b"".join(whole) + len(cut).to_bytes(4) + cut)
            found = [int.from_bytes(receive_frame(client.socket)[:4]) for _ in whole]
            assert found == list(range(len(whole)))
            with contextlib.suppress(ConnectionResetError):
                assert client.socket.recv(1) == b""


class Pipeline:
    """Produce requests with a number each on one connection, of which some are always under way."""

    def __init__(self, client: LoginClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._sent = self.received = 0

    def exchange(self, count: int, left: int = 0) -> None:
        """Send so many requests, and receive responses until `left` are still to come."""
        numbers = range(self._sent, self._sent + count)
        self._sent += count
        name = self._client.client_id
        self._client.socket.sendall(b"".join(numbered(self._topic, each, 1, name) for each in numbers))
        while self.received < self._sent - left:
            assert int.from_bytes(receive_frame(self._client.socket)[:4]) == self.received
            self.received += 1


def test_logins_are_renewed_between_requests(secure_kafka: SecureKafka, gateway_before, tmp_path):
    """The gateway's own login, and those of its clients, while there are always requests under way."""
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "SHORT", "SCRAM-SHA-256")
    address, options = secure_kafka.address("SHORT"), ("--upstream-config", str(config))
    ports = (
        gateway_before(address, *options, "--login", "gateway").port,
        gateway_before(address, *options).port,
    )
    for tries_left in (2, 1, 0):
        with Lateness() as lateness:
            try:
                renew_logins(secure_kafka, *ports)
                return
            except ConnectionError:
                # Kafka closes a connection whose requests it reads after the end of the session.
                if not tries_left or not lateness.has_stalled(0.5):
                    raise


def renew_logins(secure_kafka: SecureKafka, own_port: int, passing_port: int) -> None:
    """Produce through two gateways for some sessions; check that all requests are answered and stored, in order."""
    topics = secure_kafka.topic("own"), secure_kafka.topic("passing")
    with LoginClient(own_port) as one, LoginClient(passing_port) as other:
        own, passing = Pipeline(one, topics[0]), Pipeline(other, topics[1])
        ends_s = time.monotonic() + 2.5 * SESSION_MS / 1000
        login_s = 0.0
        while time.monotonic() < ends_s:
            if time.monotonic() > login_s:
                passing.exchange(0)
                assert other.log_in("SCRAM-SHA-256", "bob", PASSWORDS["bob"])["error_code"] == 0
                login_s = time.monotonic() + 0.6 * SESSION_MS / 1000
            own.exchange(10, left=30)
            passing.exchange(10, left=30)
        own.exchange(0)
        passing.exchange(0)
    for pipeline, topic in zip((own, passing), topics, strict=True):
        assert pipeline.received > 100
        assert stored(secure_kafka.broker.address, topic) == list(range(pipeline.received))


@pytest.fixture
def encrypted(secure_kafka: SecureKafka, tmp_path) -> Iterator[GatewayProcess]:
    """Return a gateway with TLS on both sides, and a quota that makes all of its clients wait."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(QUOTAS)
    config = secure_kafka.client_properties(tmp_path / "upstream.properties", "SECURE", "SCRAM-SHA-512")
    settings = {
        **secure_kafka.certificates.settings("localhost"),
        "tidegate.quota.throttle.max.ms": "20",
    }
    process = GatewayProcess(
        tmp_path / "gateway",
        secure_kafka.address("SECURE"),
        (
            *("--upstream-config", str(config), "--login", "gateway", "--quotas", str(quotas)),
            *(part for item in settings.items() for part in ("--override", "=".join(item))),
        ),
        listener="SSL",
    ).start()
    yield process
    process.close()


def with_confluent_kafka(kafka: SecureKafka, address: str, topic: str) -> None:
    """Produce `RECORDS` numbers, three in a batch."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "security.protocol": "SSL",
            "ssl.ca.location": str(kafka.certificates.authority_file),
            "ssl.endpoint.identification.algorithm": "none",
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 3,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode())
        producer.poll(0)
        time.sleep(0.001)
    assert producer.flush(WITHIN_S) == 0


def with_aiokafka(kafka: SecureKafka, address: str, topic: str, *, started: threading.Event) -> None:
    """Produce `RECORDS` numbers in small batches. started: set once the producer is connected."""

    context = ssl.create_default_context(cafile=str(kafka.certificates.authority_file))
    context.check_hostname = False  # the gateway names its address

    async def run() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            security_protocol="SSL",
            ssl_context=context,
            enable_idempotence=True,
            max_batch_size=200,
        )
        async with producer:
            started.set()
            for number in range(RECORDS):
                await producer.send(topic, str(number).encode(), partition=0)
                await asyncio.sleep(0.001)
            await producer.flush()

    asyncio.run(asyncio.wait_for(run(), WITHIN_S))


def test_kills_lose_and_double_nothing(secure_kafka: SecureKafka, encrypted: GatewayProcess, tmp_path):
    """Three idempotent producers with small batches, over TLS on both sides, while the gateway is killed twice."""
    topics = {name: secure_kafka.topic(name) for name in ("confluent", "aiokafka", "java")}
    address = encrypted.address.replace("127.0.0.1", "localhost")
    settings = write_properties(
        tmp_path / "java.properties",
        {
            "bootstrap.servers": address,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": secure_kafka.certificates.authority_file,
            "ssl.endpoint.identification.algorithm": "",
            "batch.size": 90,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
        },
    )
    errors: list[BaseException] = []
    started = threading.Event()  # a producer of aiokafka that has no broker at its start fails

    def run(produce: Callable[[SecureKafka, str, str], None], topic: str) -> None:
        try:
            produce(secure_kafka, address, topic)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(with_confluent_kafka, topics["confluent"])),
        threading.Thread(target=run, args=(partial(with_aiokafka, started=started), topics["aiokafka"])),
    ]
    arguments = (str(SOURCE), "numbers", str(settings), topics["java"], str(RECORDS))
    with JavaApplication(tmp_path / "java", *arguments) as java:
        for thread in threads:
            thread.start()
        assert started.wait(WITHIN_S), errors
        for pause_s in KILLED_AFTER_S:
            time.sleep(pause_s)
            encrypted.kill()
            encrypted.start()
        for thread in threads:
            thread.join()
        assert java.process.wait(WITHIN_S) == 0, java.err[-3000:]
        assert not java.out, java.out[:1000]
    assert not errors, errors
    for name, topic in topics.items():
        assert stored(secure_kafka.broker.address, topic) == list(range(RECORDS)), name
    assert "Traceback" not in encrypted.log
