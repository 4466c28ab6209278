"""A million client ids at a broker, 100,000 a test: memory stays, it is said, and nobody's throttle is shortened."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.broker import Broker
from tests.e2e.plain_client import receive_frame

from tidegate.api_keys import ALTER_CLIENT_QUOTAS, PRODUCE
from tidegate.wire import encode_request, read_response

PARTS = 10
IDS = 100_000
VERSION = 9
AT_ONCE, MOST_UNDER_WAY = 100, 2_000
QUOTA = 1_000.0
BURST_BYTES = 12_000_000  # in a window of ten to eleven minutes: 20 quotas
ROOM_MIB = 2 * 128 + 64
"""What the sensors of two quota types may take (row E1), and then some."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with quotas for all client ids, whose windows are longer than a flood."""
    broker = Broker(tmp_path_factory.mktemp("flood"), {"quota.window.size.seconds": "60"})
    broker.start()
    try:
        for entity in (None, "own"):
            for key in ("producer_byte_rate", "request_percentage"):
                alter(broker, entity, key, QUOTA)
        yield broker
    finally:
        broker.kill()


def connect(broker: Broker) -> socket.socket:
    """Return a new connection."""
    return socket.create_connection(("127.0.0.1", broker.port), timeout=60)


def alter(broker: Broker, client_id: str | None, key: str, value: float) -> None:
    """Set a quota; the client id None is the default."""
    ops = [{"key": key, "value": value, "remove": False}]
    entry = {"entity": [{"entity_type": "client-id", "entity_name": client_id}], "ops": ops}
    with connect(broker) as admin:
        message = {"entries": [entry], "validate_only": False}
        admin.sendall(encode_request(ALTER_CLIENT_QUOTAS, 1, 1, "admin", message))
        receive_frame(admin)


def produce(client_id: str, names: int = 0, name: str = "x" * 30_000) -> bytes:
    """Return a Produce of so many unknown topics with long names."""
    topics = [{"name": name, "partition_data": []}] * names
    message = {"transactional_id": None, "acks": 1, "timeout_ms": 1000, "topic_data": topics}
    return encode_request(PRODUCE, VERSION, 1, client_id, message)


def throttle_ms(broker: Broker, frame: bytes) -> int:
    """Return what a Produce of a new connection is told to wait."""
    with connect(broker) as client:
        client.sendall(frame)
        told: int = read_response(PRODUCE, VERSION, receive_frame(client), 5)["throttle_time_ms"]
        return told


def memory_mib(broker: Broker) -> int:
    """Return the memory of the process."""
    assert broker.process is not None
    status = Path(f"/proc/{broker.process.pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+([0-9]+)", status)[0]) >> 10


def flood(broker: Broker, first: int) -> None:
    """Send a small Produce of each of so many client ids, a few thousand under way."""
    frame = produce("id-0000000")
    at = frame.index(b"0000000", 8)
    answered = threading.Semaphore(MOST_UNDER_WAY)

    def receive() -> None:
        for _ in range(IDS):
            receive_frame(client)
            answered.release()

    with connect(broker) as client:
        reader = threading.Thread(target=receive)
        reader.start()
        for begin in range(first, first + IDS, AT_ONCE):
            frames = []
            for number in range(begin, begin + AT_ONCE):
                answered.acquire()
                frames.append(frame[:at] + b"%07d" % number + frame[at + 7 :])
            client.sendall(b"".join(frames))
        reader.join()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_flood_of_client_ids(broker: Broker, part: int) -> None:
    """Who waited before it waits after it, as long as is left: with the quota of all, or one of its own."""
    greedy = f"greedy-{part}"
    names = BURST_BYTES // 30_000
    before_ms = {client_id: throttle_ms(broker, produce(client_id, names)) for client_id in (greedy, "own")}
    assert min(before_ms.values()) > 600_000
    flood(broker, part * IDS)
    for client_id, told_ms in before_ms.items():
        assert throttle_ms(broker, produce(client_id)) > told_ms - 300_000, "less than the test may take"
    assert memory_mib(broker) < ROOM_MIB
    assert "because its table is full" in broker.log
