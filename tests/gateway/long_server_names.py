"""One port for all brokers before a real cluster: a broker that joins, is killed and returns, distinguished by name."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from bench.ports import free_port
from confluent_kafka.admin import AdminClient, NewTopic
from tests.gateway.kafka_cluster import KafkaCluster
from tests.gateway.named_brokers import DOMAIN, ROUND_TRIP, NamedGateway, name_of, run_with_hosts
from tests.gateway.test_processes import NamedProcesses
from tests.waiting import wait_until

TOPIC, DIVIDED = "named", "divided"
HOSTS = {1: "127.0.0.1", 2: "127.0.0.2"}
PROCESSES = 2
SHARED = (
    "-v",
    "--override",
    "tidegate.quota.cluster.wide=all",
    "--override",
    "tidegate.usage.parquet.enable=false",
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Return a running cluster of one broker."""
    own = KafkaCluster(tmp_path_factory.mktemp("cluster"), controllers=1)
    try:
        yield own.start()
    finally:
        own.close()


@pytest.fixture(scope="module")
def gateway(cluster, tmp_path_factory) -> Iterator[NamedGateway]:
    """Return a gateway before the cluster, with one port."""
    process = NamedGateway(tmp_path_factory.mktemp("gateway"), cluster.address)
    yield process.start()
    process.close()


def test_named_broker_joins_fails_and_returns(cluster, gateway, tmp_path):
    """It has its name at the same port; while it is down, its name is refused, and the bootstrap name is not."""
    cluster.add(2)
    wait_line(gateway, "serving broker 2, which joined")
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic(TOPIC, 4, 1)])[TOPIC].result(30)
    servers, authority = f"{DOMAIN}:{gateway.port}", str(gateway.certificates.authority_file)
    command = (sys.executable, "-c", ROUND_TRIP, servers, TOPIC, authority)
    printed = run_with_hosts(tmp_path, [1, 2], command).splitlines()
    assert printed == ["True", str([name_of(1), name_of(2)])]
    with gateway.connect(name_of(2)) as client:
        client.metadata()
        cluster.kill(2)
        wait_line(gateway, "refuses connections to it")
    for _ in range(3):
        with pytest.raises(ConnectionError):
            gateway.connect(name_of(2))
        with gateway.connect() as client:
            client.metadata()
    cluster.run(2)
    wait_line(gateway, "can be reached again")
    with gateway.connect(name_of(2)) as client:
        client.metadata()
    assert "Traceback" not in gateway.log


def test_several_gateways_divide_the_brokers_behind_one_name(cluster, tmp_path):
    """Each has its address, its brokers and several processes; clients find all, also when a process is killed."""
    if 2 not in cluster.ports:
        cluster.add(2)
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic(DIVIDED, 4, 1)])[DIVIDED].result(30)
    port, pair = free_port(), []
    try:
        for broker_id, host in HOSTS.items():
            options = ("--brokers", str(broker_id), "--processes", str(PROCESSES), *SHARED)
            directory = tmp_path / f"gateway-{broker_id}"
            pair.append(NamedProcesses(directory, cluster.address, *options, host=host, base_port=port))
            pair[-1].certificates = pair[0].certificates
            pair[-1].start()
        for gateway in pair:
            wait_line(gateway, f"{len(HOSTS) * PROCESSES} gateway processes share cluster-wide quotas")
        servers, authority = f"{DOMAIN}:{port}", str(pair[0].certificates.authority_file)
        command = (sys.executable, "-c", ROUND_TRIP, servers, DIVIDED, authority)
        lines = [f"{host} {DOMAIN} {name_of(broker_id)}" for broker_id, host in HOSTS.items()]
        for _ in range(PROCESSES):
            printed = run_with_hosts(tmp_path, [], command, lines=lines).splitlines()
            assert printed == ["True", str(sorted(map(name_of, HOSTS)))]
            os.kill(pair[1].children[0], signal.SIGKILL)
        with pytest.raises(ConnectionError):
            pair[0].connect(name_of(2))
        for gateway in pair:
            assert "Traceback" not in gateway.log
    finally:
        for gateway in pair:
            gateway.close()


def wait_line(gateway: NamedGateway, text: str) -> None:
    """Wait for a line in the log of the gateway."""
    wait_until(lambda: text in gateway.log, 40, told=lambda: gateway.log)
