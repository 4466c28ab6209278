"""Cost of reading requests and writing responses: the hot path, small answers, a large Metadata, and compiling.

    python bench/bench_wire.py [--json]

Microseconds of CPU time per call, the best of many short rounds (a busy machine disturbs the others). "the same, known"
is a request that begins as an earlier one did (`wire.split_reader`).
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.batches import build_batch, check_produced

from tidegate.wire import (
    decode_request_header,
    encode_request,
    encode_response,
    read_request,
    read_response,
    write_response,
)
from tidegate.wire.apis import spoken_pairs
from tidegate.wire.batch import crc_matches, read_header
from tidegate.wire.codecs import writer
from tidegate.wire.definitions import Direction, layout
from tidegate.wire.reader_source import compile_reader
from tidegate.wire.split_reader import split_reader
from tidegate.wire.writer_source import compile_writer

PRODUCE, FETCH, METADATA, API_VERSIONS, HEARTBEAT = 0, 1, 3, 18, 12
TOPIC_ID = "7f5c4a1e-6a8f-4f0e-9d59-0d8f2f6d3c11"
RECORDS = build_batch([(None, bytes(1000))] * 16)  # some 16 KB, as a producer's default batch
ROUNDS, CALLS = 150, 200
SPLIT = {
    PRODUCE: ("index", ("records",)),
    FETCH: ("partition", ("current_leader_epoch", "fetch_offset", "partition_max_bytes")),
}

Row = tuple[str, float]


def best_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Return microseconds of CPU time per call: the least of all rounds, without the loop around the calls."""
    rounds = []
    for _ in range(ROUNDS):
        begun = time.thread_time_ns()
        for _ in range(calls):
            call()
        between = time.thread_time_ns()
        for _ in range(calls):
            pass
        rounds.append((between - begun) - (time.thread_time_ns() - between))
    return min(rounds) / calls / 1000


def produce(partitions: int = 1) -> dict[str, Any]:
    """Return a Produce request."""
    partition_data = [{"index": index, "records": RECORDS} for index in range(partitions)]
    topic = {"name": "measurements", "topic_id": TOPIC_ID, "partition_data": partition_data}
    return {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": [topic]}


def produced(partitions: int = 1) -> dict[str, Any]:
    """Return a Produce response."""
    answers = [
        {"index": index, "error_code": 0, "base_offset": 123_456, "log_start_offset": 0, "record_errors": []}
        for index in range(partitions)
    ]
    return {"responses": [{"name": "measurements", "topic_id": TOPIC_ID, "partition_responses": answers}]}


def fetch(partitions: int = 1) -> dict[str, Any]:
    """Return a Fetch request."""
    wanted = [
        {"partition": index, "fetch_offset": 123_456, "partition_max_bytes": 1 << 20}
        for index in range(partitions)
    ]
    topic = {"topic": "measurements", "topic_id": TOPIC_ID, "partitions": wanted}
    rest = {"forgotten_topics_data": [], "rack_id": ""}
    return {"max_wait_ms": 500, "min_bytes": 1, "topics": [topic], **rest}


def fetched(records: bytes, partitions: int = 1) -> dict[str, Any]:
    """Return a Fetch response."""
    data = [
        {
            "partition_index": index,
            "error_code": 0,
            "high_watermark": 123_472,
            "last_stable_offset": 123_472,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "records": records,
        }
        for index in range(partitions)
    ]
    return {
        "error_code": 0,
        "responses": [{"topic": "measurements", "topic_id": TOPIC_ID, "partitions": data}],
    }


def metadata(topics: int, partitions: int) -> dict[str, Any]:
    """Return a Metadata response."""
    return {
        "brokers": [{"node_id": node, "host": "127.0.0.1", "port": 9092 + node} for node in range(3)],
        "cluster_id": "dGlkZWdhdGUtY2x1c3Rlcg",
        "controller_id": 1,
        "topics": [
            {
                "error_code": 0,
                "name": f"topic-{topic}",
                "topic_id": TOPIC_ID,
                "partitions": [
                    {
                        "error_code": 0,
                        "partition_index": index,
                        "leader_id": 1,
                        "replica_nodes": [1, 2, 3],
                        "isr_nodes": [1, 2, 3],
                        "offline_replicas": [],
                    }
                    for index in range(partitions)
                ],
            }
            for topic in range(topics)
        ],
    }


def request_rows(name: str, key: int, version: int, message: dict[str, Any]) -> list[Row]:
    """Time reading one request: its body, and what follows when its beginning is known."""
    frame = memoryview(encode_request(key, version, 1, "client-1", message))[4:]
    at = decode_request_header(frame).body_at
    rows = [(f"{name} v{version}: read request", best_us(lambda: read_request(key, version, frame, at)))]
    if key in SPLIT and name != "Fetch of 50 partitions":
        known = split_reader(key, version, *SPLIT[key])
        kept = {known.prefix(frame, at): True}
        rows.append((f"{name} v{version}: the same, known", best_us(lambda: known.find(frame, at, kept))))
    return rows


def response_rows(
    name: str, key: int, version: int, message: dict[str, Any], calls: int = CALLS
) -> list[Row]:
    """Time encoding one response with its frame."""
    return [
        (
            f"{name} v{version}: encode response",
            best_us(lambda: encode_response(key, version, 1, message), calls),
        )
    ]


def hot_rows() -> list[Row]:
    """Time Produce and Fetch."""
    frame = memoryview(encode_request(PRODUCE, 9, 1, "client-1", produce()))[4:]
    rows = [("request header v2", best_us(lambda: decode_request_header(frame)))]
    for version in (7, 9, 13):
        rows += request_rows("Produce 16 KB", PRODUCE, version, produce())
        rows += response_rows("Produce", PRODUCE, version, produced())
    for version in (11, 12, 17):
        rows += request_rows("Fetch", FETCH, version, fetch())
        rows += response_rows("Fetch 16 KB", FETCH, version, fetched(RECORDS))
    rows += response_rows("Fetch without records", FETCH, 12, fetched(b""))
    rows += request_rows("Fetch of 50 partitions", FETCH, 12, fetch(50))
    rows += response_rows("Fetch of 50 partitions", FETCH, 12, fetched(RECORDS, 50))
    return rows


def other_rows() -> list[Row]:
    """Time small answers, kept answers, and a large Metadata."""
    api_keys = [{"api_key": key, "min_version": 0, "max_version": 9} for key in range(60)]
    kept = encode_response(API_VERSIONS, 3, 1, {"error_code": 0, "api_keys": api_keys})
    large = metadata(100, 10)
    body = write_response(METADATA, 12, large)
    beat = {"group_id": "g", "generation_id": 5, "member_id": "m-1"}
    return [
        *request_rows("Heartbeat", HEARTBEAT, 4, beat),
        *response_rows("Heartbeat", HEARTBEAT, 4, {"error_code": 0}),
        *response_rows("Metadata 1 x 1", METADATA, 12, metadata(1, 1)),
        *response_rows("Metadata 100 x 10", METADATA, 12, large, calls=5),
        ("Metadata 100 x 10 v12: read response", best_us(lambda: read_response(METADATA, 12, body), 5)),
        *response_rows("ApiVersions", API_VERSIONS, 3, {"error_code": 0, "api_keys": api_keys}, calls=20),
        ("ApiVersions v3: kept, for another request", best_us(lambda: kept.with_correlation_id(7))),
        ("throttle time set in place", best_us(lambda: kept.set_throttle_time_ms(7))),
    ]


def batch_rows() -> list[Row]:
    """Time looking at a record batch of 16 KB."""
    header = read_header(RECORDS)
    return [
        ("record batch: header", best_us(lambda: read_header(RECORDS))),
        ("record batch: all checks but the CRC", best_us(lambda: check_produced(RECORDS, api_version=9))),
        ("record batch 16 KB: CRC-32C", best_us(lambda: crc_matches(RECORDS, header))),
    ]


def compile_us(key: int, version: int, direction: Direction) -> float:
    """Return microseconds to compile what a server needs of one message, the least of three."""
    compiler = compile_reader if direction == "request" else compile_writer
    times = []
    for _ in range(3):
        begun = time.thread_time_ns()
        found = layout(key, version, direction)
        compiler(found)
        times.append(time.thread_time_ns() - begun)
    return min(times) / 1000


def compile_rows() -> list[Row]:
    """Time compiling request readers and response writers: the median, the dearest, and all of them."""
    ways: tuple[Direction, ...] = ("request", "response")
    rows = [(str(layout(*pair, way)), compile_us(*pair, way)) for pair in spoken_pairs() for way in ways]
    rows.sort(key=lambda row: row[1])
    return [
        (f"compile one of {len(rows)}: median", statistics.median(us for _, us in rows)),
        *((f"compile {title}", us) for title, us in rows[-5:]),
        ("compile all that a server needs", sum(us for _, us in rows)),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    writer(PRODUCE, 9, "response")
    rows = [*hot_rows(), *other_rows(), *batch_rows(), *compile_rows()]
    if arguments.json:
        print(json.dumps(dict(rows), indent=1))
        return
    print(
        f"{platform.machine()}, {platform.system()} {platform.release()}, Python {platform.python_version()}"
    )
    for name, microseconds in rows:
        print(f"{name:<52}{microseconds:>12.2f} us")


if __name__ == "__main__":
    main()
