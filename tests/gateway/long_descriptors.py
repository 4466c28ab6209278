"""A broker that joins while the gateway has no free descriptor: the gateway asks for brokers every 5 s."""

import os
import resource
import socket
from contextlib import closing
from pathlib import Path

from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import LyingCluster
from tests.waiting import wait_until


def test_a_broker_that_joins_while_descriptors_run_out_is_served_later(tmp_path: Path) -> None:
    """The gateway keeps running, logs the reason, and serves the broker when descriptors are free."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    options = ("--quotas", str(quotas), "--override", "tidegate.usage.enable=false")
    with (
        closing(LyingCluster({})) as cluster,
        closing(GatewayProcess(tmp_path, cluster.address, options)) as gateway,
    ):
        gateway.start()
        _, hard = resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE)
        used = set(map(int, os.listdir(f"/proc/{gateway.pid}/fd")))
        free = min(set(range(len(used) + 1)) - used)
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (free, hard))
        cluster.ports[2] = cluster.port
        wait_until(lambda: "cannot serve broker 2" in gateway.log, told=lambda: gateway.log)
        resource.prlimit(gateway.pid, resource.RLIMIT_NOFILE, (hard, hard))
        wait_until(lambda: "serving broker 2, which joined" in gateway.log, told=lambda: gateway.log)
        assert "Traceback" not in gateway.log
        socket.create_connection(("127.0.0.1", gateway.base_port + 2)).close()
