"""What a forecast says of real clients under a limit, and what really became of them.

Each client has a process of its own and a piece of work: so many records of one size, one in 50 ms where nothing
holds it up. It is done without quotas and recorded; the record is replayed in closed loop under a share of each
client's rate; then the same work is really done under those quotas. The model's parameters are those of the code:
nothing is fitted. Behind the tables of all parts stands how many of the bars are met, of the median of the runs of each
share.
"""

import collections
import contextlib
import fcntl
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Partition
from tests.e2e.broker import Broker
from tests.e2e.clients.processes import processes_of
from tests.e2e.plain_client import PlainClient

from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import Plan
from tidegate.quota.admin.definitions import QuotaRecord

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

VALUE_BYTES = 50_000
THINK_S = 0.05
IN_FLIGHT = 5
RECORDS = {0.2: 500, 0.5: 900, 0.8: 1300}
"""By the limit's share of the rate: under it each takes more than a minute."""
RUNS = (1, 2, 3)
POINTS, FACTOR = 10.0, 1.5
"""What is asked of a forecast: the throttled share within so many points, delays within such a factor."""
JVM = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1")
PIPE_BYTES = 4096  # less than a record: the JVM waits for whoever reads

KEYS = {"produce": "producer_byte_rate", "fetch": "consumer_byte_rate"}
QUOTA_TYPES = {"produce": "Produce", "fetch": "Fetch"}


class Told(NamedTuple):
    """What became of a client, foretold or real: requests that were throttled, in percent; ms; how long it took."""

    throttled_percent: float
    total_ms: float
    longest_ms: float
    took_s: float

    def __str__(self) -> str:
        """Return the columns of a table."""
        delays = f"{self.total_ms:9,.0f} ms {self.longest_ms:7,.0f} ms"
        return f"{self.throttled_percent:5.1f} % {delays} {self.took_s:6.1f} s"


Outcomes = dict[tuple[float, str], list[tuple[Told, Told]]]
"""What was foretold and what was real, run by run, by share of the rate and client."""


class Recorded(NamedTuple):
    """The requests of a client in a record: their bytes and times."""

    charged_bytes: int
    first_ms: int
    last_ms: int
    throttles_ms: list[int]


class Work(NamedTuple):
    """A piece of work for each client: how many records, of how many bytes, one in so many seconds."""

    address: str
    classpath: str
    records: int
    value_bytes: int = VALUE_BYTES
    think_s: float = THINK_S

    def java(self, tool: str, name: str) -> list[str]:
        """Return the beginning of a command of Apache Kafka's: the topic is called as the client is."""
        command = [*JVM, "-cp", self.classpath, f"org.apache.kafka.tools.{tool}", "--topic", name]
        return [*command, "--bootstrap-server", self.address]


def produce_librdkafka(work: Work, name: str) -> None:
    """Produce the records with librdkafka, which sends on."""
    settings = {"batch.num.messages": 1, "linger.ms": 0, "max.in.flight": IN_FLIGHT}
    producer = Producer(
        {"bootstrap.servers": work.address, "client.id": name, "acks": 1, "queue.buffering.max.messages": 5}
        | settings
    )
    for _ in range(work.records):
        while True:
            try:
                producer.produce(name, bytes(work.value_bytes), partition=0)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
        time.sleep(work.think_s)
    assert producer.flush(120) == 0


def produce_java(work: Work, name: str) -> None:
    """Produce the records with kafka-producer-perf-test, which makes up for lost time; five wait in its buffer."""
    settings = {
        "client.id": name, "acks": 1, "batch.size": 1, "linger.ms": 0, "enable.idempotence": "false",
        "buffer.memory": IN_FLIGHT * (work.value_bytes + 1000),
    }  # fmt: skip
    properties = [f"{key}={value}" for key, value in settings.items()]
    command = [*work.java("ProducerPerformance", name), "--command-property", *properties]
    amount = ("--num-records", str(work.records), "--record-size", str(work.value_bytes))
    rate = ("--throughput", str(round(1 / work.think_s)))
    done = subprocess.run([*command, *amount, *rate], capture_output=True, text=True, check=False)
    assert f"\n{work.records} records sent" in f"\n{done.stdout}", done.stdout + done.stderr


def produce_kafka_python(work: Work, name: str) -> None:
    """Produce the records with kafka-python, which waits as long as answers say; five under way."""
    with contextlib.closing(
        KafkaProducer(
            bootstrap_servers=work.address, client_id=name, acks=1, batch_size=0, linger_ms=0,
            max_in_flight_requests_per_connection=IN_FLIGHT, enable_idempotence=False,
        )
    ) as producer:  # fmt: skip
        waiting = collections.deque()
        for _ in range(work.records):
            waiting.append(producer.send(name, bytes(work.value_bytes), partition=0))
            if len(waiting) > IN_FLIGHT:
                waiting.popleft().get(timeout=120)
            time.sleep(work.think_s)
        producer.flush(120)


def produce_one_by_one(work: Work, name: str) -> None:
    """Produce the records with kafka-python, and wait for each to be answered."""
    with contextlib.closing(
        KafkaProducer(bootstrap_servers=work.address, client_id=name, acks=1, batch_size=0, linger_ms=0)
    ) as producer:
        for _ in range(work.records):
            producer.send(name, bytes(work.value_bytes), partition=0).get(timeout=120)
            time.sleep(work.think_s)


def fetch_librdkafka(work: Work, name: str) -> None:
    """Consume the records with librdkafka, which asks again at once; a record a fetch."""
    consumer = Consumer(
        {
            "bootstrap.servers": work.address, "client.id": name, "group.id": name, "enable.auto.commit": False,
            "max.partition.fetch.bytes": 1, "queued.min.messages": 1, "fetch.queue.backoff.ms": 5,
        }
    )  # fmt: skip
    with contextlib.closing(consumer):
        consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        left = work.records
        while left:
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                left -= 1
                time.sleep(work.think_s)


def fetch_java(work: Work, name: str) -> None:
    """Consume the records with kafka-console-consumer, which writes them to whom reads slowly; a record a fetch."""
    command = work.java("consumer.ConsoleConsumer", name)
    for setting in (f"client.id={name}", "max.partition.fetch.bytes=1"):
        command += ["--command-property", setting]
    which = ("--partition", "0", "--offset", "earliest", "--max-messages", str(work.records))
    with subprocess.Popen(
        [*command, *which, "--timeout-ms", "60000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for _ in range(work.records):
            assert len(process.stdout.read(work.value_bytes + 1)) == work.value_bytes + 1
            time.sleep(work.think_s)
        assert process.wait(60) == 0


def fetch_kafka_python(work: Work, name: str) -> None:
    """Consume the records with kafka-python, which waits as long as answers say; a record a fetch."""
    with contextlib.closing(
        KafkaConsumer(
            bootstrap_servers=work.address, client_id=name, max_partition_fetch_bytes=1,
            auto_offset_reset="earliest", enable_auto_commit=False,
        )
    ) as consumer:  # fmt: skip
        consumer.assign([Partition(name, 0)])
        consumer.seek(Partition(name, 0), 0)
        left = work.records
        while left > 0:
            for records in consumer.poll(timeout_ms=1000).values():
                left -= len(records)
                time.sleep(work.think_s * len(records))


CLIENTS = {
    client.__name__: client
    for client in (
        produce_librdkafka,
        produce_java,
        produce_kafka_python,
        produce_one_by_one,
        fetch_librdkafka,
        fetch_java,
        fetch_kafka_python,
    )
}


@pytest.fixture(scope="module")
def outcomes() -> Iterator[Outcomes]:
    """Return where the parts put what was foretold and what was real; in the end it is added up."""
    found: Outcomes = {}
    yield found
    if not found:
        return
    single = [is_met for pairs in found.values() for pair in pairs for is_met in kept(*pair).values()]
    medians = {
        key: (median(foretold for foretold, _ in pairs), median(real for _, real in pairs))
        for key, pairs in found.items()
    }
    if len(single) > 3 * len(found):
        print("\nof the runs of each share, by the median of each number")
        print_table(medians)
        print(f"each run by itself: met {sum(single)} of {len(single)}")
    met_of = [is_met for pair in medians.values() for is_met in kept(*pair).values()]
    print(f"met {sum(met_of)} of {len(met_of)}")


@pytest.mark.parametrize("run", RUNS, ids="run{}".format)
@pytest.mark.parametrize("share", RECORDS)
def test_forecasts_beside_what_became_of_real_clients(
    new_broker: Callable[..., Broker],
    create_topic: Callable[..., str],
    kafka_classpath: str,
    share: float,
    run: int,
    outcomes: Outcomes,
) -> None:
    """Prints the table; every client does all its work, and is throttled where that was foretold."""
    work = Work(address="", classpath=kafka_classpath, records=RECORDS[share])
    free = new_broker()
    done(free, create_topic, {}, work)
    recorded = read(free.data_dir / "usage")
    limits = {
        name: float(round(share * client.charged_bytes * 1000 / (client.last_ms - client.first_ms)))
        for name, client in recorded.items()
    }
    foretold = forecasts(free.data_dir / "usage", limits, recorded)
    limited = new_broker()
    done(limited, create_topic, limits, work)
    real = {name: told(client) for name, client in read(limited.data_dir / "usage").items()}
    print(f"\nunder {share} of the rate, run {run}; {work.records:,} records of {VALUE_BYTES:,} bytes each")
    pairs = {(share, name): (foretold[name], real[name]) for name in CLIENTS}
    print_table(pairs)
    for key, pair in pairs.items():
        outcomes.setdefault(key, []).append(pair)
    assert all(foretold[name].total_ms > 0 and real[name].total_ms > 0 for name in CLIENTS)


def done(broker: Broker, create_topic: Callable[..., str], limits: dict[str, float], work: Work) -> None:
    """Have all clients do their work at once, under limits by client id, and stop the broker."""
    work = work._replace(address=broker.address)
    for name in CLIENTS:
        create_topic(broker, name)
    for name in CLIENTS:
        if api_of(name) == "fetch":
            fill(work, name)
    with PlainClient(broker.port, "admin") as admin:
        for name, limit in limits.items():
            admin.alter_quotas({"client-id": name}, {KEYS[api_of(name)]: limit})
    with processes_of(CLIENTS.values()) as pool:
        for future in [pool.submit(client, work, name) for name, client in CLIENTS.items()]:
            future.result()
    broker.stop()


def fill(work: Work, topic: str) -> None:
    """Write the records that a consumer is to read, a batch each."""
    producer = Producer(
        {"bootstrap.servers": work.address, "client.id": "filler", "batch.num.messages": 1, "linger.ms": 0}
    )
    for _ in range(work.records):
        producer.produce(topic, bytes(work.value_bytes), partition=0)
    assert producer.flush(60) == 0


def api_of(name: str) -> str:
    """Return `produce` or `fetch`."""
    return name.split("_")[0]


def read(usage: Path) -> dict[str, Recorded]:
    """Return what a record has of the requests of each client that are charged bytes."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in CLIENTS}
    columns = [
        "kind",
        "client_id",
        "ts_ms",
        *(f"{api}_{of}" for api in KEYS for of in ("bytes", "throttle_ms")),
    ]
    with open_usage(usage) as files:
        for path in files.paths:
            for row in pq.read_table(path, columns=columns).to_pylist():
                if row["client_id"] in found and row[f"{api_of(row['client_id'])}_bytes"] is not None:
                    found[row["client_id"]].append(row)
    return {name: _recorded(api_of(name), rows) for name, rows in found.items()}


def _recorded(api: str, rows: list[dict[str, Any]]) -> Recorded:
    times = [row["ts_ms"] for row in rows]
    throttles = [row[f"{api}_throttle_ms"] for row in rows]
    return Recorded(sum(row[f"{api}_bytes"] for row in rows), min(times), max(times), throttles)


def told(client: Recorded) -> Told:
    """Return what really became of a client."""
    throttled = [throttle_ms for throttle_ms in client.throttles_ms if throttle_ms > 0]
    share = 100 * len(throttled) / len(client.throttles_ms)
    took_s = (client.last_ms - client.first_ms) / 1000
    return Told(share, sum(throttled), max(throttled, default=0), took_s)


def forecasts(usage: Path, limits: dict[str, float], recorded: dict[str, Recorded]) -> dict[str, Told]:
    """Return what the forecast says of each client."""
    records = tuple(
        QuotaRecord(entity=(("client-id", name),), key=KEYS[api_of(name)], value=limit)
        for name, limit in limits.items()
    )
    with open_usage(usage) as files:
        found = jobs_here(files).replay([Plan(name="p", records=records, is_closed=True)], out=None).entities
    rows = {(row["entity_client_id"], row["quota_type"]): row for row in found}
    told_of = {}
    for name in limits:
        row = rows[name, QUOTA_TYPES[api_of(name)]]
        share = 100 * row["throttled_requests"] / row["requests"]
        took_s = (row["last_ts_ms"] - recorded[name].first_ms) / 1000
        told_of[name] = Told(share, row["throttle_ms"], row["longest_throttle_ms"], took_s)
    return told_of


def print_table(pairs: dict[tuple[float, str], tuple[Told, Told]]) -> None:
    """Print what was foretold, what was real and what of it is as asked, by share of the rate and client."""
    print(f"{'client':22}{'':10}throttled  total delay  longest    took   met")
    for (share, name), (foretold, real) in pairs.items():
        met = (f"{what}{'' if is_met else ' MISSED'}" for what, is_met in kept(foretold, real).items())
        print(f"{name:22}foretold  {foretold}   {', '.join(met)}")
        print(f"{f'  under {share}':22}real      {real}")


def median(told_of: Iterable[Told]) -> Told:
    """Return the median of each number."""
    return Told(*map(statistics.median, zip(*told_of, strict=True)))


def kept(foretold: Told, real: Told) -> dict[str, bool]:
    """Return which of what is asked of a forecast it keeps."""
    return {
        "share": abs(foretold.throttled_percent - real.throttled_percent) <= POINTS,
        "total": _factor(foretold.total_ms, real.total_ms) <= FACTOR,
        "longest": _factor(foretold.longest_ms, real.longest_ms) <= FACTOR,
    }


def _factor(one: float, other: float) -> float:
    return max(one, other) / max(1, min(one, other))
