"""The usage record of a gateway: what a node records of the same requests, a gateway records, too."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.broker import Broker
from tests.gateway.raw_client import RawClient

from tidegate.api_keys import FETCH, PRODUCE
from tidegate.cli.main import main
from tidegate.usage.arrow import read_batches
from tidegate.usage.readers import complete_files

SIZES = (10, 1_000, 300_000)


def requests_of(usage: Path, api_key: int) -> list[tuple[str, int, int]]:
    """Return client id, bytes produced and bytes fetched of each request, in order."""
    with complete_files(usage) as files:
        rows: list[dict[str, Any]] = [
            row for path in files for batch in read_batches(path) for row in batch.to_pylist()
        ]
    return [
        (row["client_id"], row["produce_bytes"], row["fetch_bytes"])
        for row in rows
        if row["kind"] == "request" and row["api_key"] == api_key
    ]


def traffic(port: int, topic: str) -> None:
    """Produce and fetch, in each version that both sides speak."""
    with RawClient(port, "recorded") as client:
        for version in range(3, 13, 3):
            for size in SIZES:
                client.produce(topic, size, version=version)
            client.produce("no-such-topic", 100, version=version)
        client.produce(topic, 10, 20)
        for version in (4, 7, 11, 12):
            for max_bytes in (64 << 20, 200_000):
                client.fetch(topic, max_bytes=max_bytes, version=version)


def test_bytes_are_those_that_a_node_records(
    new_gateway, kafka, create_topic, unique, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Each Produce and Fetch is charged with the bytes that a Tidegate node charges; the commands read the record."""
    gateway = new_gateway()
    create_topic(kafka, unique)
    node = Broker(tmp_path, overrides={"auto.create.topics.enable": "false"}).start()
    try:
        create_topic(node, unique)
        traffic(gateway.port, unique)
        traffic(node.port, unique)
    finally:
        node.close()
    gateway.stop()
    (usage,) = (path for path in gateway.usage_dir.parent.rglob("usage") if path.is_dir())
    for api_key in (PRODUCE, FETCH):
        ours, nodes = (requests_of(each, api_key) for each in (usage, node.data_dir / "usage"))
        assert len(ours) > 5
        assert ours == nodes
    assert main(["usage", str(usage), "--json"]) == 0
    groups = {group["client_id"]: group for group in json.loads(capsys.readouterr().out)["groups"]}
    produced = sum(row[1] for row in requests_of(usage, PRODUCE))
    assert groups["recorded"]["produce_bytes"] == produced > 1_000_000
