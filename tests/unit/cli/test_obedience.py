"""`tidegate obedience`: who came back before the throttle was over, and what cannot be known."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.replaying.files import write_events
from tests.unit.kafka_log.samples import QUICK

from tidegate.cli.main import main

_START_MS = 1_700_000_000_000


def _request(
    seq: int, client_id: str, throttle_ms: int, early_ms: int | None, **columns: Any
) -> dict[str, Any]:
    request = {
        "kind": "request", "ts_ms": _START_MS + seq, "seq": seq, "node_id": 1, "user": "u", "client_id": client_id,
        "client_software": "librdkafka", "client_software_version": "2.6.1",
    }  # fmt: skip
    return request | {"produce_throttle_ms": throttle_ms, "early_ms": early_ms} | columns


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    """Two clients of librdkafka, one of which came early three times; one of Java that waited; one never throttled."""
    java = {"client_software": "apache-kafka-java", "client_software_version": "4.3.1"}
    events = [
        {"kind": "start", "ts_ms": _START_MS, "seq": 1, "node_id": 1},
        _request(2, "a", 1000, None),
        _request(3, "a", 900, 700),
        _request(4, "a", 0, 60, request_throttle_ms=40),
        _request(5, "a", 500, 1),
        _request(6, "b", 10, None),
        _request(7, "j", 300, None, **java),
        _request(8, "j", 0, 0, **java),
        _request(9, "o", 300, None, observed_only=True),
        _request(10, "n", 0, None, client_software="", client_software_version=""),
    ]
    write_events(tmp_path / "usage" / "parquet", events, rows_per_file=3)
    return tmp_path / "usage"


def test_the_table_has_the_worst_first(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Clients, throttled requests, early ones, their median and longest; at most 80 columns."""
    assert main(["obedience", str(usage)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-7:-3]] == [
        ["librdkafka", "1/2", "5", "3", "60.0%", "≤", "100", "ms", "700", "ms"],
        ["2.6.1"],
        ["apache-kafka-java", "0/1", "1", "0", "0.0%", "–", "–"],
        ["4.3.1"],
    ]
    assert lines[-2:] == ["never throttled: 1 library", "10 events"]
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("small_terminal")
def test_large_numbers_and_long_names_fit(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No digit is cut, and nothing that a client calls itself does harm."""
    names = {"client_software": "x" * 300, "client_software_version": "\x1b[2J" * 20}
    events = [_request(20 + at, f"c{at}", 10**9, 2**31 - 1, **names) for at in range(1200)]
    write_events(usage / "parquet", events)
    assert main(["obedience", str(usage)]) == 0
    out = capsys.readouterr().out
    assert "1,200/1,200" in out
    assert "24d20h" in out
    assert "> 8m20s" in out
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_and_tables(usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has every library, the tables every client."""
    assert main(["obedience", str(usage), "--json", "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["command"], found["events"]) == (1, "obedience", 10)
    assert (found["known"], found["libraries_in_all"], found["tables"]) == (True, 3, str(tmp_path / "out"))
    assert found["libraries"][0] == {
        "client_software": "librdkafka", "client_software_version": "2.6.1", "clients": 3, "throttled_clients": 2,
        "early_clients": 1, "requests": 6, "throttled_requests": 5, "early_requests": 3, "longest_early_ms": 700,
        "median_early_ms": 100,
    }  # fmt: skip
    assert [row["clients"] for row in found["libraries"]] == [3, 1, 1]
    by_client = pq.read_table(tmp_path / "out" / "obedience_by_client").to_pylist()
    assert [row["client_id"] for row in by_client] == ["n", "j", "a", "b", "o"]
    assert len(pq.read_table(tmp_path / "out" / "obedience_by_software")) == 3


def test_nobody_was_throttled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No table, a sentence."""
    write_events(tmp_path, [_request(1, "a", 0, None)])
    assert main(["obedience", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "no client was throttled\nnever throttled: 1 library\n1 event\n"


@pytest.mark.parametrize("part", [".", "parquet", "parquet/date=2026-07-14"])
def test_of_an_imported_record_it_cannot_be_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], part: str
) -> None:
    """The answer is no, and says why; of a part of the record, too."""
    main(["import", str(QUICK), "--out", str(tmp_path)])
    capsys.readouterr()
    assert main(["obedience", str(tmp_path / part)]) == 1
    assert capsys.readouterr().out.startswith("unknown: this record was made from request logs")
    assert main(["obedience", str(tmp_path / part), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["format"], found["known"], found["events"], found["libraries"]) == (1, False, None, [])
