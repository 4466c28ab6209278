"""Warnings of `tidegate serve` about a new quota that starves the consumer of a group, with real clients."""

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.broker import Broker
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS

RATE = 100_000  # bytes produced a second
TICK_S = 0.05


@pytest.fixture(params=[1, 2], ids=["one-node", "two-nodes"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a running broker, or a cluster of two."""
    own = Broker(tmp_path, {"group.initial.rebalance.delay.ms": "0"}, nodes=request.param).start()
    yield own
    own.close()


def set_quota(broker: Broker, value: float) -> None:
    """Limit what `reader` fetches."""
    entity = [{"entity_type": "client-id", "entity_name": "reader"}]
    ops = [{"key": "consumer_byte_rate", "value": value, "remove": False}]
    message = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    answer = ask(("127.0.0.1", broker.port), ALTER_CLIENT_QUOTAS, 1, message)
    assert answer["entries"][0]["error_code"] == 0


def test_a_consumer_that_a_quota_starves_is_warned_of(broker: Broker) -> None:
    """The warning has the growth that the producer makes; a quota above it gives no warning."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics([NewTopic("orders", 1, 1)]).values():
        future.result(timeout=10)
    is_over = threading.Event()
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})

    def produce() -> None:
        while not is_over.wait(TICK_S):
            producer.produce("orders", b"x" * round(RATE * TICK_S))
            producer.poll(0)
        producer.flush(10)

    def consume(consumer: Consumer) -> None:
        while not is_over.is_set():
            consumer.poll(0.1)

    consumer = Consumer(
        {
            "bootstrap.servers": broker.address, "group.id": "billing", "client.id": "reader",
            "auto.offset.reset": "earliest", "auto.commit.interval.ms": 200,
        }
    )  # fmt: skip
    is_assigned = threading.Event()
    consumer.subscribe(["orders"], on_assign=lambda *_: is_assigned.set())
    threads = [threading.Thread(target=produce), threading.Thread(target=consume, args=(consumer,))]
    for thread in threads:
        thread.start()
    with closing(consumer):
        try:
            assert is_assigned.wait(30)
            set_quota(broker, 30_000.0)
            broker.wait_log(re.compile("consumer_byte_rate 30000.0 of client-id='reader' is too low"))
            set_quota(broker, 10_000_000.0)
            is_over.wait(13)  # a measurement, and what it takes to begin it
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
    found = re.findall(
        r"WARNING .*consumer_byte_rate (\S+) of client-id='reader' is too low for group 'billing' "
        r"\(client-id='reader'\): 1 partition(?: on node \d)? grew by (\d+) bytes/s in the last 10 s, more than the "
        r"quota lets the consumers fetch; they lag (\d+) records \(about (\d+) bytes\)",
        broker.log,
    )
    ((value, grown, records, size),) = found
    assert value == "30000.0"
    assert RATE * 0.4 < int(grown) < RATE * 1.2
    assert int(size) == pytest.approx(int(records) * RATE * TICK_S, rel=0.1)
    assert int(records) > 10
