"""aiokafka, unmodified, against `tidegate serve`."""

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from tests.e2e.broker import Broker

VALUES = [b"%d " % number * 40 for number in range(60)]

SHOWN_S = 20.0


async def produce(broker, topic, **settings):
    """Send `VALUES` to partition 0."""
    producer = AIOKafkaProducer(bootstrap_servers=broker.address, **settings)
    await producer.start()
    try:
        for value in VALUES:
            await producer.send(topic, value, partition=0)
        await producer.flush()
    finally:
        await producer.stop()


async def consume(broker, topic):
    """Return the first values of partition 0, as many as `VALUES` has."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.address, group_id=None, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0)])
        async with asyncio.timeout(20):
            return [(await consumer.getone()).value for _ in VALUES]
    finally:
        await consumer.stop()


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker, topic, codec, acks):
    """Every codec with every kind of acknowledgement comes back byte for byte, in order."""

    async def both():
        await produce(broker, topic, compression_type=codec, acks=acks)
        return await consume(broker, topic)

    assert asyncio.run(both()) == VALUES


def test_topics_come_and_go(broker, unique):
    """A topic is listed after its creation and gone after its deletion."""

    async def listing(admin, is_wanted):
        """Return the next listing, or the first that is wanted: a broker of Kafka follows its controller."""
        until_s = time.monotonic() + (0.0 if isinstance(broker, Broker) else SHOWN_S)
        while not is_wanted(names := await admin.list_topics()) and time.monotonic() < until_s:
            await asyncio.sleep(0.01)
        return names

    async def listings():
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(unique, num_partitions=2, replication_factor=1)])
            created = await listing(admin, lambda names: unique in names)
            await admin.delete_topics([unique])
            return created, await listing(admin, lambda names: unique not in names)
        finally:
            await admin.close()

    created, deleted = asyncio.run(listings())
    assert unique in created
    assert unique not in deleted
