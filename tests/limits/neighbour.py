"""A neighbour: a client that sends 400 bytes with acks=all every 5 ms and notes how long each answer took.

    python neighbour.py PORT TOPIC [ADDRESS]

A line on standard input is answered with a line of JSON: the latencies in ms since the line before. Of each, the time
in which this process waited for a processor that others used is taken away. ADDRESS: its own address.
"""

import json
import select
import socket
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.batches import build_batch

from tidegate.wire import encode_request

EVERY_S = 0.005
VALUE_BYTES = 400
TIMEOUT_S = 60.0


def main(port: int, topic: str, address: str = "127.0.0.1") -> None:
    """Produce until standard input ends."""
    sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S, source_address=(address, 0))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    partition = {"index": 0, "records": build_batch([(None, bytes(VALUE_BYTES))])}
    body = {
        "transactional_id": None,
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    frame = encode_request(0, 8, 1, "neighbour", body)
    latencies_ms: list[float] = []
    due = time.monotonic()
    while True:
        began_s, waited_ns = time.monotonic(), _processor_wait_ns()
        sock.sendall(frame)
        _receive_answer(sock)
        took_s = time.monotonic() - began_s
        latencies_ms.append(took_s * 1e3 - (_processor_wait_ns() - waited_ns) / 1e6)
        due = max(due + EVERY_S, time.monotonic())
        while select.select([sys.stdin], [], [], max(due - time.monotonic(), 0.0))[0]:
            if not sys.stdin.readline():
                return
            print(json.dumps(latencies_ms), flush=True)
            latencies_ms = []


def _processor_wait_ns() -> int:
    return int(Path("/proc/self/schedstat").read_text().split()[1])


def _receive_answer(sock: socket.socket) -> None:
    (size,) = struct.unpack(">i", _receive_exactly(sock, 4))
    _receive_exactly(sock, size)


def _receive_exactly(sock: socket.socket, size: int) -> bytes:
    parts = b""
    while len(parts) < size:
        part = sock.recv(size - len(parts))
        if not part:
            raise ConnectionError("the broker closed the neighbour's connection")
        parts += part
    return parts


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
