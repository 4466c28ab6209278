"""What muted connections cost, and how late throttles end: a running broker, real sockets.

Cost: processor time of the broker over 30 s with nobody connected, and with 10,000 connections that are muted.
Lateness: clients that are throttled by each kind of quota send their next request at once and note when it is
answered: how much later than the throttle time they were told, by the client's clock. Requests of others go on.

python bench/bench_muting.py [--connections N] [--throttles N] [--seconds S]
"""

import argparse
import random
import resource
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ladder.brokers import TidegateBench, machine
from bench.ladder.rungs import produce_frame

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, API_VERSIONS, CREATE_TOPICS, FETCH, PRODUCE
from tidegate.wire import encode_request, read_response

VERSIONS = {PRODUCE: 9, FETCH: 12, CREATE_TOPICS: 5, API_VERSIONS: 2, ALTER_CLIENT_QUOTAS: 1}
TOPIC = "bench"
AT_ONCE = 200  # throttled clients at any time
CUTS = {"least": 0.0, "p50": 0.5, "p99": 0.99, "p99.9": 0.999, "most": 1.0}


def main() -> None:
    """Measure both, and print them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--throttles", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        broker = TidegateBench(name="tidegate", directory=Path(name)).start()
        try:
            idle = _cpu_share(broker, args.seconds)
            print(f"nobody connected: {idle:.2f} % of a core over {args.seconds:.0f} s")
            with _muted(broker.port, args.connections):
                muted = _cpu_share(broker, args.seconds)
            print(f"{args.connections} muted: {muted:.2f} %, {muted - idle:+.2f} over idle")
            for kind, late_ms in _lateness(broker.port, args.throttles).items():
                late_ms.sort()
                texts = (
                    f"{name} {late_ms[int(share * (len(late_ms) - 1))]:.1f}" for name, share in CUTS.items()
                )
                print(f"late by ms, {kind:10} {len(late_ms):6} throttles: {', '.join(texts)}")
        finally:
            broker.stop()


def _cpu_share(broker: TidegateBench, seconds: float) -> float:
    time.sleep(3)
    before = broker.cpu_s()
    time.sleep(seconds)
    return 100 * (broker.cpu_s() - before) / seconds


@contextmanager
def _muted(port: int, count: int) -> Iterator[None]:
    """Keep connections open that are muted for minutes, each by a quota of its client id."""
    _set_quota(port, None, "producer_byte_rate", 1.0)
    socks = []
    try:
        for number in range(count):
            sock = socket.create_connection(("127.0.0.1", port), timeout=60)
            sock.sendall(
                encode_request(PRODUCE, VERSIONS[PRODUCE], 1, f"muted-{number}", _no_records(padding=400))
            )
            socks.append(sock)
        throttles_ms = [_receive(sock, PRODUCE)["throttle_time_ms"] for sock in socks]
        assert min(throttles_ms) > 120_000, "they were to be throttled for minutes"
        yield
    finally:
        for sock in socks:
            sock.close()
        _set_quota(port, None, "producer_byte_rate", None)


def _no_records(*, padding: int) -> dict[str, object]:
    return {"transactional_id": "x" * padding, "acks": 1, "timeout_ms": 1000, "topic_data": []}


class _Client:
    """One connection that is throttled again and again by one kind of quota."""

    def __init__(self, port: int, kind: str, number: int) -> None:
        self.kind = kind
        self.client_id = f"{kind}-{number}"
        self.throttle_ms = 0
        self.told_at = 0.0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._random = random.Random(number)
        self._asked = API_VERSIONS

    def overrun(self) -> None:
        """Send what is throttled."""
        if self.kind == "fetch":
            self._ask(FETCH, _fetch())
        elif self.kind == "request":
            self._ask(API_VERSIONS, {})
        elif self.kind == "mutation":
            name = f"{self.client_id}-{self._random.getrandbits(60):x}"
            topic = {
                "name": name,
                "num_partitions": 1,
                "replication_factor": 1,
                "assignments": [],
                "configs": [],
            }
            self._ask(CREATE_TOPICS, {"topics": [topic], "timeout_ms": 1000, "validate_only": False})
        else:
            self._ask(PRODUCE, _no_records(padding=self._random.randrange(11_000, 13_000)))

    def next(self) -> float | None:
        """Take the answer; return how late the one after a throttle was, in ms, and None for the throttled one."""
        answer = _receive(self.sock, self._asked)
        now = time.monotonic()
        if self.throttle_ms:
            late_ms = (now - self.told_at) * 1000 - self.throttle_ms
            self.throttle_ms = 0
            return late_ms
        self.throttle_ms, self.told_at = answer["throttle_time_ms"], now
        if self.throttle_ms:
            self._ask(API_VERSIONS, {})
        return None

    def _ask(self, api_key: int, message: dict[str, object]) -> None:
        self._asked = api_key
        self.sock.sendall(encode_request(api_key, VERSIONS[api_key], 1, self.client_id, message))


QUOTAS = {
    "produce": ("producer_byte_rate", 1100.0),
    "fetch": ("consumer_byte_rate", 1000.0),
    "request": ("request_percentage", 0.0001),
    "mutation": ("controller_mutation_rate", 1.0),
}


def _lateness(port: int, throttles: int) -> dict[str, list[float]]:
    """Return how late throttles ended, in ms, for each kind of quota."""
    _create_topic(port)
    found: dict[str, list[float]] = {}
    stop = threading.Event()
    others = threading.Thread(target=_others, args=(port, stop))
    others.start()
    for kind, (key, bound) in QUOTAS.items():
        wanted = throttles if kind != "mutation" else throttles // 20
        clients = [_Client(port, kind, number) for number in range(min(AT_ONCE, wanted))]
        for client in clients:
            _set_quota(port, client.client_id, key, bound)
        found[kind] = _run(clients, wanted)
        for client in clients:
            client.sock.close()
    stop.set()
    others.join()
    return found


def _run(clients: list[_Client], wanted: int) -> list[float]:
    late_ms: list[float] = []
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.sock, selectors.EVENT_READ, client)
            client.overrun()
        deadline = time.monotonic() + 45
        while len(late_ms) < wanted and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                late = key.data.next()
                if late is not None:
                    late_ms.append(late)
                if not key.data.throttle_ms:
                    key.data.overrun()
    return late_ms


def _others(port: int, stop: threading.Event) -> None:
    """Keep the broker at some work of somebody who is not throttled."""
    frame = encode_request(API_VERSIONS, VERSIONS[API_VERSIONS], 1, "other", {})
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        while not stop.wait(0.002):
            sock.sendall(frame)
            _receive(sock, API_VERSIONS)


def _fetch() -> dict[str, object]:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
        "partition_max_bytes": 12_000,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait_ms": 0, "min_bytes": 1, "max_bytes": 12_000, "isolation_level": 0, "session_id": 0,
        "session_epoch": -1, "topics": [{"topic": TOPIC, "partitions": [partition]}], "forgotten_topics_data": [],
        "rack_id": "",
    }  # fmt: skip


def _create_topic(port: int) -> None:
    topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    message = {"topics": [topic], "timeout_ms": 1000, "validate_only": False}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(encode_request(CREATE_TOPICS, VERSIONS[CREATE_TOPICS], 1, "admin", message))
        _receive(sock, CREATE_TOPICS)
        sock.sendall(produce_frame(TOPIC, 11_500))
        _receive(sock, PRODUCE)


def _set_quota(port: int, client_id: str | None, key: str, value: float | None) -> None:
    entity = [{"entity_type": "client-id", "entity_name": client_id}]
    op = {"key": key, "value": value or 0.0, "remove": value is None}
    message = {"entries": [{"entity": entity, "ops": [op]}], "validate_only": False}
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(encode_request(ALTER_CLIENT_QUOTAS, VERSIONS[ALTER_CLIENT_QUOTAS], 1, "admin", message))
        answer = _receive(sock, ALTER_CLIENT_QUOTAS)
    assert answer["entries"][0]["error_code"] == 0, answer


def _receive(sock: socket.socket, api_key: int) -> dict[str, object]:
    (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
    frame = sock.recv(size, socket.MSG_WAITALL)
    header_bytes = 4 if api_key == API_VERSIONS else 5
    return read_response(api_key, VERSIONS[api_key], frame, header_bytes)


if __name__ == "__main__":
    main()
