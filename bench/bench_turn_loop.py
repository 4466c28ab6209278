"""Time that an event loop that waits in the poller saves a small request (decision 0128).

Two brokers, one on `TurnLoop` and one on asyncio's own loop, answer one connection in turns of short windows. Broker
and client have a processor each.

    python bench/bench_turn_loop.py [ROUNDS]
"""

import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ladder.brokers import BenchBroker, TidegateBench
from bench.ladder.groups import OFFSETS_TOPIC, PARTITIONS, commit_frame, live, prepare_groups

from tidegate.api_keys import API_VERSIONS, CREATE_TOPICS
from tidegate.wire import encode_request

_ASYNCIO = (
    "import asyncio, runpy, sys; from tidegate.cli import serving; serving.TurnLoop = asyncio.SelectorEventLoop; "
    "sys.argv[0] = 'tidegate'; runpy.run_module('tidegate', run_name='__main__')"
)
_REQUESTS, _CYCLES = 200, 40  # of a window


class _AsyncioBench(TidegateBench):
    def _command(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._command()
        at = command.index("-m")
        return [*command[:at], "-c", _ASYNCIO, *command[at + 2 :]], environment


def asking(sock: socket.socket, frame: bytes) -> Callable[[], None]:
    """Return what sends a frame and waits for its short answer."""

    def ask() -> None:
        sock.sendall(frame)
        received = sock.recv(65536)
        while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
            received += sock.recv(65536)

    return ask


def create_topic(broker: BenchBroker) -> None:
    """Create the topic of the commits."""
    topic = {
        "name": OFFSETS_TOPIC,
        "num_partitions": PARTITIONS,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    message = {"topics": [topic], "timeout_ms": 30_000, "validate_only": False}
    with socket.create_connection(("127.0.0.1", broker.port)) as sock:
        asking(sock, encode_request(CREATE_TOPICS, 4, 1, "bench", message))()


def main(rounds: int) -> None:
    """Print the medians."""
    with tempfile.TemporaryDirectory() as directory:
        brokers: list[BenchBroker] = [
            TidegateBench(name="in the poller", directory=Path(directory) / "poller").start(),
            _AsyncioBench(name="by itself", directory=Path(directory) / "asyncio").start(),
        ]
        try:
            for broker in brokers:
                create_topic(broker)
                prepare_groups(broker)
                assert broker.process is not None
                for thread in os.listdir(f"/proc/{broker.process.pid}/task"):
                    os.sched_setaffinity(int(thread), {1})
            os.sched_setaffinity(0, {0})
            socks = [socket.create_connection(("127.0.0.1", broker.port)) for broker in brokers]
            for sock in socks:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            api_versions = encode_request(API_VERSIONS, 2, 1, "bench", {})
            _compare("ApiVersions", _REQUESTS, rounds, [asking(sock, api_versions) for sock in socks])
            _compare(
                "OffsetCommit of 1", _REQUESTS, rounds, [asking(sock, commit_frame(1)) for sock in socks]
            )
            cycles = [live(broker, 3600) for broker in brokers]
            _compare("cycle of a group member", _CYCLES, rounds, [cycle.__next__ for cycle in cycles])
        finally:
            for broker in brokers:
                broker.stop()


def _compare(name: str, count: int, rounds: int, runs: list[Callable[[], object]]) -> None:
    times: list[list[float]] = [[], []]
    for number in range(rounds + 2):
        for index in (0, 1) if number % 2 else (1, 0):
            begun = time.perf_counter()
            for _ in range(count):
                runs[index]()
            if number >= 2:  # warm
                times[index].append((time.perf_counter() - begun) / count * 1e6)
    poller, asyncio_ = times
    ratio = statistics.median(one / other for one, other in zip(poller, asyncio_, strict=True))
    medians = (
        f"{statistics.median(poller):.1f} us in the poller, {statistics.median(asyncio_):.1f} us by itself"
    )
    print(f"{name}: {medians}; ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
