"""A gateway whose disk is full forwards on, says so, and records again when there is space."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.holding_broker import HoldingBroker, connected, correlation_ids, produce
from tests.gateway.raw_client import RawClient
from tests.gateway.test_usage import requests_of
from tests.small_disk import LOG_NAME, fill, free, needs_mounts, program_on_small_disk, seen_from_outside
from tests.waiting import wait_until

from tidegate.api_keys import PRODUCE

DISK_BYTES = 40 << 20
REQUESTS = 40
CHANGES = 100  # their lines are more than what is left of the last page of the log
FULL_S = 4.0
WITHIN_S = 30.0

pytestmark = needs_mounts


class LoggingThere(GatewayProcess):
    """A gateway whose log is in its data directory."""

    @property
    def log(self) -> str:
        """Return the log as its namespace has it."""
        path = seen_from_outside(self.pid, self.directory / "data") / LOG_NAME
        return path.read_text(errors="replace") if path.exists() else ""


class OnSmallDisk:
    """A gateway whose data directory is a small file system of its own. data: the directory, as others reach it."""

    def __init__(self, directory: Path, upstream: str, *options: str, logs_there: bool) -> None:
        data = directory / "data"
        data.mkdir()
        options = ("--override", "tidegate.usage.segment.ms=500", *options)
        program = program_on_small_disk(data, DISK_BYTES, logs_there=logs_there)
        kind = LoggingThere if logs_there else GatewayProcess
        self.process = kind(directory, upstream, options, program=("-c", program))
        self.process.start()
        self.data = seen_from_outside(self.process.pid, data)

    def produce(self, client_id: str, for_s: float = 0.0) -> int:
        """Send requests, each of which is answered; return their number."""
        sent, until_s = 0, time.monotonic() + for_s
        with connected(self.process) as client:
            while sent < REQUESTS or time.monotonic() < until_s:
                client.sendall(produce(sent, client_id))
                assert correlation_ids(client, 1) == [sent]
                sent += 1
                time.sleep(for_s / REQUESTS / 4)
        return sent


@pytest.fixture
def broker() -> Iterator[HoldingBroker]:
    """Return the server."""
    server = HoldingBroker()
    yield server
    server.close()


@pytest.fixture(params=[False, True], ids=["log elsewhere", "log on the disk"])
def gateway(broker: HoldingBroker, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[OnSmallDisk]:
    """Return a gateway before it."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    on_disk = OnSmallDisk(tmp_path, broker.address, "--quotas", str(quotas), logs_there=request.param)
    yield on_disk
    on_disk.process.close()


def test_a_full_disk_costs_only_rows_of_the_usage_record(gateway):
    """Requests are answered; the log says what is lost and, when space returns, how much; rows follow."""
    gateway.produce("before")
    fill(gateway.data)
    gateway.produce("full", FULL_S)
    free(gateway.data)
    process = gateway.process
    wait_until(
        lambda: gateway.produce("after") and "resumed after" in process.log,
        WITHIN_S,
        told=lambda: process.log,
    )
    sent = gateway.produce("end")
    log = process.log
    print(log)
    assert "Traceback" not in log
    if not isinstance(process, LoggingThere):
        warned = [line for line in log.splitlines() if "usage record" in line and "resumed" not in line]
        assert 1 <= len(warned) <= 4, log
    recorded = [row[0] for row in requests_of(gateway.data / "usage", PRODUCE)]
    assert recorded.count("end") == sent
    assert recorded.count("before") == REQUESTS


def test_changes_of_quotas_go_on_and_lost_audit_lines_are_counted(kafka, tmp_path, unique):
    """Quotas are in the cluster: a full disk refuses none. Lines that the log has lost are counted in it."""
    gateway = OnSmallDisk(tmp_path, kafka.address, logs_there=True)
    process = gateway.process
    try:
        with RawClient(process.port, unique) as client:
            client.set_quotas(unique, producer_byte_rate=1.0)
            for number in range(CHANGES):
                fill(gateway.data)  # the record gives space back whenever it closes a segment
                client.set_quotas(unique, producer_byte_rate=2.0 + number)
            assert client.quota(unique) == 1.0 + CHANGES
            free(gateway.data)
            client.set_quotas(unique, producer_byte_rate=None)
        written = re.findall(
            r"altered quota of client-id='\S+': producer_byte_rate (\S+) -> (\S+)$", process.log, re.M
        )
        assert written[0] == ("none", "1.0")
        assert written[-1] == (str(1.0 + CHANGES), "none")
        lost = re.findall(r"ERROR lost (\d+) log lines: No space left on device$", process.log, re.M)
        assert sum(map(int, lost)) >= CHANGES + 2 - len(written) > 0
    finally:
        process.close()
