"""Ordinary clients before a gateway see the cluster, but for its addresses."""

import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

RECORDS = 2_000


def test_confluent_kafka_produces_and_consumes_through_the_gateway(kafka, gateway):
    """Every record that was acknowledged through the gateway is read through it, in a group."""
    topic = f"round-trip-{time.time_ns()}"
    admin = AdminClient({"bootstrap.servers": gateway.address})
    assert admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30) is None
    producer = Producer({"bootstrap.servers": gateway.address, "linger.ms": 5, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(topic, f"{number}".encode() * 100)
        producer.poll(0)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": gateway.address, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: set[bytes] = set()
    deadline = time.monotonic() + 30
    while len(found) < RECORDS and time.monotonic() < deadline:
        for message in consumer.consume(500, 1.0):
            assert not message.error(), message.error()
            found.add(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    assert found == {f"{number}".encode() * 100 for number in range(RECORDS)}
    direct = AdminClient({"bootstrap.servers": kafka.address}).list_topics(timeout=30)
    through = admin.list_topics(timeout=30)
    assert through.topics.keys() == direct.topics.keys()
    assert [broker.port for broker in direct.brokers.values()] == [kafka.port]
    assert {broker.id: broker.port for broker in through.brokers.values()} == gateway.ports
