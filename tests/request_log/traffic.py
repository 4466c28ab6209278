"""The traffic of a sample log: some clients of each kind, without quotas and with, and what they counted themselves."""

import random
import socket
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Producer
from kafka import KafkaProducer
from kafka.protocol.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kafka.protocol.consumer import FetchRequest, FetchResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka.record import MemoryRecordsBuilder
from tests.e2e.plain_client import TIMEOUT_S, PlainClient, receive_frame
from tests.request_log.brokers import LoggingKafka

RANDOM_SEED = 22
_STRICT_CREATE, _STRICT_DELETE, _STRICT_EXTEND = 6, 5, 3
_NO_ERROR = 0


@dataclass
class Counted:
    """What one plain client counted: requests, bytes of Produce requests and Fetch answers, throttle times."""

    requests: int = 0
    produce_bytes: int = 0
    fetch_bytes: int = 0
    throttle_ms: int = 0


@dataclass
class Truth:
    """What is known of a log from elsewhere than the log."""

    version: str
    zookeeper: bool
    clients: dict[str, Counted] = field(default_factory=lambda: defaultdict(Counted))
    quotas: list[dict[str, Any]] = field(default_factory=list)
    mutations: list[dict[str, Any]] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)


class CountingClient(PlainClient):
    """A plain client that logs in where it has a user, on IPv6 where told, and counts."""

    def __init__(
        self, kafka: LoggingKafka, truth: Truth, client_id: str, *, user: str | None = None, six: bool = False
    ) -> None:
        self.client_id = client_id
        listener = "six" if six else "login" if user else "plain"
        host = "::1" if six else "127.0.0.1"
        self.socket = socket.create_connection((host, kafka.ports[listener]), timeout=TIMEOUT_S)
        self._correlation_id = 0
        self.counted = truth.clients[client_id]
        if user is not None:
            self.ask(SaslHandshakeRequest[1](mechanism="PLAIN"), SaslHandshakeResponse[1])
            secret = f"\0{user}\0{user}".encode()
            answer = self.ask(SaslAuthenticateRequest[1](auth_bytes=secret), SaslAuthenticateResponse[1])
            assert answer.error_code == _NO_ERROR, answer

    def call(self, request: Any, response_class: Any) -> Any:
        """Send `request`, count it and its answer, and return the answer."""
        size = self.send(request)
        frame = receive_frame(self.socket)
        answer = response_class.decode(frame, header=True)
        self.counted.requests += 1
        self.counted.throttle_ms += getattr(answer, "throttle_time_ms", 0) or 0
        if isinstance(request, ProduceRequest):
            self.counted.produce_bytes += size
        if isinstance(request, FetchRequest):
            self.counted.fetch_bytes += len(frame)
        return answer

    def produce(self, topic: str, value_bytes: int, *, version: int = 8, acks: int = 1) -> None:
        """Send one record to partition 0, in a batch of the format that the version has."""
        magic = 2 if version > 2 else 1 if version == 2 else 0
        builder = MemoryRecordsBuilder(magic=magic, compression_type=0, batch_size=1 << 24)
        builder.append(timestamp=time.time_ns() // 1_000_000, key=None, value=bytes(value_bytes))
        builder.close()
        part = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=builder.buffer())
        data = [ProduceRequest.TopicProduceData(name=topic, partition_data=[part])]
        request = ProduceRequest[version](
            transactional_id=None, acks=acks, timeout_ms=10_000, topic_data=data
        )
        if acks:
            answer = self.call(request, ProduceResponse[version])
            assert answer.responses[0].partition_responses[0].error_code == _NO_ERROR, answer
        else:
            self.counted.produce_bytes += self.send(request)
            self.counted.requests += 1

    def fetch(self, topic: str, *, version: int, offset: int = 0, max_bytes: int = 50_000) -> None:
        """Fetch once from partition 0."""
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
            log_start_offset=-1, partition_max_bytes=max_bytes,
        )  # fmt: skip
        request = FetchRequest[version](
            replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=max_bytes, isolation_level=0, session_id=0,
            session_epoch=-1, topics=[FetchRequest.FetchTopic(topic=topic, partitions=[partition])],
            forgotten_topics_data=[], rack_id="",
        )  # fmt: skip
        self.call(request, FetchResponse[version])

    def create(self, topics: dict[str, int], *, version: int, validate_only: bool = False) -> Any:
        """Create topics with so many partitions."""
        request = CreateTopicsRequest[version](
            topics=[
                CreateTopicsRequest.CreatableTopic(
                    name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
                )
                for name, count in topics.items()
            ],
            timeout_ms=10_000, validate_only=validate_only,
        )  # fmt: skip
        return self.call(request, CreateTopicsResponse[version])

    def delete(self, names: list[str], *, version: int) -> Any:
        """Delete topics by name."""
        if version > 5:
            topics = [DeleteTopicsRequest.DeleteTopicState(name=n, topic_id=uuid.UUID(int=0)) for n in names]
            request = DeleteTopicsRequest[version](topics=topics, timeout_ms=10_000)
        else:
            request = DeleteTopicsRequest[version](topic_names=names, timeout_ms=10_000)
        return self.call(request, DeleteTopicsResponse[version])

    def extend(self, counts: dict[str, int], *, version: int) -> Any:
        """Add partitions to topics, up to so many."""
        request = CreatePartitionsRequest[version](
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                for name, count in counts.items()
            ],
            timeout_ms=10_000, validate_only=False,
        )  # fmt: skip
        return self.call(request, CreatePartitionsResponse[version])

    def metadata(self, version: int = 5) -> None:
        """Ask for all topics."""
        request = MetadataRequest[version](topics=None, allow_auto_topic_creation=False)
        self.call(request, MetadataResponse[version])


def run_traffic(
    kafka: LoggingKafka, *, old_clients: bool, mutation_rounds: int = 10, mutation_rate: float = 2.0
) -> Truth:
    """Run all clients and return what they counted.

    old_clients: speak versions that 4.0 removed, too; mutation_rate: the quota of the client that makes mutations.
    """
    truth = Truth(kafka.version, kafka.zookeeper)
    with CountingClient(kafka, truth, "setup") as setup:
        setup.create({"orders": 3, "bulk": 1, "old": 1}, version=5)
        setup.metadata()
        truth.topics = ["orders", "bulk", "old"]
        _libraries(kafka)
        _plain(kafka, truth)
        if old_clients:
            _old(kafka, truth)
        _set_quotas(setup, truth, mutation_rate)
        _throttled(kafka, truth)
        _mutations(kafka, truth, mutation_rounds, 4.0 / mutation_rate)
        setup.metadata()
    return truth


def _libraries(kafka: LoggingKafka) -> None:
    """Produce, read in a group and run a transaction with librdkafka; produce with kafka-python."""
    servers = f"127.0.0.1:{kafka.ports['plain']}"
    producer = Producer({"bootstrap.servers": servers, "client.id": "orders-svc", "linger.ms": 5})
    for number in range(200):
        producer.produce("orders", bytes(400), key=str(number))
        producer.poll(0.005)
    producer.flush(30)
    transactions = Producer(
        {"bootstrap.servers": servers, "client.id": "payments", "transactional.id": "payments-1"}
    )
    transactions.init_transactions(30)
    for _ in range(3):
        transactions.begin_transaction()
        transactions.produce("orders", b"paid")
        transactions.commit_transaction(30)
    consumer = Consumer(
        {"bootstrap.servers": servers, "client.id": "etl", "group.id": "etl", "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["orders"])
    seen = 0
    until_s = time.monotonic() + 30
    while seen < 200 and time.monotonic() < until_s:
        seen += sum(message.error() is None for message in consumer.consume(50, 0.5))
        if seen:
            consumer.commit(asynchronous=False)
    consumer.close()
    python = KafkaProducer(bootstrap_servers=servers, client_id="kp", linger_ms=5)
    for _ in range(50):
        python.send("orders", bytes(300))
    python.flush(30)
    python.close()


def _plain(kafka: LoggingKafka, truth: Truth) -> None:
    with CountingClient(kafka, truth, "fire") as fire:
        for _ in range(20):
            fire.produce("orders", 200, acks=0)
        fire.metadata()
    with CountingClient(kafka, truth, "six-é", six=True) as six:
        for version in range(3, 9):
            six.produce("bulk", 1000, version=version)
        for version in range(4, 13):
            six.fetch("bulk", version=version)
    with CountingClient(kafka, truth, "bulk-loader", user="alice") as loader:
        for _ in range(40):
            loader.produce("bulk", 10_000)


def _old(kafka: LoggingKafka, truth: Truth) -> None:
    with CountingClient(kafka, truth, "old") as old:
        for version in range(3):
            old.produce("old", 500, version=version)
        for version in range(4):
            old.fetch("old", version=version)
        for version in range(2):
            old.create({f"old-{version}": 2}, version=version)
        old.delete(["old-0", "old-1"], version=0)


def _set_quotas(setup: CountingClient, truth: Truth, mutation_rate: float) -> None:
    for entity, key, value in (
        ({"user": "alice"}, "producer_byte_rate", 20_000.0),
        ({"client-id": "view"}, "consumer_byte_rate", 30_000.0),
        ({"user": "bob"}, "controller_mutation_rate", mutation_rate),
    ):
        setup.alter_quotas(dict(entity), {key: value})
        setup.counted.requests += 1
        truth.quotas.append({"entity": entity, "key": key, "value": value})
    time.sleep(1)  # until the broker has them


def _throttled(kafka: LoggingKafka, truth: Truth) -> None:
    with CountingClient(kafka, truth, "bulk-loader", user="alice") as loader:
        for _ in range(35):
            loader.produce("bulk", 10_000)
    with CountingClient(kafka, truth, "view") as view:
        for number in range(25):
            view.fetch("bulk", version=11, offset=number * 2)


def _mutations(kafka: LoggingKafka, truth: Truth, rounds: int, pause_s: float) -> None:
    """Create, extend and delete topics, strictly and not, some of them in vain. pause_s: longest wait between them."""
    rng = random.Random(RANDOM_SEED)
    made: dict[str, int] = {}
    with CountingClient(kafka, truth, "admin-tool", user="bob") as tool:
        for number in range(rounds):
            strict = rng.random() < 0.7
            wanted = {f"t{number}-{place}": rng.randint(1, 6) for place in range(rng.randint(1, 8))}
            wanted |= dict.fromkeys(list(made)[:1], 1)  # is there already
            answer = tool.create(
                wanted,
                version=_STRICT_CREATE + rng.randint(0, 1) if strict else 5,
                validate_only=rng.random() < 0.15,
            )
            _note(
                truth, "CreateTopics", list(wanted), answer, ((t.name, t.error_code) for t in answer.topics)
            )
            made |= {t.name: wanted[t.name] for t in answer.topics if t.error_code == _NO_ERROR}
            tool.metadata()
            time.sleep(rng.random() * pause_s)
            if made and rng.random() < 0.5:
                names = rng.sample(sorted(made), min(len(made), 3))
                answer = tool.extend(
                    {n: made[n] + rng.randint(0, 3) for n in names}, version=_STRICT_EXTEND if strict else 1
                )
                _note(
                    truth, "CreatePartitions", names, answer, ((t.name, t.error_code) for t in answer.results)
                )
                tool.metadata()
            names = [*rng.sample(sorted(made), rng.randint(0, len(made))), "unknown"]
            rng.shuffle(names)
            answer = tool.delete(names, version=_STRICT_DELETE + rng.randint(0, 1) if strict else 4)
            _note(truth, "DeleteTopics", names, answer, ((t.name, t.error_code) for t in answer.responses))
            for topic in answer.responses:
                if topic.error_code == _NO_ERROR:
                    made.pop(topic.name, None)
            time.sleep(rng.random() * pause_s)


def _note(truth: Truth, api: str, asked: list[str], answer: Any, errors: Any) -> None:
    truth.mutations.append(
        {
            "api": api,
            "asked": asked,
            "answered": [list(pair) for pair in errors],
            "throttle_ms": answer.throttle_time_ms,
        }
    )
