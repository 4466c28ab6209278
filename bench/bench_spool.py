"""Cost of the usage record: a row on the request path, and turning rows into Parquet in the writer.

    python bench/bench_spool.py [ROWS]

Prints nanoseconds and bytes per row, and rows per second of the writer's steps.
"""

import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.unit.usage.recording import Connected, Decided, asked

from tidegate.clock import SystemClock
from tidegate.server.requests.recorder import Recorder
from tidegate.server.requests.request_rows import FETCHED, Client
from tidegate.usage.convert import compact, drain
from tidegate.usage.directory import parquet_directory, spool_directory
from tidegate.usage.files import list_files
from tidegate.usage.segment import CLOSED_SUFFIX, PRODUCED, ROW_BYTES, segment_paths
from tidegate.wire import RequestHeader

CHUNK_ROWS = 10_240
TURN_ROWS = 32  # requests that are answered together, and written with one call
CLIENTS = 1000
DAY_MS = 86_400_000
Asked = tuple[Connected, RequestHeader]


def clients() -> list[Client]:
    """Return clients with different names."""
    return [
        Client((
            "PLAINTEXT", f"user-{index % 100}", f"client-{index}", f"10.0.0.{index % 256}", "librdkafka", "2.8.0",
        ))
        for index in range(CLIENTS)
    ]  # fmt: skip


def turns_of(who: list[Client], *, fetch: bool = False) -> list[list[Decided]]:
    """Return turns of requests, of clients in turn, each on its connection: all Produce, or all Fetch with a lag."""
    found = []
    for number in range(max(len(who), TURN_ROWS)):
        client = who[number % len(who)]
        size = 1000 + number
        charged = {"row_flags": PRODUCED}
        if fetch:
            charged = {"fetch_bytes": size, "lag": 10, "lag_bytes": size, "row_flags": FETCHED}
        request = Decided(
            connection_id=number, client_id=client.client_id, frame_bytes=1000 + number, **charged
        )
        request.channel.connection.recorded = client
        found.append(request)
    return [found[first : first + TURN_ROWS] for first in range(0, len(found) - TURN_ROWS + 1, TURN_ROWS)]


def requests(recorder: Recorder | None, turns: list[list[Decided]], rows: int, now_ms: int) -> None:
    """Record requests as the front does, those that are answered together with one write; without recorder nothing."""
    for index in range(rows // TURN_ROWS):
        turn = turns[index % len(turns)]
        for request in turn:
            request.now_ms = now_ms
        if recorder is not None:
            recorder.requests(turn)
            recorder.commit()


def networks(recorder: Recorder, who: list[Asked], rows: int, now_ms: int) -> None:
    """Record network time of clients in turn."""
    network, count = recorder.network, len(who)
    for index in range(rows):
        connection, header = who[index % count]
        network(connection, header, now_ms, 3_000, False)


def loop(recorder: Recorder, who: list[Asked], rows: int, now_ms: int) -> None:
    """Run the loop of `networks` without recording."""
    count = len(who)
    for index in range(rows):
        _, _ = who[index % count]


def chunks_ns(work: Callable, *arguments: object, rows: int, now_ms: int) -> list[float]:
    """Return the processor time per row of each chunk: other processes on the machine do not count."""
    times = []
    for chunk in range(rows // CHUNK_ROWS):
        start = time.thread_time_ns()
        work(*arguments, CHUNK_ROWS, now_ms + chunk)
        times.append((time.thread_time_ns() - start) / CHUNK_ROWS)
    return times


def report(name: str, times: list[float], floor: float) -> None:
    """Print the fastest and the median chunk, without the loop around the calls."""
    print(f"{name:32} {min(times) - floor:8.0f} ns  median {statistics.median(times) - floor:8.0f} ns")


def rate(name: str, rows: int, seconds: float) -> None:
    """Print rows per second."""
    print(f"{name:32} {rows / seconds:12,.0f} rows/s")


def timed(work: Callable) -> float:
    """Return how many seconds of processor time `work` takes, all threads together."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Run everything in a directory of its own."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {rows:,} rows")
    with tempfile.TemporaryDirectory() as directory:
        spool, parquet = spool_directory(Path(directory), 1), parquet_directory(Path(directory))
        now_ms = SystemClock().now_ms() // DAY_MS * DAY_MS - DAY_MS
        recorder = Recorder(spool, node_id=1, clock=SystemClock(), max_spool_bytes=64 << 30)
        who = clients()
        of_each = [asked(client, id=number, api_key=0, api_version=9) for number, client in enumerate(who)]
        floor = min(chunks_ns(loop, recorder, of_each, rows=CHUNK_ROWS * 20, now_ms=0))
        turns, one = turns_of(who), turns_of(who[:1])
        turns_floor = min(chunks_ns(requests, None, turns, rows=CHUNK_ROWS * 20, now_ms=0))
        kinds = (
            ("request row", turns, 2),
            ("request row, one client", one, 4),
            ("request row, Fetch", turns_of(who, fetch=True), 4),
        )
        for name, some, part in kinds:
            report(name, chunks_ns(requests, recorder, some, rows=rows // part, now_ms=now_ms), turns_floor)
        report("network row", chunks_ns(networks, recorder, of_each, rows=rows // 4, now_ms=now_ms), floor)
        recorder.close()
        rows = sum(path.stat().st_size // ROW_BYTES - 1 for path in segment_paths(spool, CLOSED_SUFFIX))
        spool_bytes = sum(path.stat().st_size for path in spool.iterdir())
        print(
            f"{'spool':32} {spool_bytes / rows:8.1f} bytes/row, {len(segment_paths(spool, CLOSED_SUFFIX))} segments"
        )
        rate("spool to Parquet, one core", rows, timed(lambda: drain(spool, parquet)))
        parquet_bytes = sum(path.stat().st_size for path in list_files(Path(directory)))
        print(f"{'Parquet':32} {parquet_bytes / rows:8.1f} bytes/row")
        rate(
            "compaction, one core",
            rows,
            timed(lambda: list(compact(parquet, node_id=1, now_ms=now_ms + DAY_MS))),
        )
        parquet_bytes = sum(path.stat().st_size for path in list_files(Path(directory)))
        print(f"{'Parquet, compacted':32} {parquet_bytes / rows:8.1f} bytes/row")


if __name__ == "__main__":
    main()
