"""Tidegate's commands against a gateway: its quotas as code, its settings of quotas, its metrics and explanations."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from bench.ports import free_port
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.login_client import LoginClient

from tidegate import error_codes
from tidegate.api_keys import ALTER_CLIENT_QUOTAS, CREATE_TOPICS

SETTLES_S = 20.0


class Tools:
    """A gateway with a metrics listener for each broker."""

    def __init__(self, gateway: GatewayProcess, metrics_port: int) -> None:
        self.gateway = gateway
        self.metrics = f"http://127.0.0.1:{metrics_port + 1}"

    @property
    def port(self) -> int:
        """Return the port of the only broker."""
        (port,) = self.gateway.ports.values()
        return port

    def tidegate(self, *arguments: str, code: int = 0) -> str:
        """Run a command; return what it prints."""
        command = [sys.executable, "-m", "tidegate", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done
        assert "Traceback" not in done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def tools(secure_kafka, tmp_path_factory) -> Iterator[Tools]:
    """Return a gateway before the listener PLAINTEXT."""
    port = free_port(1)
    options = ("--override", f"tidegate.metrics.listener=127.0.0.1:{port}")
    process = GatewayProcess(tmp_path_factory.mktemp("tools"), secure_kafka.broker.address, options).start()
    yield Tools(process, port)
    process.close()


def test_quotas_as_code(tools, unique, tmp_path):
    """Export, plan, apply and undo work as against a broker, and the audit log has each change."""
    servers = ("--bootstrap-server", tools.gateway.address)
    exported = tmp_path / "quotas.yaml"
    exported.write_text(tools.tidegate("quotas", "export", *servers))
    changed = tmp_path / "changed.yaml"
    before = exported.read_text()
    more = f"  - user: {{name: {unique}}}\n    producer_byte_rate: 5MiB\n"
    changed.write_text(before.replace("quotas: []\n", "quotas:\n") + more)
    assert unique in tools.tidegate("quotas", "plan", str(changed), *servers)
    undo = tmp_path / "undo.yaml"
    tools.tidegate("quotas", "apply", str(changed), *servers, "--yes", "--undo-file", str(undo))
    assert f"altered quota of user='{unique}': producer_byte_rate none -> 5242880.0" in tools.gateway.log
    assert unique in tools.tidegate("quotas", "export", *servers)
    redo = tmp_path / "redo.yaml"
    tools.tidegate("quotas", "undo", str(undo), *servers, "--yes", "--undo-file", str(redo))
    assert unique not in tools.tidegate("quotas", "export", *servers)
    assert f"altered quota of user='{unique}': producer_byte_rate 5242880.0 -> none" in tools.gateway.log


def test_configs_and_explain(tools, unique):
    """The quota part of kafka-configs, and the explanation of definitions, see the gateway's quotas."""
    servers = ("--bootstrap-server", tools.gateway.address)
    tools.tidegate(
        *("configs", *servers, "--alter", "--add-config", "consumer_byte_rate=4321"),
        *("--entity-type", "clients", "--entity-name", unique),
    )
    described = tools.tidegate(
        "configs", *servers, "--describe", "--entity-type", "clients", "--entity-name", unique
    )
    assert "consumer_byte_rate=4321" in described
    explained = json.loads(tools.tidegate("explain", "--client-id", unique, *servers, "--json"))
    assert 4321.0 in [each["limit"] for each in explained["quotas"]]


def test_metrics_of_a_broker(tools, secure_kafka, unique):
    """The metrics listener of each broker has its clients, and top and explain read it."""
    topic = secure_kafka.topic(unique)
    with LoginClient(tools.port, client_id=unique) as client:
        set_quota(tools, unique, "producer_byte_rate", 1000.0)
        assert client.produce(topic, 20_000)["throttle_time_ms"] > 0
        explained = tools.tidegate("explain", "--client-id", unique, "--metrics", tools.metrics, "--json")
        produce = next(each for each in json.loads(explained)["quotas"] if each["quota_type"] == "Produce")
        assert produce["limit"] == 1000.0
        with urllib.request.urlopen(f"{tools.metrics}/metrics", timeout=10) as response:
            assert unique in response.read().decode()
        assert unique in tools.tidegate("top", "--once", "--json", "--metrics", tools.metrics)
        with urllib.request.urlopen(tools.metrics, timeout=10) as response:
            assert b"<html" in response.read()


def test_explain_shows_the_quotas_of_the_gateway_and_of_kafka(tools, secure_kafka, unique):
    """With both addresses the limits of both are shown, as both are enforced."""
    set_quota(tools, unique, "producer_byte_rate", 5 * 1024**2)
    kafka = secure_kafka.broker.address
    tools.tidegate(
        *("configs", "--bootstrap-server", kafka, "--alter", "--add-config", "producer_byte_rate=3145728"),
        *("--entity-type", "clients", "--entity-name", unique),
    )
    both = ("explain", "--client-id", unique, "--metrics", tools.metrics, "--bootstrap-server", kafka)
    deadline = time.monotonic() + SETTLES_S
    while "limit 3.0 MiB/s" not in (text := tools.tidegate(*both)):
        assert time.monotonic() < deadline, text
    assert text.index("node 1") < text.index("limit 5.0 MiB/s") < text.index("quotas of the cluster")
    document = json.loads(tools.tidegate(*both, "--json"))
    limits = [
        next(each["limit"] for each in part["quotas"] if each["quota_type"] == "Produce")
        for part in (document, document["cluster"])
    ]
    assert limits == [5 * 1024**2, 3 * 1024**2]


def set_quota(tools: Tools, client_id: str, key: str, value: float) -> None:
    """Set a quota of a client id."""
    entry = {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": key, "value": value, "remove": False}],
    }
    with LoginClient(tools.port) as client:
        answer = client.ask(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    assert answer["entries"][0]["error_code"] == 0


def test_default_number_of_partitions_is_that_of_the_cluster(tools, unique):
    """A topic without a number of partitions costs `num.partitions` permits, which are three here."""
    set_quota(tools, unique, "controller_mutation_rate", 0.5)  # 5.5 permits at once
    with LoginClient(tools.port, client_id=unique) as client:
        topics = [
            {
                "name": f"{unique}-{number}",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [],
                "configs": [],
            }
            for number in range(3)
        ]
        answer = client.ask(
            CREATE_TOPICS, 7, {"topics": topics, "timeout_ms": 10_000, "validate_only": False}
        )
    codes = [topic["error_code"] for topic in answer["topics"]]
    assert codes == [0, 0, error_codes.THROTTLING_QUOTA_EXCEEDED]
    assert [topic["num_partitions"] for topic in answer["topics"][:2]] == [3, 3]
