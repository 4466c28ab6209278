"""A real Apache Kafka, and gateways before it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.ladder.brokers import SHORT_LIVED, KafkaBench
from tests.e2e.conftest import create_topic, kafka_classpath, kcat, topic
from tests.e2e.lateness import lateness
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.secure_kafka import SecureKafka

__all__ = ["create_topic", "kafka_classpath", "kcat", "lateness", "topic"]

ALONE = (
    "share.coordinator.state.topic.replication.factor=1",
    "share.coordinator.state.topic.min.isr=1",
    "max.incremental.fetch.session.cache.slots=40",
    "log.retention.ms=-1",
    "group.consumer.min.heartbeat.interval.ms=500",
    "group.consumer.heartbeat.interval.ms=500",
)
"""Settings of the shared broker.

Without the first two, share groups wait for more brokers. With the third, abandoned fetch sessions are noticed. Without
the fourth, Kafka deletes the records of `build_batch`, which have old timestamps, half a minute after its start and
then every five minutes, and closes the connections that are reading them. With the last two, members of KIP-848 groups
learn of a new assignment at once: by default, heartbeats are five seconds apart.
"""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBench]:
    """Return a running Apache Kafka with one broker, which has the id 1; tests use topics of their own."""
    directory = tmp_path_factory.mktemp("kafka")
    broker = KafkaBench("kafka", directory, overrides=ALONE, java_options=SHORT_LIVED)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(autouse=True)
def shared_brokers_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test during which a shared Apache Kafka has ended, with the end of its log."""
    yield
    for name in request.fixturenames:
        if name in ("kafka", "secure_kafka"):
            request.getfixturevalue(name).check_running()


@pytest.fixture(scope="module")
def gateway(kafka: KafkaBench, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway before the shared Kafka."""
    process = GatewayProcess(tmp_path_factory.mktemp("gateway"), kafka.address).start()
    yield process
    process.close()


@pytest.fixture
def new_gateway(kafka: KafkaBench, tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Return a function that starts a gateway of the test's own, given options of the command."""
    started: list[GatewayProcess] = []

    def start(*options: str) -> GatewayProcess:
        started.append(GatewayProcess(tmp_path / f"gateway-{len(started)}", kafka.address, options))
        return started[-1].start()

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def secure_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    """Return a running Apache Kafka with logins, TLS and an authorizer."""
    broker = SecureKafka(tmp_path_factory.mktemp("secure"))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def gateway_before(tmp_path: Path) -> Iterator[Callable[..., GatewayProcess]]:
    """Return a function that starts a gateway before an address, given options of the command and the listener."""
    started: list[GatewayProcess] = []

    def start(upstream: str, *options: str, listener: str = "PLAINTEXT") -> GatewayProcess:
        directory = tmp_path / f"before-{len(started)}"
        started.append(GatewayProcess(directory, upstream, options, listener=listener))
        return started[-1].start()

    yield start
    for process in started:
        process.close()


@pytest.fixture
def broker(gateway: GatewayProcess) -> GatewayProcess:
    """Return the gateway: what `tests/e2e` asks of a node, its tests that are imported here ask of the gateway."""
    return gateway


@pytest.fixture
def unique() -> str:
    """Return a name that no other test uses."""
    return f"u-{time.time_ns()}"
