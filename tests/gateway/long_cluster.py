"""A gateway before three brokers: brokers that are killed and return, one that joins, one that leaves.

Acknowledged records are all there, each once (the producer is idempotent), and a group consumes through the gateway.
"""

import contextlib
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.kafka_cluster import KafkaCluster
from tests.gateway.raw_client import RawClient, produced
from tests.gateway.test_usage import requests_of
from tests.waiting import wait_until

from tidegate.api_keys import PRODUCE
from tidegate.error_codes import THROTTLING_QUOTA_EXCEEDED

ROUNDS = 3
MOST_WAITING = 50_000
TOPIC = "moving"
MUTATION_RATE = 1.0
MUTATION_BURST = 11  # of eleven windows of a second
HUNG, OTHER = 2, 1
HUNG_S = 20.0  # the cluster no longer names a broker after 6 s, and the gateway learns it within 5 s
NEIGHBOUR_S = 2.0
LARGE, LARGE_EACH, LARGE_BYTES = 20, 8, 900_000
MOST_GROWTH_MB = 2 * LARGE * LARGE_BYTES / 1e6  # a request of each connection, and what the allocator holds
WAITING_BYTES, LEAVING_BYTES = 1000, 2000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Return a running cluster of three brokers."""
    own = KafkaCluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield own.start()
    finally:
        own.close()


@pytest.fixture(scope="module")
def gateway(cluster, tmp_path_factory) -> Iterator[GatewayProcess]:
    """Return a gateway before the cluster."""
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"), cluster.address).start()
    yield process
    process.close()


class Load:
    """A producer that goes on until it is stopped; `acknowledged` are the numbers that were."""

    def __init__(self, address: str, topic: str) -> None:
        self.topic = topic
        self.acknowledged: set[int] = set()
        self.failed: list[str] = []
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "topic.metadata.refresh.interval.ms": 1_000,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(150)
        assert not self._thread.is_alive()

    def wait_acknowledged(self) -> None:
        """Wait until another record was acknowledged."""
        before = len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > before, 60, told=lambda: self.failed[:1])

    def _run(self) -> None:
        number = 0
        while not self._stopped.is_set():
            if len(self._producer) < MOST_WAITING:
                for _ in range(100):
                    self._producer.produce(self.topic, str(number), on_delivery=self._on_delivery)
                    number += 1
            self._producer.poll(0.02)
        assert self._producer.flush(120) == 0

    def _on_delivery(self, error, message) -> None:
        if error is None:
            self.acknowledged.add(int(message.value()))
        else:
            self.failed.append(str(error))


def refuses(port: int) -> bool:
    """Return whether connections to a port are refused, as where no broker listens."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


def consumed(address: str, topic: str, wanted: int) -> Counter[int]:
    """Return how often each number is in a topic, as a group sees it."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: Counter[int] = Counter()
    quiet_since = time.monotonic()
    while (
        found.total() < wanted or time.monotonic() - quiet_since < 3
    ) and time.monotonic() - quiet_since < 60:
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                found[int(message.value())] += 1
                quiet_since = time.monotonic()
    consumer.close()
    return found


def created_before_a_refusal(ports: list[int], client_id: str) -> int:
    """Create topics of one partition at each port in turn; return how many were created before error 89."""
    for number in range(10_000):
        with RawClient(ports[number % len(ports)], client_id) as client:
            answer = client.create_topics((f"{client_id}-{number}", 1))
        if answer["topics"][0]["error_code"]:
            assert answer["topics"][0]["error_code"] == THROTTLING_QUOTA_EXCEEDED
            return number
    raise AssertionError("nothing is refused")


def test_mutations_are_counted_as_by_the_controller(cluster, gateway):
    """A client that spreads its requests over all brokers has its limit once, directly and through the gateway."""
    created = {}
    for way, ports in (("direct", cluster.ports), ("gateway", gateway.ports)):
        own_ports = [ports[broker_id] for broker_id in (1, 2, 3)]
        with RawClient(own_ports[0], "admin") as admin:
            admin.set_quotas(way, controller_mutation_rate=MUTATION_RATE)
        time.sleep(1.0)  # until the controller of Kafka has it
        begun_s = time.monotonic()
        created[way] = created_before_a_refusal(own_ports, way)
        most = MUTATION_BURST + MUTATION_RATE * (time.monotonic() - begun_s) + 1
        assert MUTATION_BURST <= created[way] <= most, created


def sizes_of(address: str, topic: str) -> Counter[int]:
    """Return how often a record of each size is in partition 0 of a topic."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": topic})
    place = TopicPartition(topic, 0, OFFSET_BEGINNING)
    end = consumer.get_watermark_offsets(place, timeout=30)[1]
    consumer.assign([place])
    found = Counter(len(message.value()) for message in consumer.consume(end, 30))
    consumer.close()
    return found


def send_until_closed(client: RawClient, topic: str) -> None:
    """Send large requests one after the other, without waiting for responses."""
    with contextlib.suppress(OSError):
        for _ in range(LARGE_EACH):
            client.send(PRODUCE, 9, produced(topic, LARGE_BYTES))


def test_a_broker_that_hangs_holds_back_its_clients_alone(cluster, gateway):
    """It is stopped and goes on later: what it has got is stored once and charged once, as without a gateway.

    Meanwhile memory stays bounded, and clients of another broker do not wait. An idempotent producer moves its records
    to other brokers, and none is lost or doubled.
    """
    moved, hung, other = "moved", "hung", "other"
    admin = AdminClient({"bootstrap.servers": gateway.addresses})
    config = {"min.insync.replicas": "1"}
    topics = [
        NewTopic(moved, 6, 3, config=config),
        NewTopic(hung, 1, replica_assignment=[[HUNG]]),
        NewTopic(other, 1, replica_assignment=[[OTHER]]),
    ]
    for future in admin.create_topics(topics).values():
        future.result(60)
    ways = {"direct": cluster.ports, "gateway": gateway.ports}
    with ExitStack() as stack:
        load = stack.enter_context(Load(gateway.addresses, moved))
        load.wait_acknowledged()

        def connected(way: str, client_id: str, broker_id: int) -> RawClient:
            client = stack.enter_context(RawClient(ways[way][broker_id], client_id))
            client.topic_ids(hung)
            return client

        waiting = {way: connected(way, f"waits {way}", HUNG) for way in ways}
        leaving = {way: connected(way, f"leaves {way}", HUNG) for way in ways}
        large = [connected("gateway", "large", HUNG) for _ in range(LARGE)]
        neighbour = connected("gateway", "neighbour", OTHER)
        before_mb = gateway.resident_mb()
        cluster.processes[HUNG].send_signal(signal.SIGSTOP)
        stack.callback(cluster.processes[HUNG].send_signal, signal.SIGCONT)
        sent: dict[str, int] = {}
        for number, way in enumerate(ways):
            for size, client in ((WAITING_BYTES, waiting[way]), (LEAVING_BYTES, leaving[way])):
                sent[client.client_id] = client.send(PRODUCE, 9, produced(hung, size + number))
            leaving[way].socket.close()
        for client in large:
            threading.Thread(target=send_until_closed, args=(client, hung), daemon=True).start()
        until_s, longest_s = time.monotonic() + HUNG_S, 0.0
        while (begun_s := time.monotonic()) < until_s:
            neighbour.produce(other, 100)
            longest_s = max(longest_s, time.monotonic() - begun_s)
            time.sleep(0.02)
        assert longest_s < NEIGHBOUR_S
        assert gateway.resident_mb() - before_mb < MOST_GROWTH_MB
        assert refuses(gateway.ports[HUNG])
        load.wait_acknowledged()
        cluster.processes[HUNG].send_signal(signal.SIGCONT)
        for client in waiting.values():
            (answer,) = client.receive()["responses"]
            assert answer["partition_responses"][0]["error_code"] == 0
        cluster.await_brokers({1, 2, 3})
        wait_until(lambda: not refuses(gateway.ports[HUNG]), 30)
        load.wait_acknowledged()
    assert not load.failed, load.failed[0]
    found = consumed(gateway.addresses, moved, len(load.acknowledged))
    assert load.acknowledged <= set(found)
    assert set(found.values()) == {1}
    assert {size: count for size, count in sizes_of(cluster.address, hung).items() if size < LARGE_BYTES} == {
        size + number: 1 for size in (WAITING_BYTES, LEAVING_BYTES) for number in range(len(ways))
    }
    charged = requests_of(gateway.usage_dir, PRODUCE)
    for client_id in ("waits gateway", "leaves gateway"):
        assert [row[1] for row in charged if row[0] == client_id] == [sent[client_id]]
    assert "Traceback" not in gateway.log


def test_brokers_that_fail_return_join_and_leave(cluster, gateway):
    """No acknowledged record is lost or doubled, and clients find every broker at the gateway."""
    admin = AdminClient({"bootstrap.servers": gateway.addresses})
    config = {"min.insync.replicas": "1"}
    admin.create_topics([NewTopic(TOPIC, 6, 3, config=config)])[TOPIC].result(60)
    with Load(gateway.addresses, TOPIC) as load:
        load.wait_acknowledged()
        for round_number in range(ROUNDS):
            victim = 1 + round_number % 3
            port = gateway.ports[victim]
            cluster.kill(victim)
            cluster.await_brokers({1, 2, 3} - {victim})  # others lead its partitions then
            wait_until(lambda port=port: refuses(port))
            load.wait_acknowledged()
            cluster.run(victim)
            cluster.await_brokers({1, 2, 3})
            wait_until(lambda port=port: not refuses(port))
            load.wait_acknowledged()
        cluster.add(4)
        wait_until(lambda: "serving broker 4, which joined" in gateway.log, told=lambda: gateway.log)
        brokers = AdminClient({"bootstrap.servers": gateway.addresses}).list_topics(timeout=30).brokers
        assert {each.id: each.port for each in brokers.values()} == {
            broker_id: gateway.base_port + broker_id for broker_id in (1, 2, 3, 4)
        }
        cluster.stop(4)
        cluster.await_brokers({1, 2, 3})
        load.wait_acknowledged()
    assert load.acknowledged
    assert not load.failed
    found = consumed(gateway.addresses, TOPIC, len(load.acknowledged))
    assert load.acknowledged <= found.keys()
    assert {number for number, times in found.items() if times > 1} == set()
    assert "Traceback" not in gateway.log
