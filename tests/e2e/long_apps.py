"""Kafka Streams, Kafka Connect and Apicurio Registry, unmodified, on `tidegate serve`: what works, and what they miss.

What an application misses is a line of the broker's log, with the page that documents it.
"""

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bench.ports import free_port
from confluent_kafka import Consumer, Producer
from tests.e2e.broker import Broker
from tests.e2e.clients.programs import JVM

pytestmark = pytest.mark.java
ROOT = Path(__file__).parents[2]
JAVA = ROOT / "tests" / "java" / "apps"
FETCH_S, START_S = 300.0, 90.0
NO_TRANSACTIONS = (
    r"refused transactional id '{}[^']*' of a client from 127\.0\.0\.1: the broker has no transactions; hint: .*"
    r"\(docs/kafka-differences\.md, row L6\)"
)
NO_CLEANER = (
    r"all records are kept in topics with cleanup\.policy=compact, such as {}.*: the broker has no log cleaner; "
    r"hint: .*"
    r"\(docs/kafka-differences\.md, row L13\)"
)
Found = TypeVar("Found")


@pytest.fixture(scope="session")
def apps() -> Path:
    """Return the directory of the applications' jars, fetched at first use."""
    done = subprocess.run(
        [ROOT / "scripts" / "app-jars.sh"], capture_output=True, text=True, timeout=FETCH_S, check=False
    )
    assert done.returncode == 0, f"the jars could not be fetched:\n{done.stderr}"
    return Path(done.stdout.strip().splitlines()[-1].removesuffix("\x1b[0m"))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """Return a running broker of its own: its log has one notice of topics that are not compacted."""
    own = Broker(tmp_path / "broker", {"group.initial.rebalance.delay.ms": "0"})
    own.directory.mkdir()
    own.start()
    yield own
    own.close()


def until(check: Callable[[], Found], program: "App", seconds: float = START_S) -> Found:
    """Return what `check` returns once it is true, while the program runs."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert program.process.poll() is None, f"the program ended:\n{program.output}"
        assert time.monotonic() < end, f"not in {seconds} s:\n{program.output[-20_000:]}"
        time.sleep(0.2)
    return found


class App:
    """A running Java program and what it prints."""

    def __init__(self, directory: Path, *command: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / "output.log"
        with self._path.open("ab") as log:
            self.process = subprocess.Popen(
                [*JVM, *command], cwd=directory, stdin=subprocess.PIPE, stdout=log, stderr=log
            )

    @property
    def output(self) -> str:
        """Return what the program has printed."""
        return self._path.read_text("utf-8", "replace")

    def close(self) -> None:
        """End the program: its standard input ends, or else it is asked to end."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def produce(broker: Broker, topic: str, *values: str) -> None:
    """Produce values, one record each."""
    producer = Producer({"bootstrap.servers": broker.address})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(30) == 0


def consumed(broker: Broker, topic: str, is_enough: Callable[[list[Any]], bool], program: App) -> list[Any]:
    """Return the messages of a topic from its beginning, as soon as they are enough."""
    settings = {"bootstrap.servers": broker.address, "group.id": "checker", "auto.offset.reset": "earliest"}
    messages: list[Any] = []
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])

        def check() -> bool:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                messages.append(message)
            return is_enough(messages)

        until(check, program)
    return messages


# --- Kafka Streams --------------------------------------------------------------------------------------------------


@contextmanager
def word_count(apps: Path, broker: Broker, directory: Path, **settings: str) -> Iterator[App]:
    """Run Kafka Streams' word count, compiled as Java runs a source file."""
    given = {
        "application.id": "words", "bootstrap.servers": broker.address, "state.dir": str(directory / "state"),
        "statestore.cache.max.bytes": "0", "commit.interval.ms": "200",
        **{name.replace("_", "."): value for name, value in settings.items()},
    }  # fmt: skip
    arguments = [f"{name}={value}" for name, value in given.items()]
    app = App(directory, "-cp", f"{apps}/libs/*", str(JAVA / "WordCount.java"), *arguments)
    with closing(app):
        yield app


def test_kafka_streams_counts_words(apps: Path, broker: Broker, tmp_path: Path) -> None:
    """Counts are right, also after a restart that has lost its state: it is read again from the changelog topic."""
    produce(broker, "lines", "all streams lead to kafka", "hello kafka streams")

    def counts(messages: list[Any]) -> dict[str, int]:
        return {message.key().decode(): int.from_bytes(message.value(), "big") for message in messages}

    with word_count(apps, broker, tmp_path / "first") as app:
        found = counts(
            consumed(broker, "counts", lambda some: counts(some).get("streams") == 2 and len(some) >= 8, app)
        )
        assert found == {"all": 1, "streams": 2, "lead": 1, "to": 1, "kafka": 2, "hello": 1}
    produce(broker, "lines", "kafka")
    with word_count(apps, broker, tmp_path / "second") as app:
        consumed(broker, "counts", lambda some: counts(some).get("kafka") == 3, app)
    assert re.search(NO_CLEANER.format("words-counts-store-changelog"), broker.log), broker.log


def test_kafka_streams_exactly_once_is_refused_in_a_line(apps: Path, broker: Broker, tmp_path: Path) -> None:
    """`processing.guarantee=exactly_once_v2` needs transactions: the application ends, and the log says why."""
    produce(broker, "lines", "hello")
    with word_count(apps, broker, tmp_path / "app", processing_guarantee="exactly_once_v2") as app:
        assert app.process.wait(START_S) == 3, app.output
    assert "TransactionalIdAuthorizationException" in app.output
    assert len(re.findall(NO_TRANSACTIONS.format("words-"), broker.log)) == 1, broker.log


def test_kafka_streams_own_group_protocol_is_refused(apps: Path, broker: Broker, tmp_path: Path) -> None:
    """`group.protocol=streams` (KIP-1071) needs an API that is not served: the application says so and ends."""
    produce(broker, "lines", "hello")
    with word_count(apps, broker, tmp_path / "app", group_protocol="streams") as app:
        assert app.process.wait(START_S) == 3, app.output
    assert "The cluster does not support the STREAMS group protocol" in app.output


# --- Kafka Connect --------------------------------------------------------------------------------------------------

FILES = {
    "source": {
        "name": "lines-in", "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "topic": "file-lines",
    },
    "sink": {
        "name": "lines-out", "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "topics": "file-lines",
    },
}  # fmt: skip


def connect(apps: Path, directory: Path, program: str, worker: Mapping[str, str], *connectors: Path) -> App:
    """Start a worker of Kafka Connect."""
    converter = "org.apache.kafka.connect.storage.StringConverter"
    settings = {
        "key.converter": converter,
        "value.converter": converter,
        "offset.flush.interval.ms": "500",
        **worker,
    }
    write_properties(directory / "worker.properties", settings)
    main = f"org.apache.kafka.connect.cli.{program}"
    return App(directory, "-cp", f"{apps}/libs/*", main, "worker.properties", *map(str, connectors))


def write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a properties file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def files_of(directory: Path) -> dict[str, dict[str, str]]:
    """Return the settings of both connectors: lines of one file go to the topic, and from there to another file."""
    return {
        "source": {**FILES["source"], "file": str(directory / "in.txt")},
        "sink": {**FILES["sink"], "file": str(directory / "out.txt")},
    }


def has_lines(path: Path, *lines: str) -> bool:
    """Return whether a file has exactly these lines."""
    return path.exists() and path.read_text().splitlines() == list(lines)


def test_kafka_connect_standalone(apps: Path, broker: Broker, tmp_path: Path) -> None:
    """Lines of a file arrive in another one; after a restart the source goes on from where it was."""
    worker = {
        "bootstrap.servers": broker.address, "listeners": f"http://127.0.0.1:{free_port()}",
        "offset.storage.file.filename": str(tmp_path / "offsets"),
    }  # fmt: skip
    connectors = [
        write_properties(tmp_path / f"{kind}.properties", settings)
        for kind, settings in files_of(tmp_path).items()
    ]
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    with closing(connect(apps, tmp_path / "app", "ConnectStandalone", worker, *connectors)) as app:
        until(lambda: has_lines(tmp_path / "out.txt", "one", "two"), app)
        until(lambda: (tmp_path / "offsets").exists(), app)
    with (tmp_path / "in.txt").open("a") as file:
        file.write("three\n")
    with closing(connect(apps, tmp_path / "app", "ConnectStandalone", worker, *connectors)) as app:
        until(lambda: has_lines(tmp_path / "out.txt", "one", "two", "three"), app)


def request(url: str, body: object = None) -> Any:
    """Return the JSON answer to a GET, or to a POST with a body; None while the server refuses."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # loopback
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return json.load(answer)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


def distributed(broker: Broker, port: int) -> dict[str, str]:
    """Return the settings of a distributed worker."""
    topics = {
        f"{kind}.storage.{name}": value
        for kind in ("config", "offset", "status")
        for name, value in (("topic", f"connect-{kind}"), ("replication.factor", "1"))
    }
    return {
        "bootstrap.servers": broker.address, "listeners": f"http://127.0.0.1:{port}", "group.id": "connect", **topics
    }  # fmt: skip


def positions(messages: list[Any]) -> list[int]:
    """Return the positions in the file that a source has committed."""
    return [json.loads(message.value())["position"] for message in messages]


def test_kafka_connect_distributed(apps: Path, broker: Broker, tmp_path: Path) -> None:
    """Connectors that were made over REST run again after a restart: their settings and offsets are in topics."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/connectors"
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    with closing(connect(apps, tmp_path / "app", "ConnectDistributed", distributed(broker, port))) as app:
        for settings in files_of(tmp_path).values():
            body = {"name": settings["name"], "config": settings}
            until(lambda body=body: request(url, body), app)
        until(lambda: has_lines(tmp_path / "out.txt", "one", "two"), app)
        consumed(broker, "connect-offset", lambda some: positions(some)[-1:] == [len("one\ntwo\n")], app)
    with (tmp_path / "in.txt").open("a") as file:
        file.write("three\n")
    with closing(connect(apps, tmp_path / "app", "ConnectDistributed", distributed(broker, port))) as app:
        until(lambda: has_lines(tmp_path / "out.txt", "one", "two", "three"), app)
        assert sorted(request(url)) == ["lines-in", "lines-out"]
    assert re.search(NO_CLEANER.format("connect-"), broker.log), broker.log


def test_exactly_once_sources_of_connect_are_refused_in_a_line(
    apps: Path, broker: Broker, tmp_path: Path
) -> None:
    """`exactly.once.source.support=enabled` needs transactions: the worker ends, and the log says why."""
    worker = {**distributed(broker, free_port()), "exactly.once.source.support": "enabled"}
    with closing(connect(apps, tmp_path / "app", "ConnectDistributed", worker)) as app:
        pattern = re.compile(NO_TRANSACTIONS.format("connect-cluster-"))
        until(lambda: pattern.search(broker.log), app)


# --- a schema registry ----------------------------------------------------------------------------------------------


def test_a_schema_registry_keeps_schemas(apps: Path, broker: Broker, tmp_path: Path) -> None:
    """Apicurio Registry stores schemas in a topic, and has them again after a restart; it speaks Confluent's API."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    (jar,) = (apps / "registry").glob("apicurio-registry-app-*-runner.jar")
    options = {
        "apicurio.storage.kind": "kafkasql", "apicurio.kafkasql.bootstrap.servers": broker.address,
        "quarkus.http.host": "127.0.0.1", "quarkus.http.port": str(port),
    }  # fmt: skip
    command = [*(f"-D{name}={value}" for name, value in options.items()), "-jar", str(jar)]
    schema = {
        "schema": json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    }
    with closing(App(tmp_path / "app", *command)) as app:
        made = until(lambda: request(f"{url}/subjects/orders-value/versions", schema), app)
    with closing(App(tmp_path / "app", *command)) as app:
        assert until(lambda: request(f"{url}/subjects"), app) == ["orders-value"]
        kept = request(f"{url}/schemas/ids/{made['id']}")
        assert json.loads(kept["schema"]) == json.loads(schema["schema"])
    assert "no log cleaner" not in broker.log  # its topics are deleted by age, not compacted
