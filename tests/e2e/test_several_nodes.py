"""Three brokers in one process, as clients see a cluster: they find the leaders, and each throttles by itself."""

import contextlib
import itertools

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Partition
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS
from tests.e2e.plain_client import PlainClient
from tests.e2e.test_throttle import burst_throttle_ms
from tests.unit.usage.reading import read_events

from tidegate.quota import ClientQuotaManager, QuotaEntity, QuotaType
from tidegate.usage.readers import complete_files

pytestmark = MAY_LEAVE_SOCKETS

TOPIC = "spread"
PARTITIONS = 6
CLIENT = "loader"
BYTES_PER_S = 2000.0
TIMEOUT_S = 30.0


def leaders(broker, bootstrap):
    """Return the leader of each partition, as one broker tells it."""
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{bootstrap}"})
    found = admin.list_topics(TOPIC, timeout=TIMEOUT_S)
    assert {node.port for node in found.brokers.values()} == set(broker.ports)
    return [found.topics[TOPIC].partitions[number].leader for number in range(PARTITIONS)]


def values_by_confluent(broker):
    """Return all values, read partition by partition from the brokers that lead them."""
    consumer = Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{broker.ports[1]}",
            "group.id": "by-confluent",
            "enable.auto.commit": False,
        }
    )
    found, ended = [], 0
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, number), timeout=TIMEOUT_S)[1]
            for number in range(PARTITIONS)
        ]
        while len(found) < sum(ends) and ended < TIMEOUT_S:
            message = consumer.poll(1.0)
            if message is None:
                ended += 1
                continue
            assert message.error() is None
            found.append(message.value())
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, ends[0])], asynchronous=False)
        (committed,) = consumer.committed([TopicPartition(TOPIC, 0)], timeout=TIMEOUT_S)
        assert committed.offset == ends[0], "kept by the group's coordinator"
    return found


def values_by_kafka_python(broker):
    """Return all values, likewise."""
    consumer = KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{broker.ports[2]}",
        consumer_timeout_ms=round(TIMEOUT_S * 1000),
        group_id=None,
    )
    with contextlib.closing(consumer):
        partitions = [Partition(TOPIC, number) for number in range(PARTITIONS)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        count = sum(consumer.end_offsets(partitions).values())
        return [record.value for record in itertools.islice(consumer, count)]


def produce(broker, count):
    """Produce to all partitions, half by each library, each asking another broker first; return the values."""
    values = [b"%d" % number * 100 for number in range(count)]
    first = Producer(
        {"bootstrap.servers": f"127.0.0.1:{broker.ports[0]}", "client.id": CLIENT, "linger.ms": 0}
    )
    for number, value in enumerate(values[::2]):
        first.produce(TOPIC, value, partition=number % PARTITIONS)
    assert first.flush(TIMEOUT_S) == 0
    second = KafkaProducer(bootstrap_servers=f"127.0.0.1:{broker.ports[2]}", client_id=CLIENT)
    with contextlib.closing(second):
        sent = [
            second.send(TOPIC, value, partition=number % PARTITIONS)
            for number, value in enumerate(values[1::2])
        ]
        for future in sent:
            future.get(TIMEOUT_S)
    return values


def check_throttles(broker):
    """Every throttle of the client is what an engine says that was asked nothing but what this node was asked."""
    throttled = {}
    with complete_files(broker.data_dir / "usage") as files:
        rows = [row for path in files for row in read_events(path)]
    for node_id in (1, 2, 3):
        manager = None
        for row in sorted((row for row in rows if row["node_id"] == node_id), key=lambda row: row["seq"]):
            if row["kind"] == "start":
                manager = ClientQuotaManager(QuotaType.PRODUCE)
            elif row["quota_key"] == "producer_byte_rate":
                manager.update_quota(QuotaEntity(client_id=row["quota_client_id"]), row["quota_value"])
            elif row["kind"] == "request" and row["produce_bytes"] is not None:
                expected_ms = manager.record(
                    row["user"], row["client_id"], row["produce_bytes"], row["ts_ms"]
                )
                assert row["produce_throttle_ms"] == expected_ms
                throttled[node_id] = throttled.get(node_id, 0) + (expected_ms > 0)
    return throttled


def test_clients_use_a_cluster_of_three(new_broker):
    """What is produced is consumed over three brokers, each throttles by itself, and a kill loses nothing."""
    broker = new_broker(nodes=3)
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.ports[2]}"})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(timeout=TIMEOUT_S)
    before = leaders(broker, broker.ports[1])
    assert sorted(before) == [1, 1, 2, 2, 3, 3]
    with PlainClient(broker.ports[1], "admin") as client:
        client.alter_quotas({"client-id": CLIENT}, {"producer_byte_rate": BYTES_PER_S})
    for node_id, port in enumerate(broker.ports, 1):
        with PlainClient(port, CLIENT) as client:
            size = client.send_produce(TOPIC, value_bytes=21_000, partition=before.index(node_id))
            answer = client.receive_produce()
        assert answer.throttle_time_ms == burst_throttle_ms(size=size, bound=BYTES_PER_S) > 0, (
            "on a fresh sensor"
        )
    values = [bytes(21_000)] * 3 + produce(broker, 60)
    assert sorted(values_by_confluent(broker)) == sorted(values)
    broker.kill()
    broker.start()
    assert leaders(broker, broker.ports[2]) == before
    assert sorted(values_by_kafka_python(broker)) == sorted(values)
    values += produce(broker, 12)
    assert sorted(values_by_confluent(broker)) == sorted(values)
    assert broker.stop() == 0
    throttled = check_throttles(broker)
    assert sorted(throttled) == [1, 2, 3]
    assert min(throttled.values()) > 0
    assert "Traceback" not in broker.log
