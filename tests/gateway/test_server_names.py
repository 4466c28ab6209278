"""One port for all brokers, which are distinguished by the server name in the TLS handshake (SNI)."""

import select
import socket
import ssl
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from bench.ports import free_port
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.broker import Broker
from tests.gateway.login_client import LoginClient
from tests.gateway.lying_broker import LyingCluster
from tests.gateway.named_brokers import DOMAIN, ROUND_TRIP, NamedGateway, hello_of, name_of, run_with_hosts
from tests.waiting import wait_until

from tidegate.api_keys import LIST_OFFSETS

BROKERS = (1, 2, 3)
TOPIC = "named"
CLOSED = (ConnectionError, ssl.SSLEOFError)
QUOTAS = """\
version: 1
quotas:
  - user: {name: "CN=carol"}
    producer_byte_rate: 1000
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Broker]:
    """Return a cluster of three brokers, in one process, and a topic with a partition at each."""
    broker = Broker(tmp_path_factory.mktemp("cluster"), nodes=len(BROKERS)).start()
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic(TOPIC, len(BROKERS), 1)])[TOPIC].result(30)
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def quotas(tmp_path_factory) -> str:
    """Return a file with a quota of the user of carol's certificate: the cluster cannot keep a topic of quotas."""
    path = tmp_path_factory.mktemp("quotas") / "quotas.yaml"
    path.write_text(QUOTAS)
    return str(path)


@pytest.fixture(scope="module")
def gateway(cluster, quotas, tmp_path_factory) -> Iterator[NamedGateway]:
    """Return a gateway before the cluster; a client may show a certificate."""
    options = ("--override", "ssl.client.auth=requested", "--quotas", quotas)
    process = NamedGateway(tmp_path_factory.mktemp("gateway"), cluster.address, *options)
    yield process.start()
    process.close()


@pytest.fixture
def new_gateway(cluster, quotas, tmp_path) -> Iterator:
    """Return a function that starts a gateway of the test's own, given options."""
    started: list[NamedGateway] = []

    def start(*options: str) -> NamedGateway:
        options += ("--quotas", quotas)
        started.append(NamedGateway(tmp_path / f"gateway-{len(started)}", cluster.address, *options))
        return started[-1].start()

    yield start
    for process in started:
        process.close()


def leaders(client: LoginClient) -> dict[int, int]:
    """Return the broker that leads each partition of the topic."""
    topics = client.metadata()["topics"]
    (partitions,) = (topic["partitions"] for topic in topics if topic["name"] == TOPIC)
    return {each["partition_index"]: each["leader_id"] for each in partitions}


def broker_of(client: LoginClient) -> int:
    """Return the broker behind a connection: the one that leads a partition for which it answers."""
    by_partition = leaders(client)
    partitions = [{"partition_index": each, "timestamp": -1} for each in by_partition]
    message = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": partitions}]}
    (topic,) = client.ask(LIST_OFFSETS, 1, message)["topics"]
    (served,) = (each["partition_index"] for each in topic["partitions"] if not each["error_code"])
    return by_partition[served]


# --- brokers and their names ------------------------------------------------------------------------------------------


def test_each_name_leads_to_its_broker(gateway):
    """A name in capitals, too; Metadata has the names, and one port."""
    for broker_id in BROKERS:
        for name in (name_of(broker_id), name_of(broker_id).upper()):
            with gateway.connect(name) as client:
                assert broker_of(client) == broker_id
                advertised = {
                    (each["node_id"], each["host"], each["port"]) for each in client.metadata()["brokers"]
                }
    assert advertised == {(each, name_of(each), gateway.port) for each in BROKERS}
    assert f"at {name_of(2)}:{gateway.port};" in gateway.log


def test_bootstrap_name_leads_to_each_broker_in_turn(gateway):
    """Twice as many connections as brokers reach each of them twice."""
    found: Counter[int] = Counter()
    for _ in range(2 * len(BROKERS)):
        with gateway.connect() as client:
            found[broker_of(client)] += 1
    assert found == dict.fromkeys(BROKERS, 2)


def test_each_broker_has_its_own_quotas(gateway, unique):
    """Usage at one broker is not charged at another; the client's certificate names the user."""
    with gateway.connect() as client:
        partitions = {leader: partition for partition, leader in leaders(client).items()}
    sizes = {1: 40_000, 2: 5_000}
    throttled = {}
    for broker_id, size in sizes.items():
        with gateway.connect(name_of(broker_id), own="carol", client_id=unique) as client:
            answer = client.produce(TOPIC, size, partition=partitions[broker_id])
            throttled[broker_id] = answer["throttle_time_ms"]
    # 40 kB take 40 s, less the window of up to 11 s; 5 kB fit into a window.
    assert throttled[1] > 20_000, throttled
    assert throttled[2] == 0, throttled
    with gateway.connect(name_of(1), client_id=unique) as client:
        assert client.produce(TOPIC, 40_000, partition=partitions[1])["throttle_time_ms"] == 0  # ANONYMOUS


def test_each_broker_has_its_own_limit_of_connections(new_gateway):
    """A third connection of an address to a broker is closed, and another broker accepts it."""
    gateway = new_gateway("--override", "max.connections.per.ip=2")
    held = [gateway.connect(name_of(1)) for _ in range(2)]
    with pytest.raises(CLOSED):
        gateway.connect(name_of(1)).metadata()
    with gateway.connect(name_of(2)) as client:
        assert broker_of(client) == 2
    held.pop().socket.close()
    deadline = time.monotonic() + 10
    while True:
        try:
            with gateway.connect(name_of(1)) as client:
                assert broker_of(client) == 1
            break
        except CLOSED:
            assert time.monotonic() < deadline
    held.pop().socket.close()


def test_rate_of_new_connections_holds_one_broker_only(new_gateway):
    """Connections over the rate of a broker wait, at 2 a second; those to another broker do not."""
    gateway = new_gateway("--override", "max.connection.creation.rate=2")
    hello = hello_of(gateway.context(), name_of(1))
    with ExitStack() as stack:
        clients = []
        for _ in range(200):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port))))
            clients[-1].sendall(hello)
        select.select(clients, [], [], 10)  # some are served
        with gateway.connect(name_of(2)) as client:
            assert broker_of(client) == 2
        answered, _, _ = select.select(clients, [], [], 0)
        assert 0 < len(answered) < 100


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server", "alert"),
    [
        ("broker-1.example.com", "UNRECOGNIZED_NAME"),
        (f"broker-x.{DOMAIN}", "UNRECOGNIZED_NAME"),
        (f"broker-01.{DOMAIN}", "UNRECOGNIZED_NAME"),
        (f"a.broker-1.{DOMAIN}", "UNRECOGNIZED_NAME"),
        (f"broker-1.{DOMAIN}.evil.com", "UNRECOGNIZED_NAME"),
        (f"broker-{'9' * 40}.{DOMAIN}", "UNRECOGNIZED_NAME"),
        ("127.0.0.1", "MISSING_EXTENSION"),  # no name is sent for an address
        (None, "MISSING_EXTENSION"),
    ],
)
def test_unknown_names_get_an_alert(gateway, server, alert):
    """Also those that only resemble a broker's, and a client that names none."""
    context = gateway.context()
    context.check_hostname = False
    with pytest.raises(ssl.SSLError, match=alert):
        LoginClient(gateway.port, context, server=server)


def test_a_broker_that_is_not_served_closes_the_connection(new_gateway):
    """Without an alert: a client tries again, because a broker that joins is served some seconds later."""
    gateway = new_gateway("--brokers", "1-2")
    for server in (name_of(3), name_of(77)):
        with pytest.raises(CLOSED):
            gateway.connect(server)
    assert "is of broker 3, which is not served here" in gateway.log
    with gateway.connect(name_of(2)) as client:
        assert broker_of(client) == 2


# --- brokers that are down, and many of them --------------------------------------------------------------------------


def before(cluster: LyingCluster, directory: Path, quotas: str, *options: str) -> NamedGateway:
    """Return a gateway before a cluster."""
    return NamedGateway(directory, cluster.address, "--quotas", quotas, *options).start()


def test_a_broker_that_is_down_refuses_connections(quotas, tmp_path):
    """They are closed in the handshake, without an alert; the bootstrap name leads to the other broker."""
    port = free_port()
    cluster = LyingCluster({2: port})
    gateway = before(cluster, tmp_path, quotas)
    try:
        with pytest.raises(CLOSED), gateway.connect(name_of(2)) as client:
            client.metadata()
        wait_until(
            lambda: "broker 2 (127.0.0.1:" in gateway.log and "refuses connections to it" in gateway.log,
            10,
            told=lambda: gateway.log,
        )
        for _ in range(4):
            with pytest.raises(CLOSED):
                gateway.connect(name_of(2))
            with gateway.connect() as client:
                assert len(client.metadata()["brokers"]) == 2
        with socket.create_server(("127.0.0.1", port)):
            wait_until(lambda: "can be reached again" in gateway.log, 10, told=lambda: gateway.log)
            gateway.connect(name_of(2)).socket.close()
    finally:
        gateway.close()
        cluster.close()


def test_one_process_serves_more_brokers_without_a_writer_for_each(quotas, tmp_path):
    """Sixteen with a process for the usage record of each broker, and many more without them."""
    cluster = LyingCluster({})
    cluster.ports = dict.fromkeys(range(1, 101), cluster.port)
    gateway = NamedGateway(tmp_path, cluster.address, "--quotas", quotas)
    with pytest.raises(AssertionError, match="the cluster has 100 brokers, one process serves at most 16"):
        gateway.start()
    assert "tidegate.usage.parquet.enable=false" in gateway.log
    gateway.options += ("--override", "tidegate.usage.parquet.enable=false")
    gateway.start()
    try:
        for broker_id in (1, 50, 100):
            with gateway.connect(name_of(broker_id)) as client:
                advertised = {(each["host"], each["port"]) for each in client.metadata()["brokers"]}
                assert advertised == {(name_of(each), gateway.port) for each in range(1, 101)}
        print(f"100 brokers: {gateway.resident_mb():.0f} MB, {gateway.descriptors()} descriptors")
    finally:
        gateway.close()
        cluster.close()


def test_names_that_the_certificate_lacks_are_in_the_log(gateway, new_gateway):
    """Here a bootstrap name; a certificate of all names is in no line."""
    assert "the certificate of listener" not in gateway.log
    log = new_gateway("--bootstrap-name", f"{DOMAIN},kafka.internal").log
    assert f"has the DNS names *.{DOMAIN}, {DOMAIN}, and not kafka.internal; clients" in log


# --- real clients before a real Kafka ---------------------------------------------------------------------------------

JVM = ("java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@pytest.fixture(scope="module")
def before_kafka(kafka, tmp_path_factory) -> Iterator[NamedGateway]:
    """Return a gateway before the shared Kafka, whose broker has the id 1."""
    process = NamedGateway(tmp_path_factory.mktemp("before"), kafka.address)
    yield process.start()
    process.close()


def test_confluent_kafka_uses_names(before_kafka, kafka, create_topic, unique, tmp_path):
    """A producer and a group, which compare the names with the certificate, as they do by default."""
    topic = create_topic(kafka, unique, 3)
    servers, authority = f"{DOMAIN}:{before_kafka.port}", str(before_kafka.certificates.authority_file)
    command = (sys.executable, "-c", ROUND_TRIP, servers, topic, authority)
    assert run_with_hosts(tmp_path, [1], command) == f"True\n{[name_of(1)]}\n"


def test_java_clients_use_names(before_kafka, kafka, create_topic, kafka_classpath, unique, tmp_path):
    """Kafka's console producer and consumer."""
    topic = create_topic(kafka, unique, 1)
    config = tmp_path / "client.properties"
    authority = before_kafka.certificates.authority_file
    config.write_text(
        f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority}\n"
    )
    tool = (*JVM, "-cp", kafka_classpath)
    common = ("--bootstrap-server", f"{DOMAIN}:{before_kafka.port}", "--topic", topic)
    producer = (*tool, "org.apache.kafka.tools.ConsoleProducer", *common, "--command-config", str(config))
    run_with_hosts(tmp_path, [1], producer, given="one\ntwo\n")
    consumer = (*tool, "org.apache.kafka.tools.consumer.ConsoleConsumer", *common)
    consumer += ("--command-config", str(config), "--from-beginning", "--max-messages", "2")
    assert run_with_hosts(tmp_path, [1], consumer) == "one\ntwo\n"
