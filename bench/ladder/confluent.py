"""One run of a confluent-kafka client against one broker; prints a JSON object.

python -m bench.ladder.confluent produce ADDRESS TOPIC RECORD_BYTES BATCH_BYTES TOTAL_MB SETTINGS
python -m bench.ladder.confluent consume ADDRESS TOPIC RECORD_BYTES 0 TOTAL_MB SETTINGS

SETTINGS: of the client beside its own, a JSON object; {} for none.
"""

import json
import resource
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

_QUEUE_MB = 256


def produce(
    address: str, topic: str, record_bytes: int, batch_bytes: int, total_bytes: int, settings: dict[str, str]
) -> dict:
    """Produce `total_bytes` as fast as the client can; the time ends when the last is acknowledged."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "client.id": "bench",
            "acks": "1",
            "batch.size": batch_bytes,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 2_000_000,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": _QUEUE_MB * 1024,
            **settings,
        }
    )
    failed = []

    def on_delivery(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    value = bytes(record_bytes)
    count = total_bytes // record_bytes
    producer.list_topics(topic, timeout=10)
    begun = time.monotonic()
    for _ in range(count):
        try:
            producer.produce(topic, value, partition=0)
        except BufferError:
            producer.poll(0.05)
            while True:
                try:
                    producer.produce(topic, value, partition=0, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.05)
    left = producer.flush(120)
    took = time.monotonic() - begun
    assert not left, f"{left} records were not delivered"
    assert not failed, failed[0]
    return {"mb_per_s": count * record_bytes / took / 1e6, "seconds": took}


def consume(address: str, topic: str, record_bytes: int, total_bytes: int, settings: dict[str, str]) -> dict:
    """Consume `total_bytes` from offset 0 of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "client.id": "bench",
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 1,
            "queued.max.messages.kbytes": _QUEUE_MB * 1024,
            "check.crcs": False,
            **settings,
        }
    )
    count, seen = total_bytes // record_bytes, 0
    consumer.assign([TopicPartition(topic, 0, 0)])
    begun = 0.0
    while seen < count:
        messages = consumer.consume(min(100_000, count - seen), timeout=10)
        assert messages, f"only {seen} of {count} records came"
        assert messages[0].error() is None, messages[0].error()
        if not begun:
            begun, count = time.monotonic(), count - len(messages)
            continue
        seen += len(messages)
    took = time.monotonic() - begun
    consumer.close()
    return {"mb_per_s": seen * record_bytes / took / 1e6, "seconds": took}


def main() -> None:
    """Run what the arguments say and print the result with this client's own CPU seconds."""
    mode, address, topic, record_bytes, batch_bytes, total_mb, more = sys.argv[1:]
    settings = json.loads(more)
    total = int(float(total_mb) * 1e6)
    if mode == "produce":
        result = produce(address, topic, int(record_bytes), int(batch_bytes), total, settings)
    else:
        result = consume(address, topic, int(record_bytes), total, settings)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({**result, "client_cpu_s": usage.ru_utime + usage.ru_stime}))


if __name__ == "__main__":
    main()
