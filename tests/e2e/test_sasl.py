"""Logins by unmodified clients: PLAIN and SCRAM, users that are added while the broker runs, and quotas of users."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from tests.e2e.broker import Broker
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS

pytestmark = MAY_LEAVE_SOCKETS

VALUES = [b"%d " % number * 40 for number in range(60)]
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": (
        f'{PLAIN} required user_admin="admin-secret" user_alice="alice-secret" user_carol="carol-secret";'
    ),
}
ADMIN = ("PLAIN", "admin", "admin-secret")
LOGINS = [
    ("PLAIN", "alice", "alice-secret"),
    ("SCRAM-SHA-256", "sam", "s,1="),
    ("SCRAM-SHA-512", "max", "s\u00fc2"),
]
KINDS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}


@pytest.fixture(scope="module")
def sasl_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker with logins only, and the users of `LOGINS`."""
    broker = Broker(tmp_path_factory.mktemp("sasl"), SETTINGS).start()
    try:
        for mechanism, user, password in LOGINS[1:]:
            upsert(broker, mechanism, user, password)
        yield broker
    finally:
        broker.close()


def librdkafka(broker: Broker, login: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    """Return the settings of a confluent-kafka client."""
    mechanism, user, password = login
    return {
        "bootstrap.servers": broker.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
        "sasl.username": user, "sasl.password": password, **more,
    }  # fmt: skip


def python_settings(broker: Broker, login: tuple[str, str, str]) -> dict[str, Any]:
    """Return the settings of a client of kafka-python, and of aiokafka."""
    mechanism, user, password = login
    return {
        "bootstrap_servers": broker.address, "security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism,
        "sasl_plain_username": user, "sasl_plain_password": password,
    }  # fmt: skip


def admin_of(broker: Broker) -> AdminClient:
    """Return an admin client that has logged in."""
    return AdminClient(librdkafka(broker, ADMIN))


def upsert(broker: Broker, mechanism: str, user: str, password: str) -> None:
    """Set a user's SCRAM credential; the client salts the password."""
    info = ScramCredentialInfo(KINDS[mechanism], 4096)
    alteration = UserScramCredentialUpsertion(user, info, password.encode())
    admin = admin_of(broker)
    admin.alter_user_scram_credentials([alteration])[user].result(timeout=10)


@pytest.fixture
def topic(sasl_broker: Broker, unique: str) -> str:
    """Return a topic of one partition."""
    admin = admin_of(sasl_broker)
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(timeout=10)
    return unique


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: login[0])
def test_confluent_kafka_logs_in(sasl_broker: Broker, topic: str, login: tuple[str, str, str]) -> None:
    """What it produces it consumes, with each mechanism."""
    producer = Producer(librdkafka(sasl_broker, login))
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    with closing(Consumer(librdkafka(sasl_broker, login, **{"group.id": "g"}))) as consumer:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        got: list[bytes | None] = []
        while len(got) < len(VALUES):
            messages = consumer.consume(len(VALUES), timeout=20)
            assert messages
            got += [message.value() for message in messages]
    assert got == VALUES


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: login[0])
def test_kafka_python_logs_in(sasl_broker: Broker, topic: str, login: tuple[str, str, str]) -> None:
    """What it produces it consumes, with each mechanism."""
    settings = python_settings(sasl_broker, login)
    with closing(KafkaProducer(**settings)) as producer:
        for value in VALUES:
            producer.send(topic, value, partition=0)
        producer.flush(timeout=20)
    with closing(KafkaConsumer(group_id=None, auto_offset_reset="earliest", **settings)) as consumer:
        consumer.assign([PythonPartition(topic, 0)])
        got: list[bytes] = []
        while len(got) < len(VALUES):
            polled = consumer.poll(timeout_ms=20_000)
            assert polled
            got += [record.value for records in polled.values() for record in records]
    assert got == VALUES


@pytest.mark.parametrize("login", LOGINS, ids=lambda login: login[0])
def test_aiokafka_logs_in(sasl_broker: Broker, topic: str, login: tuple[str, str, str]) -> None:
    """What it produces it consumes, with each mechanism."""

    async def both() -> list[bytes]:
        settings = python_settings(sasl_broker, login)
        producer = AIOKafkaProducer(**settings)
        await producer.start()
        try:
            for value in VALUES:
                await producer.send(topic, value, partition=0)
            await producer.flush()
        finally:
            await producer.stop()
        consumer = AIOKafkaConsumer(group_id=None, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            consumer.assign([AioPartition(topic, 0)])
            async with asyncio.timeout(20):
                return [(await consumer.getone()).value for _ in VALUES]
        finally:
            await consumer.stop()

    assert asyncio.run(both()) == VALUES


@pytest.mark.parametrize(
    "login",
    [
        ("PLAIN", "alice", "guess"), ("PLAIN", "nobody", "x"), ("SCRAM-SHA-256", "sam", "guess"),
        ("SCRAM-SHA-512", "sam", "s,1="),
    ],
    ids=lambda login: f"{login[0]}-{login[1]}",
)  # fmt: skip
def test_who_cannot_log_in_is_told(sasl_broker: Broker, login: tuple[str, str, str]) -> None:
    """The client reports a failed authentication, and no secret is in the broker's log."""
    errors: list[str] = []
    producer = Producer(librdkafka(sasl_broker, login, error_cb=lambda error: errors.append(error.name())))
    deadline = time.monotonic() + 20
    while "_AUTHENTICATION" not in errors:
        assert time.monotonic() < deadline, errors
        producer.poll(0.1)
    assert "failed login" in sasl_broker.log
    for secret in ("guess", "s,1=", "alice-secret", "admin-secret"):
        assert secret not in sasl_broker.log


def test_a_user_comes_and_goes(sasl_broker: Broker, unique: str) -> None:
    """A credential holds at once, survives `kill -9`, and is gone at once; whoever is there stays."""
    login = ("SCRAM-SHA-256", unique, "first")
    with pytest.raises(KafkaException):
        AdminClient(librdkafka(sasl_broker, login)).list_topics(timeout=3)
    upsert(sasl_broker, *login)
    connected = AdminClient(librdkafka(sasl_broker, login))
    assert connected.list_topics(timeout=10).brokers
    admin = admin_of(sasl_broker)
    description = admin.describe_user_scram_credentials([unique])[unique].result(timeout=10)
    (info,) = description.scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)
    sasl_broker.kill()
    sasl_broker.start()
    assert AdminClient(librdkafka(sasl_broker, login)).list_topics(timeout=10).brokers
    deletion = UserScramCredentialDeletion(unique, ScramMechanism.SCRAM_SHA_256)
    admin.alter_user_scram_credentials([deletion])[unique].result(timeout=10)
    with pytest.raises(KafkaException):
        AdminClient(librdkafka(sasl_broker, login)).list_topics(timeout=3)


def test_a_users_quota_throttles_its_clients(sasl_broker: Broker, topic: str) -> None:
    """One user is throttled by its own quota, another one is not."""
    took_s = {}
    set_quota(sasl_broker, "carol", 20_000)
    for user in ("carol", "alice"):
        producer = Producer(librdkafka(sasl_broker, ("PLAIN", user, f"{user}-secret"), **{"linger.ms": 0}))
        begun = time.monotonic()
        for _ in range(30):
            producer.produce(topic, bytes(10_000))
            producer.poll(0)
            producer.flush(60)
        took_s[user] = time.monotonic() - begun
    assert took_s["carol"] > 2
    assert took_s["alice"] < took_s["carol"] / 2


def set_quota(broker: Broker, user: str, bytes_per_second: float) -> None:
    """Set a user's quota for producing."""
    entry = {
        "entity": [{"entity_type": "user", "entity_name": user}],
        "ops": [{"key": "producer_byte_rate", "value": bytes_per_second, "remove": False}],
    }
    message = {"entries": [entry], "validate_only": False}
    answer = ask(("127.0.0.1", broker.port), ALTER_CLIENT_QUOTAS, 1, message, login=ADMIN[1:])
    assert answer["entries"][0]["error_code"] == 0


@pytest.mark.java
def test_kafka_configs_adds_a_user(
    sasl_broker: Broker, kafka_classpath: str, tmp_path: Path, unique: str
) -> None:
    """Kafka's tool logs in, adds a SCRAM user, describes it, and is told of none that is not there."""
    config = tmp_path / "admin.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={PLAIN} required username="admin" password="admin-secret";\n'
    )

    def tool(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                "java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", kafka_classpath,
                "kafka.admin.ConfigCommand", "--bootstrap-server", sasl_broker.address, "--command-config", str(config),
                "--entity-type", "users", "--entity-name", unique, *words,
            ],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    added = tool("--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=by-tool]")
    assert added.returncode == 0, added.stdout + added.stderr
    described = tool("--describe")
    line = f"SCRAM credential configs for user-principal '{unique}' are SCRAM-SHA-512=iterations=8192"
    assert (described.returncode, described.stdout.strip()) == (0, line)
    login = ("SCRAM-SHA-512", unique, "by-tool")
    assert AdminClient(librdkafka(sasl_broker, login)).list_topics(timeout=10).brokers
