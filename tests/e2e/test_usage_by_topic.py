"""Usage by topic from the record of a real broker with real clients."""

import json
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.e2e.broker import Broker
from tests.unit.usage.reading import read_batches

from tidegate.api_keys import FETCH, PRODUCE
from tidegate.cli.main import main
from tidegate.usage.events import Event
from tidegate.usage.readers import complete_files


def _requests(usage: Path, api_key: int) -> list[Event]:
    with complete_files(usage) as files:
        rows = [row for path in files for batch in read_batches(path) for row in batch.to_pylist()]
    return [row for row in rows if row["kind"] == "request" and row["api_key"] == api_key]


def test_usage_by_topic_of_a_real_broker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each Produce and Fetch counts for the topic with most bytes; the groups add up to all requests."""
    broker = Broker(tmp_path).start()
    try:
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        for _ in range(10):
            producer.produce("orders", b"x" * 1000)
            assert producer.flush(20) == 0
        producer.produce("clicks", b"x" * 100)
        assert producer.flush(20) == 0
        consumer = Consumer(
            {"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(name, 0, 0) for name in ("orders", "clicks")])
        found = []
        while len(found) < 11:
            found += consumer.consume(20, timeout=1)
        consumer.close()
    finally:
        broker.close()
    usage = broker.data_dir / "usage"
    produced = [(row["topic"], row["other_topics"]) for row in _requests(usage, PRODUCE)]
    assert produced.count(("orders", 0)) >= 10
    assert produced.count(("clicks", 0)) == 1
    assert {topic for topic, _ in ((row["topic"], 0) for row in _requests(usage, FETCH))} >= {"orders"}
    assert main(["usage", str(usage), "--by", "topic", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    groups = {group["topic"]: group for group in document["groups"]}
    assert groups["orders"]["produce_bytes"] > 10_000 < groups["orders"]["fetch_bytes"]
    assert groups["(other requests)"]["requests"] > 0
    assert document["topics"]["unknown_requests"] == 0
    assert main(["usage", str(usage), "--json"]) == 0
    clients = json.loads(capsys.readouterr().out)["groups"]
    for name in ("requests", "produce_bytes", "fetch_bytes"):
        assert sum(group[name] for group in groups.values()) == sum(client[name] for client in clients)
    assert main(["usage", str(usage), "--by", "topic"]) == 0
    assert "usage by topic" in capsys.readouterr().out
