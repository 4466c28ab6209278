"""The recipes of docs/clients.md make confluent-kafka and aiokafka wait: the broker's record has no early request."""

import asyncio
import re
from pathlib import Path

from aiokafka import AIOKafkaProducer
from tests.e2e.test_client import early, limit, recorded, settings

from tidegate.api_keys import PRODUCE
from tidegate.client import Admin, NewTopic

ROOT = Path(__file__).parents[2]
VALUE = bytes(1500)
COUNT = 5


def recipe(number):
    """Return the names that a recipe of the page defines."""
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    names = {}
    exec(
        compile(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[number], "docs/clients.md", "exec"), names
    )
    return names


async def prepare(broker):
    """Create a topic and a low produce quota."""
    async with Admin(settings(broker, "admin")) as admin:
        assert await admin.create_topics([NewTopic(name="slow", partitions=1)]) == {"slow": None}
        await limit(admin, producer_byte_rate=1500.0)


def check(broker):
    """Check that the client was throttled, and never early while it produced."""
    assert broker.stop() == 0
    rows = [row for row in recorded(broker) if row["api_key"] == PRODUCE]
    assert len(rows) == COUNT
    assert any(row["produce_throttle_ms"] for row in rows)
    assert early(rows) == []


def test_confluent_kafka_waits(new_broker):
    """A producer that waits for what `throttle_cb` has reported."""
    broker = new_broker(quota_window_num="3")
    asyncio.run(prepare(broker))
    producer = recipe(0)["WaitingProducer"]({"bootstrap.servers": broker.address, "client.id": "throttled"})
    for _ in range(COUNT):
        producer.send("slow", [VALUE])
    check(broker)


def test_aiokafka_waits(new_broker):
    """A producer whose client waits before each request."""
    broker = new_broker(quota_window_num="3")

    async def work():
        await prepare(broker)
        producer = AIOKafkaProducer(bootstrap_servers=broker.address, client_id="throttled", linger_ms=0)
        recipe(1)["wait_when_throttled"](producer.client)
        async with producer:
            for _ in range(COUNT):
                await producer.send_and_wait("slow", VALUE, partition=0)

    asyncio.run(work())
    check(broker)
