"""A watch beside a broker under load, both ended with `kill -9`: nothing is lost, nothing is counted twice."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.e2e.broker import Broker

LOAD_S = 60.0
WAIT_S = 120.0
_PLAN = """\
quotas:
  - client-id: {name: loader}
    producer_byte_rate: 20000
  - client-id: {default: true}
    producer_byte_rate: 5000
"""


def _tidegate(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tidegate", *arguments]


def _document(*arguments: str) -> dict[str, Any]:
    done = subprocess.run(_tidegate(*arguments), capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1), done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


@contextmanager
def _load(address: Callable[[], str]) -> Iterator[None]:
    """Have librdkafka clients produce meanwhile, whether the broker is there or not."""
    is_over = threading.Event()

    def produce(client_id: str, size: int) -> None:
        settings = {"bootstrap.servers": address(), "client.id": client_id, "linger.ms": 20, "log_level": 0}
        producer = Producer(settings)
        while not is_over.is_set():
            producer.produce("watched", bytes(size))
            producer.poll(0.02)
        producer.purge()

    clients = (("loader", 4000), ("checkout", 50), ("other", 400))
    threads = [threading.Thread(target=produce, args=client) for client in clients]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("where", ["here", "spark"])
def test_a_watch_that_is_killed_says_what_a_replay_says(
    new_broker: Callable[..., Broker], tmp_path: Path, where: str
) -> None:
    """In this process and on Spark: real clients, the watch killed at random moments, the broker once as well."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    broker = new_broker()
    usage, plan = broker.data_dir / "usage", tmp_path / "plan.yaml"
    plan.write_text(_PLAN)
    options = ["watch", str(usage), "--plan", str(plan), "--in-force", "--json"]
    options += ["--checkpoint", str(tmp_path / "watched"), "--from", "2000-01-01"]
    options += [] if where == "here" else ["--master", "local[2]"]
    kills = 0
    with _load(lambda: broker.address):
        end_s = time.monotonic() + LOAD_S
        while time.monotonic() < end_s:
            watch = subprocess.Popen(_tidegate(*options), stdout=subprocess.PIPE, start_new_session=True)
            time.sleep(chance.uniform(4.0, 15.0) if where == "here" else chance.uniform(15.0, 25.0))
            os.killpg(watch.pid, signal.SIGKILL)
            watch.communicate()
            kills += 1
            if kills == 1:
                broker.kill()
                broker.start()
    broker.stop()
    deadline = time.monotonic() + WAIT_S
    while list((usage / "spool").rglob("*.closed")):
        assert time.monotonic() < deadline, "the writer does not end"
        time.sleep(0.1)
    watched = _document(*options, "--once")
    replayed = _document(
        "replay", str(usage), "--quotas", str(plan), "--in-force", "--loop", "open", "--json"
    )
    used = _document("usage", str(usage), "--json")
    print(f"{where}: {kills} kills, {watched['events']} events, {watched['update']} updates")
    assert watched["events"] + watched["waiting_events"] == used["events"] > 1000
    assert watched["in_all"]["entities"] == replayed["entities"]
    for row, other in zip(watched["in_all"]["groups"], used["groups"], strict=True):
        assert row == {name: other[name] for name in row}
    assert any(row["throttled_requests"] for each in replayed["entities"] for row in each["plans"])
