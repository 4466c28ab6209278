"""kafka-python, unmodified, against `tidegate serve`."""

from contextlib import closing

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS

pytestmark = MAY_LEAVE_SOCKETS

VALUES = [b"%d " % number * 40 for number in range(60)]


def produce(broker, topic, **settings):
    """Send `VALUES` to partition 0."""
    with closing(KafkaProducer(bootstrap_servers=broker.address, **settings)) as producer:
        for value in VALUES:
            producer.send(topic, value, partition=0)
        producer.flush(timeout=20)


def consume(broker, topic):
    """Return the first values of partition 0, as many as `VALUES` has."""
    consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=None, auto_offset_reset="earliest")
    with closing(consumer):
        consumer.assign([TopicPartition(topic, 0)])
        values = []
        while len(values) < len(VALUES):
            polled = consumer.poll(timeout_ms=20_000)
            assert polled, f"only {len(values)} came"
            values += [record.value for records in polled.values() for record in records]
        return values


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker, topic, codec, acks):
    """Every codec with every kind of acknowledgement comes back byte for byte, in order."""
    produce(broker, topic, compression_type=codec, acks=acks, enable_idempotence=acks == "all")
    assert consume(broker, topic) == VALUES


def test_topics_come_and_go(broker, unique):
    """A topic is listed after its creation and gone after its deletion."""
    with closing(KafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        admin.create_topics([NewTopic(name=unique, num_partitions=2, replication_factor=1)])
        assert unique in admin.list_topics()
        admin.delete_topics([unique])
        assert unique not in admin.list_topics()
