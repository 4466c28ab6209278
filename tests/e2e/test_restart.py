"""What outlives the process: acknowledged records, topics and quotas, after `kill -9` and after a clean stop."""

import contextlib
import selectors
import socket
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from tests.batches import build_batch
from tests.e2e.plain_client import PlainClient

from tidegate.wire import encode_request, read_response

PARTITIONS = 3
LOADERS = 3
CONNECTIONS = 16
ACKNOWLEDGED_BEFORE_KILL = 3000


class Loader(threading.Thread):
    """A producer that sends numbered records until told to stop, and keeps those that were acknowledged."""

    def __init__(self, broker, topic, number):
        super().__init__()
        self.acknowledged = {}
        self.stopping = threading.Event()
        self._topic = topic
        self._number = number
        self._producer = Producer(
            {"bootstrap.servers": broker.address, "linger.ms": 2, "message.timeout.ms": 2000, "retries": 0}
        )

    def run(self):
        """Produce at full speed."""
        sequence = 0
        while not self.stopping.is_set():
            value = b"%d-%d " % (self._number, sequence)
            try:
                self._producer.produce(
                    self._topic, value * 20, partition=sequence % PARTITIONS, on_delivery=self._note
                )
                sequence += 1
                self._producer.poll(0)
            except BufferError:
                self._producer.poll(0.05)
        self._producer.flush(10)

    def _note(self, error, message):
        if error is None:
            self.acknowledged[message.partition(), message.offset()] = message.value()


def read_all(broker, topic):
    """Return every record of the topic by partition and offset."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    try:
        partitions = [TopicPartition(topic, at, OFFSET_BEGINNING) for at in range(PARTITIONS)]
        ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions]
        consumer.assign(partitions)
        found = {}
        while len(found) < sum(ends):
            messages = consumer.consume(min(sum(ends) - len(found), 5000), timeout=20)
            assert messages, f"only {len(found)} of {sum(ends)} records came"
            for message in messages:
                assert message.error() is None
                found[message.partition(), message.offset()] = message.value()
        return found
    finally:
        consumer.close()


def wait_acknowledged(loaders, count):
    """Wait until the loaders together had `count` records acknowledged."""
    deadline = time.monotonic() + 30
    while sum(len(loader.acknowledged) for loader in loaders) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_kill_under_load_loses_nothing_acknowledged(new_broker, create_topic):
    """After `kill -9` amid full load and a new start, every acknowledged record is at its offset, unchanged."""
    broker = new_broker()
    create_topic(broker, "ledger", PARTITIONS)
    loaders = [Loader(broker, "ledger", number) for number in range(LOADERS)]
    for loader in loaders:
        loader.start()
    wait_acknowledged(loaders, ACKNOWLEDGED_BEFORE_KILL)
    broker.kill()
    for loader in loaders:
        loader.stopping.set()
    for loader in loaders:
        loader.join(30)
    broker.start()
    found = read_all(broker, "ledger")
    acknowledged = {at: value for loader in loaders for at, value in loader.acknowledged.items()}
    assert len(acknowledged) >= ACKNOWLEDGED_BEFORE_KILL
    assert {at: found.get(at) for at in acknowledged} == acknowledged


def test_a_kill_among_many_connections_loses_nothing_acknowledged(new_broker, create_topic):
    """Requests that come together are written together: every acknowledged one is there, under its offset."""
    broker = new_broker()
    topic = create_topic(broker, "together", PARTITIONS)
    acknowledged = {}
    sent = dict.fromkeys(range(CONNECTIONS), 0)
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        for number in sent:
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=10))
            selector.register(sock, selectors.EVENT_READ, number)
            sock.sendall(produce_frame(topic, number, 0))
        while len(acknowledged) < ACKNOWLEDGED_BEFORE_KILL:
            ready = selector.select(10)
            assert ready
            for key, _ in ready:
                number, sock = key.data, key.fileobj
                size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
                answer = read_response(0, 9, sock.recv(size, socket.MSG_WAITALL), 5)
                (partition,) = answer["responses"][0]["partition_responses"]
                assert partition["error_code"] == 0
                acknowledged[partition["index"], partition["base_offset"]] = record_value(
                    number, sent[number]
                )
                sent[number] += 1
                sock.sendall(produce_frame(topic, number, sent[number]))
        broker.kill()
    assert len(acknowledged) >= ACKNOWLEDGED_BEFORE_KILL
    broker.start()
    found = read_all(broker, topic)
    assert {place: found.get(place) for place in acknowledged} == acknowledged


def record_value(number, sequence):
    """Return the record of a connection with a number, large now and then."""
    return b"%d-%d " % (number, sequence) * (1 + 500 * (sequence % 7 == 0))


def produce_frame(topic, number, sequence):
    """Return a request with that record."""
    records = build_batch([(None, record_value(number, sequence))])
    partition = {"index": number % PARTITIONS, "records": records}
    topic_data = [{"name": topic, "partition_data": [partition]}]
    message = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": topic_data}
    return encode_request(0, 9, sequence, f"client-{number}", message)


def test_a_log_with_a_torn_tail_is_mended(new_broker, create_topic):
    """Half a batch at the end of a segment is cut off at the start; what is before it stays, and writing goes on."""
    broker = new_broker()
    create_topic(broker, "torn", PARTITIONS)
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("torn", b"whole", partition=0)
    assert producer.flush(10) == 0
    broker.kill()
    segment = next(path for path in broker.data_dir.rglob("*.log") if path.parent.name == "torn-0")
    with segment.open("ab") as file:
        file.write(segment.read_bytes()[:40])
    broker.start()
    producer = Producer({"bootstrap.servers": broker.address})
    producer.produce("torn", b"after", partition=0)
    assert producer.flush(10) == 0
    assert read_all(broker, "torn") == {(0, 0): b"whole", (0, 1): b"after"}


def test_quotas_and_topics_survive_a_kill(new_broker, create_topic):
    """What was set over the wire holds at once, and again after `kill -9` and a new start."""
    broker = new_broker()
    create_topic(broker, "kept", 2)

    def throttle_ms():
        with PlainClient(broker.port, "loader") as client:
            client.send_produce("kept", value_bytes=20_000)
            return client.receive_produce().throttle_time_ms

    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": "loader"}, {"producer_byte_rate": 1500.0})
    before_ms = throttle_ms()
    assert before_ms > 0
    broker.kill()
    broker.start()
    assert throttle_ms() == before_ms
    topics = AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=10).topics
    assert len(topics["kept"].partitions) == 2


def test_a_deleted_topic_stays_deleted(new_broker, create_topic):
    """A topic deleted before a stop is not there after the next start, nor are its files."""
    broker = new_broker()
    create_topic(broker, "gone", 1)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics(["gone"])["gone"].result(timeout=10)
    broker.stop()
    broker.start()
    assert "gone" not in AdminClient({"bootstrap.servers": broker.address}).list_topics(timeout=10).topics
    assert not [path for path in broker.data_dir.rglob("gone-0*") if path.is_file()]
