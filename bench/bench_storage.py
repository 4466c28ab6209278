"""Cost of the embedded log, without sockets: the log itself, and the Produce and Fetch handlers on real frames.

    python bench/bench_storage.py [--records N]

Prints microseconds per operation and, beside them, what the system call alone costs on this machine and disk.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import GeneratorType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.batches import build_batch

from tidegate.broker.cluster import ClusterView
from tidegate.broker.handlers import handler_table
from tidegate.clock import SystemClock
from tidegate.in_slices import run_at_once
from tidegate.server.requests.handler import Connection, Handler, Request
from tidegate.server.settings.dynamic_settings import DynamicSettings
from tidegate.storage import Storage, StorageConfig
from tidegate.storage.housekeeping import start_housekeeping
from tidegate.storage.log.recovery import open_log
from tidegate.storage.topics.topic_settings import TopicSettings
from tidegate.wire import decode_request_header, encode_request

VALUE_BYTES = 100
RECOVERED_BATCHES = 200_000
ROUNDS = 400  # short ones: in the best, no other process had the processor


class NoQuotas:
    """A client without limits."""

    def fetch_limit_bytes(self) -> int:
        """Allow all."""
        return 2**31 - 1

    def record_mutations(self, permits: int) -> bool:
        """Allow all."""
        return True


class NoTimers:
    """A scheduler for handlers that never wait."""

    def call_soon(self, callback, *args):
        """Forget it."""
        return self

    def call_soon_threadsafe(self, callback, *args):
        """Forget it."""
        return self

    def call_later(self, delay, callback, *args):
        """Forget it."""
        return self

    def cancel(self):
        """Ignore it."""


def best_us(run: Callable[[], int]) -> float:
    """Return the least microseconds per operation of a few rounds; `run` returns how many operations it did."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        count = run()
        best = min(best, (time.perf_counter() - start) / count * 1e6)
    return best


def bench_write_alone(directory: Path, count: int) -> float:
    """Return what `os.pwrite` of one batch costs."""
    batch = build_batch([(None, bytes(VALUE_BYTES))])
    fd = os.open(directory / "alone", os.O_RDWR | os.O_CREAT)

    def run() -> int:
        for at in range(0, count * len(batch), len(batch)):
            os.pwrite(fd, batch, at)
        os.ftruncate(fd, 0)
        return count

    took = best_us(run)
    os.close(fd)
    return took


def bench_append(directory: Path, count: int, *, idempotent: bool) -> float:
    """Return what `PartitionLog.append` of one small batch costs, write included."""
    log = open_log(directory / f"log-{int(idempotent)}", TopicSettings(), producer_expiration_ms=1)
    now_ms = int(time.time() * 1000)
    next_sequence = 0

    def batches() -> list[memoryview]:
        producer = {"producer_id": 1, "producer_epoch": 0} if idempotent else {}
        return [
            memoryview(
                bytearray(
                    build_batch(
                        [(None, bytes(VALUE_BYTES))],
                        timestamp_ms=now_ms,
                        base_sequence=next_sequence + at if idempotent else -1,
                        **producer,
                    )
                )
            )
            for at in range(count)
        ]

    best = float("inf")
    for _ in range(ROUNDS):
        made = batches()
        start = time.perf_counter()
        for batch in made:
            log.append(batch, now_ms, 9)
        best = min(best, (time.perf_counter() - start) / count * 1e6)
        next_sequence += count
    log.close()
    return best


def request(frame: bytearray) -> Request:
    """Return the request that a frame stands for, as the front makes it."""
    view = memoryview(frame)
    return Request(decode_request_header(view), view, CONNECTION, NoQuotas(), int(time.time() * 1000))


CONNECTION = Connection(1, "PLAINTEXT", "127.0.0.1", "127.0.0.1", 9092)


def produce_frame(value_bytes: int, version: int) -> bytearray:
    """Return a Produce frame for partition 0 of `bench` with one record."""
    batch = build_batch([(None, bytes(value_bytes))], timestamp_ms=int(time.time() * 1000))
    data = {"name": "bench", "partition_data": [{"index": 0, "records": batch}]}
    message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": [data]}
    return bytearray(encode_request(0, version, 1, "bench", message)[4:])


def answer(handler: Handler, frame: bytearray) -> None:
    """Handle a request to its end, also where the handler works in slices."""
    result = handler(request(frame))
    if isinstance(result, GeneratorType):
        for _ in result:
            pass


def bench_produce(storage: Storage, table, count: int, value_bytes: int) -> float:
    """Return what the Produce handler costs for one partition and one batch, write included."""
    handler, frame = table[0], produce_frame(value_bytes, 9)
    log = storage.topics.by_name["bench"].logs[0]
    before = log.end_offset
    records_at = len(frame) - len(build_batch([(None, bytes(value_bytes))])) - 3
    fresh = bytes(frame[records_at : records_at + 16])

    def run() -> int:
        for _ in range(count):
            frame[records_at : records_at + 16] = fresh  # the handler has set offset and epoch
            answer(handler, frame)
        return count

    took = best_us(run)
    assert log.end_offset == before + ROUNDS * count, "not every batch was stored"
    return took


def bench_fetch(storage: Storage, table, count: int) -> float:
    """Return what the Fetch handler costs for one partition and 1 MiB, without sending."""
    handler = table[1]
    part = {"partition": 0, "fetch_offset": 5, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    message = {
        "replica_id": -1,
        "max_wait_ms": 500,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "bench", "partitions": [part]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    frame = bytearray(encode_request(1, 12, 1, "bench", message)[4:])

    def run() -> int:
        for _ in range(count):
            answer(handler, frame)
        return count

    return best_us(run)


def bench_recovery(directory: Path, count: int) -> tuple[float, float, int]:
    """Return ms to open a log after `kill -9` and after a power cut, and its MiB."""
    path = directory / "recovery-0"
    log = open_log(path, TopicSettings(), producer_expiration_ms=1)
    now_ms = int(time.time() * 1000)
    batch = build_batch([(None, bytes(VALUE_BYTES))], timestamp_ms=now_ms)
    for _ in range(count):
        log.append(memoryview(batch), now_ms, 9)
    size = log.size_bytes
    took = []
    for trust in (True, False):
        start = time.perf_counter()
        again = open_log(path, TopicSettings(), producer_expiration_ms=1, trust_writes=trust)
        took.append((time.perf_counter() - start) * 1000)
        assert again.end_offset == count
    log.forget()
    return took[0], took[1], size >> 20


def show(label: str, took_us: float) -> None:
    """Print one line of the table."""
    print(f"{label:48}{took_us:8.2f} us")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100, help="operations per round")
    count = parser.parse_args().records
    directory = Path(tempfile.mkdtemp(prefix="tidegate-bench-"))
    try:
        print(f"{platform.machine()}, Python {platform.python_version()}, best of {ROUNDS} rounds of {count}")
        show("os.pwrite of one small batch", bench_write_alone(directory, count))
        show("log append, small batch", bench_append(directory, count, idempotent=False))
        show("log append, small batch, idempotent", bench_append(directory, count, idempotent=True))
        storage = Storage.open(directory / "node", StorageConfig(), SystemClock())
        start_housekeeping(storage, NoTimers())
        table = handler_table(
            storage, ClusterView(1, {1: {}}, storage.topics), DynamicSettings(storage.store, {}), NoTimers()
        )
        run_at_once(storage.topics.create_in_slices("bench", 1, {}))
        show(
            "Produce, small batch, frame to encoded answer", bench_produce(storage, table, count, VALUE_BYTES)
        )
        show("Produce, 16 KiB", bench_produce(storage, table, count, 16 << 10))
        show("Fetch, 1 MiB slice, frame to encoded answer", bench_fetch(storage, table, count))
        storage.close()
        killed, power, mib = bench_recovery(directory, RECOVERED_BATCHES)
        print(
            f"{RECOVERED_BATCHES} small batches, {mib} MiB: {killed:.0f} ms to open after kill -9,", end=" "
        )
        print(f"{power:.0f} ms after a power cut")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
