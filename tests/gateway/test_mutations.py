"""Mutation quotas of a gateway before several brokers: one bucket for all of them, as at Kafka's controller."""

import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.lying_broker import LyingCluster
from tests.gateway.raw_client import NO_ID, RawClient
from tests.waiting import wait_until

from tidegate.api_keys import CREATE_TOPICS
from tidegate.cli.main import main
from tidegate.error_codes import THROTTLING_QUOTA_EXCEEDED
from tidegate.quota.managers.mutation import STRICT_SINCE

CLIENT = "creator"
RATE, BURST, PERMITS = 0.5, 5.5, 15
GATEWAYS = 2
SLOW_RATE = 0.02  # a full bucket has 0.22 tokens: the first topic owes 39 s
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


def created_at(ports: list[int], client_id: str, topics: Iterator[str]) -> int:
    """Create topics of one partition at each port in turn; return how many were created before a refusal."""
    for number in itertools.count():
        with RawClient(ports[number % len(ports)], client_id) as client:
            answer = client.create_topics((next(topics), 1))
        if answer["topics"][0]["error_code"]:
            assert answer["topics"][0]["error_code"] == THROTTLING_QUOTA_EXCEEDED
            assert answer["throttle_time_ms"] > 0
            return number
    raise AssertionError


def test_a_quota_of_kafka_is_one_for_several_gateways(kafka, new_gateway, unique: str):
    """Each gateway has a bucket of its own; that of Kafka's controller is for all, and its refusals are passed on."""
    ports = [new_gateway().port for _ in range(GATEWAYS)]
    topics = (f"{unique}-{number}" for number in itertools.count())
    created = {}
    for where, port in (("gateway", ports[0]), ("kafka", kafka.port)):
        client_id = f"{unique}-{where}"
        with RawClient(port, "admin") as admin:
            admin.set_quotas(client_id, controller_mutation_rate=SLOW_RATE)
        wait_until(
            lambda client_id=client_id, where=where: knows(
                ports if where == "gateway" else [kafka.port], client_id
            )
        )
        created[where] = created_at(ports, client_id, topics)
        with RawClient(port, "admin") as admin:
            admin.set_quotas(client_id, controller_mutation_rate=None)
    assert created == {"gateway": GATEWAYS, "kafka": 1}


def knows(ports: list[int], client_id: str) -> bool:
    """Return whether each of these servers has a mutation quota of a client id."""
    found = []
    for port in ports:
        with RawClient(port, "admin") as admin:
            found.append(admin.quota(client_id, "controller_mutation_rate"))
    return set(found) == {SLOW_RATE}
