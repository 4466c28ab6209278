"""Logs become a usage record: once each, in order, whatever they are packed in and however often it is tried."""

import gzip
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow.parquet as pq
import pytest
from tests.unit.kafka_log.samples import QUICK, THROTTLED, all_lines, line, lines_before, truth

from tidegate.config.quotas_file import parse_quotas_file
from tidegate.errors import ConfigError
from tidegate.kafka_log import importing, log_files
from tidegate.kafka_log.import_summary import ImportSummary
from tidegate.kafka_log.importing import import_logs
from tidegate.kafka_log.log_files import LogFileError, Source
from tidegate.kafka_log.manifest import Manifest
from tidegate.usage.files import list_files

UTC = ZoneInfo("UTC")
FETCH = {
    "replicaId": -1, "maxWaitMs": 1, "minBytes": 1, "maxBytes": 1, "isolationLevel": 0, "sessionId": 0,
    "sessionEpoch": 0, "topics": [], "forgottenTopicsData": [], "rackId": "",
}  # fmt: skip
FETCHED = {"throttleTimeMs": 0, "errorCode": 0, "sessionId": 0, "responses": []}
API_VERSIONS = {"errorCode": 0, "apiKeys": []}
DESCRIBED = {
    "brokers": [], "controllerId": 1,
    "topics": [{"errorCode": 0, "name": "t", "isInternal": False, "partitions": 5}],
}  # fmt: skip
CREATE = {
    "topics": [{"name": "t", "numPartitions": 1 << 70, "replicationFactor": 1, "assignments": [], "configs": []}],
    "timeoutMs": 1, "validateOnly": False,
}  # fmt: skip
CREATED = {"throttleTimeMs": 0, "topics": [{"name": "t", "errorCode": 0, "errorMessage": None}]}
LONG = {"entityType": "user", "entityName": "+" * 30_000}  # longer than a name may be once it is sanitised
ALTER = {
    "entries": [{"entity": [LONG], "ops": [{"key": "k", "value": 1, "remove": False}]}],
    "validateOnly": False,
}
ALTERED = {"throttleTimeMs": 0, "entries": [{"errorCode": 0, "errorMessage": None, "entity": [LONG]}]}
SECRETS = (b"nnNKTBohoqTbHRYhhCwzNPf6", b"MTlsd3ExN291ejJmYzVrNjJq")


def imported(out: Path, *logs: Path, node_id: int = 1, **options: Any) -> ImportSummary:
    """Import logs of one node."""
    return import_logs([Source(node_id, path) for path in logs], out, zone=UTC, **options)


def events(out: Path) -> list[dict[str, Any]]:
    """Return all that was imported, in order."""
    rows = [row for path in list_files(out) for row in pq.read_table(path, partitioning=None).to_pylist()]
    return sorted(rows, key=lambda row: (row["node_id"], row["seq"]))


def requests(out: Path) -> list[dict[str, Any]]:
    """Return the requests."""
    return [event for event in events(out) if event["kind"] == "request"]


def digest(out: Path) -> dict[str, bytes]:
    """Return what the files of the record hold, by name."""
    return {path.name: path.read_bytes() for path in list_files(out)}


@pytest.mark.parametrize("path", [QUICK, THROTTLED], ids=["quick", "throttled"])
def test_rows_are_what_the_broker_counted(tmp_path: Path, path: Path) -> None:
    """Requests, throttle times and bytes of Produce, as the broker's own metrics had them; no secret is kept."""
    summary = imported(tmp_path / "out", path)
    known = truth(path)
    totals = known["broker_totals"]
    whole = len(all_lines(path))
    assert summary.requests + summary.skipped["forwarded"] == whole
    assert (summary.bad, summary.unpriced) == (0, 0)
    after = Counter(o["requestHeader"]["requestApiKey"] for o in all_lines(path))
    before = Counter(
        o["requestHeader"]["requestApiKey"] for o in lines_before(path, known["metrics_read_ms"])
    )
    rows = requests(tmp_path / "out")
    for key, name in ((0, "Produce"), (1, "Fetch"), (3, "Metadata")):
        of_api = [row for row in rows if row["api_key"] == key]
        assert len(of_api) == after[key]
        if before[key] == after[key] == totals["requests"][name]:
            column = {0: "produce", 1: "fetch", 3: "request"}[key]
            assert sum(row[f"{column}_throttle_ms"] for row in of_api) == totals["throttle_ms_sum"].get(
                name, 0
            )
    data = b"".join(digest(tmp_path / "out").values()) + (tmp_path / "out" / "import.json").read_bytes()
    assert not [secret for secret in SECRETS if secret in data]


@pytest.mark.parametrize("path", [QUICK, THROTTLED], ids=["quick", "throttled"])
def test_topics_are_those_of_the_broker(tmp_path: Path, path: Path) -> None:
    """Each topic has the bytes that the broker's own metrics have for it, and a little around the records."""
    imported(tmp_path / "out", path)
    totals = truth(path)["broker_totals"]
    for key, of_topic in ((0, totals["topic_bytes_in"]), (1, totals["topic_bytes_out"])):
        rows = [row for row in requests(tmp_path / "out") if row["api_key"] == key and row["topic"]]
        assert {row["topic"] for row in rows} == {name for name in of_topic if not name.startswith("__")}
        assert {row["other_topics"] for row in rows} == {0}
        for name in {row["topic"] for row in rows}:
            sizes = [
                row["produce_bytes"] if key == 0 else row["fetch_bytes"]
                for row in rows
                if row["topic"] == name
            ]
            # The markers of transactions are in no Produce.
            assert 0.95 * of_topic[name] < sum(sizes) < of_topic[name] + 300 * len(sizes)


def test_topics_of_ids_have_names(tmp_path: Path) -> None:
    """An answer that describes a topic may stand anywhere in the log, and in a file that was imported before."""
    orders, clicks = "7q9Jayo7S8aTBGskY68CXw", "8q9Jayo7S8aTBGskY68CXw"
    part = {"partitionIndex": 0, "errorCode": 0, "highWatermark": 9, "lastStableOffset": 9, "logStartOffset": 0,
            "abortedTransactions": [], "preferredReadReplica": -1}  # fmt: skip
    fetch = {key: value for key, value in FETCH.items() if key != "replicaId"}

    def fetched(second: int, *sizes: tuple[str, int]) -> bytes:
        answered = [
            {"topicId": name, "partitions": [part | {"recordsSizeInBytes": size}]} for name, size in sizes
        ]
        return line(f"2026-11-21 09:00:{second:02},000", api_key=1, api_version=16, request=fetch,
                    response=FETCHED | {"responses": answered})  # fmt: skip

    topic = {"errorCode": 0, "name": "orders", "topicId": orders, "isInternal": False, "partitions": []}
    described = {"throttleTimeMs": 0, "brokers": [], "clusterId": None, "controllerId": 1, "errorCode": 0,
                 "topics": [topic | {"topicAuthorizedOperations": 0}]}  # fmt: skip
    asked = {"topics": None, "allowAutoTopicCreation": False, "includeTopicAuthorizedOperations": False}
    metadata = line("2026-11-21 09:00:03,000", api_key=3, api_version=12, request=asked, response=described)
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    first.write_bytes(
        fetched(1, (orders, 500), (clicks, 100)) + fetched(2, (orders, 1), (clicks, 2)) + metadata
    )
    second.write_bytes(fetched(4, (orders, 70)) + fetched(5))
    for path in (first, second):
        assert imported(tmp_path / "out", path).bad == 0
    assert [(row["topic"], row["other_topics"]) for row in requests(tmp_path / "out")] == [
        ("orders", 1),
        (clicks, 1),  # no answer has named it
        (None, None),
        ("orders", 0),
        (None, 0),
    ]


def test_refused_batches_are_of_no_topic(tmp_path: Path) -> None:
    """A Produce to a partition with an error stores nothing; a throttled Fetch shows nothing."""
    request = {"transactionalId": None, "acks": -1, "timeoutMs": 1, "topicData": [
        {"name": name, "partitionData": [{"index": 0, "recordsSizeInBytes": size}]}
        for name, size in (("orders", 100), ("clicks", 300))
    ]}  # fmt: skip
    answer = {"index": 0, "baseOffset": 0, "logAppendTimeMs": -1, "logStartOffset": 0, "recordErrors": [],
              "errorMessage": None}  # fmt: skip
    lines = b""
    for code in (0, 3):
        answers = [{"name": name, "partitionResponses": [answer | {"errorCode": code if name == "clicks" else 0}]}
                   for name in ("orders", "clicks")]  # fmt: skip
        lines += line(request=request, response={"responses": answers, "throttleTimeMs": 0})
    lines += line(request={**request, "acks": 0, "topicData": request["topicData"] + [
        {"name": "no topic!", "partitionData": [{"index": 0, "recordsSizeInBytes": 1000}]}
    ]}, response="")  # fmt: skip
    lines += line(api_key=1, api_version=12, request=FETCH, response=FETCHED, throttleTimeMs=5)
    path = tmp_path / "one.log"
    path.write_bytes(lines)
    assert imported(tmp_path / "out", path).bad == 0
    assert [(row["topic"], row["other_topics"]) for row in requests(tmp_path / "out")] == [
        ("clicks", 1),
        ("orders", 0),
        ("clicks", 1),
        (None, None),
    ]


def test_quotas_are_followed(tmp_path: Path) -> None:
    """What was altered while the log was written is there, at its place."""
    imported(tmp_path / "out", THROTTLED)
    found = {
        (event["quota_user"], event["quota_client_id"], event["quota_key"], event["quota_value"])
        for event in events(tmp_path / "out")
        if event["kind"] == "quota"
    }
    assert found == {
        (quota["user"], quota["client_id"], quota["key"], quota["value"])
        for quota in truth(THROTTLED)["quotas"]
    }


def test_a_file_imported_twice_changes_nothing(tmp_path: Path) -> None:
    """Under another name, packed or not."""
    out = tmp_path / "out"
    imported(out, QUICK)
    first = digest(out)
    plain = tmp_path / "kafka-request.log.1"
    plain.write_bytes(gzip.decompress(QUICK.read_bytes()))
    for path in (QUICK, plain):
        summary = imported(out, path)
        assert (summary.files, summary.files_known, summary.requests) == (0, 1, 0)
    assert digest(out) == first


def test_of_a_file_that_has_grown_what_is_new_is_taken(tmp_path: Path) -> None:
    """A line without an end waits until it has one; in the end all is as if imported at once, but for estimates."""
    whole = gzip.decompress(QUICK.read_bytes())
    log = tmp_path / "kafka-request.log"
    total = 0
    for size in (10, 3000, 3500, 1_000_000, len(whole)):
        log.write_bytes(whole[:size])
        if b"\n" in whole[:size]:
            total += imported(tmp_path / "out", log).requests
        else:
            with pytest.raises(LogFileError, match="no line contains a request"):
                imported(tmp_path / "out", log)
    imported(tmp_path / "once", QUICK)
    assert total == len(requests(tmp_path / "once"))
    out, once = ([row | {"lag_bytes": 0} for row in events(tmp_path / name)] for name in ("out", "once"))
    assert out == once


def test_order_of_files_does_not_matter(tmp_path: Path) -> None:
    """Rotated logs, the newest first, one by one: the same rows in the same order, one sequence."""
    lines = gzip.decompress(QUICK.read_bytes()).splitlines(keepends=True)
    parts = []
    for number in range(3):
        parts.append(tmp_path / f"log.{number}")
        parts[-1].write_bytes(b"".join(lines[number * 900 : (number + 1) * 900]))
    for path in reversed(parts):
        imported(tmp_path / "apart", path)
    imported(tmp_path / "at-once", *parts)
    apart, at_once = requests(tmp_path / "apart"), requests(tmp_path / "at-once")
    assert [strip(row) for row in apart] == [strip(row) for row in at_once]
    for rows in (apart, at_once):
        seqs = [row["seq"] for row in rows]
        assert seqs == sorted(set(seqs))
        times = [row["ts_ms"] for row in rows]
        assert times == sorted(times)
    for name in ("apart", "at-once"):
        kinds = [row["kind"] for row in events(tmp_path / name)]
        assert kinds[:2] == ["start", "gap"]
        assert (kinds.count("start"), kinds.count("gap")) == (1, 1)


def test_what_is_not_known_stands_before_the_oldest_log(tmp_path: Path) -> None:
    """Of a day before what was there; quotas that were said to be in force stay where they were."""
    quotas = parse_quotas_file("quotas: [{user: {name: alice}, producer_byte_rate: 10}]")
    old, new = tmp_path / "old.log", tmp_path / "new.log"
    whole = gzip.decompress(QUICK.read_bytes())
    day = whole[1:11]
    new.write_bytes(whole)
    old.write_bytes(whole.replace(b"[" + day, b"[2026-11-20"))
    imported(tmp_path / "out", new, in_force=quotas)
    imported(tmp_path / "out", old)
    imported(tmp_path / "out", old, new)
    found = events(tmp_path / "out")
    assert [event["kind"] for event in found][:3] == ["start", "gap", "request"]
    assert [event["kind"] for event in found].count("start") == 1
    alice = [
        event["ts_ms"] for event in found if event["quota_user"] == "alice" and event["quota_value"] == 10.0
    ]
    assert alice == [
        next(e["ts_ms"] for e in found if e["kind"] == "request" and e["ts_ms"] > found[0]["ts_ms"] + 10**7)
    ]


def test_lines_that_are_in_two_logs_are_noticed(tmp_path: Path) -> None:
    """At once or one after the other; requests of the same time that are not the same are not."""
    lines = gzip.decompress(QUICK.read_bytes()).splitlines(keepends=True)
    first, second = tmp_path / "first.log", tmp_path / "second.log"
    first.write_bytes(b"".join(lines[:1000]))
    second.write_bytes(b"".join(lines[600:]))
    once = imported(tmp_path / "once", QUICK)
    at_once = imported(tmp_path / "at-once", first, second)
    shared = at_once.requests - once.requests
    assert 300 < shared <= 400
    assert (once.doubles, at_once.doubles) == (0, shared)
    assert imported(tmp_path / "apart", second).doubles == 0
    assert imported(tmp_path / "apart", first).doubles == shared
    assert imported(tmp_path / "apart", THROTTLED).doubles == 0


def strip(row: dict[str, Any]) -> dict[str, Any]:
    """Return what of a row does not depend on what was imported with it."""
    return {
        key: value
        for key, value in row.items()
        if key not in ("seq", "fetch_bytes", "lag_bytes", "client_software", "client_software_version")
    }


def test_several_nodes_and_processes(tmp_path: Path) -> None:
    """Each node has rows and a sequence of its own; processes side by side change nothing."""
    plain = tmp_path / "logs" / "request.log"
    plain.parent.mkdir()
    plain.write_bytes(gzip.decompress(THROTTLED.read_bytes()))
    sources = [Source(1, QUICK), Source(2, plain.parent)]
    import_logs(sources, tmp_path / "out", zone=UTC, processes=2)
    imported(tmp_path / "one", QUICK)
    imported(tmp_path / "two", THROTTLED, node_id=2)
    assert events(tmp_path / "out") == events(tmp_path / "one") + events(tmp_path / "two")


def test_what_came_before_the_logger_was_on_is_left_out(tmp_path: Path) -> None:
    """Kafka 4.3.1 writes `"request":""` for it: the request that switches the logger on is the first of them."""
    log = tmp_path / "request.log"
    log.write_bytes(line(api_key=44, api_version=1, request="", response={}) + line())
    summary = imported(tmp_path / "out", log)
    assert (summary.requests, summary.bad, summary.skipped) == (1, 0, {"begun before": 1})


def test_bad_lines_are_counted_and_listed(tmp_path: Path) -> None:
    """By file, line and reason; the others are taken."""
    log = tmp_path / "request.log"
    bad = line().replace(b'"principal"', b'"secret"')
    log.write_bytes(line() + bad + b"\xff\xfe{}\n" + b"no request\n\n" + line("2026-11-21 10:00:00,000"))
    summary = imported(tmp_path / "out", log)
    assert (summary.requests, summary.bad, summary.skipped) == (2, 2, {"no request": 1})
    assert (tmp_path / "out" / "import-rejected.txt").read_text().splitlines() == [
        f"{log}:2: not a request as a broker logs it: Object missing required field 'principal'",
        f"{log}:3: no time before the request, expected a time such as 2026-11-21 09:27:02,682",
    ]


@pytest.mark.parametrize(
    "others",
    [
        {"api_key": 19, "api_version": 7, "request": {"topics": {}}, "response": {}},
        {"api_key": 49, "api_version": 1, "request": {"entries": [{}]}, "response": {}},
        {"api_key": 0, "api_version": 99},
        {"api_key": 0, "request": {"topicData": "x"}},
        {"connection": "nowhere"},
        {"request": "x"},
        {"api_key": 1, "api_version": 11, "request": {"replicaId": -1}, "response": ""},
        {"api_key": 1, "api_version": 11, "request": FETCH | {"replicaId": "x"}, "response": FETCHED},
        {"api_key": 1, "api_version": 16, "request": FETCH | {"replicaState": "x"}, "response": FETCHED},
        {"api_key": 3, "api_version": 1, "request": {"topics": None}, "response": DESCRIBED},
        {"api_key": 19, "api_version": 2, "request": CREATE, "response": CREATED},
        {"api_key": 49, "api_version": 0, "request": ALTER, "response": ALTERED},
        {"client_id": "x" * 40_000},
        {"client_id": "\ud800"},
        {"time": "9999-12-31 23:59:59,999"},
        {"time": "1970-01-01 00:00:00,000"},
        {"api_key": 1 << 40},
        {"throttleTimeMs": 1 << 70},
        {"localTimeMs": 1e300},
        {
            "request": {
                "transactionalId": None,
                "acks": 1,
                "timeoutMs": 1,
                "topicData": [{"name": "t", "partitionData": [{"index": 0, "recordsSizeInBytes": 1 << 70}]}],
            }
        },
        {
            "api_key": 20,
            "api_version": 1,
            "request": {"topicNames": [], "timeoutMs": 1},
            "response": {"throttleTimeMs": "x", "responses": []},
        },
    ],
)
def test_hostile_lines_end_nothing(tmp_path: Path, others: dict[str, Any]) -> None:
    """Whatever a line says, the next one is taken."""
    log = tmp_path / "request.log"
    log.write_bytes(line(**others) + line())
    summary = imported(tmp_path / "out", log)
    assert summary.bad == 1
    assert (tmp_path / "out" / "import-rejected.txt").read_text().count("\n") == 1
    assert len(requests(tmp_path / "out")) == summary.requests >= 1


@pytest.mark.parametrize("depth", [400, 900, 5000])
@pytest.mark.parametrize("nested", [(b"[", b"]"), (b'{"a":[', b"]}")], ids=["arrays", "objects"])
def test_deeply_nested_lines_end_nothing(tmp_path: Path, depth: int, nested: tuple[bytes, bytes]) -> None:
    """A message whose names are looked for at any depth: the line is rejected, or is not, and the next one is taken."""
    hostile = line(api_key=24, api_version=2, request={"transactionalId": "DEEP"}, response={})
    log = tmp_path / "request.log"
    log.write_bytes(hostile.replace(b'"DEEP"', nested[0] * depth + nested[1] * depth) + line())
    summary = imported(tmp_path / "out", log)
    assert (summary.requests, summary.bad) == (1, 1)


@pytest.mark.parametrize(
    "others",
    [
        {"api_key": -5},
        {"api_key": 18, "api_version": 0, "request": {"clientSoftwareName": 5}, "response": API_VERSIONS},
    ],
)
def test_what_no_row_says_may_be_odd(tmp_path: Path, others: dict[str, Any]) -> None:
    """An API that brokers do not serve, a field that its version does not have."""
    log = tmp_path / "request.log"
    log.write_bytes(line(**others))
    assert imported(tmp_path / "out", log).requests == len(requests(tmp_path / "out")) == 1


def test_readers_find_a_whole_record_while_an_import_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the file of an hour is there and those that it is made of are not gone yet."""
    out = tmp_path / "out"
    imported(out, QUICK)
    monkeypatch.setattr(Path, "unlink", _killed)
    with pytest.raises(KeyboardInterrupt):
        imported(out, THROTTLED)
    monkeypatch.undo()
    assert len(list(out.rglob("node-1-*.parquet"))) == 2
    found = events(out)
    assert imported(out, QUICK).files_known == 1
    assert len(list(out.rglob("node-1-*.parquet"))) == 1
    assert events(out) == found


def test_a_killed_import_is_finished_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before the manifest is written, nothing was imported; after that, everything."""
    out = tmp_path / "out"
    imported(out, QUICK)
    before = events(out)
    finish = Manifest.finish
    monkeypatch.setattr(Manifest, "save", _killed)
    with pytest.raises(KeyboardInterrupt):
        imported(out, THROTTLED)
    monkeypatch.undo()
    assert events(out) == before
    finishes = iter([finish, _killed])
    monkeypatch.setattr(Manifest, "finish", lambda *args: next(finishes)(*args))
    with pytest.raises(KeyboardInterrupt):
        imported(out, THROTTLED)
    monkeypatch.undo()
    assert imported(out, QUICK, THROTTLED).files_known == 2
    imported(tmp_path / "once", QUICK)
    imported(tmp_path / "once", THROTTLED)
    assert events(out) == events(tmp_path / "once")
    assert not list(out.glob(".import/*"))


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_quotas_in_force_come_first(tmp_path: Path) -> None:
    """Before the first request of a node, behind the gap that stands for all that is not known; once."""
    quotas = parse_quotas_file(
        "windows: {quota.window.num: 5}\n"
        "quotas: [{user: {name: alice}, client-id: {default: true}, producer_byte_rate: 10}]"
    )
    imported(tmp_path / "out", QUICK, in_force=quotas)
    found = events(tmp_path / "out")[:5]
    assert [event["kind"] for event in found] == ["start", "gap", "quota", "quota", "request"]
    assert [
        (e["quota_user"], e["quota_client_id"], e["quota_key"], e["quota_value"]) for e in found[2:4]
    ] == [
        (None, None, "quota.window.num", 5.0),
        ("alice", "<default>", "producer_byte_rate", 10.0),
    ]
    imported(tmp_path / "out", THROTTLED, in_force=quotas)
    assert [event["kind"] for event in events(tmp_path / "out")].count("start") == 1


def fetched(offset: int, end: int, size: int, *, seconds: int, partition: int = 0, **others: Any) -> bytes:
    """Return the line of a Fetch of one partition: where it reads, where the end is, and how many bytes came."""
    part = {"partition": partition, "currentLeaderEpoch": 0, "fetchOffset": offset, "lastFetchedEpoch": 0}
    answer = {"partitionIndex": partition, "errorCode": 0, "highWatermark": end, "lastStableOffset": end,
              "logStartOffset": 0, "abortedTransactions": None, "preferredReadReplica": -1,
              "recordsSizeInBytes": size}  # fmt: skip
    asked = FETCH | {
        "topics": [{"topic": "t", "partitions": [part | {"logStartOffset": -1, "partitionMaxBytes": 9}]}]
    }
    return line(
        f"2026-11-21 09:42:{seconds:02},018", api_key=1, api_version=12, request=asked,
        response=FETCHED | {"responses": [{"topic": "t", "partitions": [answer]}]}, **others,
    )  # fmt: skip


def test_fetches_show_their_lag(tmp_path: Path) -> None:
    """Records are exact; bytes are by the records that came until the next Fetch of the same partitions."""
    log = tmp_path / "kafka-request.log"
    log.write_bytes(
        fetched(0, 1000, 5000, seconds=1)
        + line("2026-11-21 09:42:02,018", api_key=1, api_version=12, request=FETCH, response=FETCHED)
        + fetched(50, 1000, 5000, seconds=3)
        + fetched(100, 1010, 0, seconds=4)
        + fetched(7, 6, 0, seconds=5, partition=1)
        + fetched(900, 1010, 10, seconds=6)
        + fetched(1010, 1010, 0, seconds=7)
        + fetched(3, 9, 60, seconds=8, connection="127.0.0.1:23402-127.0.0.1:59799-3-2")
    )
    imported(tmp_path / "out", log)
    found = [(row["lag"], row["lag_bytes"]) for row in requests(tmp_path / "out")]
    known = [(1000, 100_000), (None, None), (950, 95_000), (910, 91_000), (None, None), (110, 11_000), (0, 0)]
    assert found == [*known, (6, None)]


def test_record_from_before_is_imported_to(tmp_path: Path) -> None:
    """An hour that an import wrote before there was a lag keeps its rows; theirs is null."""
    first, second = tmp_path / "kafka-request.log", tmp_path / "kafka-request.log.1"
    first.write_bytes(fetched(0, 9, 60, seconds=1))
    second.write_bytes(fetched(6, 9, 60, seconds=2))
    imported(tmp_path / "out", first)
    (file,) = list_files(tmp_path / "out")
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns(["lag", "lag_bytes"]), file)
    imported(tmp_path / "out", second)
    assert [row["lag"] for row in requests(tmp_path / "out")] == [None, 3]


def test_software_holds_for_a_whole_connection(tmp_path: Path) -> None:
    """Also for the requests before the broker knew it."""
    known = {"softwareName": "librdkafka", "softwareVersion": "2.8"}
    log = tmp_path / "request.log"
    log.write_bytes(
        line() + line("2026-11-21 09:42:58,000", clientInformation=known) + line(connection="a:1-b:2-0-1")
    )
    imported(tmp_path / "out", log)
    assert [row["client_software"] for row in requests(tmp_path / "out")] == ["librdkafka", "", "librdkafka"]


@pytest.mark.parametrize(
    ("connection", "host"),
    [
        ("10.0.0.1:9092-10.0.0.7:59798-3", "10.0.0.7"),  # up to 3.9
        ("10.0.0.1:9092-10.0.0.7:59798-3-17", "10.0.0.7"),
        ("0:0:0:0:0:0:0:1:9092-2001:db8:0:0:0:0:0:7:59798-12", "2001:db8::7"),
        ("fe80:0:0:0:0:0:0:1%br-1:9092-fe80:0:0:0:0:0:0:7%br-1:59798-0-12", "fe80::7%br-1"),
        ("broker:1-::ffff:x:2-0", "::ffff:x"),
    ],
)
def test_addresses_are_taken_from_the_connection(tmp_path: Path, connection: str, host: str) -> None:
    """With and without the processor's number, IPv6 in short form; what is no address stays as it is."""
    log = tmp_path / "request.log"
    log.write_bytes(line(connection=connection))
    imported(tmp_path / "out", log)
    assert [row["client_host"] for row in requests(tmp_path / "out")] == [host]


def test_rows_held_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put aside meanwhile comes out the same."""
    monkeypatch.setattr(importing, "HELD_ROWS", 500)
    monkeypatch.setattr(log_files, "BLOCK_BYTES", 100_000)
    imported(tmp_path / "out", QUICK)
    monkeypatch.undo()
    imported(tmp_path / "once", QUICK)
    assert events(tmp_path / "out") == events(tmp_path / "once")


def test_what_cannot_be_used_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason, before anything is written."""
    with pytest.raises(ConfigError, match="no request log at"):
        imported(tmp_path / "out", tmp_path / "nowhere")
    mine = tmp_path / "mine"
    (mine / "parquet").mkdir(parents=True)
    with pytest.raises(ConfigError, match="contains files that `tidegate import` did not write"):
        imported(mine, QUICK)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(QUICK.read_bytes()[:5000])
    with pytest.raises(LogFileError, match=r"cannot read .*: the gzip file is truncated"):
        imported(tmp_path / "out", cut, QUICK, strict=True)
    monkeypatch.setattr(log_files, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(log_files, "BLOCK_BYTES", 1000)
    endless = tmp_path / "endless.log"
    endless.write_bytes(b"x" * 5000)
    with pytest.raises(LogFileError, match="a line has more than 1000 bytes"):
        imported(tmp_path / "out", endless)
    monkeypatch.undo()
    with pytest.raises(LogFileError, match=r"cannot read .*: No such file"):
        imported(tmp_path / "out", dangling(tmp_path / "gone.log", monkeypatch), QUICK, strict=True)
    assert not list_files(tmp_path / "out")


def dangling(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a file that is gone when it is opened: rotated meanwhile."""
    path.write_bytes(line())
    is_file = path.is_file
    monkeypatch.setattr(
        "os.path.isfile", lambda given: is_file() and path.unlink() is None if given == path else True
    )
    return path


@pytest.mark.parametrize("kind", ["truncated", "corrupt", "checksum", "gone", "endless line"])
def test_a_damaged_file_is_read_as_far_as_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The other files are imported whole, the damaged one is named; when it is repaired, the rest of it is imported."""
    whole = QUICK.read_bytes()
    middle = len(whole) // 2
    damaged, other = tmp_path / "request.log.1.gz", tmp_path / "request.log"
    other.write_bytes(line("2026-11-22 09:42:57,018"))
    damaged.write_bytes(
        {
            "truncated": whole[:middle],
            "corrupt": whole[:middle] + bytes(2000) + whole[middle + 2000 :],
            "checksum": whole[:-8] + bytes(4) + whole[-4:],
            "gone": b"",
            "endless line": gzip.compress(gzip.decompress(whole)[:1_000_000] + b"x" * 1_500_000 + b"\n"),
        }[kind]
    )
    if kind == "gone":
        dangling(damaged, monkeypatch)
    if kind == "endless line":
        monkeypatch.setattr(log_files, "LINE_BYTES_MAX", 1_000_000)
        monkeypatch.setattr(log_files, "BLOCK_BYTES", 100_000)
    out = tmp_path / "out"
    summary = imported(out, damaged, other)
    monkeypatch.undo()
    ((path, why),) = summary.damaged
    assert path == damaged
    assert why.startswith(
        "No such file" if kind == "gone" else "a line has more than" if kind[0] == "e" else "the gzip file is"
    )
    once = imported(tmp_path / "once", QUICK, other).requests
    if kind == "checksum":
        assert summary.requests == once
    elif kind == "gone":
        assert summary.requests == 1
    else:
        assert once // 5 < summary.requests < once
    damaged.write_bytes(whole)
    again = imported(out, damaged, other)
    read_wrongly = summary.requests + again.requests - again.doubles - once
    if kind == "corrupt":  # other bytes come before it is noticed
        assert 0 <= read_wrongly < 20
    else:
        assert (read_wrongly, again.doubles) == (0, 0)
    assert again.damaged == []


def test_a_damaged_file_stays_known(tmp_path: Path) -> None:
    """What could be read of it is not imported twice, and it is named each time."""
    cut = tmp_path / "cut.gz"
    cut.write_bytes(QUICK.read_bytes()[:50_000])
    first = imported(tmp_path / "out", cut)
    again = imported(tmp_path / "out", cut)
    assert first.requests > 100
    assert (again.requests, again.files_known, again.damaged) == (0, 1, first.damaged)


@pytest.mark.parametrize(
    ("content", "message", "hint"),
    [
        (b"", "no line contains a request", "set the logger kafka.request.logger to DEBUG"),
        (b"half a line", "no line contains a request", "set the logger kafka.request.logger to DEBUG"),
        (b"[2026-11-21 09:42:57,018] INFO started (kafka.server.KafkaServer)\n",
         "no line contains a request", "set the logger"),
        (b"[2020-11-21 09:42:57,018] DEBUG Completed request:RequestHeader(apiKey=PRODUCE) -- {acks=-1}\n",
         "all requests are in the text format of Kafka before 2.8", "Kafka 2.8 or later"),
        (b'{"message":"Completed request:{\\"isForwarded\\":false}"}\n',
         "all requests are inside JSON objects", "PatternLayout"),
        (line(request=""), "all requests began before the logger was switched on", "import again"),
        (line(isForwarded=True), "all requests were forwarded to this controller by brokers", "logs of the brokers"),
        (b"{}\n", "no request can be read (1 rejected; see ", "2.8 or newer"),
        (b"\x1f\x8b\x08", "the gzip file is truncated", "copy it again"),
    ],
)  # fmt: skip
def test_files_without_a_request_are_an_error(
    tmp_path: Path, content: bytes, message: str, hint: str
) -> None:
    """It says why, as far as the file shows it, and nothing is imported; beside another log, the file is named."""
    log = tmp_path / "server.log"
    log.write_bytes(content)
    with pytest.raises(LogFileError) as caught:
        imported(tmp_path / "out", log)
    assert message in str(caught.value)
    assert hint in str(caught.value.hint)
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"import.lock", "import-rejected.txt"}
    other = tmp_path / "request.log"
    other.write_bytes(line())
    summary = imported(tmp_path / "out", other, log)
    assert summary.requests == 1
    assert summary.without_requests == ([log] if content.endswith(b"KafkaServer)\n") else [])


def test_progress_is_in_bytes_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all files, known ones and damaged ones too; what is done grows up to what there is."""
    monkeypatch.setattr(log_files, "BLOCK_BYTES", 100_000)
    cut = tmp_path / "cut.gz"
    cut.write_bytes(QUICK.read_bytes()[:50_000])
    imported(tmp_path / "out", QUICK)
    seen: list[tuple[int, int]] = []
    logs = [QUICK, cut, THROTTLED]
    imported(tmp_path / "out", *logs, on_progress=lambda _, done, total: seen.append((done, total)))
    whole = sum(path.stat().st_size for path in logs)
    done = [each for each, _ in seen]
    assert {total for _, total in seen} == {whole}
    assert done == sorted(done)
    # from Python 3.12 on a compressed file is read in larger pieces
    steps = 20 if sys.version_info < (3, 12) else whole // gzip.READ_BUFFER_SIZE - 1
    assert (len(set(done)) > steps, done[-1]) == (True, whole)


def test_a_record_among_the_logs_is_no_log(tmp_path: Path) -> None:
    """Nor is what begins with a dot."""
    (tmp_path / "request.log").write_bytes(line())
    (tmp_path / ".request.log.swp").write_bytes(line())
    out = tmp_path / "usage"
    assert imported(out, tmp_path).requests == 1
    assert imported(out, tmp_path) == ImportSummary(files_known=1)
