"""Ranges of time over the record of a real broker."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from tests.e2e.broker import Broker

from tidegate.cli.main import main


def test_a_range_has_its_rows_and_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Count the Produce requests on both sides of a cut; both sides together are the record."""
    broker = Broker(tmp_path).start()
    try:
        producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        for _ in range(30):
            producer.produce("t", b"x" * 100)
            assert producer.flush(20) == 0
    finally:
        broker.close()
    usage = str(broker.data_dir / "usage")

    def produced(*options: str) -> int:
        capsys.readouterr()
        assert main(["usage", usage, "--by", "api", "--json", *options]) == 0
        groups = json.loads(capsys.readouterr().out)["groups"]
        return sum(group["requests"] for group in groups if group["api"] == "Produce")

    assert main(["usage", usage, "--out", str(tmp_path / "out")]) == 0
    (row,) = pq.read_table(tmp_path / "out" / "usage_by_client").to_pylist()[-1:]
    middle = row["first_ts"] + (row["last_ts"] - row["first_ts"]) // 2
    middle = middle.isoformat(timespec="milliseconds")
    before, after = produced("--to", middle), produced("--from", middle)
    assert before + after == produced() == produced("--last", "1h") >= 30
    assert after > 0
    assert main(["replay", usage, "--in-force", "--from", middle, "--json"]) in (0, 3)
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["events"] > 0
