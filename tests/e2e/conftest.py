"""Brokers, topics and Apache Kafka's own jars for the end-to-end tests."""

import gc
import itertools
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bench.ladder.brokers import BenchBroker, KafkaBench, TidegateBench
from confluent_kafka.admin import AdminClient, NewTopic
from tests.e2e.broker import Broker
from tests.waiting import wait_for_leaders

ROOT = Path(__file__).parent.parent.parent
FETCH_JARS_TIMEOUT_S = 240.0

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a running broker that the tests share: each uses its own topics and client ids."""
    shared = Broker(tmp_path_factory.mktemp("broker")).start()
    yield shared
    shared.close()


@pytest.fixture
def new_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Return a function that starts a broker of the test's own, given the settings to override and how many nodes."""
    started: list[Broker] = []

    def start(*, nodes: int = 1, **overrides: str) -> Broker:
        directory = tmp_path / f"broker-{len(started)}"
        directory.mkdir()
        settings = {key.replace("_", "."): value for key, value in overrides.items()}
        started.append(Broker(directory, settings, nodes))
        return started[-1].start()

    yield start
    for own in started:
        own.close()


@pytest.fixture
def signals() -> Iterator[None]:
    """Have the processes of a test notice Ctrl-C and SIGHUP, also where a background shell or `nohup` ignores them."""
    wanted = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {signum: signal.signal(signum, handler) for signum, handler in wanted.items()}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def left_sockets_are_closed() -> Iterator[None]:
    """Close sockets that kafka-python has left: see `tests.e2e.left_sockets`."""
    yield
    gc.collect()


@pytest.fixture
def unique() -> str:
    """Return a name that no other test of this run uses."""
    return f"e2e-{next(_numbers)}"


@pytest.fixture
def create_topic() -> Callable[..., str]:
    """Return a function that creates a topic at a broker and returns its name."""

    def create(broker: Broker | BenchBroker, topic: str, partitions: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result(timeout=10)
        wait_for_leaders(admin, topic, partitions)
        return topic

    return create


@pytest.fixture
def topic(broker: Broker, create_topic: Callable[..., str], unique: str) -> str:
    """Return a topic of one partition at the shared broker."""
    return create_topic(broker, unique)


@pytest.fixture(scope="session")
def kafka_classpath() -> str:
    """Return the class path of Apache Kafka's own clients and tools, fetched at first use."""
    done = subprocess.run(
        [ROOT / "scripts" / "kafka-jars.sh"],
        capture_output=True,
        text=True,
        timeout=FETCH_JARS_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"Apache Kafka's jars could not be fetched:\n{done.stderr}"
    return f"{done.stdout.strip()}/*"


@pytest.fixture(scope="module")
def beside_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BenchBroker]]:
    """Return "kafka", a real Apache Kafka, and "tidegate", `tidegate serve`, both running."""
    directory = tmp_path_factory.mktemp("beside-kafka")
    brokers = {
        "kafka": KafkaBench("kafka", directory / "kafka"),
        "tidegate": TidegateBench("tidegate", directory / "tidegate"),
    }
    try:
        for own in brokers.values():
            own.start()
        yield brokers
    finally:
        for own in brokers.values():
            own.stop()


@pytest.fixture(scope="session")
def kcat() -> str:
    """Return the path of kcat."""
    path = shutil.which("kcat")
    assert path, "kcat is missing: 'make setup' says how to install it"
    return path
