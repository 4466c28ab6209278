"""confluent-kafka, kafka-python and aiokafka as programs for the end-to-end tests.

The first argument names the client, the second says in JSON what it does (`tests/e2e/clients/programs.py` says which).
A member of a group prints "partition offset" of each record, and leaves when its standard input ends.
"""

import asyncio
import json
import ssl
import sys
import threading
from typing import Any

Wanted = dict[str, Any]
SESSION_MS, HEARTBEAT_MS = 10_000, 500


def leaves() -> threading.Event:
    """Return an event that is set when standard input has ended."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    return ended


def show(partition: int, offset: int) -> None:
    """Print where a record was."""
    print(partition, offset, flush=True)


class ConfluentKafka:
    """librdkafka's client for Python."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._settings = wanted["properties"]

    def create(self) -> None:
        """Create the topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        topic = NewTopic(self._wanted["topic"], self._wanted["partitions"], 1)
        admin = AdminClient(self._settings)
        admin.create_topics([topic])[topic.topic].result(timeout=30)

    def produce(self) -> None:
        """Send one record after another, each when the one before it was acknowledged."""
        from confluent_kafka import Producer

        def delivered(error: object, _message: object) -> None:
            assert error is None, error

        producer = Producer(self._settings)
        for number in range(self._wanted["count"]):
            partition = number % self._wanted["partitions"]
            producer.produce(
                self._wanted["topic"], bytes(self._wanted["size"]), partition=partition, on_delivery=delivered
            )
            assert producer.flush(60) == 0

    def consume(self) -> None:
        """Consume in the group."""
        from confluent_kafka import Consumer

        consumer = Consumer(self._settings)
        consumer.subscribe([self._wanted["topic"]])
        left = leaves()
        while not left.is_set():
            message = consumer.poll(0.1)
            if message is not None:
                if message.error() is not None:
                    raise SystemExit(str(message.error()))
                show(message.partition(), message.offset())
        consumer.close()


def python_settings(wanted: Wanted) -> dict[str, Any]:
    """Return what kafka-python and aiokafka are both told."""
    settings = {"bootstrap_servers": wanted["bootstrap"], "client_id": wanted["client_id"]}
    settings["security_protocol"] = wanted["protocol"]
    if wanted["mechanism"]:
        settings["sasl_mechanism"] = wanted["mechanism"]
        settings["sasl_plain_username"] = wanted["user"]
        settings["sasl_plain_password"] = wanted["password"]
    if wanted["ca"]:
        settings["ssl_context"] = ssl.create_default_context(cafile=wanted["ca"])
    return settings


def group_settings(wanted: Wanted) -> dict[str, Any]:
    """Return what consumers of both are told beside."""
    return {
        "group_id": wanted["group"], "auto_offset_reset": "earliest", "session_timeout_ms": SESSION_MS,
        "heartbeat_interval_ms": HEARTBEAT_MS, "max_partition_fetch_bytes": wanted["fetch_bytes"],
        "fetch_max_bytes": wanted["fetch_bytes"],
    }  # fmt: skip


class KafkaPython:
    """kafka-python."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._settings = python_settings(wanted)

    def create(self) -> None:
        """Create the topic."""
        from kafka import KafkaAdminClient
        from kafka.admin import NewTopic

        admin = KafkaAdminClient(**self._settings)
        admin.create_topics([NewTopic(self._wanted["topic"], self._wanted["partitions"], 1)])
        admin.close()

    def produce(self) -> None:
        """Send one record after another, each when the one before it was acknowledged."""
        from kafka import KafkaProducer

        producer = KafkaProducer(**self._settings)
        for number in range(self._wanted["count"]):
            partition = number % self._wanted["partitions"]
            producer.send(self._wanted["topic"], bytes(self._wanted["size"]), partition=partition).get(60)
        producer.close()

    def consume(self) -> None:
        """Consume in the group."""
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(self._wanted["topic"], **self._settings, **group_settings(self._wanted))
        left = leaves()
        while not left.is_set():
            for records in consumer.poll(timeout_ms=1000).values():
                for record in records:
                    show(record.partition, record.offset)
        consumer.close()


class Aiokafka:
    """aiokafka."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._settings = python_settings(wanted)

    def create(self) -> None:
        """Create the topic."""
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        async def create() -> None:
            admin = AIOKafkaAdminClient(**self._settings)
            await admin.start()
            await admin.create_topics([NewTopic(self._wanted["topic"], self._wanted["partitions"], 1)])
            await admin.close()

        asyncio.run(create())

    def produce(self) -> None:
        """Send one record after another, each when the one before it was acknowledged."""
        from aiokafka import AIOKafkaProducer

        async def produce() -> None:
            producer = AIOKafkaProducer(**self._settings)
            await producer.start()
            for number in range(self._wanted["count"]):
                partition = number % self._wanted["partitions"]
                value = bytes(self._wanted["size"])
                await producer.send_and_wait(self._wanted["topic"], value, partition=partition)
            await producer.stop()

        asyncio.run(produce())

    def consume(self) -> None:
        """Consume in the group."""
        from aiokafka import AIOKafkaConsumer

        async def consume() -> None:
            consumer = AIOKafkaConsumer(
                self._wanted["topic"], **self._settings, **group_settings(self._wanted)
            )
            await consumer.start()
            left = leaves()
            while not left.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        show(record.partition, record.offset)
            await consumer.stop()

        asyncio.run(consume())


CLIENTS = {"confluent-kafka": ConfluentKafka, "kafka-python": KafkaPython, "aiokafka": Aiokafka}

if __name__ == "__main__":
    job = json.loads(sys.argv[2])
    getattr(CLIENTS[sys.argv[1]](job), job["role"])()
