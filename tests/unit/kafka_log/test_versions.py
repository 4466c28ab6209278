"""Request logs of Apache Kafka 2.8 to 4.0, against what clients and brokers counted meanwhile.

`tests/request_log/make_logs.py` recorded them. Logs of 4.3.1: `test_importing.py` and `test_replay.py`.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
from tests.unit.kafka_log.samples import SAMPLES, all_lines, truth
from tests.unit.kafka_log.test_replay import decided_requests

from tidegate.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tidegate.kafka_log.import_summary import ImportSummary
from tidegate.kafka_log.importing import import_logs
from tidegate.kafka_log.line import with_current_names
from tidegate.kafka_log.log_files import Source
from tidegate.kafka_log.sizes import request_size
from tidegate.usage.files import list_files
from tidegate.wire import API_BY_KEY

VERSIONS = ("2.8.2", "3.3.2", "3.6.2", "3.9.1", "4.0.0")
WITHOUT_MUTATION_QUOTAS = "3.3.2"
"""A controller of KRaft that early does not enforce `controller_mutation_rate`."""
_HEADER_BYTES = 10
_API_VERSIONS = 18

Imported = tuple[Path, ImportSummary, list[dict[str, Any]]]


@pytest.fixture(scope="module", params=VERSIONS)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    """Return the log of a version, the summary of its import and the rows of the record."""
    log = SAMPLES / f"kafka-{request.param}.log.gz"
    out = tmp_path_factory.mktemp(request.param) / "out"
    summary = import_logs([Source(1, log)], out, zone=ZoneInfo("UTC"), processes=1)
    rows = [row for path in list_files(out) for row in pq.read_table(path, partitioning=None).to_pylist()]
    return log, summary, rows


def test_every_line_is_read(imported: Imported) -> None:
    """No line is rejected; only a controller's lines are left out, which a broker with ZooKeeper has none of."""
    log, summary, _ = imported
    assert (summary.bad, summary.unpriced, summary.doubles) == (0, 0, 0)
    assert summary.requests + summary.skipped["forwarded"] == len(all_lines(log))
    assert set(summary.skipped) <= {"forwarded"}
    assert (summary.skipped["forwarded"] == 0) == truth(log)["zookeeper"]


def test_rows_are_what_clients_counted(imported: Imported) -> None:
    """Requests, bytes of Produce requests and Fetch answers, throttle times: of each client, to the byte and ms."""
    log, _, rows = imported
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(counted, 0))
    counted = ("requests", "produce_bytes", "fetch_bytes", "throttle_ms")
    for row in rows:
        if row["kind"] == "request":
            client = found[row["client_id"]]
            client["requests"] += 1
            client["produce_bytes"] += row["produce_bytes"] or 0
            client["fetch_bytes"] += row["response_bytes"] * (row["api_key"] == 1)
            kinds = ("produce", "fetch", "request", "mutation")
            client["throttle_ms"] += max(row[f"{kind}_throttle_ms"] for kind in kinds)
    for name, known in truth(log)["clients"].items():
        assert found[name] == known, name


def test_rows_are_what_the_broker_counted(imported: Imported) -> None:
    """Requests and bytes of bodies by API, of those that clients send."""
    log, _, _ = imported
    totals = truth(log)["broker_totals"]
    requests: dict[str, int] = defaultdict(int)
    sizes: dict[str, int] = defaultdict(int)
    for logged in all_lines(log):
        header = logged["requestHeader"]
        key, version = header["requestApiKey"], header["requestApiVersion"]
        if key in API_BY_KEY and key != _API_VERSIONS and logged["listener"] != "CONTROLLER":
            api = API_BY_KEY[key]
            requests[api.name] += 1
            client_id = header["clientId"].encode()
            sizes[api.name] += size(logged) - (_HEADER_BYTES + len(client_id) + api.is_flexible(version))
    served = {name for name in requests if totals["requests"][name] == requests[name]}
    assert {"Produce", "Fetch", "ListOffsets", "OffsetCommit", "InitProducerId", "JoinGroup"} <= served
    assert {name: sizes[name] for name in served} == {name: totals["body_bytes"][name] for name in served}


def size(logged: dict[str, Any]) -> int:
    """Return the size of a request, as an import has it."""
    header = logged["requestHeader"]
    body = logged["request"]
    key = header["requestApiKey"]
    try:
        return request_size(key, header["requestApiVersion"], header["clientId"], body)
    except KeyError:
        body = with_current_names(key, "request", body)
        return request_size(key, header["requestApiVersion"], header["clientId"], body)


def test_quotas_and_mutations_are_followed(imported: Imported) -> None:
    """Quotas as they were set; of mutations, accepted and refused topics as the answers said."""
    log, _, rows = imported
    known = truth(log)
    quotas = [(row["quota_key"], row["quota_value"]) for row in rows if row["kind"] == "quota"]
    assert sorted(quotas) == sorted((quota["key"], quota["value"]) for quota in known["quotas"])
    errors = [error for mutation in known["mutations"] for _, error in mutation["answered"]]
    refused = [row for row in rows if row["kind"] == "mutation" and row["rejected"]]
    assert len(refused) == errors.count(89)
    assert (not refused) == (known["version"] == WITHOUT_MUTATION_QUOTAS)


def test_mutations_are_replayed(imported: Imported, tmp_path: Path) -> None:
    """All decided as the broker did; throttle times within 1 ms with KRaft, but for one, 10 ms with ZooKeeper.

    A bucket that is full when a slow controller charges it is some ms behind or ahead until it is full again.
    """
    log, _, _ = imported
    known = truth(log)
    if known["version"] == WITHOUT_MUTATION_QUOTAS:
        return
    keys = (CREATE_TOPICS, CREATE_PARTITIONS, DELETE_TOPICS)
    decided = [each for each in decided_requests(log, tmp_path / "out") if each[0]["api_key"] in keys]
    pairs = [(event["mutation_throttle_ms"], found_ms) for event, found_ms in decided]
    assert [told_ms > 0 for told_ms, _ in pairs] == [found_ms > 0 for _, found_ms in pairs]
    off = [abs(told_ms - found_ms) for told_ms, found_ms in pairs if told_ms]
    assert len(off) >= 9
    assert sum(ms > (10 if known["zookeeper"] else 1) for ms in off) <= 1


def test_addresses(imported: Imported) -> None:
    """IPv4 and IPv6, written as Tidegate's own record has them."""
    _, _, rows = imported
    hosts = {row["client_id"]: row["client_host"] for row in rows if row["kind"] == "request"}
    assert (hosts["six-é"], hosts["bulk-loader"]) == ("::1", "127.0.0.1")
    users = {row["client_id"]: row["user"] for row in rows if row["kind"] == "request"}
    assert (users["six-é"], users["bulk-loader"], users["admin-tool"]) == ("ANONYMOUS", "alice", "bob")
