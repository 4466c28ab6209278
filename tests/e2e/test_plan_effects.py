"""Warnings of `tidegate quotas plan` and `apply` about starved consumers, on `tidegate serve` and a real Kafka."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from bench.ladder.brokers import BenchBroker
from confluent_kafka import Consumer, Producer
from tests.e2e.test_quotas_as_code import quotas, until

pytestmark = pytest.mark.java
GROWTH_BYTES_PER_S = 50_000
MINUTES = 10
RECORD_BYTES = 100_000


@pytest.fixture(params=["tidegate", "kafka", "kafka, KIP-848"])
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Return the name of each broker, and the protocols of groups that it has."""
    broker, is_new, _ = request.param.partition(", ")
    return broker, "consumer" if is_new else "classic"


@pytest.fixture
def broker(place: tuple[str, str], beside_kafka: dict[str, BenchBroker]) -> BenchBroker:
    """Return each broker in turn."""
    return beside_kafka[place[0]]


@pytest.fixture
def lagging(broker: BenchBroker, place: tuple[str, str], create_topic, unique: str) -> Iterator[str]:
    """Return the client id of a consumer that has read one record of a topic that grows by `GROWTH_BYTES_PER_S`.

    The growth of ten minutes is made at once: each record has the timestamp at which it would have come.
    """
    topic = create_topic(broker, unique, max_message_bytes="1000000")
    producer = Producer({"bootstrap.servers": broker.address, "batch.size": 1, "linger.ms": 0})
    now_ms = round(time.time() * 1000)
    count = MINUTES * 60 * GROWTH_BYTES_PER_S // RECORD_BYTES
    for at in range(count):
        # The first one is younger than ten minutes for as long as the test takes.
        timestamp = now_ms - round((count - at) / count * (MINUTES * 60_000 - 30_000))
        producer.produce(topic, bytes(RECORD_BYTES), timestamp=timestamp)
        producer.poll(0)
    assert producer.flush(60) == 0
    settings = {
        "bootstrap.servers": broker.address, "group.id": f"group-{unique}", "client.id": f"reader-{unique}",
        "auto.offset.reset": "earliest", "enable.auto.commit": False, "group.protocol": place[1],
    }  # fmt: skip
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        message = until(lambda: consumer.poll(1), 60)
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
        yield f"reader-{unique}"


def write(path: Path, client_id: str, **values: str) -> None:
    """Write quotas of a client id."""
    rates = "".join(f"    {key}: {value}\n" for key, value in values.items())
    path.write_text(f"quotas:\n  - client-id: {{name: {client_id}}}\n{rates}")


def test_a_quota_that_starves_a_group_is_warned_of(broker: BenchBroker, lagging: str, tmp_path: Path) -> None:
    """The warning names the group, its growth and its lag; with twice the growth it says how long catching up takes."""
    to = ("--bootstrap-server", broker.address)
    file = tmp_path / "quotas.yaml"
    group = lagging.replace("reader", "group")
    write(file, lagging, consumer_byte_rate="30kB")
    document = json.loads(quotas("plan", file, "--json", *to, where=tmp_path).stdout)
    assert document["effects"]["groups"] >= 1
    assert document["effects"]["notes"] == []
    (warning,) = document["effects"]["warnings"]
    assert (warning["entity"], warning["key"], warning["value"]) == (
        {"client-id": lagging}, "consumer_byte_rate", 30_000.0,
    )  # fmt: skip
    assert warning["groups"] == [group]
    assert warning["growth_bytes_per_s"] == pytest.approx(GROWTH_BYTES_PER_S, rel=0.1)
    assert warning["lag_records"] == MINUTES * 60 * GROWTH_BYTES_PER_S // RECORD_BYTES - 1
    assert warning["lag_bytes"] == pytest.approx(warning["lag_records"] * RECORD_BYTES, rel=0.02)

    printed = quotas("plan", file, *to, where=tmp_path)
    assert (
        f"warning: consumer_byte_rate 30kB of client-id='{lagging}' is low for group '{group}': "
        in printed.stdout
    )
    assert re.search(
        r" they lag 299 records \(about [\d,]+ bytes\) and fall further behind\n  hint: set at least \d+\n",
        printed.stdout,
    )
    assert printed.stderr == ""

    write(file, lagging, consumer_byte_rate="55kB")
    slow = quotas("plan", file, *to, where=tmp_path).stdout
    assert "bytes) and catch up in about " in slow
    write(file, lagging, consumer_byte_rate="10MB")
    assert "warning" not in quotas("plan", file, *to, where=tmp_path).stdout
    write(file, lagging, producer_byte_rate="1kB")
    assert "warning" not in quotas("plan", file, *to, where=tmp_path).stdout


def test_a_throttle_longer_than_a_session_is_warned_of(
    broker: BenchBroker, lagging: str, tmp_path: Path
) -> None:
    """A rate at which one batch of the largest size throttles for minutes has a second warning; apply prints it, too.

    What is in force already is not warned of again.
    """
    to = ("--bootstrap-server", broker.address)
    file, undo = tmp_path / "quotas.yaml", tmp_path / "undo.json"
    write(file, lagging, consumer_byte_rate="1000")
    applied = quotas("apply", file, *to, "--yes", "--undo-file", undo, where=tmp_path)
    assert applied.returncode == 0
    starved, long = (line for line in applied.stdout.splitlines() if line.startswith("warning: "))
    assert "and fall further behind" in starved
    assert re.search(r"for up to 9\d\d s after a batch of 1,000,000 bytes, the largest of topic 'e2e-", long)
    assert "longer than the default session timeout of 45 s" in long
    until(lambda: quotas("plan", file, "--check", *to, where=tmp_path).returncode == 0)
    assert "warning" not in quotas("plan", file, *to, where=tmp_path).stdout
    assert quotas("undo", undo, *to, "--yes", where=tmp_path).returncode == 0


def test_quotas_of_users_alone_are_a_note(broker: BenchBroker, lagging: str, tmp_path: Path) -> None:
    """Kafka does not say who a member is: a note says what was not looked at, and a condition what was assumed."""
    to = ("--bootstrap-server", broker.address)
    file = tmp_path / "quotas.yaml"
    file.write_text(
        "quotas:\n  - user: {name: alice}\n    consumer_byte_rate: 1kB\n"
        f'  - user: {{name: "b@b"}}\n    client-id: {{name: {lagging}}}\n    consumer_byte_rate: 30kB\n'
    )
    printed = quotas("plan", file, *to, where=tmp_path)
    assert printed.stderr == (
        "note: effects of quotas of 1 user without a client id were not examined: Kafka does not report the users "
        "of group members\n"
    )
    (warning,) = (line for line in printed.stdout.splitlines() if line.startswith("warning: "))
    assert f"of user='b@b', client-id='{lagging}' is low for group" in warning
    assert warning.endswith("(if the members log in as 'b@b')")
