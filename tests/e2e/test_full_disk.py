"""`tidegate serve` whose disk is full: what needs space is refused, the rest is served; all is, once there is space."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.gateway.raw_client import RawClient
from tests.gateway.test_usage import requests_of
from tests.small_disk import fill, free, needs_mounts, program_on_small_disk, seen_from_outside
from tests.vectors.wire_brokers import ask
from tests.waiting import wait_until

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, PRODUCE
from tidegate.error_codes import KAFKA_STORAGE_ERROR, NONE

pytestmark = needs_mounts

DISK_BYTES = 96 << 20
LARGE_BYTES = 100_000
TRIES = 20
TIMES = 5
WITHIN_S = 30.0


class OnSmallDisk(Broker):
    """A broker whose data directory is a small file system of its own."""

    def command(self) -> list[str]:
        """Return what starts Tidegate there."""
        self.data_dir.mkdir(exist_ok=True)
        return [sys.executable, "-c", program_on_small_disk(self.data_dir, DISK_BYTES, logs_there=False)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OnSmallDisk]:
    """Return a broker on a small disk."""
    # A writer that deletes a converted segment would make space.
    own = OnSmallDisk(
        tmp_path, {"tidegate.usage.segment.ms": "500", "tidegate.usage.parquet.enable": "false"}
    )
    own.start()
    yield own
    own.close()


def produced_with(client: RawClient, topic: str, size: int) -> int:
    """Produce a record; return the error code."""
    (answer,) = client.produce(topic, size)["responses"]
    return int(answer["partition_responses"][0]["error_code"])


def quota_set_with(broker: Broker, value: float) -> int:
    """Set a quota; return the error code."""
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": "loader"}],
        "ops": [{"key": "producer_byte_rate", "value": value, "remove": False}],
    }
    message = {"entries": [entry], "validate_only": False}
    answer = ask(("127.0.0.1", broker.port), ALTER_CLIENT_QUOTAS, 1, message)
    return int(answer["entries"][0]["error_code"])


def created_with(client: RawClient, topic: str) -> int:
    """Create a topic; return the error code."""
    return int(client.create_topics((topic, 1))["topics"][0]["error_code"])


def test_a_full_disk_refuses_what_needs_space_until_there_is_some(broker: OnSmallDisk, unique: str) -> None:
    """Every acknowledged record is there, and no other; what was refused has no audit line; rows of usage follow."""
    data = seen_from_outside(broker.process.pid, broker.data_dir)
    with RawClient(broker.port, "before") as client:
        assert created_with(client, unique) == NONE
        assert quota_set_with(broker, 1e9) == NONE
        acknowledged = [produced_with(client, unique, 10) for _ in range(TRIES)].count(NONE)
        codes = []
        for _ in range(TRIES):  # a segment of the usage record that is closed meanwhile makes space
            fill(data)
            codes.append(produced_with(client, unique, LARGE_BYTES))
        assert {KAFKA_STORAGE_ERROR} <= set(codes) <= {NONE, KAFKA_STORAGE_ERROR}
        acknowledged += codes.count(NONE)
        quota, altered, created = 1e9, 1, 1
        changes, creations = [], []
        for number in range(TIMES):  # a change that fits into what a refused one has reserved is accepted
            fill(data)
            changes.append(quota_set_with(broker, 2e9 + number))
            if changes[-1] == NONE:
                quota, altered = 2e9 + number, altered + 1
            assert client.quota("loader") == quota
            creations.append(created_with(client, f"{unique}-{number}"))
        assert {KAFKA_STORAGE_ERROR} <= set(changes) <= {NONE, KAFKA_STORAGE_ERROR}
        assert {KAFKA_STORAGE_ERROR} <= set(creations) <= {NONE, KAFKA_STORAGE_ERROR}
        created += creations.count(NONE)
        (fetched,) = client.fetch(unique)["responses"]
        assert len(fetched["partitions"][0]["records"]) > TRIES * 10
        until_s = time.monotonic() + WITHIN_S
        while (
            "cannot write the usage record, dropping" not in broker.log
        ):  # the open segment has its space already
            fill(data)
            assert client.quota("loader") == quota
            assert time.monotonic() < until_s, broker.log
            time.sleep(0.1)
        free(data)
        until_s = time.monotonic() + 2 * WITHIN_S
        wait_until(
            lambda: produced_with(client, unique, LARGE_BYTES) == NONE, WITHIN_S, told=lambda: broker.log
        )
        acknowledged += 1
        while "usage record resumed after" not in broker.log:
            assert produced_with(client, unique, 10) == NONE
            acknowledged += 1
            assert time.monotonic() < until_s, broker.log
            time.sleep(0.1)
        assert quota_set_with(broker, 3e9) == NONE
        assert created_with(client, f"{unique}-after") == NONE
    with RawClient(broker.port, "after") as client:
        (answer,) = client.produce(unique, 10)["responses"]
        assert answer["partition_responses"][0]["base_offset"] == acknowledged
    log = broker.log
    for text in (
        f"cannot append to {unique}-0: [Errno 28] No space left on device",
        "cannot store quota definitions: ",
        f"cannot change topic '{unique}-",
    ):
        assert log.count(text) == 1, log
    assert "cannot write the usage record, dropping and counting events: [Errno 28] No space left on" in log
    assert log.count("altered quota of client-id='loader'") == altered + 1, log
    assert log.count(f"created topic '{unique}") == created + 1, log
    assert "Traceback" not in log
    clients = [row[0] for row in requests_of(data / "usage", PRODUCE)]
    assert clients.count("after") == 1
    assert clients[:TRIES] == ["before"] * TRIES
    assert broker.stop() == 0
