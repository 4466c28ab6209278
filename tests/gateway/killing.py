"""Load through a gateway while it and its Kafka are killed: what was acknowledged is there, once."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.gateway.gateway_process import GatewayProcess
from tests.waiting import wait_until

__all__ = ["GATEWAY", "KAFKA", "kafka_and_gateway", "survive"]

GATEWAY, KAFKA = "gateway", "kafka"
SHORT_SESSIONS = ("broker.session.timeout.ms=3000", "broker.heartbeat.interval.ms=500")
"""A killed broker registers again when its session has ended: by default after nine seconds."""
TOPIC = "survivors"
PARTITIONS = 3
ACKED_BETWEEN = 300
BACK_WITHIN_S = 60.0
_PAUSE_S = 0.001


@contextmanager
def kafka_and_gateway(directory: Path) -> Iterator[tuple[KafkaBench, GatewayProcess]]:
    """Yield a running Apache Kafka, which may be killed, and a gateway before it."""
    kafka = KafkaBench(
        "kafka", directory / "killed-kafka", overrides=SHORT_SESSIONS, java_options=SHORT_LIVED
    )
    gateway = GatewayProcess(directory / "gateway", "")
    try:
        gateway.upstream = kafka.start().address
        yield kafka, gateway.start()
    finally:
        gateway.close()
        kafka.stop()


class Load:
    """An idempotent producer and a group of one, both through the gateway, until `end`."""

    def __init__(self, address: str) -> None:
        self.acked: list[int] = []
        self.failed: list[str] = []
        self.read: set[int] = set()
        self._ended = threading.Event()
        self._address = address
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Flush the producer, and let the consumer read to the end."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2 * BACK_WITHIN_S)
            assert not thread.is_alive()

    def _produce(self) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "enable.idempotence": True,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 200,
                "message.timeout.ms": 120_000,
            }
        )
        number = 0
        while not self._ended.is_set():
            producer.produce(TOPIC, str(number).encode(), str(number).encode(), on_delivery=self._on_delivery)
            producer.poll(0)
            number += 1
            time.sleep(_PAUSE_S)
        assert producer.flush(BACK_WITHIN_S) == 0

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acked.append(int(message.value()))
        else:
            self.failed.append(str(error))

    def _consume(self) -> None:
        consumer = consumer_of(self._address, "survivors")
        consumer.subscribe([TOPIC])
        deadline = float("inf")
        while time.monotonic() < deadline:
            for message in consumer.consume(500, 0.2):
                if not message.error():
                    self.read.add(int(message.value()))
            if self._ended.is_set():
                deadline = min(deadline, time.monotonic() + BACK_WITHIN_S)
                if not self._threads[0].is_alive() and self.read >= set(self.acked):
                    break
        consumer.close()


def consumer_of(address: str, group: str) -> Consumer:
    """Return a consumer that begins with the first record."""
    return Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "session.timeout.ms": 6000,
        }
    )


def survive(kafka: KafkaBench, gateway: GatewayProcess, kills: Sequence[str]) -> None:
    """Kill what `kills` names, in order, under load; check what was acknowledged when all is over."""
    admin = AdminClient({"bootstrap.servers": gateway.address})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
    load = Load(gateway.address)
    for victim in kills:
        wait_for(load, ACKED_BETWEEN)
        if victim == GATEWAY:
            gateway.kill()
            gateway.start()
        else:
            kafka.kill()
            kafka.start()
    wait_for(load, ACKED_BETWEEN)
    load.end()
    assert not load.failed, load.failed[:3]
    assert load.read >= set(load.acked)
    found = Counter(everything(kafka.address))
    assert set(load.acked) <= set(found)
    assert set(found.values()) == {1}, [number for number, count in found.items() if count > 1][:10]
    assert "Traceback" not in gateway.log, gateway.log[-3000:]


def wait_for(load: Load, count: int) -> None:
    """Wait until so many records more were acknowledged."""
    target = len(load.acked) + count
    wait_until(
        lambda: len(load.acked) >= target,
        BACK_WITHIN_S,
        told=lambda: f"{len(load.acked)} acknowledged, {load.failed[:3]}",
    )


def everything(address: str) -> list[int]:
    """Return the values in the topic up to its end, as Kafka itself has them."""
    consumer = consumer_of(address, "auditor")
    places = [TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)]
    left = {
        place.partition: end
        for place in places
        if (end := consumer.get_watermark_offsets(place, timeout=BACK_WITHIN_S)[1])
    }
    consumer.assign(places)
    found: list[int] = []
    deadline = time.monotonic() + BACK_WITHIN_S
    while left:
        assert time.monotonic() < deadline, f"{len(found)} found, ends {left}"
        for message in consumer.consume(5000, 0.2):
            if not message.error():
                found.append(int(message.value()))
                if message.offset() + 1 >= left.get(message.partition(), 1 << 62):
                    del left[message.partition()]
    consumer.close()
    return found
