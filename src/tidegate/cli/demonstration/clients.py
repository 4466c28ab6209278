"""The three clients of the demo, each a process of its own with confluent-kafka in it.

    python -m tidegate.cli.demonstration.clients {checkout|loader|analytics} HOST:PORT

Four times a second a client prints one line of JSON with what it did since the line before (`Report`). It runs until
its standard input ends, so it never outlives whoever started it.
"""

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

__all__ = ["BULK_PARTITIONS", "BULK_TOPIC", "CLIENTS", "ORDERS_TOPIC", "Report"]

ORDERS_TOPIC = "orders"
BULK_TOPIC = "bulk"
BULK_PARTITIONS = 4

_REPORT_S = 0.25
_ORDER_BYTES = 400
_ORDER_INTERVAL_S = 0.005
_BULK_VALUE_BYTES = 200_000
_BULK_CONNECTIONS = 8
_MS_PER_S = 1000


@dataclass(slots=True)
class Report:
    """A client's activity since its last report: bytes of records acknowledged or received, latencies, throttles."""

    bytes: int = 0
    records: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    throttles_ms: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Meter:
    """Gathers one report after the other from librdkafka's callbacks and prints them."""

    def __init__(self) -> None:
        self._report = Report()
        self._due = time.monotonic() + _REPORT_S
        self._ended = threading.Event()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    @property
    def running(self) -> bool:
        """Return whether to go on; prints a report when one is due."""
        if time.monotonic() >= self._due:
            self._due += _REPORT_S
            self._print()
        return not self._ended.is_set()

    def note_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Count an acknowledged record and how long it took (librdkafka's `on_delivery`)."""
        if error is not None:
            self._report.errors.append(str(error))
            return
        self._note_record(message)
        self._report.latencies_ms.append(round((message.latency() or 0.0) * _MS_PER_S, 3))

    def note_received(self, message: Message) -> None:
        """Count a consumed record."""
        if message.error() is not None:
            self._report.errors.append(str(message.error()))
            return
        self._note_record(message)

    def note_throttle(self, event: Any) -> None:
        """Count the throttle time that an answer carried (librdkafka's `throttle_cb`)."""
        self._report.throttles_ms.append(round(event.throttle_time * _MS_PER_S))

    def _note_record(self, message: Message) -> None:
        self._report.bytes += len(message.value() or b"")
        self._report.records += 1

    def _print(self) -> None:
        report, self._report = self._report, Report()
        print(json.dumps(dataclasses.asdict(report)), flush=True)

    def _wait_for_end(self) -> None:
        sys.stdin.buffer.read()
        self._ended.set()


def _settings(address: str, client_id: str, meter: _Meter, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": address, "client.id": client_id, "throttle_cb": meter.note_throttle, **more}


def checkout(address: str, meter: _Meter) -> None:
    """Send a small order every few milliseconds; each is sent at once and waits for its acknowledgement."""
    settings = _settings(address, "checkout", meter, **{"acks": "all", "linger.ms": 0})
    producer = Producer(settings)
    order = os.urandom(_ORDER_BYTES)
    due = time.monotonic()
    while meter.running:
        producer.produce(ORDERS_TOPIC, order, on_delivery=meter.note_delivery)
        due += _ORDER_INTERVAL_S
        while (left_s := due - time.monotonic()) > 0:
            producer.poll(left_s)
        producer.poll(0)
    producer.flush(1)


def loader(address: str, meter: _Meter) -> None:
    """Send as much as the broker takes, over several connections that share one client id."""
    more = {
        "acks": 1,
        "linger.ms": 5,
        "batch.size": 1_000_000,
        "max.in.flight.requests.per.connection": 1,
        "queue.buffering.max.messages": 20,
    }
    producers = [Producer(_settings(address, "loader", meter, **more)) for _ in range(_BULK_CONNECTIONS)]
    value = os.urandom(_BULK_VALUE_BYTES)
    while meter.running:
        full = [not _fill(producer, at, value, meter) for at, producer in enumerate(producers)]
        producers[0].poll(0.002 if all(full) else 0)
    for producer in producers:
        producer.purge()
        producer.flush(1)


def _fill(producer: Producer, number: int, value: bytes, meter: _Meter) -> bool:
    """Hand one more value to `producer`; False when its queue is full."""
    producer.poll(0)
    try:
        partition = number % BULK_PARTITIONS
        producer.produce(BULK_TOPIC, value, partition=partition, on_delivery=meter.note_delivery)
    except BufferError:
        return False
    return True


def analytics(address: str, meter: _Meter) -> None:
    """Read everything that was loaded, from the beginning, as fast as it comes."""
    more = {"group.id": "analytics", "enable.auto.commit": False, "queued.max.messages.kbytes": 16_384}
    consumer = Consumer(_settings(address, "analytics", meter, **more))
    consumer.assign([TopicPartition(BULK_TOPIC, at, OFFSET_BEGINNING) for at in range(BULK_PARTITIONS)])
    try:
        while meter.running:
            for message in consumer.consume(100, timeout=_REPORT_S / 5):
                meter.note_received(message)
    finally:
        consumer.close()


CLIENTS: dict[str, Callable[[str, _Meter], None]] = {
    "checkout": checkout,
    "loader": loader,
    "analytics": analytics,
}


def _main() -> None:
    name, address = sys.argv[1:]
    CLIENTS[name](address, _Meter())


if __name__ == "__main__":
    _main()
