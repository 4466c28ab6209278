"""A gateway whose disk is full forwards on, says so, and records again when there is space."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.holding_broker import HoldingBroker, connected, correlation_ids, produce
from tests.gateway.test_usage import requests_of
from tests.waiting import wait_until

from tidegate.api_keys import PRODUCE

DISK_BYTES = 40 << 20
REQUESTS = 40
FULL_S = 4.0
WITHIN_S = 30.0
_PROGRAM = """
import ctypes, os, subprocess, sys
CLONE_NEWNS = 0x20000
assert ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) == 0
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size={size}", "none", {directory!r}], check=True)
if {logs_there}:
    log = os.open({directory!r} + "/gateway.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 2)
from tidegate.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def can_mount() -> bool:
    """Return whether this user may mount a file system in a namespace of its own."""
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not can_mount(), reason="needs the right to mount (unshare --mount)")


class LoggingThere(GatewayProcess):
    """A gateway whose log is in its data directory."""

    @property
    def log(self) -> str:
        """Return the log as its namespace has it."""
        path = Path(f"/proc/{self.pid}/root{self.directory}/data/gateway.log")
        return path.read_text(errors="replace") if path.exists() else ""


class OnSmallDisk:
    """A gateway whose data directory is a small file system of its own. data: the directory, as others reach it."""

    def __init__(self, directory: Path, upstream: str, *, logs_there: bool) -> None:
        data = directory / "data"
        data.mkdir()
        quotas = directory / "quotas.yaml"
        quotas.write_text("quotas: []\n")
        options = ("--quotas", str(quotas), "--override", "tidegate.usage.segment.ms=500")
        program = _PROGRAM.format(size=DISK_BYTES, directory=str(data), logs_there=logs_there)
        kind = LoggingThere if logs_there else GatewayProcess
        self.process = kind(directory, upstream, options, program=("-c", program))
        self.process.start()
        self.data = Path(f"/proc/{self.process.pid}/root{data}")

    def fill(self) -> None:
        """Fill the disk, as something else would."""
        with contextlib.suppress(OSError), (self.data / "filler").open("ab", buffering=0) as filler:
            for size in (1 << 20, 1):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def free(self) -> None:
        """Make space again."""
        (self.data / "filler").unlink()

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
    on_disk = OnSmallDisk(tmp_path, broker.address, logs_there=request.param)
    yield on_disk
    on_disk.process.close()


def test_a_full_disk_costs_only_rows_of_the_usage_record(gateway):
    """Requests are answered; the log says what is lost and, when space returns, how much; rows follow."""
    gateway.produce("before")
    gateway.fill()
    gateway.produce("full", FULL_S)
    gateway.free()
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
