"""`tidegate.client` against a real Apache Kafka: quotas, SCRAM users, topics with error 89, records under a quota."""

import asyncio

import pytest
from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.e2e.test_client import consume, limit, settings

from tidegate.client import (
    Admin,
    Consumer,
    NewTopic,
    Producer,
    Record,
    ScramChange,
    ThrottlingQuotaExceededError,
    TopicPartition,
)
from tidegate.quota.admin.definitions import Alteration

pytestmark = pytest.mark.java


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    """Return a running Apache Kafka with short windows."""
    broker = KafkaBench(
        "kafka",
        tmp_path_factory.mktemp("kafka"),
        overrides=("quota.window.num=3", "controller.quota.window.num=3"),
        java_options=SHORT_LIVED,
    )
    broker.start()
    yield broker
    broker.stop()


def test_quotas_are_set_and_described(kafka):
    """What is set is described, what is only validated is not, and what is removed is gone."""

    async def work():
        async with Admin(settings(kafka)) as admin:
            entity = (("client-id", None), ("user", "u"))
            change = Alteration(entity=entity, ops=(("consumer_byte_rate", 5.0),))
            assert await admin.alter_client_quotas([change], validate_only=True) == {entity: None}
            assert entity not in dict(await admin.describe_client_quotas())
            assert await admin.alter_client_quotas([change]) == {entity: None}
            while entity not in dict(await admin.describe_client_quotas()):
                await asyncio.sleep(0.05)
            wrong = Alteration(entity=entity, ops=(("no_such_key", 5.0),))
            assert (await admin.alter_client_quotas([wrong]))[entity].code == 42
            gone = Alteration(entity=entity, ops=(("consumer_byte_rate", None),))
            assert await admin.alter_client_quotas([gone]) == {entity: None}

    asyncio.run(work())


def test_users_and_settings(kafka):
    """SCRAM users are made and described; a broker's settings and the groups are described."""

    async def work():
        async with Admin(settings(kafka)) as admin:
            change = ScramChange(user="sam", mechanism="SCRAM-SHA-512", password="s3cret", iterations=5000)
            assert await admin.alter_scram_users([change]) == {"sam": None}
            while await admin.describe_scram_users() != {"sam": {"SCRAM-SHA-512": 5000}}:
                await asyncio.sleep(0.05)
            names = {each.name for each in await admin.describe_configs(4, "1", node_id=1)}
            assert "log.retention.ms" in names
            assert await admin.list_groups() == {}

    asyncio.run(work())


def test_error_89(kafka):
    """Refused topics are created when the throttle time is over, or come back at once."""

    async def work():
        async with Admin(settings(kafka, "mutating")) as admin:
            await limit(admin, "mutating", controller_mutation_rate=5.0)
            await asyncio.sleep(1)  # the controller takes the quota over a moment after the answer
            names = [f"m{number}" for number in range(4)]
            topics = [NewTopic(name=name, partitions=10, replication_factor=1) for name in names]
            assert await admin.create_topics(topics) == dict.fromkeys(names)
            refused = await admin.create_partitions({"m0": 30}, retry_on_quota_violation=False)
            assert isinstance(refused["m0"], ThrottlingQuotaExceededError)
            assert refused["m0"].throttle_time_ms > 0
            assert await admin.delete_topics(names) == dict.fromkeys(names)

    asyncio.run(work())


@pytest.mark.parametrize("gzip", [False, True])
def test_records_under_a_quota(kafka, gzip):
    """A throttled producer and consumer store and read all records, with a request timeout below the throttle time."""
    topic, values = f"slow-{gzip}", [b"%04d" % at + bytes(996) for at in range(8)]
    client_id = f"records-{gzip}"

    async def work():
        async with Admin(settings(kafka)) as admin:
            await admin.create_topics([NewTopic(name=topic, partitions=1, replication_factor=1)])
            await limit(
                admin, client_id, producer_byte_rate=200.0 if gzip else 2000.0, consumer_byte_rate=2000.0
            )
        own = settings(kafka, client_id, request_timeout_ms=1500)
        async with Producer(own, gzip=gzip) as producer, Consumer(own, partition_bytes=1) as consumer:
            for at, value in enumerate(values):
                assert await producer.send(topic, 0, [Record(value=value)]) == at
            assert await consume(consumer, TopicPartition(topic, 0), len(values)) == values
            return producer.metrics()

    assert asyncio.run(work())["produce-throttle-time-max"] > 0
