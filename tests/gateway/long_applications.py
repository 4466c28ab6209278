"""Applications of Kafka through a gateway to a real Kafka: Streams, Connect, MirrorMaker, share groups, transactions.

Each client has a quota, so that requests are charged and limited as in use.
"""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from bench.ports import free_port
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.java_applications import SOURCE, JavaApplication, write_properties

WITHIN_S = 120.0
LINES = 200
QUOTAS = (
    "quotas:\n  - client-id: {default: true}\n    producer_byte_rate: 2MiB\n    consumer_byte_rate: 2MiB\n"
)
_CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}
_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"


@pytest.fixture(scope="module")
def gateway(kafka, tmp_path_factory) -> Iterator[GatewayProcess]:
    """Return a gateway with a quota for each client."""
    directory = tmp_path_factory.mktemp("gateway")
    quotas = directory / "quotas.yaml"
    quotas.write_text(QUOTAS)
    process = GatewayProcess(directory, kafka.address, ("--quotas", str(quotas))).start()
    yield process
    assert "Traceback" not in process.log
    process.close()


def produce(address: str, topic: str, values: list[str]) -> None:
    """Produce values."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def await_values(
    address: str,
    topic: str,
    is_complete: Callable[[list[tuple[str | None, str]]], bool],
    application: JavaApplication,
) -> list[tuple[str | None, str]]:
    """Return committed keys and values of a topic, once they are complete."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": f"reader-{time.time_ns()}",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 1000,
            "allow.auto.create.topics": False,
        }
    )
    consumer.subscribe([topic])
    found: list[tuple[str | None, str]] = []
    deadline = time.monotonic() + WITHIN_S
    try:
        while not is_complete(found):
            assert time.monotonic() < deadline, (len(found), found[-3:], application.err[-2000:])
            application.check_running()
            for message in consumer.consume(500, 0.5):
                if message.error() is None:
                    key = message.key()
                    found.append((key and key.decode(), message.value().decode(errors="replace")))
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_streams_counts_words_exactly_once(gateway, create_topic, unique, tmp_path, protocol):
    """Through a crash too: the last count of each word is right. By both protocols of groups (KIP-1071)."""
    words, counts = (create_topic(gateway, f"{unique}-{name}", 2) for name in ("words", "counts"))
    arguments = ("count-words", gateway.address, protocol, words, counts, str(tmp_path / "state"))
    lines = [f"a b{number % 7} a" for number in range(LINES)]

    def are_counted(times: int) -> Callable[[list[tuple[str | None, str]]], bool]:
        wanted = Counter(word for line in lines for word in line.split())
        return lambda found: dict(found) == {word: str(times * count) for word, count in wanted.items()}

    produce(gateway.address, words, lines)
    with JavaApplication(tmp_path, str(SOURCE), *arguments) as application:
        await_values(gateway.address, counts, are_counted(1), application)
    produce(gateway.address, words, lines)
    with JavaApplication(tmp_path, str(SOURCE), *arguments) as application:
        await_values(gateway.address, counts, are_counted(2), application)


def test_connect_standalone_copies_a_file(gateway, unique, tmp_path):
    """Each line once, in order; the topic is created by the worker."""
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{number}\n" for number in range(LINES)))
    worker = write_properties(
        tmp_path / "worker.properties",
        {
            "bootstrap.servers": gateway.address,
            **_CONVERTERS,
            "offset.storage.file.filename": tmp_path / "offsets",
            "offset.flush.interval.ms": 500,
            "listeners": f"http://127.0.0.1:{free_port()}",
        },
    )
    connector = write_properties(
        tmp_path / "connector.properties",
        {"name": unique, "connector.class": _SOURCE, "tasks.max": 1, "file": source, "topic": unique},
    )
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    with JavaApplication(tmp_path, main, str(worker), str(connector)) as application:
        found = await_values(gateway.address, unique, lambda found: len(found) >= LINES, application)
    assert [value for _, value in found] == [str(number) for number in range(LINES)]


def test_connect_distributed_goes_on_after_a_crash(gateway, unique, tmp_path):
    """Its connector and offsets are in compacted topics: another worker goes on where the killed one had ended."""
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{number}\n" for number in range(LINES)))
    port = free_port()
    worker = write_properties(
        tmp_path / "worker.properties",
        {
            "bootstrap.servers": gateway.address,
            **_CONVERTERS,
            "group.id": unique,
            "offset.flush.interval.ms": 500,
            "listeners": f"http://127.0.0.1:{port}",
            "exactly.once.source.support": "disabled",
            **{
                f"{name}.storage.{setting}": value
                for name in ("config", "offset", "status")
                for setting, value in (("topic", f"{unique}-{name}"), ("replication.factor", 1))
            },
        },
    )
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    config = {
        "connector.class": _SOURCE,
        "tasks.max": "1",
        "file": str(source),
        "topic": unique,
    }
    with JavaApplication(tmp_path, main, str(worker)) as application:
        put(f"http://127.0.0.1:{port}/connectors/{unique}/config", config, application)
        await_values(gateway.address, unique, lambda found: len(found) >= LINES, application)
        await_values(gateway.address, f"{unique}-offset", bool, application)
        application.kill()
    with source.open("a") as file:
        file.writelines(f"{number}\n" for number in range(LINES, 2 * LINES))
    with JavaApplication(tmp_path, main, str(worker)) as application:
        found = await_values(gateway.address, unique, lambda found: len(found) >= 2 * LINES, application)
    assert [value for _, value in found] == [str(number) for number in range(2 * LINES)]
    admin = AdminClient({"bootstrap.servers": gateway.address})
    resource = ConfigResource(ConfigResource.Type.TOPIC, f"{unique}-offset")
    (configs,) = (each.result(30) for each in admin.describe_configs([resource]).values())
    assert configs["cleanup.policy"].value == "compact"


def put(url: str, config: dict[str, str], application: JavaApplication) -> None:
    """Create a connector, once the worker serves."""
    request = urllib.request.Request(
        url, json.dumps(config).encode(), {"Content-Type": "application/json"}, method="PUT"
    )
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            urllib.request.urlopen(request, timeout=30).close()
            return
        except OSError:
            assert time.monotonic() < deadline, application.err[-2000:]
            application.check_running()
            time.sleep(0.5)


def test_mirror_maker_copies_a_topic(gateway, create_topic, unique, tmp_path):
    """With its internal topics and heartbeats; source and target are the same cluster."""
    topic = create_topic(gateway, unique, 2)
    produce(gateway.address, topic, [str(number) for number in range(LINES)])
    replicas = (
        "checkpoints.topic", "heartbeats.topic", "offset-syncs.topic", "offset.storage", "status.storage",
        "config.storage",
    )  # fmt: skip
    settings = write_properties(
        tmp_path / "mirror.properties",
        {
            "clusters": "here, there",
            "here.bootstrap.servers": gateway.address,
            "there.bootstrap.servers": gateway.address,
            "here->there.enabled": "true",
            "there->here.enabled": "false",
            "here->there.topics": unique,
            "here->there.groups": unique,
            "replication.factor": 1,
            "refresh.topics.interval.seconds": 2,
            **{f"{name}.replication.factor": 1 for name in replicas},
        },
    )
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    with JavaApplication(tmp_path, main, str(settings)) as application:
        found = await_values(
            gateway.address, f"here.{unique}", lambda found: len(found) >= LINES, application
        )
        await_values(gateway.address, "here.heartbeats", bool, application)
    assert sorted(int(value) for _, value in found) == list(range(LINES))


def test_share_group_divides_a_topic(gateway, create_topic, unique, tmp_path):
    """Two members of a share group get each record once."""
    topic = create_topic(gateway, unique, 2)
    admin = AdminClient({"bootstrap.servers": gateway.address})
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.GROUP, unique, incremental_configs=[earliest])
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(30)
    produce(gateway.address, topic, [str(number) for number in range(LINES)])
    arguments = (str(SOURCE), "share", gateway.address, topic, unique)
    with (
        JavaApplication(tmp_path / "one", *arguments, str(10 * LINES)) as one,
        JavaApplication(tmp_path / "two", *arguments, str(10 * LINES)) as two,
    ):
        deadline = time.monotonic() + WITHIN_S
        while len(found := [*one.out.split(), *two.out.split()]) < LINES:
            assert time.monotonic() < deadline, (len(found), one.err[-2000:], two.err[-2000:])
            one.check_running()
            two.check_running()
            time.sleep(0.2)
    assert sorted(map(int, found)) == list(range(LINES))


def test_java_transactions(gateway, create_topic, unique, tmp_path):
    """Committed records are read in order, and no aborted ones."""
    topic = create_topic(gateway, unique)
    arguments = ("transactions", gateway.address, topic, unique, "20")
    for _ in range(2):
        JavaApplication(tmp_path, str(SOURCE), *arguments).run(WITHIN_S)
    consumer = Consumer(
        {"bootstrap.servers": gateway.address, "group.id": unique, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[str] = []
    deadline = time.monotonic() + WITHIN_S
    while len(found) < 20:
        assert time.monotonic() < deadline, found
        found += [message.value().decode() for message in consumer.consume(100, 1.0) if not message.error()]
    consumer.close()
    assert found == [str(number) for number in range(0, 20, 2)] * 2
