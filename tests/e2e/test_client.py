"""`tidegate.client` against `tidegate serve`: a client that is throttled waits as long as it is asked to (KIP-219)."""

import asyncio
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.e2e.tls_broker import LOGINS, TlsBroker

from tidegate.api_keys import PRODUCE
from tidegate.client import (
    EARLIEST,
    Admin,
    Consumer,
    NewTopic,
    Producer,
    Record,
    ScramChange,
    ThrottlingQuotaExceededError,
    TopicPartition,
    client_settings,
)
from tidegate.client.connection import Connection
from tidegate.quota.admin.definitions import Alteration
from tidegate.usage.readers import complete_files
from tidegate.wire.records import encode_batch

ROOT = Path(__file__).parents[2]
SECRET = "s3cret"


def settings(broker, client_id="throttled", **more):
    """Return a client's settings; a dot is written as an underscore."""
    texts = {"bootstrap.servers": broker.address, "client.id": client_id}
    return client_settings({**texts, **{name.replace("_", "."): str(value) for name, value in more.items()}})


async def limit(admin, client_id="throttled", **quotas):
    """Set quotas of a client id."""
    alteration = Alteration(entity=(("client-id", client_id),), ops=tuple(quotas.items()))
    assert await admin.alter_client_quotas([alteration]) == {(("client-id", client_id),): None}


async def consume(consumer, place, count):
    """Return the values of a partition."""
    consumer.assign({place: EARLIEST})
    values = []
    while len(values) < count:
        values += [record.value for record in (await consumer.poll()).get(place, [])]
    return values


def recorded(broker, client_id="throttled"):
    """Return the rows of a client's requests, of a broker that was stopped."""
    with complete_files(broker.data_dir / "usage") as files:
        rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [row for row in rows if row["kind"] == "request" and row["client_id"] == client_id]


def early(rows):
    """Return the client id, the API and how early it was in ms of each request that was early."""
    return [(row["client_id"], row["api_key"], row["early_ms"]) for row in rows if row["early_ms"]]


def test_no_request_times_out_and_none_is_early(new_broker):
    """KIP-219's own test, under very low produce, fetch and request quotas: the broker's record has no early request.

    The request timeout is shorter than the throttle times: they do not count.
    """
    broker = new_broker(quota_window_num="3", quota_window_size_seconds="2")
    place = TopicPartition("slow", 0)
    values = [b"%04d" % at + bytes(996) for at in range(6)]

    async def work():
        async with Admin(settings(broker, "admin")) as admin:
            await admin.create_topics([NewTopic(name="slow", partitions=1)])
            await limit(admin, producer_byte_rate=800.0, consumer_byte_rate=800.0)
            await limit(admin, "asking", request_percentage=0.01)
        own = settings(broker, request_timeout_ms=1000)
        asking = Admin(settings(broker, "asking", request_timeout_ms=1000))
        async with Producer(own) as producer, Consumer(own, partition_bytes=1) as consumer, asking:
            sent = [await producer.send("slow", 0, [Record(value=value)]) for value in values]
            assert sent == list(range(len(values)))
            assert await consume(consumer, place, len(values)) == values
            for _ in range(3):
                await asking.describe_scram_users()
            return producer.metrics(), consumer.metrics()

    produced, fetched = asyncio.run(work())
    assert produced["produce-throttle-time-max"] > 1000
    assert fetched["fetch-throttle-time-max"] > 1000
    assert broker.stop() == 0
    rows = recorded(broker) + recorded(broker, "asking")
    assert any(row["produce_throttle_ms"] for row in rows)
    assert any(row["fetch_throttle_ms"] for row in rows)
    assert any((row["request_throttle_ms"] or 0) > 1000 for row in rows)
    assert early(rows) == []


def test_the_record_shows_a_client_that_does_not_wait(new_broker):
    """A connection that sends on while it is throttled is early: the test before this one can fail."""
    broker = new_broker(quota_window_num="3")

    async def until_free():
        return

    async def work():
        async with Admin(settings(broker, "admin")) as admin:
            await admin.create_topics([NewTopic(name="slow", partitions=1)])
            await limit(admin, producer_byte_rate=2000.0)
        batch = encode_batch([Record(value=bytes(5000))], now_ms=1)
        partition = {"index": 0, "records": batch}
        message = {
            "transactional_id": None, "acks": 1, "timeout_ms": 1000,
            "topic_data": [{"name": "slow", "partition_data": [partition]}],
        }  # fmt: skip
        own = settings(broker)
        connection = await Connection.open(
            own.addresses[0], own, on_throttle=lambda *_: None, until_free=until_free
        )
        for _ in range(2):
            await connection.send(PRODUCE, message, most_version=12)
        await connection.close()

    asyncio.run(work())
    assert broker.stop() == 0
    assert early(recorded(broker)) != []


def test_error_89_is_retried_or_not(new_broker):
    """Under controller_mutation_rate refused topics are created after the throttle time, or come back at once."""
    broker = new_broker()

    async def work():
        async with Admin(settings(broker)) as admin:
            await limit(admin, controller_mutation_rate=2.0)
            topics = [NewTopic(name=f"t{number}", partitions=10) for number in range(4)]
            results = await admin.create_topics(topics)
            assert results == dict.fromkeys(results)  # all of them are there
            refused = await admin.create_partitions({"t0": 20}, retry_on_quota_violation=False)
            assert isinstance(refused["t0"], ThrottlingQuotaExceededError)
            assert 0 < refused["t0"].throttle_time_ms <= 20_000
            return results

    assert sorted(asyncio.run(work())) == ["t0", "t1", "t2", "t3"]


def test_logins_and_tls(tmp_path):
    """Every protocol of a listener: a user that is made over TLS logs in with SCRAM, a wrong password does not."""
    broker = TlsBroker(tmp_path).start()

    def of(listener, **more):
        texts = {"bootstrap.servers": broker.servers(listener), **broker.java(listener, **more)}
        return client_settings(texts)

    async def work():
        async with Admin(of("TLS")) as admin:
            users = {
                name: (mechanism, password)
                for mechanism, (name, password) in LOGINS.items()
                if mechanism != "PLAIN"
            }
            changes = [
                ScramChange(user=name, mechanism=mechanism, password=password)
                for name, (mechanism, password) in users.items()
            ]
            assert await admin.alter_scram_users(changes) == dict.fromkeys(users)
            assert await admin.describe_scram_users() == {
                name: {mechanism: 4096} for name, (mechanism, _) in users.items()
            }
        for listener, mechanism in (
            ("PLAIN", "PLAIN"),
            ("MTLS", "PLAIN"),
            *(("LOGIN", each) for each in LOGINS),
        ):
            async with Admin(of(listener, mechanism=mechanism)) as admin:
                await admin.describe_client_quotas()

    try:
        asyncio.run(work())
        wrong = {
            "bootstrap.servers": broker.servers("LOGIN"),
            **broker.java("LOGIN", mechanism="SCRAM-SHA-256"),
        }
        wrong["sasl.jaas.config"] = wrong["sasl.jaas.config"].replace("sam-secret", SECRET)
        with pytest.raises(Exception, match="refused the login of 'sam'") as caught:
            asyncio.run(describe(client_settings(wrong)))
        assert SECRET not in str(caught.value)
        with pytest.raises(Exception, match=r"TLS with localhost:\d+ failed: \w+") as caught:
            asyncio.run(
                describe(client_settings({**broker.java("TLS"), "bootstrap.servers": broker.servers("MTLS")}))
            )
        assert "ssl.keystore.location" in caught.value.hint
        hasty = {**broker.java("TLS"), "bootstrap.servers": broker.servers("LOGIN")}
        with pytest.raises(Exception, match="closed the connection") as caught:
            asyncio.run(describe(client_settings(hasty)))
        assert "SASL" in caught.value.hint
        plain = client_settings({"bootstrap.servers": broker.servers("TLS")})
        with pytest.raises(Exception, match=r"closed the connection|broke|invalid response") as caught:
            asyncio.run(describe(plain))
        assert "security.protocol" in caught.value.hint
    finally:
        broker.close()


async def describe(own):
    """Ask for the quotas."""
    async with Admin(own) as admin:
        await admin.describe_client_quotas()


def test_the_example_of_the_documentation(new_broker, capsys):
    """The example of docs/client.md prints what the page says."""
    page = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
    code, printed = re.findall(r"```(?:python|text)\n(.*?)```", page, re.DOTALL)
    exec(compile(code.replace("localhost:9092", new_broker().address), "docs/client.md", "exec"), {})
    assert capsys.readouterr().out == printed
