"""Consumers that subscribe are told at once that groups are not served; those that assign partitions are served.

Each client has `PROMPTLY_S` for what took 75 seconds, or never came, while JoinGroup and ConsumerGroupHeartbeat were
not answered.
"""

import asyncio
import subprocess
import time

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, KafkaError, TopicPartition
from kafka import KafkaConsumer
from kafka.errors import UnsupportedVersionError

PROMPTLY_S = 10.0
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@pytest.mark.parametrize(
    ("protocol", "code"), [("classic", KafkaError.UNSUPPORTED_VERSION), ("consumer", KafkaError._FATAL)]
)
def test_librdkafka_is_told(broker, topic, unique, protocol, code):
    """An error event comes from `poll`, a fatal one in the protocol of KIP-848."""
    settings = {"bootstrap.servers": broker.address, "group.id": unique, "group.protocol": protocol}
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])
        event = consumer.poll(PROMPTLY_S)
        assert event is not None, f"nothing came within {PROMPTLY_S} s"
        assert event.error().code() == code, event.error()
        assert "version not supported" in event.error().str()
    finally:
        consumer.close()


def test_kafka_python_is_told(broker, topic, unique):
    """`poll` raises."""
    consumer = KafkaConsumer(topic, bootstrap_servers=broker.address, group_id=unique)
    try:
        begun = time.monotonic()
        with pytest.raises(UnsupportedVersionError):
            consumer.poll(timeout_ms=4 * PROMPTLY_S * 1000)
        assert time.monotonic() - begun < PROMPTLY_S
    finally:
        consumer.close(autocommit=False)


def test_aiokafka_is_told(broker, topic, unique):
    """`start` raises."""

    async def start():
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=broker.address, group_id=unique)
        try:
            async with asyncio.timeout(PROMPTLY_S):
                await consumer.start()
        finally:
            await consumer.stop()

    with pytest.raises(Exception, match="UnsupportedVersionError"):
        asyncio.run(start())


@pytest.mark.java
@pytest.mark.parametrize(
    ("protocol", "text"),
    [
        ("classic", "UnsupportedVersionException: The version of API is not supported"),
        ("consumer", "The cluster does not support the new CONSUMER group protocol"),
    ],
)
def test_java_consumer_is_told(kafka_classpath, broker, topic, unique, protocol, text):
    """The console consumer ends with the error, long before its own time is over."""
    done = subprocess.run(
        [
            *(*JVM, "-cp", kafka_classpath, "org.apache.kafka.tools.consumer.ConsoleConsumer"),
            *("--bootstrap-server", broker.address, "--topic", topic, "--group", unique),
            *("--timeout-ms", "120000", "--command-property", f"group.protocol={protocol}"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert text in done.stdout + done.stderr


def test_consumers_that_assign_commit_and_find_their_positions(broker, topic, unique):
    """A coordinator is found, positions are kept, and another consumer of the group goes on from there."""
    found = []
    for at in (5, 9):
        consumer = Consumer(
            {"bootstrap.servers": broker.address, "group.id": unique, "enable.auto.commit": False}
        )
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            consumer.commit(offsets=[TopicPartition(topic, 0, at)], asynchronous=False)
            found += [
                position.offset for position in consumer.committed([TopicPartition(topic, 0)], timeout=10)
            ]
        finally:
            consumer.close()
    assert found == [5, 9]
