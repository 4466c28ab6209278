"""A cluster that hangs while gateways run, and goes on."""

import signal
import time
import urllib.request

from bench.ports import free_port
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.test_quota_topic import alter, becomes

DOWN_S = 75.0
"""Longer than `default.api.timeout.ms`: by then every request of the gateway's own has failed."""
SETTLES_S = 60.0


def test_quotas_stay_in_force_while_the_cluster_does_not_answer(kafka, tmp_path):
    """The gateways run on with their quotas, warn once, and follow the topic again when the cluster answers."""
    port = free_port(1)
    options = ("--override", f"tidegate.metrics.listener=127.0.0.1:{port}")
    pair = [
        GatewayProcess(tmp_path / "one", kafka.address, options),
        GatewayProcess(tmp_path / "two", kafka.address),
    ]
    try:
        one, two = (gateway.start() for gateway in pair)
        assert alter(one, "alice", 1000.0) == 0
        kafka.process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(DOWN_S)
            assert one.process.poll() is None
            explained = f"http://127.0.0.1:{port + 1}/explain?user=alice"
            with urllib.request.urlopen(explained, timeout=10) as response:
                assert b"1000.0" in response.read()
        finally:
            kafka.process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + SETTLES_S
        while True:
            try:
                if alter(one, "alice", 2000.0) == 0:
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline, one.log
            time.sleep(0.2)
        becomes(two, "alice", 2000.0, SETTLES_S)
        assert alter(two, "alice", 3000.0) == 0
        becomes(one, "alice", 3000.0, SETTLES_S)
        for gateway in pair:
            for text in ("cannot read the list of brokers", "cannot read topic __tidegate_quotas"):
                assert gateway.log.count(text) == 1, gateway.log
            assert "Traceback" not in gateway.log
    finally:
        for gateway in pair:
            gateway.close()
