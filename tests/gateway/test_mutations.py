"""Mutation quotas of gateways: one bucket for all brokers and all gateways, as at Kafka's controller."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from bench.ports import free_port
from tests.e2e.lateness import Lateness
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import LyingCluster
from tests.gateway.raw_client import NO_ID, RawClient
from tests.waiting import wait_until

from tidegate.api_keys import CREATE_TOPICS
from tidegate.cli.main import main
from tidegate.error_codes import THROTTLING_QUOTA_EXCEEDED
from tidegate.gateway.processes import METRICS_STEP
from tidegate.quota.managers.mutation import STRICT_SINCE

CLIENT = "creator"
RATE, BURST, PERMITS = 0.5, 5.5, 15
GATEWAYS = 2
SLOW_RATE = 0.02  # a full bucket has 0.22 tokens: the first topic owes 39 s
OWED_MS = (3 - 11 * SLOW_RATE) / SLOW_RATE * 1000
VERSION = STRICT_SINCE[CREATE_TOPICS]


class CreatingCluster(LyingCluster):
    """Brokers at several ports that create each topic they are asked for."""

    def _api_18(self) -> dict:
        served = super()._api_18()
        served["api_keys"].append({"api_key": CREATE_TOPICS, "min_version": 2, "max_version": VERSION})
        return served

    def _api_19(self) -> dict:
        topic = {"name": "t", "topic_id": NO_ID, "error_code": 0, "error_message": None, "configs": []}
        topic |= {"topic_config_error_code": 0, "num_partitions": PERMITS, "replication_factor": 1}
        return {"throttle_time_ms": 0, "topics": [topic]}


@pytest.fixture
def two(tmp_path: Path) -> Iterator[GatewayProcess]:
    """Return a gateway before two brokers that is not started, with a mutation quota."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text(f"quotas:\n  - client-id: {{name: {CLIENT}}}\n    controller_mutation_rate: {RATE}\n")
    ports: dict[int, int] = {}
    with closing(CreatingCluster(ports)) as first, closing(CreatingCluster(ports)) as second:
        first.ports = second.ports = {1: first.port, 2: second.port}
        gateway = GatewayProcess(tmp_path / "gateway", first.address, ("--quotas", str(quotas)))
        yield gateway
        gateway.close()


def create(port: int, version: int = VERSION) -> tuple[int, int]:
    """Create a topic on a connection of its own; return error code and throttle time in ms."""
    with RawClient(port, CLIENT) as client:
        answer = client.create_topics(("t", PERMITS), version=version)
    return answer["topics"][0]["error_code"], answer["throttle_time_ms"]


@pytest.mark.parametrize("processes", [1, 2])
def test_all_brokers_charge_one_bucket(two, processes: int):
    """Permits that a client has used at one broker are missing at all others, in each process of the gateway."""
    two.options += ("--processes", str(processes))
    two.start()
    owed_ms = (PERMITS - BURST) / RATE * 1000
    error_code, _ = create(two.ports[2])
    assert error_code == 0, "a bucket that is not below zero admits any size"
    for broker_id in (1, 2, 1, 2):
        error_code, throttle_ms = create(two.ports[broker_id])
        assert error_code == THROTTLING_QUOTA_EXCEEDED
        assert owed_ms / 2 < throttle_ms <= owed_ms
    error_code, throttle_ms = create(two.ports[1], version=VERSION - 1)
    assert error_code == 0, "permissive"
    assert throttle_ms > owed_ms, "it is charged, too"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_replay_decides_as_the_gateway_did(two, processes: int, capsys: pytest.CaptureFixture[str]):
    """The record of the first broker has the permits of all; only decisions of several processes are approximate."""
    two.options += ("--processes", str(processes))
    two.start()
    for broker_id in (1, 2, 2, 1):
        create(two.ports[broker_id])
    two.stop()
    assert main(["replay", str(two.usage_dir), "--in-force", "--json"]) == 0
    plans = [
        each["plans"][0]
        for each in json.loads(capsys.readouterr().out)["entities"]
        if (each["client_id"], each["quota_type"]) == (CLIENT, "ControllerMutation")
    ]
    assert sum(plan["recorded_throttled_requests"] for plan in plans) == 3
    assert all(plan["throttle_ms"] == plan["recorded_throttle_ms"] for plan in plans)
    assert not any(plan["different_decisions"] for plan in plans)
    assert any(plan["approximate_requests"] for plan in plans) == (processes > 1)


def creates(port: int, client_id: str, topic: str, partitions: int = 1) -> tuple[bool, int]:
    """Create a topic; return whether it was admitted, and the throttle time in ms."""
    with RawClient(port, client_id) as client:
        answer = client.create_topics((topic, partitions))
    error_code = answer["topics"][0]["error_code"]
    assert error_code in (0, THROTTLING_QUOTA_EXCEEDED)
    return error_code == 0, answer["throttle_time_ms"]


@pytest.fixture
def quota_of(unique: str) -> Iterator[Callable[[int, Sequence[int]], str]]:
    """Return a function that sets a mutation quota at a port, and returns its client id when all servers have it."""
    client_ids: dict[str, int] = {}

    def set_quota(port: int, ports: Sequence[int]) -> str:
        client_id = f"{unique}-{port}"
        client_ids[client_id] = port
        with RawClient(port, "admin") as admin:
            admin.set_quotas(client_id, controller_mutation_rate=SLOW_RATE)
        wait_until(lambda: all(knows(each, client_id) for each in ports))
        return client_id

    yield set_quota
    for client_id, port in client_ids.items():
        with RawClient(port, "admin") as admin:
            admin.set_quotas(client_id, controller_mutation_rate=None)


@pytest.mark.parametrize("processes", [1, 2])
def test_gateways_charge_one_bucket(
    new_gateway,
    quota_of,
    unique: str,
    processes: int,
    lateness: Lateness,
    capsys: pytest.CaptureFixture[str],
):
    """Permits that one gateway admits are charged at the other, once, in whichever process gets the requests.

    `tidegate explain` says of each that the quota is one of the cluster.
    A replay of the other's record counts its decisions as approximate.
    """
    listeners = [free_port(1, processes=processes) for _ in range(GATEWAYS)]
    metrics = [port + 1 + number * METRICS_STEP for port in listeners for number in range(processes)]
    gateways = [
        new_gateway(
            *("--processes", str(processes)), *("--override", f"tidegate.metrics.listener=127.0.0.1:{port}")
        )
        for port in listeners
    ]
    ports = [gateway.port for gateway in gateways]
    client_id = quota_of(ports[0], ports)
    for port in metrics:
        wait_until(lambda port=port: metric(port, "processes") == len(metrics))
    assert creates(ports[0], client_id, f"{unique}-a", partitions=3) == (True, 0)
    for port in metrics[processes:]:
        wait_until(lambda port=port: metric(port, "mutation_buckets_of_others") > 0)
    for port in (*ports, *ports):
        is_admitted, throttle_ms = creates(port, client_id, f"{unique}-b")
        assert not is_admitted
        assert 0 < OWED_MS - throttle_ms < 60_000
    for port in listeners:
        address = f"http://127.0.0.1:{port + 1}"
        assert main(["explain", "--metrics", address, "--client-id", client_id, "--json"]) == 0
        quotas = {each["quota_type"]: each for each in json.loads(capsys.readouterr().out)["quotas"]}
        assert quotas["ControllerMutation"]["scope"] == "cluster"
        assert quotas["ControllerMutation"]["utilization"] > 1.0
        assert quotas["Produce"]["scope"] == "broker"
    for gateway in gateways:
        warnings = [line for line in gateway.log.splitlines() if "WARNING" in line]
        if lateness.has_stalled(2.0):  # a gateway that stands still for 3 s is cut off from the others
            warnings = [line for line in warnings if "other gateway processes" not in line]
        assert warnings == []
    gateways[1].stop()
    assert main(["replay", str(gateways[1].usage_dir), "--in-force", "--json"]) == 0
    (plan,) = [
        each["plans"][0]
        for each in json.loads(capsys.readouterr().out)["entities"]
        if (each["client_id"], each["quota_type"]) == (client_id, "ControllerMutation")
    ]
    assert plan["approximate_cluster_wide"] == plan["recorded_throttled_requests"] > 0


def test_a_quota_of_kafka_is_one_for_several_gateways(kafka, new_gateway, quota_of, unique: str):
    """That of Kafka's controller is for all, and gateways pass on its refusals."""
    ports = [new_gateway().port for _ in range(GATEWAYS)]
    client_id = quota_of(kafka.port, [kafka.port])
    assert creates(ports[0], client_id, f"{unique}-a")[0]
    is_admitted, throttle_ms = creates(ports[1], client_id, f"{unique}-b")
    assert not is_admitted
    assert throttle_ms > 0


def metric(port: int, name: str) -> float:
    """Return a metric about shared quotas of the gateway process whose metrics are at a port."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return float(text.partition(f"\ntidegate_cluster_quota_{name} ")[2].split()[0])


def knows(port: int, client_id: str) -> bool:
    """Return whether a server has the mutation quota of a client id."""
    with RawClient(port, "admin") as admin:
        return admin.quota(client_id, "controller_mutation_rate") == SLOW_RATE
