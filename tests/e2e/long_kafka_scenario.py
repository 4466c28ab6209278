"""The scenario of Apache Kafka's own system test of quotas, against `tidegate serve` and a real Kafka side by side.

50,000 records of 3,000 bytes are produced and then consumed, under the quota of a default entity or of a named one,
while other levels and names have a quota of 1 GB/s that must not count. Of what each broker takes and gives, the
one-minute rate (B§12.2), taken every five seconds, is at most 1.05 times the quota, and all records come back.

Follows: `tests/kafkatest/tests/client/quota_test.py`. Differs: users log in by SASL, there by certificates; where there
bytes are counted by the broker's meters, here by the partitions' ends and at the consumers; consumers are assigned to
their partitions. Its clients before 2.0, which mind no throttle times, are librdkafka here.
"""

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bench.ladder.brokers import BenchBroker, KafkaBench, TidegateBench, machine
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.clients.programs import PLAIN, Login
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS
from tidegate.server.metrics.meters import TICK_S, Meter

pytestmark = pytest.mark.java

RECORDS, RECORD_BYTES = 50_000, 3000
USER, ADMIN = "quota_user", "admin"
LOGINS = {
    name: Login(protocol="SASL_PLAINTEXT", mechanism="PLAIN", user=name, password=name)
    for name in (USER, ADMIN)
}
_USERS = " ".join(f'user_{name}="{name}"' for name in LOGINS)
SETTINGS = (
    "sasl.enabled.mechanisms=PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config="
    f'{PLAIN} required username="{ADMIN}" password="{ADMIN}" {_USERS};',
)
OF_KAFKA = (
    "sasl.mechanism.inter.broker.protocol=PLAIN",
    "inter.broker.listener.name=SASL_PLAINTEXT",
    "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
)
OF_TIDEGATE = ("listeners=SASL_PLAINTEXT://127.0.0.1:0",)
DEFAULT_QUOTAS = (2_500_000.0, 2_000_000.0)  # of producers and consumers, bytes per second
OVERRIDDEN_QUOTAS = (3_750_000.0, 3_000_000.0)
LARGE_QUOTAS = (1e9, 1e9)
BROKER_DEVIATION = 1.05
TIMEOUT_S = 240.0
JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
Entity = dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Whose quota it is, and the decoys: None as name is the default entity."""

    client_id: str
    limited: Entity
    quotas: tuple[float, float]
    large: tuple[Entity, ...]


SCENARIOS = {
    "client-id": Scenario(
        client_id="overridden_id",
        limited={"client-id": "overridden_id"},
        quotas=OVERRIDDEN_QUOTAS,
        large=({"client-id": None},),
    ),
    "default-client-id": Scenario(
        client_id="default_id",
        limited={"client-id": None},
        quotas=DEFAULT_QUOTAS,
        large=({"client-id": "overridden_id"},),
    ),
    "user": Scenario(
        client_id="some_id",
        limited={"user": USER},
        quotas=OVERRIDDEN_QUOTAS,
        large=({"user": None}, {"client-id": "some_id"}),
    ),
    "default-user": Scenario(
        client_id="some_id", limited={"user": None}, quotas=DEFAULT_QUOTAS, large=({"client-id": None},)
    ),
    "user-and-client-id": Scenario(
        client_id="overridden_id",
        limited={"user": USER, "client-id": "overridden_id"},
        quotas=OVERRIDDEN_QUOTAS,
        large=({"user": USER, "client-id": None}, {"user": None}, {"client-id": "overridden_id"}),
    ),
    "default-user-and-client-id": Scenario(
        client_id="default_id",
        limited={"user": None, "client-id": None},
        quotas=DEFAULT_QUOTAS,
        large=({"user": None}, {"client-id": None}),
    ),
}


@dataclass(slots=True)
class Count:
    """How many records were seen by when: (monotonic seconds, records in all)."""

    begun_at: float = field(default_factory=time.monotonic)
    seen: list[tuple[float, int]] = field(default_factory=list)

    def note(self, records: int) -> None:
        """Take it that there are so many by now."""
        self.seen.append((time.monotonic(), records))

    @property
    def records(self) -> int:
        """Return how many there are."""
        return self.seen[-1][1] if self.seen else 0

    @property
    def seconds(self) -> float:
        """Return the time from the first record to the last."""
        first = next(at for at, records in self.seen if records)
        last = next(at for at, records in self.seen if records == self.records)
        return last - first

    def by_second(self) -> list[int]:
        """Return how many bytes came in each second since the first record."""
        first = next(at for at, records in self.seen if records)
        ends = [0] * (int(self.seconds) + 2)
        for at, records in self.seen:
            if at >= first:
                ends[min(int(at - first) + 1, len(ends) - 1)] = records * RECORD_BYTES
        ends = list(itertools.accumulate(ends, max))
        return [after - before for before, after in itertools.pairwise(ends)]

    def highest_one_minute_rate(self) -> float:
        """Return that of a meter which was idle before, in bytes per second."""
        meter, highest = Meter(now_ns=0), 0.0
        meter.tick(0)
        for tick in itertools.count(1):
            at = self.begun_at + tick * TICK_S
            records = max((records for seen_at, records in self.seen if seen_at <= at), default=0)
            meter.tick(records * RECORD_BYTES)
            highest = max(highest, meter.per_unit()[0])
            if at > self.seen[-1][0]:
                return highest
        raise AssertionError


class JavaClients:
    """Kafka's kafka-producer-perf-test and kafka-console-consumer, which wait as long as answers say."""

    partitions = 1  # kafka-console-consumer is assigned to one: no rebalance is in what is measured

    def __init__(self, classpath: str, directory: Path) -> None:
        self._java = (*JVM, "-cp", classpath)
        self._login = directory / "login.properties"
        lines = (f"{key}={value}\n" for key, value in LOGINS[USER].java().items())
        self._login.write_text("".join(lines))

    def produce(self, address: str, topic: str, client_id: str) -> None:
        """Produce all records as fast as the quota lets."""
        done = subprocess.run(
            [
                *(*self._java, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic),
                *("--num-records", str(RECORDS), "--record-size", str(RECORD_BYTES), "--throughput", "-1"),
                *("--bootstrap-server", address, "--command-property", f"client.id={client_id}"),
                *("--command-config", str(self._login)),
            ],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert f"\n{RECORDS} records sent" in done.stdout, done.stdout + done.stderr

    def consume(self, address: str, topic: str, client_id: str, count: Count) -> None:
        """Consume all records: lines of a record and its end."""
        with subprocess.Popen(
            [
                *(*self._java, "org.apache.kafka.tools.consumer.ConsoleConsumer", "--topic", topic),
                *("--partition", "0", "--offset", "earliest", "--max-messages", str(RECORDS)),
                *("--timeout-ms", "60000", "--bootstrap-server", address),
                *("--command-property", f"client.id={client_id}", "--command-config", str(self._login)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            got = 0
            while part := process.stdout.read1(1 << 20):
                got += len(part)
                count.note(got // (RECORD_BYTES + 1))
            assert process.wait() == 0
            assert got == RECORDS * (RECORD_BYTES + 1)


class Librdkafka:
    """confluent-kafka's, which send on whatever answers say: a producer, and two consumers that share the quota."""

    partitions = 6
    consumers = 2

    def produce(self, address: str, topic: str, client_id: str) -> None:
        """Produce all records as fast as the quota lets."""
        producer = Producer(
            {
                "bootstrap.servers": address,
                "client.id": client_id,
                "linger.ms": 5,
                **LOGINS[USER].librdkafka(),
            }
        )
        failed = []
        for number in range(RECORDS):
            while True:
                try:
                    producer.produce(
                        topic,
                        bytes(RECORD_BYTES),
                        partition=number % self.partitions,
                        on_delivery=lambda error, _: error is not None and failed.append(error),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed, failed[0]

    def consume(self, address: str, topic: str, client_id: str, count: Count) -> None:
        """Consume all records."""
        got = itertools.count(1)

        def consume_share(partitions: range) -> None:
            settings = {"bootstrap.servers": address, "client.id": client_id, "group.id": "unused"}
            settings |= LOGINS[USER].librdkafka()
            with closing(Consumer({**settings, "enable.auto.commit": False})) as consumer:
                consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
                while count.records < RECORDS:
                    for message in consumer.consume(1000, timeout=1.0):
                        assert message.error() is None, message.error()
                        assert len(message.value()) == RECORD_BYTES
                        count.note(next(got))

        with ThreadPoolExecutor(self.consumers) as pool:
            shares = [range(first, self.partitions, self.consumers) for first in range(self.consumers)]
            list(pool.map(consume_share, shares))


@pytest.fixture(scope="module")
def beside_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BenchBroker]]:
    """Return "kafka", a real Apache Kafka, and "tidegate", `tidegate serve`, both running, both with logins."""
    directory = tmp_path_factory.mktemp("beside-kafka")
    kafka = KafkaBench(
        "kafka", directory / "kafka", overrides=(*SETTINGS, *OF_KAFKA), listener="SASL_PLAINTEXT"
    )
    tidegate = TidegateBench("tidegate", directory / "tidegate", overrides=(*SETTINGS, *OF_TIDEGATE))
    brokers: dict[str, BenchBroker] = {"kafka": kafka, "tidegate": tidegate}
    try:
        for own in brokers.values():
            own.start()
        yield brokers
    finally:
        for own in brokers.values():
            own.stop()


@pytest.fixture
def limited(beside_kafka: dict[str, BenchBroker]) -> Iterator[Callable[[Scenario], None]]:
    """Return a function that sets the quotas of a scenario at both brokers; they are removed afterwards."""
    entities: list[Entity] = []

    def alter(entity: Entity, producer: float | None, consumer: float | None) -> None:
        for broker in beside_kafka.values():
            alter_quotas(broker, entity, {"producer_byte_rate": producer, "consumer_byte_rate": consumer})

    def limit(scenario: Scenario) -> None:
        for entity, quotas in (
            (scenario.limited, scenario.quotas),
            *((entity, LARGE_QUOTAS) for entity in scenario.large),
        ):
            entities.append(entity)
            alter(entity, *quotas)

    yield limit
    for entity in entities:
        alter(entity, None, None)


def alter_quotas(broker: BenchBroker, entity: Entity, quotas: dict[str, float | None]) -> None:
    """Set quotas, or remove them where they are None."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()
        ],
    }
    message = {"entries": [entry], "validate_only": False}
    answer = ask(("127.0.0.1", broker.port), ALTER_CLIENT_QUOTAS, 1, message, login=(ADMIN, ADMIN))
    assert [each["error_code"] for each in answer["entries"]] == [0], answer


@pytest.mark.parametrize("level", SCENARIOS)
def test_kafkas_system_test_with_its_own_clients(beside_kafka, limited, kafka_classpath, tmp_path, level):
    """Kafka's tools get all records through, at no more than the quota of each level."""
    limited(SCENARIOS[level])
    topic = create_topics(beside_kafka, f"java-{level}", JavaClients.partitions)
    compare(beside_kafka, JavaClients(kafka_classpath, tmp_path), topic, level)


def test_kafkas_system_test_with_clients_that_send_on(beside_kafka, limited):
    """Two consumers share the quota of their client id, and nobody minds throttle times."""
    limited(SCENARIOS["client-id"])
    topic = create_topics(beside_kafka, "librdkafka", Librdkafka.partitions)
    compare(beside_kafka, Librdkafka(), topic, "client-id")


def create_topics(brokers: dict[str, BenchBroker], topic: str, partitions: int) -> str:
    """Create a topic at both brokers."""
    for broker in brokers.values():
        admin = AdminClient({"bootstrap.servers": broker.address, **LOGINS[ADMIN].librdkafka()})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=10)
    return topic


def compare(
    brokers: dict[str, BenchBroker], clients: JavaClients | Librdkafka, topic: str, level: str
) -> None:
    """Run the scenario at both brokers at the same time, print what was measured, and hold both to it."""
    scenario = SCENARIOS[level]

    def run(broker: BenchBroker) -> tuple[Count, Count]:
        with watched_ends(broker, topic, clients.partitions) as produced:
            clients.produce(broker.address, topic, scenario.client_id)
        consumed = Count()
        clients.consume(broker.address, topic, scenario.client_id, consumed)
        return produced, consumed

    with ThreadPoolExecutor(len(brokers)) as pool:
        counts = dict(zip(brokers, pool.map(run, brokers.values()), strict=True))

    print(f"\n{type(clients).__name__}, {level}: {machine()}")
    for name, both in counts.items():
        for what, quota, count in zip(("produced", "consumed"), scenario.quotas, both, strict=True):
            highest = count.highest_one_minute_rate()
            print(
                f"{name:9} {what} {count.records:,} records in {count.seconds:.1f} s,"
                f" highest one-minute rate {highest:,.0f} of {quota:,.0f} bytes/s ({highest / quota:.3f}); quotas by"
                f" second: {' '.join(f'{amount / quota:.1f}' for amount in count.by_second())}"
            )
            assert count.records == RECORDS
            assert highest <= BROKER_DEVIATION * quota


@contextmanager
def watched_ends(broker: BenchBroker, topic: str, partitions: int) -> Iterator[Count]:
    """Count the records of a topic as they come."""
    count, ended = Count(), threading.Event()
    everything = [TopicPartition(topic, number) for number in range(partitions)]

    def watch() -> None:
        settings = {"bootstrap.servers": broker.address, "client.id": "watcher", "group.id": "watcher"}
        settings |= LOGINS[ADMIN].librdkafka()
        with closing(Consumer(settings)) as consumer:
            is_last = False
            while not is_last:
                is_last = ended.wait(0.1)
                try:
                    count.note(sum(consumer.get_watermark_offsets(one, timeout=30)[1] for one in everything))
                except KafkaException as error:  # Kafka's answer for a topic just made
                    if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                        raise

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            yield count
        finally:
            ended.set()
        watching.result()
