"""One port for all brokers before a real cluster: a broker that joins, is killed and returns, distinguished by name."""

import sys
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.gateway.kafka_cluster import KafkaCluster
from tests.gateway.named_brokers import DOMAIN, ROUND_TRIP, NamedGateway, name_of, run_with_hosts
from tests.waiting import wait_until

TOPIC = "named"


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
    wait_line(gateway, "broker 2 has joined")
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


def wait_line(gateway: NamedGateway, text: str) -> None:
    """Wait for a line in the log of the gateway."""
    wait_until(lambda: text in gateway.log, 40, told=lambda: gateway.log)
