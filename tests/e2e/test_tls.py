"""TLS with unmodified clients: SSL, SSL with client certificates, SASL_SSL; in groups, and under quotas of users."""

import asyncio
import random
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from bench.ports import free_port
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from tests.e2e.kafka_commands import run_commands
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS
from tests.e2e.tls_broker import LISTENERS, LOGINS, TlsBroker, run_kcat, user_of
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS

pytestmark = MAY_LEAVE_SOCKETS

VALUES = [b"%d " % number * 40 for number in range(60)]
ENCRYPTED = [name for name in LISTENERS if name != "PLAIN"]
KINDS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture(scope="module")
def tls_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsBroker]:
    """Return a broker with encrypted listeners, and SCRAM users."""
    broker = TlsBroker(tmp_path_factory.mktemp("tls"))
    broker.start()
    try:
        admin = AdminClient(broker.librdkafka("PLAIN"))
        for mechanism, kind in KINDS.items():
            user, password = LOGINS[mechanism]
            alteration = UserScramCredentialUpsertion(
                user, ScramCredentialInfo(kind, 4096), password.encode()
            )
            admin.alter_user_scram_credentials([alteration])[user].result(timeout=10)
        yield broker
    finally:
        broker.close()


@pytest.fixture
def topic(tls_broker: TlsBroker, unique: str) -> str:
    """Return a topic of one partition."""
    admin = AdminClient(tls_broker.librdkafka("PLAIN"))
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(timeout=10)
    return unique


def produce(settings: dict[str, Any], topic: str) -> None:
    """Produce `VALUES` with confluent-kafka."""
    producer = Producer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


@pytest.mark.parametrize(
    ("listener", "mechanism"), [("TLS", ""), ("MTLS", ""), *[("LOGIN", mechanism) for mechanism in LOGINS]]
)
def test_confluent_kafka(tls_broker: TlsBroker, topic: str, listener: str, mechanism: str) -> None:
    """What it produces it consumes in a group."""
    settings = tls_broker.librdkafka(listener, mechanism)
    produce(settings, topic)
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    with closing(consumer):
        consumer.subscribe([topic])
        got: list[bytes | None] = []
        while len(got) < len(VALUES):
            messages = consumer.consume(len(VALUES) - len(got), timeout=20)
            assert messages
            got += [message.value() for message in messages]
    assert got == VALUES


@pytest.mark.parametrize("listener", ENCRYPTED)
def test_kafka_python(tls_broker: TlsBroker, topic: str, listener: str) -> None:
    """What it produces it consumes in a group."""
    settings = tls_broker.python(listener)
    with closing(KafkaProducer(**settings)) as producer:
        for value in VALUES:
            producer.send(topic, value)
        producer.flush(timeout=20)
    consumer = KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
    with closing(consumer):
        got: list[bytes] = []
        while len(got) < len(VALUES):
            polled = consumer.poll(timeout_ms=20_000)
            assert polled
            got += [record.value for records in polled.values() for record in records]
    assert got == VALUES


@pytest.mark.parametrize("listener", ENCRYPTED)
def test_aiokafka(tls_broker: TlsBroker, topic: str, listener: str) -> None:
    """What it produces it consumes in a group."""
    settings = tls_broker.python(listener)
    context = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))
    if listener == "MTLS":
        context.load_cert_chain(settings.pop("ssl_certfile"), settings.pop("ssl_keyfile"))

    async def both() -> list[bytes]:
        producer = AIOKafkaProducer(ssl_context=context, **settings)
        await producer.start()
        try:
            for value in VALUES:
                await producer.send(topic, value)
            await producer.flush()
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", ssl_context=context, **settings
        )
        await consumer.start()
        try:
            async with asyncio.timeout(20):
                return [(await consumer.getone()).value for _ in VALUES]
        finally:
            await consumer.stop()

    assert asyncio.run(both()) == VALUES


@pytest.mark.parametrize("listener", ENCRYPTED)
def test_kcat(tls_broker: TlsBroker, topic: str, listener: str, kcat: str) -> None:
    """What it produces it consumes, to the end of the topic."""
    settings = tls_broker.librdkafka(listener)
    run_kcat(kcat, settings, "-P", "-t", topic, given=b"\n".join(VALUES))
    assert run_kcat(kcat, settings, "-C", "-e", "-q", "-t", topic).split(b"\n")[:-1] == VALUES


def test_large_answers_and_requests(tls_broker: TlsBroker, topic: str) -> None:
    """Records of nearly a megabyte come back as they went, whatever is in them."""
    values = [random.Random(seed).randbytes(900_000) for seed in range(12)]
    settings = tls_broker.librdkafka("LOGIN", **{"message.max.bytes": 1_000_000})
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    consumer = Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    with closing(consumer):
        consumer.subscribe([topic])
        got: list[bytes | None] = []
        while len(got) < len(values):
            messages = consumer.consume(len(values) - len(got), timeout=20)
            assert messages
            got += [message.value() for message in messages]
    assert got == values


def test_who_has_no_certificate_is_told(tls_broker: TlsBroker) -> None:
    """A client without one is refused where one is needed, in one line of the log."""
    settings = tls_broker.librdkafka("MTLS")
    del settings["ssl.certificate.location"], settings["ssl.key.location"]
    errors: list[str] = []
    client = Producer({**settings, "error_cb": lambda error: errors.append(error.str())})
    deadline = time.monotonic() + 20
    while not any("handshake" in error.lower() or "certificate" in error for error in errors):
        assert time.monotonic() < deadline, errors
        client.poll(0.1)
    tls_broker.wait_log(re.compile("TLS handshake failed: client sent no certificate"))


def test_a_plain_client_is_told(tls_broker: TlsBroker) -> None:
    """Who speaks without TLS to an encrypted listener gets no answer; the log says what it should set."""
    settings = {"bootstrap.servers": tls_broker.servers("TLS")}
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=2)
    hint = "hint: set the client's security.protocol to SSL"
    tls_broker.wait_log(re.compile(f"a Kafka client without TLS; {hint}"))
    settings = {**tls_broker.librdkafka("TLS"), "bootstrap.servers": tls_broker.servers("PLAIN")}
    with pytest.raises(KafkaException):
        AdminClient(settings).list_topics(timeout=2)
    tls_broker.wait_log(re.compile("looks like a TLS handshake, but the listener does not use TLS"))


@pytest.mark.java
def test_java_clients(tls_broker: TlsBroker, topic: str, kafka_classpath: str, tmp_path: Path) -> None:
    """Kafka's own producer, consumer in a group, and admin client, at each listener; one Java process for all."""
    tools, commands = "org.apache.kafka.tools", []
    for listener, mechanism in (("TLS", ""), ("MTLS", ""), ("LOGIN", "PLAIN"), ("LOGIN", "SCRAM-SHA-512")):
        file = tmp_path / f"{listener}{mechanism}.properties"
        settings = {**tls_broker.java(listener, mechanism), "auto.offset.reset": "earliest"}
        file.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        server = ("--bootstrap-server", tls_broker.servers(listener), "--command-config", str(file))
        load = ("--num-records", "300", "--record-size", "100", "--throughput", "-1")
        group = ("--group", f"{topic}-{listener}{mechanism}", "--num-records", "300", "--timeout", "20000")
        commands += [
            (
                "kafka.admin.ConfigCommand",
                *server,
                "--describe",
                "--entity-type",
                "topics",
                "--entity-name",
                topic,
            ),
            (f"{tools}.ProducerPerformance", *server, "--topic", topic, *load),
            (f"{tools}.ConsumerPerformance", *server, "--topic", topic, *group),
        ]
    printed = run_commands(kafka_classpath, commands, tmp_path)
    for command, (code, out) in zip(commands, printed, strict=True):
        assert code == 0, (command, out)
        if command[0].endswith("ProducerPerformance"):
            assert "300 records sent" in out


def test_a_user_is_throttled_and_waits(tls_broker: TlsBroker, topic: str) -> None:
    """By each kind of name; what was throttled is answered and delivered all the same."""
    admin = ("127.0.0.1", tls_broker.listener_ports()["PLAIN"])
    for listener in ("MTLS", "LOGIN"):
        entity = [{"entity_type": "user", "entity_name": user_of(listener)}]
        ops = [{"key": "producer_byte_rate", "value": 20_000.0, "remove": False}]
        message = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        ask(admin, ALTER_CLIENT_QUOTAS, 1, message)
        throttled: list[float] = []
        settings = tls_broker.librdkafka(
            listener,
            throttle_cb=lambda event, into=throttled: into.append(event.throttle_time),
            **{"batch.num.messages": 20, "queue.buffering.max.ms": 0},
        )
        producer = Producer(settings)
        try:
            for number in range(230):
                producer.produce(topic, b"%d" % number + bytes(1000))
            assert producer.flush(30) == 0
            assert max(throttled) > 0
        finally:
            remove = [{**ops[0], "remove": True}]
            message["entries"] = [{"entity": entity, "ops": remove}]
            ask(admin, ALTER_CLIENT_QUOTAS, 1, message)


def test_restarted_and_killed(tmp_path: Path, unique: str) -> None:
    """A client goes on with a broker that was killed and comes back: nothing that was acknowledged is lost."""
    broker = TlsBroker(tmp_path)
    listeners = ",".join(f"{name}://127.0.0.1:{free_port()}" for name in LISTENERS)
    broker.overrides["listeners"] = listeners
    broker.overrides["advertised.listeners"] = listeners.replace("127.0.0.1", "localhost")
    broker.start()
    try:
        settings = broker.librdkafka("MTLS", **{"reconnect.backoff.max.ms": 200})
        delivered: list[int] = []
        producer = Producer({**settings, "on_delivery": lambda error, _: delivered.append(error is None)})
        for number in range(40):
            producer.produce(unique, b"%d" % number)
            if number == 20:
                assert producer.flush(20) == 0
                broker.kill()
                broker.start()
        assert producer.flush(30) == 0
        assert delivered == [True] * 40
    finally:
        broker.close()
