"""A broker that syncs every record: real producers work with it, and what it acknowledged outlives `kill -9`."""

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

RECORDS_BEFORE_KILL = 300
TIMEOUT_S = 20


def read_values(broker, topic):
    """Return the values of partition 0 in order."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        partition = TopicPartition(topic, 0, OFFSET_BEGINNING)
        end = consumer.get_watermark_offsets(partition, timeout=TIMEOUT_S)[1]
        consumer.assign([partition])
        found = []
        while len(found) < end:
            messages = consumer.consume(end - len(found), timeout=TIMEOUT_S)
            assert messages, f"only {len(found)} of {end} records came"
            found += [message.value() for message in messages]
        return found
    finally:
        consumer.close()


def idempotent_producer(broker):
    """Return an idempotent producer with acks=all and small batches."""
    return Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "batch.num.messages": 10,
            "linger.ms": 1,
            "reconnect.backoff.max.ms": 100,
        }
    )


def test_nothing_acknowledged_is_lost_with_a_sync_per_append(new_broker, create_topic):
    """Idempotent producers, killed broker, new start: each acknowledged record is there, once and in order."""
    broker = new_broker(log_flush_interval_messages="1")
    create_topic(broker, "ledger", 1)
    producer = idempotent_producer(broker)
    acknowledged, sent = [], 0

    def note(error, message):
        if error is None:
            acknowledged.append(message.value())

    deadline = time.monotonic() + TIMEOUT_S
    while len(acknowledged) < RECORDS_BEFORE_KILL:
        assert time.monotonic() < deadline
        if sent - len(acknowledged) < 200:
            producer.produce("ledger", b"%d" % sent, partition=0, on_delivery=note)
            sent += 1
        producer.poll(0 if sent - len(acknowledged) < 200 else 0.01)
    broker.kill()
    broker.start()
    assert (
        producer.flush(TIMEOUT_S) == 0
    )  # what was under way is sent again, and recognised where it was stored
    assert len(acknowledged) == sent
    assert read_values(broker, "ledger") == [b"%d" % at for at in range(sent)]
