"""Applications of many kinds, of which each does some 25 s of work: what `long_forecast_of_kinds.py` compares.

Apart from the test, so that their processes import no more than they need.
"""

import asyncio
import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

SECONDS = 25
JVM = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1")
PARTITIONS = 2
_BURST, _BURST_BYTES = 20, 20_000
_RATE, _RECORD_BYTES = 200, 2000  # records a second and their size, of producers by the clock
_FED_RATE, _FED_BYTES = 20, 20_000  # of what groups read
_TOPICS, _CREATE_S = 90, 0.25


class Work(NamedTuple):
    """Where a client does its work: the broker's address, and the class path of Kafka's tools."""

    address: str
    classpath: str


def one_by_one(work: Work, name: str) -> None:
    """Produce with kafka-python, and wait for each answer."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=work.address, client_id=name)) as producer:
        for _ in range(SECONDS * 20):
            producer.send(name, bytes(_BURST_BYTES)).get(timeout=120)
            time.sleep(0.05)


def flush_confluent(work: Work, name: str) -> None:
    """Produce a burst each second with librdkafka, and flush."""
    producer = Producer({"bootstrap.servers": work.address, "client.id": name})
    for _ in range(SECONDS):
        for _ in range(_BURST):
            producer.produce(name, bytes(_BURST_BYTES))
        assert producer.flush(120) == 0
        time.sleep(1)


def flush_kafka_python(work: Work, name: str) -> None:
    """Produce a burst each second with kafka-python, and flush."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=work.address, client_id=name)) as producer:
        for _ in range(SECONDS):
            for _ in range(_BURST):
                producer.send(name, bytes(_BURST_BYTES))
            producer.flush(120)
            time.sleep(1)


def clock_confluent(work: Work, name: str) -> None:
    """Produce by the clock with librdkafka's defaults."""
    producer = Producer({"bootstrap.servers": work.address, "client.id": name})
    for _ in _ticks(_RATE):
        producer.produce(name, bytes(_RECORD_BYTES))
        producer.poll(0)
    assert producer.flush(120) == 0


def clock_java(work: Work, name: str) -> None:
    """Produce by the clock with kafka-producer-perf-test's defaults."""
    command = [*JVM, "-cp", work.classpath, "org.apache.kafka.tools.ProducerPerformance", "--topic", name]
    command += ["--bootstrap-server", work.address, "--command-property", f"client.id={name}"]
    amount = ("--num-records", str(SECONDS * _RATE), "--record-size", str(_RECORD_BYTES))
    done = subprocess.run(
        [*command, *amount, "--throughput", str(_RATE)], capture_output=True, text=True, check=False
    )
    assert f"\n{SECONDS * _RATE} records sent" in f"\n{done.stdout}", done.stdout + done.stderr


def clock_kafka_python(work: Work, name: str) -> None:
    """Produce by the clock with kafka-python's defaults."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=work.address, client_id=name)) as producer:
        for _ in _ticks(_RATE):
            producer.send(name, bytes(_RECORD_BYTES))
        producer.flush(120)


def clock_aiokafka(work: Work, name: str) -> None:
    """Produce by the clock with aiokafka, whose `send` waits while a batch is full; what is late follows at once."""
    asyncio.run(_clock_aiokafka(work, name))


async def _clock_aiokafka(work: Work, name: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=work.address, client_id=name, request_timeout_ms=180_000)
    await producer.start()
    begun = time.monotonic()
    for number in range(SECONDS * _RATE):
        await asyncio.sleep(max(0, begun + number / _RATE - time.monotonic()))
        await producer.send(name, bytes(_RECORD_BYTES))
    await producer.stop()


def connections(work: Work, name: str) -> None:
    """Produce with three producers of one client id, each of another kind."""
    kinds = (one_by_one, flush_confluent, clock_kafka_python)
    threads = [threading.Thread(target=kind, args=(work, name)) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def group_confluent(work: Work, name: str) -> None:
    """Consume with two of librdkafka's consumers in a group, at the end of a topic that is fed by the clock."""

    def consume(left: list[int]) -> None:
        settings = {"group.id": name, "auto.offset.reset": "earliest"}
        with contextlib.closing(
            Consumer({"bootstrap.servers": work.address, "client.id": name} | settings)
        ) as consumer:
            consumer.subscribe([name])
            while left[0] > 0:
                message = consumer.poll(0.2)
                if message is not None and message.error() is None:
                    left[0] -= 1

    _in_group(work, name, consume)


def group_kafka_python(work: Work, name: str) -> None:
    """Consume likewise with kafka-python."""

    def consume(left: list[int]) -> None:
        settings = {"group_id": name, "auto_offset_reset": "earliest"}
        with contextlib.closing(
            KafkaConsumer(name, bootstrap_servers=work.address, client_id=name, **settings)
        ) as consumer:
            while left[0] > 0:
                count = sum(map(len, consumer.poll(timeout_ms=200).values()))
                left[0] -= count

    _in_group(work, name, consume)


def group_java(work: Work, name: str) -> None:
    """Consume likewise with two kafka-console-consumers."""

    def consume(left: list[int]) -> None:
        command = [*JVM, "-cp", work.classpath, "org.apache.kafka.tools.consumer.ConsoleConsumer"]
        command += ["--topic", name, "--group", name, "--from-beginning", "--bootstrap-server", work.address]
        command += ["--command-property", f"client.id={name}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            reader = threading.Thread(target=_count, args=(process.stdout, left))
            reader.start()
            while left[0] > 0:
                time.sleep(0.1)
            process.terminate()
            reader.join()

    _in_group(work, name, consume)


def _count(lines: Any, left: list[int]) -> None:
    while part := lines.read1(1 << 16):
        count = part.count(b"\n")
        left[0] -= count


def _in_group(work: Work, name: str, consume: Callable[[list[int]], None]) -> None:
    """Have two consumers consume what is produced by the clock by a client without a quota."""
    left = [SECONDS * _FED_RATE]
    threads = [threading.Thread(target=consume, args=(left,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(5)
    producer = Producer({"bootstrap.servers": work.address, "client.id": "feeder", "linger.ms": 0})
    for number in _ticks(_FED_RATE):
        producer.produce(name, bytes(_FED_BYTES), partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0
    for thread in threads:
        thread.join()


def admin_goes_on(work: Work, name: str) -> None:
    """Create topics with kafka-python's admin client; what fails is left."""
    _create_topics(work, name, asks_again=False)


def admin_asks_again(work: Work, name: str) -> None:
    """Create topics with kafka-python's admin client; what fails is tried again."""
    _create_topics(work, name, asks_again=True)


def _create_topics(work: Work, name: str, *, asks_again: bool) -> None:
    with contextlib.closing(KafkaAdminClient(bootstrap_servers=work.address, client_id=name)) as admin:
        for number in range(_TOPICS):
            wanted = {f"{name}-{number}": {"num_partitions": 2, "replication_factor": 1}}
            is_done = False
            while not is_done:
                try:
                    admin.create_topics(wanted)
                    is_done = True
                except KafkaError:
                    is_done = not asks_again
                    time.sleep(0.1)
            time.sleep(_CREATE_S)


def _ticks(rate: float) -> Iterator[int]:
    """Yield numbers by the clock, for `SECONDS`."""
    begun = time.monotonic()
    for number in range(int(SECONDS * rate)):
        time.sleep(max(0, begun + number / rate - time.monotonic()))
        yield number


CLIENTS = {
    client.__name__: client
    for client in (
        one_by_one,
        flush_confluent,
        flush_kafka_python,
        clock_confluent,
        clock_java,
        clock_kafka_python,
        clock_aiokafka,
        connections,
        group_confluent,
        group_kafka_python,
        group_java,
        admin_goes_on,
        admin_asks_again,
    )
}
