"""Transactions, and groups of both protocols, through a gateway."""

import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

RECORDS = 200


def consumed(address: str, topic: str, count: int, **settings: str) -> list[bytes]:
    """Return the values that a member of a new group reads, `count` or more."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"{topic}-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    quiet, deadline = 0, time.monotonic() + 30
    while len(found) < count or quiet < 2:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        messages = [message for message in consumer.consume(500, 0.5) if not message.error()]
        quiet = 0 if messages else quiet + 1
        found += [message.value() for message in messages]
    consumer.commit(asynchronous=False)
    consumer.close()
    return found


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups_of_both_protocols_share_a_topic(gateway, create_topic, unique, protocol):
    """Two members read each record once; when one leaves, the other one has its partitions."""
    topic = create_topic(gateway, unique, 4)
    producer = Producer({"bootstrap.servers": gateway.address})
    settings = {
        "bootstrap.servers": gateway.address,
        "group.id": unique,
        "auto.offset.reset": "earliest",
        "group.protocol": protocol,
    }
    members = [Consumer(settings) for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    deadline = time.monotonic() + 40
    while [len(member.assignment()) for member in members] != [2, 2]:
        assert time.monotonic() < deadline, [member.assignment() for member in members]
        for member in members:
            member.poll(0.1)
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode(), partition=number % 4)
    assert producer.flush(20) == 0
    found: list[list[int]] = [[], []]
    while len(found[0]) + len(found[1]) < RECORDS:
        assert time.monotonic() < deadline
        for values, member in zip(found, members, strict=True):
            values += [int(message.value()) for message in member.consume(500, 0.1) if not message.error()]
    assert sorted(found[0] + found[1]) == list(range(RECORDS))
    assert [len(values) for values in found] == [RECORDS // 2] * 2
    members[0].commit(asynchronous=False)
    members[0].close()
    while len(members[1].assignment()) < 4:
        assert time.monotonic() < deadline
        members[1].poll(0.1)
    members[1].close()


def test_only_committed_transactions_are_read(gateway, create_topic, unique):
    """Records of an aborted transaction are there for readers of everything only; offsets go with a transaction."""
    topic = create_topic(gateway, unique, 2)
    producer = Producer({"bootstrap.servers": gateway.address, "transactional.id": unique})
    producer.init_transactions(20)
    expected = []
    for number in range(6):
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(topic, f"{number}-{partition}".encode(), partition=partition)
        if number % 2:
            producer.flush(20)
            producer.abort_transaction(20)
        else:
            group = Consumer({"bootstrap.servers": gateway.address, "group.id": f"{unique}-offsets"})
            offsets = [TopicPartition(topic, 0, number)]
            producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), 20)
            producer.commit_transaction(20)
            group.close()
            expected += [f"{number}-{partition}".encode() for partition in range(2)]
    assert sorted(consumed(gateway.address, topic, 6, isolation_level="read_committed")) == sorted(expected)
    assert len(consumed(gateway.address, topic, 12, isolation_level="read_uncommitted")) == 12
    group = Consumer({"bootstrap.servers": gateway.address, "group.id": f"{unique}-offsets"})
    assert [each.offset for each in group.committed([TopicPartition(topic, 0)], 20)] == [4]
    group.close()
