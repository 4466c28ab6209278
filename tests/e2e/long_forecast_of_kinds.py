"""The ranges of forecasts beside real clients of many kinds, on `tidegate serve` and on a real Kafka.

Each client has a process of its own and some 25 s of work. It is done without quotas and recorded (of Kafka by its
request log), the record is replayed in closed loop under a share of each client's rate, and then the same work is done
under those quotas. Asked is that the total throttle time lies in the range, or outside by a factor of 1.5 at most, in
the median of the runs. Nothing is fitted.
"""

import statistics
import subprocess
import sys
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from bench.ladder.brokers import KafkaBench
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.broker import Broker
from tests.e2e.clients.kinds import CLIENTS, PARTITIONS, Work
from tests.e2e.clients.processes import processes_of
from tests.e2e.plain_client import PlainClient

from tidegate.pipeline.read.ingest import open_usage
from tidegate.pipeline.record import jobs_here
from tidegate.pipeline.replay.plan import Plan
from tidegate.quota.admin.definitions import QuotaRecord

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SHARES = (0.5, 0.8)
RUNS = (1, 2, 3)
FACTOR = 1.5
"""What is asked: the real total is no further outside of the range."""
TIMEOUT_S = 200
LEAST_MS = 300
"""Less is nothing: a throttle more or less."""
_REQUEST_LOG = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {{pattern: "[%d] %p %m (%c)%n"}}
    File:
      name: REQUESTS
      fileName: "{path}"
      PatternLayout: {{pattern: "[%d{{yyyy-MM-dd HH:mm:ss,SSSSSS}}] %p %m (%c)%n"}}
  Loggers:
    Root:
      level: WARN
      AppenderRef: {{ref: STDOUT}}
    Logger:
      name: kafka.request.logger
      level: debug
      additivity: false
      AppenderRef: {{ref: REQUESTS}}
"""


KINDS = {
    "group": ("Fetch", "fetch_bytes", "fetch_throttle_ms", "consumer_byte_rate"),
    "admin": ("ControllerMutation", "mutations", "mutation_throttle_ms", "controller_mutation_rate"),
}
TOGETHER = {
    "producers": [name for name in CLIENTS if name.split("_")[0] not in KINDS],
    "others": [name for name in CLIENTS if name.split("_")[0] in KINDS],
}
"""Clients that do their work at the same time."""
PRODUCES = ("Produce", "produce_bytes", "produce_throttle_ms", "producer_byte_rate")


def kind_of(name: str) -> tuple[str, str, str, str]:
    """Return the quota type, the columns of what is charged and of its throttle, and the quota's key."""
    return KINDS.get(name.split("_")[0], PRODUCES)


# --- brokers ----------------------------------------------------------------------------------------------------------


class LoggingKafka(KafkaBench):
    """A real Kafka that writes its request log."""

    def _command(self) -> tuple[list[str], dict[str, str]]:
        found = super()._command()
        (self.directory / "log4j2.yaml").write_text(_REQUEST_LOG.format(path=self.log))
        return found

    @property
    def log(self) -> Path:
        """Return where the request log is."""
        return self.directory / "kafka-request.log"


def done_on(broker: str, names: list[str], directory: Path, limits: dict[str, float], classpath: str) -> Path:
    """Have clients do their work at once, under limits by client id, and return the usage record."""
    directory.mkdir()
    if broker == "tidegate":
        tidegate = Broker(directory, {}, 1).start()
        try:
            _do(tidegate.address, names, limits, classpath)
        finally:
            tidegate.stop()
            tidegate.close()
        return tidegate.data_dir / "usage"
    kafka = LoggingKafka("kafka", directory)
    kafka.start()
    try:
        _do(kafka.address, names, limits, classpath)
    finally:
        kafka.stop()
    command = [sys.executable, "-m", "tidegate", "import", str(kafka.log), "--out", str(directory / "usage")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return directory / "usage"


def _do(address: str, names: list[str], limits: dict[str, float], classpath: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topics = [NewTopic(name, PARTITIONS if name.startswith("group") else 1, 1) for name in names]
    for created in admin.create_topics(topics).values():
        created.result(timeout=30)
    with PlainClient(int(address.rpartition(":")[2]), "setter") as setter:
        for name, limit in limits.items():
            setter.alter_quotas({"client-id": name}, {kind_of(name)[3]: limit})
    work = Work(address, classpath)
    with processes_of([CLIENTS[name] for name in names]) as pool:
        futures = [pool.submit(CLIENTS[name], work, name) for name in names]
        for future in as_completed(futures, timeout=TIMEOUT_S):
            future.result()


# --- what is compared -------------------------------------------------------------------------------------------------


class Compared(NamedTuple):
    """Total throttle times of a client in ms: the forecast's ends and number, and what really came."""

    low: float
    number: float
    high: float
    real: float

    @property
    def outside(self) -> float:
        """Return by which factor the real time is outside of the range; 1: it is inside."""
        real, low, high = (max(LEAST_MS, ms) for ms in (self.real, self.low, self.high))
        return max(real / high, low / real, 1.0)


Outcomes = dict[tuple[str, float, str], list[Compared]]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """Return where the runs put what they found."""
    return {}


@pytest.mark.parametrize("broker", ["tidegate", "kafka"])
@pytest.mark.parametrize("together", TOGETHER)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("run", RUNS, ids="run{}".format)
def test_real_clients_lie_in_the_range(
    broker: str,
    together: str,
    share: float,
    run: int,
    kafka_classpath: str,
    tmp_path: Path,
    outcomes: Outcomes,
) -> None:
    """Prints the table of each run; of the medians of three runs none is further outside than `FACTOR`."""
    names = TOGETHER[together]
    free = done_on(broker, names, tmp_path / "free", {}, kafka_classpath)
    limits = {name: limit_of(name, share, rows) for name, rows in read(free, names).items()}
    forecast = forecasts(free, limits)
    real = read(done_on(broker, names, tmp_path / "limited", limits, kafka_classpath), names)
    for name, row in forecast.items():
        ends = (row["throttle_ms_low"], row["throttle_ms"], row["throttle_ms_high"])
        throttled = sum(each[kind_of(name)[2]] or 0 for each in real[name])
        outcomes.setdefault((broker, share, name), []).append(Compared(*ends, throttled))
    of_these = {(broker, share, name): outcomes[broker, share, name] for name in names}
    print_table({key: pairs[-1:] for key, pairs in of_these.items()})
    if run == RUNS[-1]:
        print("median of the runs")
        print_table(of_these)
        medians = {key: median(pairs) for key, pairs in of_these.items()}
        assert {key: pair for key, pair in medians.items() if pair.outside > FACTOR} == {}


def limit_of(name: str, share: float, rows: list[dict[str, Any]]) -> float:
    """Return a share of a client's rate; of mutations a smaller one, as their bucket holds eleven seconds."""
    _, column, _, _ = kind_of(name)
    charged = [row for row in rows if row[column]]
    seconds = (charged[-1]["ts_ms"] - charged[0]["ts_ms"]) / 1000
    rate = sum(row[column] for row in charged) / seconds
    return round(share * rate) if column != "mutations" else share * rate * 0.6


def read(usage: Path, names: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each client, in order of time."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    numbers = [column for kind in (*KINDS.values(), PRODUCES) for column in kind[1:3]]
    with open_usage(usage) as files:
        for path in files.paths:
            for row in pq.read_table(path, columns=["client_id", "ts_ms", *numbers]).to_pylist():
                if row["client_id"] in found:
                    found[row["client_id"]].append(row)
    return {name: sorted(rows, key=lambda row: row["ts_ms"]) for name, rows in found.items()}


def forecasts(usage: Path, limits: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Return the row of each client's quota."""
    records = tuple(
        QuotaRecord(entity=(("client-id", name),), key=kind_of(name)[3], value=float(limit))
        for name, limit in limits.items()
    )
    with open_usage(usage) as files:
        found = jobs_here(files).replay([Plan(name="p", records=records, is_closed=True)], out=None).entities
    rows = {(row["entity_client_id"], row["quota_type"]): row for row in found}
    return {name: rows[name, kind_of(name)[0]] for name in limits}


def median(pairs: list[Compared]) -> Compared:
    """Return the median of each number."""
    return Compared(*map(statistics.median, zip(*pairs, strict=True)))


def print_table(outcomes: Outcomes) -> None:
    """Print the median of the runs of each client: low, number, high, real, and how far outside it is."""
    for (broker, share, name), pairs in outcomes.items():
        pair = median(pairs)
        times = "".join(f"{ms / 1000:8.1f}" for ms in pair)
        where = "in the range" if pair.outside == 1 else f"outside by {pair.outside:.2f}"
        print(f"{broker:9}{share:4} {name:20}{times} s   {where}")
