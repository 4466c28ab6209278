"""The rungs of the ladder: what is run against a broker, and what of it is compared."""

import json
import math
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from bench.ladder.brokers import ROOT, BenchBroker, cpu_s
from bench.ladder.groups import (
    OFFSETS_TOPIC,
    PARTITIONS,
    commit_frame,
    fetch_frame,
    live,
    prepare_groups,
)
from bench.ladder.secure import client_settings
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.batches import build_batch

from tidegate.wire import encode_request

__all__ = [
    "CONNECTIONS",
    "GROUPS",
    "RUNGS",
    "Rung",
    "Sample",
    "define_quotas",
    "drive",
    "frames",
    "group_frames",
    "group_lives",
    "handshakes",
    "loader_command",
    "make_anew",
    "prepare",
    "produce_frame",
    "set_up",
    "transfer",
]

LOADER_CLASSES = ROOT / ".cache" / "bench" / "loader"
WARMUP_S, SECONDS = 2.0, 4.0
CONNECTIONS = 32
HANDSHAKE_CLIENTS = 4
GROUPS = "groups: "
"""Beginnings of the names of rungs that run requests of groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement: the figure that is compared, and CPU seconds of broker and client for each unit of work."""

    value: float
    broker_cpu: float
    client_cpu: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One comparison. `wanted`: least (or, where lower is better, most) ratio of ours to Kafka's.

    wanted_value: where ours is to be so small whatever Kafka's is.
    """

    name: str
    unit: str
    wanted: float
    run: Callable[[BenchBroker, Path], Sample]
    fresh: str = (
        ""  # a topic to make anew before each run, so that no run pays for what earlier ones left in memory
    )
    lower_is_better: bool = False
    wanted_cpu: float | None = None
    wanted_value: float | None = None


TOPICS = ("small", "kilo", "mega", "read1k", "read100", "fetch1k", "fetch16k", "fetch1m")


def prepare(broker: BenchBroker, directory: Path) -> None:
    """Make everything that the rungs need, and fill the topics that are read."""
    set_up(broker, directory)
    prepare_groups(broker)
    _confluent(broker, "produce", "read1k", 1024, 1_000_000, 600)
    _confluent(broker, "produce", "read100", 100, 1_000_000, 200)
    fetched = (
        ("fetch1k", 1_000, 80, 900),
        ("fetch16k", 16_384, 80, 1024),
        ("fetch1m", 1_000_000, 2000, 1024),
    )
    for topic, batch_bytes, records, record in fetched:
        fill = Producer({"bootstrap.servers": broker.address, "batch.size": batch_bytes, "linger.ms": 100})
        for _ in range(records):
            fill.produce(topic, bytes(record), partition=0)
        fill.flush(30)


def set_up(broker: BenchBroker, directory: Path) -> None:
    """Create topics, define quotas that throttle no client, compile the loader and write its frames."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    topics = [*(NewTopic(name, 1, 1) for name in TOPICS), NewTopic(OFFSETS_TOPIC, PARTITIONS, 1)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    define_quotas(broker)
    _compile_loader()
    for name, frame in frames().items():
        (directory / name).write_bytes(frame)


def make_anew(broker: BenchBroker, topic: str) -> None:
    """Delete a topic and create it again, empty."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    try:
        admin.delete_topics([topic])[topic].result(30)
    except KafkaException as error:
        if (
            error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART
        ):  # the first of two requests has deleted it
            raise
    deadline = time.monotonic() + 30
    while True:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
            break
        except KafkaException:  # it is being deleted
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    time.sleep(0.5)  # until the files are gone and the partition has its leader


def define_quotas(broker: BenchBroker, *, remove: bool = False) -> None:
    """Define, or remove, quotas of every kind that no client reaches: they cost their decisions."""
    ops = [
        {"key": key, "value": value, "remove": remove}
        for key, value in (
            ("producer_byte_rate", 1e12),
            ("consumer_byte_rate", 1e12),
            ("request_percentage", 100_000.0),
        )
    ]
    entries = [{"entity": [{"entity_type": "client-id", "entity_name": None}], "ops": ops}]
    frame = encode_request(49, 1, 1, "bench", {"entries": entries, "validate_only": False})
    with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as sock:
        sock.sendall(frame)
        size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
        assert len(sock.recv(size, socket.MSG_WAITALL)) == size


def group_frames() -> dict[str, bytes]:
    return {
        "commit1": commit_frame(1),
        "commit100": commit_frame(PARTITIONS),
        "offsets100": fetch_frame(PARTITIONS),
    }


def frames() -> dict[str, bytes]:
    return {
        "produce100": produce_frame("small", 100),
        "produce1k": produce_frame("kilo", 1024),
        "produce16k": produce_frame("kilo", 16_000),
        "produce1m": produce_frame("mega", 1_000_000),
        "metadata": encode_request(
            3, 9, 1, "bench", {
                "topics": [{"name": "small"}], "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
            },
        ),
        "api_versions": encode_request(
            18, 3, 1, "bench", {"client_software_name": "bench", "client_software_version": "1"}
        ),
        "fetch1k": _fetch("fetch1k", 1024),
        "fetch16k": _fetch("fetch16k", 16_384),
        "fetch1m": _fetch("fetch1m", 1_048_576),
        **group_frames(),
    }  # fmt: skip


def produce_frame(topic: str, value_bytes: int) -> bytes:
    batch = build_batch([(None, bytes(value_bytes))])
    partition = {"index": 0, "records": batch}
    message = {
        "transactional_id": None,
        "acks": 1,
        "timeout_ms": 30_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    return encode_request(0, 9, 1, "bench", message)


def _fetch(topic: str, max_bytes: int) -> bytes:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": max_bytes,
    }  # fmt: skip
    message = {
        "replica_id": -1, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": max_bytes, "isolation_level": 0,
        "session_id": 0, "session_epoch": -1, "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [], "rack_id": "",
    }  # fmt: skip
    return encode_request(1, 12, 1, "bench", message)


def _compile_loader() -> None:
    LOADER_CLASSES.mkdir(parents=True, exist_ok=True)
    source = ROOT / "bench" / "java" / "RawLoader.java"
    subprocess.run(["javac", "-d", str(LOADER_CLASSES), str(source)], check=True)


def _confluent(
    broker: BenchBroker,
    mode: str,
    topic: str,
    record: int,
    batch: int,
    total_mb: float,
    secure: Path | None = None,
) -> Sample:
    address = broker.further_address if secure else broker.address
    settings = json.dumps(client_settings(secure) if secure else {})
    command = [sys.executable, "-m", "bench.ladder.confluent", mode, address, topic]
    before = broker.cpu_s()
    done = subprocess.run(
        [*command, str(record), str(batch), str(total_mb), settings],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    result = json.loads(done.stdout)
    return Sample(
        value=result["mb_per_s"],
        broker_cpu=(broker.cpu_s() - before) / total_mb,
        client_cpu=result["client_cpu_s"] / total_mb,
        seconds=result["seconds"],
    )


def loader_command(
    broker: BenchBroker,
    directory: Path,
    mode: str,
    frame: str,
    connections: int = CONNECTIONS,
    *,
    seconds: float,
    depth: int = 1,
    beside: int = 0,
) -> list[str]:
    """Return the command that runs the raw loader against `broker`.

    depth: requests in flight on each connection; beside: on one more, which does not count.
    """
    java = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", str(LOADER_CLASSES), "RawLoader", mode]
    numbers = (connections, WARMUP_S, seconds, depth, beside)
    return [*java, str(broker.port), str(directory / frame), *map(str, numbers)]


def drive(
    broker: BenchBroker,
    directory: Path,
    mode: str,
    frame: str,
    connections: int,
    seconds: float = SECONDS,
    **options: int,
) -> tuple[dict, Sample]:
    """Run the raw loader; return what it printed, and the sample made of it."""
    command = loader_command(broker, directory, mode, frame, connections, seconds=seconds, **options)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as loader:
        assert loader.stderr is not None
        line = loader.stderr.readline()
        assert line == "counting\n", line + loader.stderr.read()
        broker_before, client_before = broker.cpu_s(), cpu_s(loader.pid)
        assert loader.stdout is not None
        line = loader.stdout.readline()
        broker_after, client_after = broker.cpu_s(), _last_cpu_s(loader.pid, client_before)
        assert line, loader.stderr.read()
    result = json.loads(line)
    requests = max(result["requests"], 1)
    return result, Sample(
        value=result["requests_per_s"],
        broker_cpu=(broker_after - broker_before) / requests * 1e6,
        client_cpu=(client_after - client_before) / requests * 1e6,
        seconds=result["seconds"],
    )


def _last_cpu_s(pid: int, before: float) -> float:
    try:
        return cpu_s(pid)
    except OSError:
        return before


def _rate(
    frame: str, connections: int = CONNECTIONS, mode: str = "request", depth: int = 1
) -> Callable[[BenchBroker, Path], Sample]:
    return lambda broker, directory: drive(broker, directory, mode, frame, connections, depth=depth)[1]


def _latency(
    frame: str, connections: int = 1, percentile: str = "p50_us", beside: int = 0
) -> Callable[[BenchBroker, Path], Sample]:
    def run(broker: BenchBroker, directory: Path) -> Sample:
        result, sample = drive(broker, directory, "request", frame, connections, beside=beside)
        return replace(sample, value=result[percentile])

    return run


def transfer(
    mode: str, topic: str, record: int, batch: int, mb: float, *, secure: bool = False
) -> Callable[[BenchBroker, Path], Sample]:
    """secure: by SASL_SSL."""
    return lambda broker, directory: _confluent(
        broker, mode, topic, record, batch, mb, directory if secure else None
    )


def handshakes(broker: BenchBroker, directory: Path, seconds: float = SECONDS) -> Sample:
    """Count full TLS handshakes, of clients that connect anew each time and leave afterwards."""
    command = ["openssl", "s_time", "-connect", broker.further_address, "-new", "-time", str(round(seconds))]
    before, begun = broker.cpu_s(), time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    clients = [subprocess.Popen(command, text=True, **pipes) for _ in range(HANDSHAKE_CLIENTS)]
    count = rate = 0.0
    client_cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    for client in clients:
        printed, errors = client.communicate(timeout=60)
        found = re.search(r"(\d+) connections in \d+ real seconds", printed)
        assert found, printed + errors
        count += int(found[1])
        rate += int(found[1]) / (time.monotonic() - begun)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    client_s = after.ru_utime + after.ru_stime - client_cpu.ru_utime - client_cpu.ru_stime
    return Sample(
        value=rate,
        broker_cpu=(broker.cpu_s() - before) / max(count, 1) * 1e6,
        client_cpu=client_s / max(count, 1) * 1e6,
        seconds=time.monotonic() - begun,
    )


def group_lives(broker: BenchBroker, directory: Path, seconds: float = SECONDS) -> Sample:
    """Count how often a member of a group of its own joins, is assigned, beats, commits and leaves."""
    for _ in live(broker, WARMUP_S):
        pass
    before, begun = broker.cpu_s(), time.monotonic()
    client_before = time.process_time()
    count = max(live(broker, seconds))
    took = time.monotonic() - begun
    return Sample(
        value=count / took,
        broker_cpu=(broker.cpu_s() - before) / count * 1e6,
        client_cpu=(time.process_time() - client_before) / count * 1e6,
        seconds=took,
    )


RUNGS = (
    Rung(name="confluent produce 1 KB, 16 KB batches", unit="MB/s", wanted=1.0, fresh="kilo",
         run=transfer("produce", "kilo", 1024, 16_384, 400)),
    Rung(name="confluent produce 1 KB, 1 MB batches", unit="MB/s", wanted=1.0, fresh="mega",
         run=transfer("produce", "mega", 1024, 1_000_000, 800)),
    Rung(name="confluent produce 100 B", unit="MB/s", wanted=1.0, fresh="small",
         run=transfer("produce", "small", 100, 1_000_000, 200)),
    Rung(name="confluent consume 100 B", unit="MB/s", wanted=1.0, run=transfer("consume", "read100", 100, 0, 190)),
    Rung(name="confluent consume 1 KB", unit="MB/s", wanted=1.0, run=transfer("consume", "read1k", 1024, 0, 580)),
    Rung(name="SASL_SSL, confluent produce 1 KB, 16 KB batches", unit="MB/s", wanted=1.0, fresh="kilo",
         run=transfer("produce", "kilo", 1024, 16_384, 300, secure=True)),
    Rung(name="SASL_SSL, confluent consume 1 KB", unit="MB/s", wanted=1.0,
         run=transfer("consume", "read1k", 1024, 0, 580, secure=True)),
    Rung(name=f"SASL_SSL, full handshakes x{HANDSHAKE_CLIENTS}", unit="/s", wanted=1.0, run=handshakes),
    Rung(name="raw Produce 100 B x32", unit="/s", wanted=0.9, wanted_cpu=0.7, fresh="small",
         run=_rate("produce100")),
    Rung(name="raw Produce 100 B x8, 8 in flight each", unit="/s", wanted=1.0, fresh="small",
         run=_rate("produce100", 8, depth=8)),
    Rung(name="raw Metadata x32", unit="/s", wanted=1.0, wanted_cpu=0.7, run=_rate("metadata")),
    Rung(name="raw Metadata x8, 8 in flight each", unit="/s", wanted=1.0, run=_rate("metadata", 8, depth=8)),
    Rung(name="raw Metadata x4 beside 4,000 in flight, p50", unit="us", wanted=math.inf, wanted_value=1000,
         lower_is_better=True, run=_latency("metadata", 4, beside=4000)),
    Rung(name="raw Metadata x4 beside 4,000 in flight, p99", unit="us", wanted=math.inf, wanted_value=5000,
         lower_is_better=True, run=_latency("metadata", 4, "p99_us", beside=4000)),
    Rung(name="raw ApiVersions x32", unit="/s", wanted=1.7, wanted_cpu=0.7, run=_rate("api_versions")),
    Rung(name="raw Produce 100 B x1, p50", unit="us", wanted=1.0, lower_is_better=True, fresh="small",
         run=_latency("produce100")),
    Rung(name="raw Produce 1 KB x32", unit="/s", wanted=1.0, fresh="kilo", run=_rate("produce1k")),
    Rung(name="raw Produce 16 KB x32", unit="/s", wanted=1.0, fresh="kilo", run=_rate("produce16k")),
    Rung(name="raw Fetch 1 KB x32", unit="/s", wanted=0.9, run=_rate("fetch1k")),
    Rung(name="raw Fetch 16 KB x32", unit="/s", wanted=0.9, run=_rate("fetch16k")),
    Rung(name="raw Fetch 1 MB x32", unit="/s", wanted=0.5, run=_rate("fetch1m")),
    Rung(name=f"{GROUPS}join, sync, heartbeat, commit, leave x1", unit="/s", wanted=1.0, run=group_lives),
    Rung(name=f"{GROUPS}OffsetCommit of 1 partition x1", unit="/s", wanted=0.8, run=_rate("commit1", 1)),
    Rung(name=f"{GROUPS}OffsetCommit of 100 partitions x1", unit="/s", wanted=0.8, run=_rate("commit100", 1)),
    Rung(name=f"{GROUPS}OffsetFetch of 100 partitions x1", unit="/s", wanted=0.8, run=_rate("offsets100", 1)),
    Rung(name="connect + ApiVersions + close x16", unit="/s", wanted=1.0, run=_rate("api_versions", 16, "connect")),
)  # fmt: skip
