"""Copies of a data directory: of a stopped broker, and of a running one whose processes are held meanwhile."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.broker import Broker
from tests.e2e.test_restart import PARTITIONS, Loader, read_all, wait_acknowledged
from tests.vectors.wire_brokers import ask

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, DESCRIBE_CLIENT_QUOTAS

ACKNOWLEDGED = 2000
COMMITTED = 17
RATE = 50_000_000.0


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Broker]:
    """Return a running broker with a topic, a quota and a committed offset."""
    (tmp_path / "original").mkdir()
    broker = Broker(tmp_path / "original").start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("t", PARTITIONS, 1)])["t"].result(timeout=10)
    entity = [{"entity_type": "client-id", "entity_name": "x"}]
    op = {"key": "producer_byte_rate", "value": RATE, "remove": False}
    entry = {"entity": entity, "ops": [op]}
    ask(("127.0.0.1", broker.port), ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition("t", 0, COMMITTED)], asynchronous=False)
    consumer.close()
    yield broker
    broker.close()


@pytest.fixture
def loaders(original: Broker) -> Iterator[list[Loader]]:
    """Return producers at work; they end with the test."""
    working = [Loader(original, "t", number) for number in range(2)]
    for loader in working:
        loader.start()
    try:
        wait_acknowledged(working, ACKNOWLEDGED)
        yield working
    finally:
        for loader in working:
            loader.stopping.set()
        for loader in working:
            loader.join()


def acknowledged(loaders: list[Loader]) -> dict[tuple[int, int], bytes]:
    """Return what was acknowledged until now."""
    return {place: value for loader in loaders for place, value in dict(loader.acknowledged).items()}


def check_copy(data_dir: Path, expected: dict[tuple[int, int], bytes]) -> None:
    """Start a broker on a copy: it has the records, the quota and the committed offset, and lost nothing."""
    broker = Broker(data_dir.parent).start()
    try:
        found = read_all(broker, "t")
        assert {place: found.get(place) for place in expected} == expected
        message = {"components": [], "strict": False}
        quotas = ask(("127.0.0.1", broker.port), DESCRIBE_CLIENT_QUOTAS, 1, message)["entries"]
        assert [value["value"] for entry in quotas for value in entry["values"]] == [RATE]
        consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
        (offset,) = consumer.committed([TopicPartition("t", 0)], timeout=10)
        consumer.close()
        assert offset.offset == COMMITTED
        assert "ERROR" not in broker.log
    finally:
        broker.close()


def test_a_copy_of_a_stopped_broker(original: Broker, loaders: list[Loader], tmp_path: Path) -> None:
    """It has all that was acknowledged."""
    for loader in loaders:
        loader.stopping.set()
        loader.join()
    assert original.stop() == 0
    copy = tmp_path / "copy" / "data"
    shutil.copytree(original.data_dir, copy)
    check_copy(copy, acknowledged(loaders))


def test_a_copy_of_a_running_broker_that_is_held(
    original: Broker, loaders: list[Loader], tmp_path: Path
) -> None:
    """What was acknowledged before the copy is in it; the broker then continues, and its clients too."""
    assert original.process is not None
    children = subprocess.run(
        ["pgrep", "-P", str(original.process.pid)], capture_output=True, text=True, check=False, timeout=10
    )
    processes = [original.process.pid, *map(int, children.stdout.split())]
    copy = tmp_path / "copy" / "data"
    before = acknowledged(loaders)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    try:
        shutil.copytree(original.data_dir, copy)
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGCONT)
    wait_acknowledged(loaders, len(before) + ACKNOWLEDGED)
    check_copy(copy, before)
    assert original.process.poll() is None
