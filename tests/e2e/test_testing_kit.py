"""The broker of `tidegate.testing` in a test, with unmodified clients."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic
from kafka import KafkaProducer
from tests.e2e.left_sockets import MAY_LEAVE_SOCKETS
from tests.waiting import wait_until

from tidegate.errors import ConfigError
from tidegate.testing import BrokerError, broker

pytestmark = MAY_LEAVE_SOCKETS

START_CPU_S = 0.5
PASSWORD = 'pa "ss\\ ='
LOADER = {"client-id": "loader", "producer_byte_rate": "1KiB"}


def produce(bootstrap, topic, value=b"x" * 14_000, **settings):
    """Send a record and wait for its acknowledgement."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "loader", **settings})
    producer.produce(topic, value)
    assert producer.flush(30) == 0


def test_a_throttle_is_seen_at_once():
    """With the acknowledgement the decision is there: quota type, time, client; and no other client's."""
    with broker(quotas=[LOADER]) as kafka:
        produce(kafka.bootstrap, "t", **{"client.id": "free"})
        assert kafka.throttles() == []
        produce(kafka.bootstrap, "t")
        (throttle,) = kafka.throttles(client_id="loader")
        (request,) = [each for each in kafka.requests(client_id="loader") if each.api == "Produce"]
    # (O - T) / T * W of the bytes charged; the sample of the moment adds up to a second to W.
    assert throttle == request
    assert (throttle.quota_type, throttle.user, throttle.node_id) == ("Produce", "ANONYMOUS", 1)
    assert throttle.produce_bytes == throttle.request_bytes
    least_ms = throttle.produce_bytes / 1024 * 1000 - 11_000
    assert least_ms - 1 <= throttle.throttle_time_ms <= least_ms + 1001


def test_quotas_change_while_it_runs():
    """Setting, removing and listing of quotas, and one that an application sets."""
    with broker(quotas=[LOADER, {"user": None, "request_percentage": 50}]) as kafka:
        kafka.set_quota({"client-id": "loader"}, producer_byte_rate=None, consumer_byte_rate="1MiB")
        kafka.set_quota({"user": "a", "client-id": None}, controller_mutation_rate=2.5)
        found = sorted(kafka.quotas(), key=str)
        assert found == sorted(
            [
                {"client-id": "loader", "consumer_byte_rate": 1024.0 * 1024},
                {"user": None, "request_percentage": 50.0},
                {"user": "a", "client-id": None, "controller_mutation_rate": 2.5},
            ],
            key=str,
        )
        with pytest.raises(ConfigError):
            kafka.set_quota({"client-id": "loader"}, producer_byte_rate=-1)
        with pytest.raises(ConfigError):
            kafka.set_quota({"client-id": "loader"})
        with pytest.raises(ConfigError, match="producer_bite_rate"):
            kafka.set_quota({"client-id": "loader"}, producer_bite_rate=None)
        produce(kafka.bootstrap, "t")
        assert kafka.throttles(client_id="loader") == []
    with broker(quotas=found) as again:
        assert sorted(again.quotas(), key=str) == found


def test_calls_work_while_an_event_loop_runs():
    """A test that is a coroutine starts a broker, changes quotas and reads them, as any other test."""

    async def test():
        with broker(quotas=[LOADER], sasl={"alice": PASSWORD}, nodes=2) as kafka:
            kafka.set_quota({"client-id": "loader"}, producer_byte_rate="2KiB")
            assert kafka.quotas() == [{"client-id": "loader", "producer_byte_rate": 2048.0}]
            assert kafka.requests() == []  # the kit's own are left out

    asyncio.run(test())


def test_a_refusal_of_the_broker_is_told():
    """With an authorizer and no super user, the kit has no permission; the error says what to set."""
    authorizer = {"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer"}
    with (
        pytest.raises(BrokerError, match="CLUSTER_AUTHORIZATION_FAILED") as caught,
        broker(quotas=[LOADER], settings=authorizer),
    ):
        raise AssertionError("the quota was set")
    assert "super.users" in caught.value.hint
    with broker(quotas=[LOADER], settings={**authorizer, "super.users": "User:ANONYMOUS"}) as kafka:
        assert kafka.quotas() == [{"client-id": "loader", "producer_byte_rate": 1024.0}]


def test_waiting_for_a_throttle():
    """The first throttle of a client ends the wait; without one the error says what to look at."""
    with broker(quotas=[LOADER]) as kafka:
        with pytest.raises(BrokerError, match="'loader'") as caught:
            kafka.wait_throttle(client_id="loader", timeout_s=0.1)
        assert "requests()" in caught.value.hint
        producer = KafkaProducer(bootstrap_servers=kafka.addresses, client_id="loader")
        producer.send("t", b"x" * 14_000)
        assert kafka.wait_throttle(client_id="loader").quota_type == "Produce"
        assert kafka.wait_throttle(user="ANONYMOUS").client_software == "kafka-python"
        assert kafka.early_requests() == []
        producer.close()


def test_mutations_and_fetches_have_their_types():
    """Each type of quota is named as in Kafka."""
    quotas = [
        {"client-id": "admin", "controller_mutation_rate": 1},
        {"client-id": "reader", "consumer_byte_rate": "1KiB"},
    ]
    with broker(quotas=quotas, nodes=2) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "client.id": "admin"})
        for future in admin.create_topics([NewTopic("many", 30, 1)]).values():
            future.result(timeout=10)
        assert [each.quota_type for each in kafka.throttles(client_id="admin")] == ["ControllerMutation"]
        produce(kafka.bootstrap, "one", b"x" * 40_000)
        settings = {"bootstrap.servers": kafka.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
        reader = Consumer({**settings, "client.id": "reader"})
        reader.subscribe(["one"])
        deadline = time.monotonic() + 30
        while not kafka.throttles(client_id="reader"):
            reader.poll(0.1)
            assert time.monotonic() < deadline, kafka.requests(client_id="reader")
        assert {each.quota_type for each in kafka.throttles(client_id="reader")} == {"Fetch"}
        reader.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_users_log_in_by_every_mechanism(mechanism):
    """Quotas of users apply to who logs in; a wrong password does not."""
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "alice"}
    with broker(sasl={"alice": PASSWORD}, quotas=[{"user": "alice", "producer_byte_rate": "1KiB"}]) as kafka:
        produce(kafka.bootstrap, "t", **login, **{"sasl.password": PASSWORD})
        (throttle,) = kafka.throttles(user="alice")
        wrong = Producer({"bootstrap.servers": kafka.bootstrap, **login, "sasl.password": "wrong"})
        wrong.produce("t", b"x")
        assert wrong.flush(1) == 1
        wait_until(lambda: "failed login" in kafka.log)
        assert PASSWORD not in kafka.log
    assert (throttle.user, throttle.quota_type) == ("alice", "Produce")


def test_settings_are_the_brokers():
    """Values are texts, numbers or truth values; changes by clients are Kafka's."""
    with broker(settings={"auto.create.topics.enable": False, "num.partitions": 3}) as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        described = admin.describe_configs([ConfigResource(ConfigResource.Type.BROKER, "1")])
        (values,) = [future.result(timeout=10) for future in described.values()]
        assert values["num.partitions"].value == "3"
        assert values["auto.create.topics.enable"].value == "false"
        retention = ConfigEntry("log.retention.ms", "5000", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[retention])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(timeout=10)


def test_what_was_there_is_gone():
    """Process and directory end with the block, also where the test fails; the log stays readable."""
    kafka = None

    def fail():
        nonlocal kafka
        with broker() as kafka:
            assert kafka._process.directory.exists()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not kafka._process.directory.exists()
    assert not Path(f"/proc/{kafka.pid}").exists()
    assert "stopping: standard input was closed" in kafka.log


def test_a_broker_that_does_not_start_is_explained():
    """The error has the broker's reason, and nothing is left behind."""
    with (
        pytest.raises(BrokerError, match=r"num\.partitions") as caught,
        broker(settings={"num.partitions": 0}),
    ):
        raise AssertionError("it started")
    assert "exit code 2" in str(caught.value)


def test_a_broker_that_ends_by_itself_fails_the_test():
    """A crash in the block is an error at its end, with the log."""

    def crash():
        with broker() as kafka:
            os.kill(kafka.pid, signal.SIGKILL)
            wait_ended(kafka.pid)

    with pytest.raises(BrokerError, match="ended by itself with exit code -9"):
        crash()


def test_it_does_not_outlive_killed_tests(tmp_path):
    """`kill -9` of the tests ends the broker, too."""
    program = "from tidegate.testing import broker\nwith broker() as kafka:\n  print(kafka.pid, flush=True)\n  input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},  # the broker's directory stays
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as tests:
        pid = int(tests.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        tests.kill()
        wait_ended(pid)


def wait_ended(pid):
    """Wait until a process has ended."""
    deadline = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < deadline, "the broker still runs"
        time.sleep(0.01)


def is_running(pid):
    """Return whether a process exists and is no zombie (of a container whose first process reaps none)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.alone
def test_a_start_takes_less_than_half_a_second(tmp_path, monkeypatch):
    """Of processor time, with modules that are compiled: what it takes on a machine that does nothing else."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    spent_s = []
    for _ in range(6):
        with broker() as kafka:
            fields = Path(f"/proc/{kafka.pid}/stat").read_text().rsplit(")", 1)[1].split()
            spent_s.append(sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"))
    assert min(spent_s) < START_CPU_S, spent_s
