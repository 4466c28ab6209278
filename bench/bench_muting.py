"""Cost of muted connections, and delay of the ends of throttles: a running broker, real sockets.

Cost: processor time of the broker over 30 s without connections, and with 10,000 connections that are muted.
Lateness: 200 clients that are throttled by each kind of quota send their next request at once. Each answer is compared
with the throttle time that the client was told, by the client's clock. The kernel notes when an answer has come, so
none is late because the client is busy with the others. Requests of other clients go on. Throttles of many clients end
together, and one turn then answers a request of each of the 200. Their first requests, sent together, show the
broker's processor time for such a turn. Wanted: 99.9 % within 5 ms and such a turn, and none early.

python bench/bench_muting.py [--connections N] [--throttles N] [--seconds S]; exit 1: a bar is missed
"""

import argparse
import math
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
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.ladder.brokers import TidegateBench, machine
from bench.ladder.rungs import produce_frame

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, API_VERSIONS, CREATE_TOPICS, FETCH, PRODUCE
from tidegate.wire import encode_request, read_response

VERSIONS = {PRODUCE: 9, FETCH: 12, CREATE_TOPICS: 5, API_VERSIONS: 2, ALTER_CLIENT_QUOTAS: 1}
TOPIC = "bench"
SO_TIMESTAMPNS = 35  # Linux: the kernel notes when it received what is read
AT_ONCE = 200  # throttled clients at any time
LATE_MS, MOST_OF_A_CORE = 5.0, 0.5
CUTS = {"least": 0.0, "p50": 0.5, "p99": 0.99, "p99.9": 0.999, "most": 1.0}


def main() -> int:
    """Measure both, print them and judge them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--throttles", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(machine())
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        broker = TidegateBench(name="tidegate", directory=Path(name)).start()
        try:
            idle = _cpu_share(broker, args.seconds)
            print(f"no connections: {idle:.2f} % of a core over {args.seconds:.0f} s")
            with _muted(broker.port, args.connections):
                muted = _cpu_share(broker, args.seconds)
            print(f"{args.connections} muted: {muted:.2f} %, {muted - idle:+.2f} over idle")
            if muted - idle > MOST_OF_A_CORE:
                wrong.append(f"muted connections cost more than {MOST_OF_A_CORE} % of a core")
            for kind, late in _lateness(broker, args.throttles).items():
                cuts = {name: late.cut_ms(share) for name, share in CUTS.items()}
                texts = ", ".join(f"{name} {cut_ms:.1f}" for name, cut_ms in cuts.items())
                print(
                    f"late by ms, {kind:10} {len(late.ms):6} throttles: {texts}; "
                    f"a turn {late.turn_ms:.1f}, wanted p99.9 {LATE_MS + late.turn_ms:.1f}"
                )
                if not (late.ms and cuts["least"] >= 0 and cuts["p99.9"] <= LATE_MS + late.turn_ms):
                    wrong.append(f"throttles of {kind} end early or late, or there were none")
        finally:
            broker.stop()
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


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


@dataclass(kw_only=True)
class _Late:
    """Delays of the ends of throttles of one kind, and the time of a turn with a request of each client."""

    ms: list[float]
    turn_ms: float

    def cut_ms(self, share: float) -> float:
        """Return the lateness of so many of them at the most, NaN where there are none."""
        return sorted(self.ms)[round(share * (len(self.ms) - 1))] if self.ms else math.nan


class _Client:
    """One connection that is throttled again and again by one kind of quota."""

    def __init__(self, port: int, kind: str, number: int) -> None:
        self.kind = kind
        self.client_id = f"{kind}-{number}"
        self.throttle_ms = 0
        self.told_ns = self.asked_ns = 0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
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
        """Receive the answer; return the delay of the one after a throttle, in ms, and None for the throttled one."""
        answer, came_ns = _receive_at(self.sock, self._asked)
        if self.throttle_ms:
            late_ms = (came_ns - max(self.told_ns + self.throttle_ms * 1_000_000, self.asked_ns)) / 1e6
            self.throttle_ms = 0
            return late_ms
        self.throttle_ms, self.told_ns = answer["throttle_time_ms"], came_ns
        if self.throttle_ms:
            self._ask(API_VERSIONS, {})
        return None

    def _ask(self, api_key: int, message: dict[str, object]) -> None:
        self._asked, self.asked_ns = api_key, time.time_ns()
        self.sock.sendall(encode_request(api_key, VERSIONS[api_key], 1, self.client_id, message))


QUOTAS = {
    "produce": ("producer_byte_rate", 1100.0),
    "fetch": ("consumer_byte_rate", 1000.0),
    "request": ("request_percentage", 0.0001),
    "mutation": ("controller_mutation_rate", 0.5),
}


def _lateness(broker: TidegateBench, throttles: int) -> dict[str, _Late]:
    """Return how late throttles ended for each kind of quota."""
    port = broker.port
    _create_topic(port)
    found: dict[str, _Late] = {}
    for kind, (key, bound) in QUOTAS.items():
        wanted = throttles if kind != "mutation" else throttles // 20
        clients = [_Client(port, kind, number) for number in range(min(AT_ONCE, wanted))]
        for client in clients:
            _set_quota(port, client.client_id, key, bound)
        turn_ms = _first_turn_ms(broker, clients)
        others = _Others(port)
        others.start()
        found[kind] = _Late(ms=_run(clients, wanted), turn_ms=turn_ms)
        others.stop.set()
        others.join()
        for client in clients:
            client.sock.close()
    return found


def _first_turn_ms(broker: TidegateBench, clients: list[_Client]) -> float:
    """Send a request of each client, all together; return the broker's processor time until all are answered, in ms."""
    time.sleep(0.5)
    before_s = broker.cpu_s()
    for client in clients:
        client.overrun()
    for client in clients:
        client.next()
    return (broker.cpu_s() - before_s) * 1000


def _run(clients: list[_Client], wanted: int) -> list[float]:
    late_ms: list[float] = []
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.sock, selectors.EVENT_READ, client)
            if not client.throttle_ms:
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


class _Others(threading.Thread):
    """Keeps the broker at some work of a client that is not throttled, until `stop`."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self.stop = threading.Event()
        self._port = port

    def run(self) -> None:
        """Ask and ask again."""
        frame = encode_request(API_VERSIONS, VERSIONS[API_VERSIONS], 1, "other", {})
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as sock:
            while not self.stop.wait(0.002):
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


def _receive_at(sock: socket.socket, api_key: int) -> tuple[dict[str, object], int]:
    """Return an answer, and when the kernel had the last of it, in ns of the wall clock."""
    frame, size, came_ns = bytearray(), 4, 0
    while len(frame) < size:
        data, ancillary, _, _ = sock.recvmsg(size - len(frame), 64)
        assert data, "the broker has closed"
        frame += data
        if size == 4 == len(frame):
            size += int.from_bytes(frame, "big")
        for level, kind, stamp in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
                seconds, ns = struct.unpack("qq", stamp)
                came_ns = seconds * 1_000_000_000 + ns
    header_bytes = 4 if api_key == API_VERSIONS else 5
    return read_response(api_key, VERSIONS[api_key], frame, 4 + header_bytes), came_ns


def _receive(sock: socket.socket, api_key: int) -> dict[str, object]:
    (size,) = struct.unpack(">i", sock.recv(4, socket.MSG_WAITALL))
    frame = sock.recv(size, socket.MSG_WAITALL)
    header_bytes = 4 if api_key == API_VERSIONS else 5
    return read_response(api_key, VERSIONS[api_key], frame, header_bytes)


if __name__ == "__main__":
    sys.exit(main())
