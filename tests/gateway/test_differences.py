"""What differs for a client of the gateway from a connection to Kafka: the rows of docs/kafka-differences.md."""

import errno
import re
import socket
import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.broker import Broker
from tests.e2e.plain_client import PlainClient, receive_frame
from tests.waiting import wait_for_leaders, wait_until

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, CREATE_TOPICS, DESCRIBE_CLIENT_QUOTAS, JOIN_GROUP, METADATA
from tidegate.wire import encode_request, read_response
from tidegate.wire.header import decode_response_header

TIMEOUT_S = 30.0
QUOTA_EXCEEDED, INVALID_CONFIG, STORAGE_ERROR = 89, 40, 56
QUOTA, BYTES = 100_000.0, 1_000_000
LONG_MS = 5_000


def ask(port, api_key, version, message, *, client_id="x", source="127.0.0.1"):
    """Return the decoded response to one request on a connection of its own, from an address."""
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S, source_address=(source, 0)) as sock:
        sock.sendall(encode_request(api_key, version, 7, client_id, message))
        data = memoryview(receive_frame(sock))
    _, at = decode_response_header(data, api_key, version)
    return read_response(api_key, version, data, at)


def alter(port, client_id, key, value):
    """Set a quota of a client id, and return the error code."""
    op = {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
    entry = {"entity": [{"entity_type": "client-id", "entity_name": client_id}], "ops": [op]}
    answer = ask(port, ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    return answer["entries"][0]["error_code"]


def described(port):
    """Return the names of the client ids that have a quota."""
    component = {"entity_type": "client-id", "match_type": 2, "match": None}
    answer = ask(port, DESCRIBE_CLIENT_QUOTAS, 1, {"components": [component], "strict": False})
    return {part["entity_name"] for entry in answer["entries"] or () for part in entry["entity"]}


def port_of(gateway):
    """Return the port of the only broker."""
    return min(gateway.ports.values())


def unique(name):
    """Return a name that no other test uses."""
    return f"{name}-{time.time_ns()}"


def throttle_time_ms(port, topic, client_id):
    """Return the throttle time of a Produce request of ten seconds' worth of `QUOTA`."""
    with PlainClient(port, client_id) as client:
        client.send_produce(topic, value_bytes=BYTES)
        return client.receive_produce().throttle_time_ms


@pytest.fixture(scope="module")
def topic(kafka):
    """Return a topic with one partition."""
    name = unique("differences")
    admin = AdminClient({"bootstrap.servers": kafka.address})
    assert admin.create_topics([NewTopic(name, 1, 1)])[name].result(30) is None
    wait_for_leaders(admin, name)
    return name


def test_quotas_of_the_gateway_are_not_those_of_kafka(kafka, gateway, topic):
    """Each stores and describes its own. Both apply, and the client sees the larger throttle time."""
    ours, theirs = unique("ours"), unique("theirs")
    assert alter(port_of(gateway), ours, "producer_byte_rate", QUOTA / 2) == 0
    assert alter(kafka.port, theirs, "producer_byte_rate", QUOTA / 2) == 0
    wait_until(lambda: theirs in described(kafka.port))  # the broker follows its controller a little later
    assert ours in described(port_of(gateway)) - described(kafka.port)
    assert theirs in described(kafka.port) - described(port_of(gateway))
    assert throttle_time_ms(kafka.port, topic, ours) == 0
    assert throttle_time_ms(port_of(gateway), topic, ours) > LONG_MS
    assert throttle_time_ms(port_of(gateway), topic, theirs) > LONG_MS
    both, other = unique("both"), unique("other")
    for client_id, of_gateway, of_kafka in ((both, QUOTA / 2, QUOTA), (other, QUOTA, QUOTA / 2)):
        assert alter(port_of(gateway), client_id, "producer_byte_rate", of_gateway) == 0
        assert alter(kafka.port, client_id, "producer_byte_rate", of_kafka) == 0
        wait_until(lambda client_id=client_id: client_id in described(kafka.port))
        assert throttle_time_ms(port_of(gateway), topic, client_id) > LONG_MS


def created(port, client_id, configs):
    """Return the error codes of thirty creations of a topic."""
    codes = []
    for _ in range(30):
        wanted = {
            "name": unique("created"),
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": [],
            "configs": configs,
        }
        message = {"topics": [wanted], "timeout_ms": 10_000, "validate_only": False}
        codes += [
            each["error_code"] for each in ask(port, CREATE_TOPICS, 7, message, client_id=client_id)["topics"]
        ]
    return codes


def test_a_refused_topic_costs_its_permits(kafka, gateway):
    """Kafka checks a topic before it charges the permits; the gateway charges before it forwards."""
    client_id = unique("creator")
    wrong = [{"name": "cleanup.policy", "value": "nonsense"}]
    assert alter(kafka.port, client_id, "controller_mutation_rate", 1.0) == 0
    assert set(created(kafka.port, client_id, wrong)) == {INVALID_CONFIG}
    assert alter(kafka.port, client_id, "controller_mutation_rate", None) == 0
    assert alter(port_of(gateway), client_id, "controller_mutation_rate", 1.0) == 0
    codes = created(port_of(gateway), client_id, wrong)
    assert codes[0] == INVALID_CONFIG
    assert codes[-1] == QUOTA_EXCEEDED


def test_topics_that_are_created_by_use_cost_no_permits(gateway):
    """A broker creates topics that a client asks for; the gateway's mutation quota is not charged."""
    client_id = unique("user")
    assert alter(port_of(gateway), client_id, "controller_mutation_rate", 1.0) == 0
    for _ in range(30):
        asked = {
            "topics": [{"name": unique("used"), "topic_id": "00000000-0000-0000-0000-000000000000"}],
            "allow_auto_topic_creation": True,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        assert ask(port_of(gateway), METADATA, 9, asked, client_id=client_id)["throttle_time_ms"] == 0
    assert created(port_of(gateway), client_id, [])[0] == 0


def test_brokers_see_the_address_of_the_gateway(kafka, gateway):
    """The gateway sees the client's own address, the broker that of the gateway."""
    group = unique("group")
    op = {"key": "producer_byte_rate", "value": QUOTA, "remove": False}
    entry = {"entity": [{"entity_type": "client-id", "entity_name": group}], "ops": [op]}
    message = {"entries": [entry], "validate_only": False}
    ask(port_of(gateway), ALTER_CLIENT_QUOTAS, 1, message, source="127.0.0.7")
    assert re.search(rf"from 127\.0\.0\.7 .* altered quota of client-id='{group}'", gateway.log)
    joining = {
        "group_id": group,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }
    admin = AdminClient({"bootstrap.servers": kafka.address})
    wait_until(lambda: is_coordinated(admin, group))  # creates the topic of the coordinators
    wait_until(lambda: ask(port_of(gateway), JOIN_GROUP, 3, joining, source="127.0.0.7")["error_code"] == 0)
    (member,) = admin.describe_consumer_groups([group])[group].result(30).members
    assert member.host == "/127.0.0.1"


def test_quotas_of_a_file_cannot_be_altered(new_gateway, tmp_path):
    """Altering is refused, and the quotas stay as in the file."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("version: 1\nquotas:\n  - client-id: {name: fixed}\n    producer_byte_rate: 100KB\n")
    gateway = new_gateway("--quotas", str(quotas))
    assert alter(port_of(gateway), "other", "producer_byte_rate", QUOTA) == STORAGE_ERROR
    assert described(port_of(gateway)) == {"fixed"}
    assert f"the quotas of this gateway are those of {quotas}" in gateway.log


def test_connections_are_refused_while_the_broker_is_down(gateway_before, tmp_path):
    """The gateway's port refuses connections soon after the broker has gone, and accepts them when it is back."""
    directory = tmp_path / "broker"
    directory.mkdir()
    broker = Broker(directory).start()
    gateway = gateway_before(broker.address)
    with PlainClient(port_of(gateway), "x") as client:
        assert client.served_keys()
        broker.kill()
        with pytest.raises(ConnectionError):
            client.served_keys()
    wait_status(port_of(gateway), errno.ECONNREFUSED)
    broker.start()
    wait_status(port_of(gateway), 0)
    with PlainClient(port_of(gateway), "x") as client:
        assert client.served_keys()
    broker.close()
    assert gateway.process.poll() is None


def is_coordinated(admin: AdminClient, group: str) -> bool:
    """Return whether the coordinator of a group answers."""
    try:
        admin.describe_consumer_groups([group])[group].result(30)
    except KafkaException:
        return False
    return True


def wait_status(port: int, wanted: int) -> None:
    """Wait until connecting to a port ends with this error code; 0: with success."""

    def is_wanted() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == wanted

    wait_until(is_wanted)
