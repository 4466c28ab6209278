"""Memory and descriptors that a gateway needs for its clients, as docs/gateway.md says.

`python -m pytest tests/gateway/test_sizing.py -s` prints the figures of that page.
"""

import resource
import socket
from contextlib import closing
from pathlib import Path

import pytest
from bench.ladder.brokers import machine
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import LyingBroker
from tests.waiting import wait_until

CONNECTIONS = 1000
API_VERSIONS = bytes.fromhex("0000000a0012000000000001ffff")
PROCESS_KB_MAX = 70_000
CONNECTION_KB_MAX = 10
WRITTEN_WITHIN_S = 60
LOW_LIMIT = 512


def resident_kb(pid):
    """Return the resident memory of a process in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


def descriptors(pid):
    """Return the number of descriptors of a process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid):
    """Return the ids of the processes that a process has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.alone
def test_memory_and_descriptors_of_idle_connections(new_gateway):
    """An idle gateway stays below 70 MB, and a connection takes two descriptors and a few kilobytes."""
    gateway = new_gateway()
    pid, port = gateway.process.pid, min(gateway.ports.values())
    idle_kb, idle_descriptors = resident_kb(pid), descriptors(pid)
    sockets = []
    try:
        for _ in range(CONNECTIONS):
            sockets.append(socket.create_connection(("127.0.0.1", port), timeout=10))
            sockets[-1].sendall(API_VERSIONS)
            assert sockets[-1].recv(4096)
        connection_kb = (resident_kb(pid) - idle_kb) / CONNECTIONS
        each = (descriptors(pid) - idle_descriptors) / CONNECTIONS
    finally:
        for sock in sockets:
            sock.close()
    (writer,) = children(pid)
    wait_until(  # its libraries are loaded then
        lambda: list(gateway.usage_dir.glob("parquet/**/*.parquet")), WRITTEN_WITHIN_S
    )
    print(
        f"\ngateway with one broker, idle   {idle_kb / 1000:5.1f} MB resident\n"
        f"writer of its usage record      {resident_kb(writer) / 1000:5.1f} MB resident\n"
        f"each of {CONNECTIONS:,} idle connections  {connection_kb:5.1f} kB, {each:.1f} descriptors\n"
        f"{machine()}"
    )
    assert idle_kb < PROCESS_KB_MAX
    assert connection_kb < CONNECTION_KB_MAX
    assert each == pytest.approx(2, abs=0.1)


def test_the_gateway_raises_its_limit_of_open_files(tmp_path):
    """To the hard limit, as a broker does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    with closing(LyingBroker()) as cluster, closing(GatewayProcess(tmp_path, cluster.address)) as gateway:
        gateway.options = ("--quotas", str(quotas), "--override", "tidegate.usage.enable=false")
        resource.setrlimit(resource.RLIMIT_NOFILE, (LOW_LIMIT, hard))
        try:
            gateway.start()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE) == (hard, hard)
