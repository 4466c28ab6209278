"""Clients that take all they get of a byte quota, and say what they got and when.

Each is a function of a `Load` that returns admissions, (monotonic seconds, bytes): the value of each record whose
Produce was answered, or that came with a Fetch. A request of Produce has one record; Fetch reads a topic with one
record in each batch, and gets a batch in each answer.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Partition
from kafka.protocol.consumer import FetchResponse
from kafka.protocol.producer import ProduceResponse
from tests.e2e.plain_client import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    PlainClient,
    fetch_request,
    produce_request,
    receive_frame,
)

Admissions = list[tuple[float, int]]

_IN_FLIGHT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a client does: for `seconds` from its first answer on, records of `value_bytes` each."""

    port: int
    client_id: str
    topic: str
    value_bytes: int
    seconds: float

    @property
    def address(self) -> str:
        """Return what real clients connect to."""
        return f"127.0.0.1:{self.port}"


def produce_plain_waiting(load: Load, into: Admissions | None = None) -> Admissions:
    """Send a request, wait for its answer and as long as that says, and so on. into: gets admissions as they come."""
    request = produce_request(load.topic, bytes(load.value_bytes))
    return _plain(load, request, _produced(load), waits=True, into=into)


def produce_plain_sending_on(load: Load) -> Admissions:
    """Have always some requests sent, whatever answers say."""
    return _plain(load, produce_request(load.topic, bytes(load.value_bytes)), _produced(load), waits=False)


def fetch_plain_waiting(load: Load, into: Admissions | None = None) -> Admissions:
    """Fetch offset 0, wait as long as the answer says, and so on. into: gets admissions as they come."""
    return _plain(load, fetch_request(load.topic, max_bytes=1), _fetched(load), waits=True, into=into)


def fetch_plain_sending_on(load: Load) -> Admissions:
    """Have always some fetches of offset 0 sent, whatever answers say."""
    return _plain(load, fetch_request(load.topic, max_bytes=1), _fetched(load), waits=False)


def produce_kafka_python(load: Load) -> Admissions:
    """Produce with kafka-python, which waits as long as answers say."""
    admissions: Admissions = []
    value = bytes(load.value_bytes)
    with contextlib.closing(
        KafkaProducer(
            bootstrap_servers=load.address,
            client_id=load.client_id,
            acks=1,
            batch_size=0,
            linger_ms=0,
            max_in_flight_requests_per_connection=1,
            enable_idempotence=False,
        )
    ) as producer:
        waiting = []
        while not admissions or time.monotonic() < admissions[0][0] + load.seconds:
            future = producer.send(load.topic, value, partition=0)
            future.add_callback(lambda _: admissions.append((time.monotonic(), load.value_bytes)))
            waiting.append(future)
            if len(waiting) == _IN_FLIGHT:
                waiting.pop(0).get(timeout=60)
        for future in waiting:
            future.get(timeout=60)
    return admissions


def produce_librdkafka(load: Load) -> Admissions:
    """Produce with librdkafka, which sends on."""
    admissions: Admissions = []
    value = bytes(load.value_bytes)
    producer = Producer(
        {
            "bootstrap.servers": load.address,
            "client.id": load.client_id,
            "acks": 1,
            "batch.num.messages": 1,
            "linger.ms": 0,
            "max.in.flight": _IN_FLIGHT,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT,
        }
    )

    def delivered(error: object, _message: object) -> None:
        assert error is None, error
        admissions.append((time.monotonic(), load.value_bytes))

    while not admissions or time.monotonic() < admissions[0][0] + load.seconds:
        try:
            producer.produce(load.topic, value, partition=0, on_delivery=delivered)
            producer.poll(0)
        except BufferError:
            producer.poll(0.1)
    assert producer.flush(60) == 0
    return admissions


def fetch_kafka_python(load: Load) -> Admissions:
    """Consume with kafka-python, which waits as long as answers say."""
    admissions: Admissions = []
    with contextlib.closing(
        KafkaConsumer(
            bootstrap_servers=load.address,
            client_id=load.client_id,
            max_partition_fetch_bytes=1,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
    ) as consumer:
        partition = Partition(load.topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        while not admissions or time.monotonic() < admissions[0][0] + load.seconds:
            for records in consumer.poll(timeout_ms=1000).values():
                admissions += [(time.monotonic(), load.value_bytes)] * len(records)
    return admissions


def fetch_librdkafka(load: Load) -> Admissions:
    """Consume with librdkafka, which asks again at once."""
    admissions: Admissions = []
    consumer = Consumer(
        {
            "bootstrap.servers": load.address,
            "client.id": load.client_id,
            "group.id": load.client_id,
            "enable.auto.commit": False,
            "max.partition.fetch.bytes": 1,
        }
    )
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(load.topic, 0, OFFSET_BEGINNING)])
        while not admissions or time.monotonic() < admissions[0][0] + load.seconds:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                admissions.append((time.monotonic(), load.value_bytes))
    return admissions


def _plain(
    load: Load,
    request: Any,
    answer: Callable[[bytes], tuple[int, int]],
    *,
    waits: bool,
    into: Admissions | None = None,
) -> Admissions:
    """Send `request` again and again; answer: of a frame the throttle time in ms, and how many bytes were admitted."""
    admissions: Admissions = [] if into is None else into
    with PlainClient(load.port, load.client_id) as client:
        frame = client.frame(request)
        client.socket.sendall(frame if waits else frame * _IN_FLIGHT)
        until = time.monotonic() + load.seconds
        while time.monotonic() < until:
            throttle_ms, admitted = answer(receive_frame(client.socket))
            if admitted:
                admissions.append((time.monotonic(), admitted))
            if waits:
                time.sleep(throttle_ms / 1000)
            client.socket.sendall(frame)
    return admissions


def _produced(load: Load) -> Callable[[bytes], tuple[int, int]]:
    """Return what reads the answer to a Produce: its record is stored whether or not it is throttled."""

    def read(frame: bytes) -> tuple[int, int]:
        answer = ProduceResponse[PRODUCE_VERSION].decode(frame, header=True)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer
        return answer.throttle_time_ms, load.value_bytes

    return read


def _fetched(load: Load) -> Callable[[bytes], tuple[int, int]]:
    """Return what reads the answer to a Fetch: its record, or nothing where it is throttled."""

    def read(frame: bytes) -> tuple[int, int]:
        answer = FetchResponse[FETCH_VERSION].decode(frame, header=True)
        if answer.throttle_time_ms:
            assert answer.responses == []
            return answer.throttle_time_ms, 0
        partition = answer.responses[0].partitions[0]
        assert partition.error_code == 0, partition
        assert len(partition.records) > load.value_bytes
        return 0, load.value_bytes

    return read
