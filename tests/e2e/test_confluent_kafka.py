"""confluent-kafka (librdkafka), unmodified, against `tidegate serve`."""

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

VALUES = [b"%d " % number * 40 for number in range(60)]


def produce(broker, topic, *, acks="all", codec="none", partition=0, values=VALUES):
    """Send `values` with a producer of its own and return the errors that it was told."""
    producer = Producer(
        {"bootstrap.servers": broker.address, "acks": acks, "compression.type": codec, "linger.ms": 5}
    )
    errors = []
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(20) == 0
    return [error for error in errors if error is not None]


def consume(broker, topic, count, *, partition=0):
    """Return the first `count` values of a partition."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        messages = []
        while len(messages) < count:
            batch = consumer.consume(count - len(messages), timeout=20)
            assert batch, f"only {len(messages)} of {count} came"
            messages += batch
        assert [message.error() for message in messages] == [None] * count
        return [message.value() for message in messages]
    finally:
        consumer.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker, topic, codec, acks):
    """Every codec with every kind of acknowledgement comes back byte for byte, in order."""
    assert produce(broker, topic, acks=acks, codec=codec) == []
    assert consume(broker, topic, len(VALUES)) == VALUES


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_times_are_found_in_batches_of_any_codec(broker, topic, codec):
    """A time in the middle of a batch is answered with the offset of its record, as by Kafka."""
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec, "linger.ms": 500})
    for number in range(50):
        producer.produce(topic, bytes(200), partition=0, timestamp=1_700_000_000_000 + 10 * number)
    assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        for number in (0, 1, 17, 49):
            wanted = TopicPartition(topic, 0, 1_700_000_000_000 + 10 * number - 5)
            [found] = consumer.offsets_for_times([wanted], timeout=10)
            assert found.offset == number
    finally:
        consumer.close()


def test_an_idempotent_producer_works(broker, topic):
    """InitProducerId is answered, and batches with sequence numbers are taken."""
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(20) == 0
    assert consume(broker, topic, len(VALUES)) == VALUES


def test_partitions_hold_what_was_sent_to_them(broker, create_topic, unique):
    """Three partitions are three logs."""
    topic = create_topic(broker, unique, 3)
    for partition in range(3):
        assert produce(broker, topic, partition=partition, values=[b"for %d" % partition]) == []
    assert [consume(broker, topic, 1, partition=at) for at in range(3)] == [
        [b"for 0"],
        [b"for 1"],
        [b"for 2"],
    ]


def test_offsets_by_position_and_by_time(broker, topic):
    """The log's ends are where they should be, and a time leads to the first record not before it."""
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(5):
        producer.produce(topic, b"x", timestamp=1_700_000_000_000 + number * 1000)
        assert producer.flush(20) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 5)
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, 1_700_000_002_500)], timeout=10)
        assert found.offset == 3
    finally:
        consumer.close()


def test_topics_come_and_go(broker, unique):
    """A topic is listed after its creation, grows by CreatePartitions, and is gone after its deletion."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(unique, 2, 1)])[unique].result(timeout=10)
    assert len(admin.list_topics(timeout=10).topics[unique].partitions) == 2
    admin.create_partitions([NewPartitions(unique, 5)])[unique].result(timeout=10)
    assert len(admin.list_topics(timeout=10).topics[unique].partitions) == 5
    admin.delete_topics([unique])[unique].result(timeout=10)
    assert unique not in admin.list_topics(timeout=10).topics


def test_the_cluster_describes_itself(broker):
    """DescribeCluster names one node, and where it is reached."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    cluster = admin.describe_cluster(request_timeout=10).result(timeout=10)
    assert [(node.host, node.port) for node in cluster.nodes] == [("127.0.0.1", broker.port)]
