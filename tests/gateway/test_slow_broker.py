"""A broker or a client that is slow: memory stays bounded, other clients do not wait, and no byte is charged twice."""

import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest
from tests.e2e.lateness import Lateness
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.holding_broker import HoldingBroker, connected, correlation_ids, produce
from tests.gateway.test_usage import requests_of
from tests.waiting import wait_until
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import FETCH, METADATA, PRODUCE
from tidegate.wire import encode_request

TIMEOUT_S = 30.0
MB = 1 << 20
LARGE_BYTES, LARGE = 8 * MB, 8
RESPONSE_BYTES = 64 * MB
MOST_GROWTH_MB = 24
"""Two of the requests, and what sockets and the allocator hold; all would be 64 MB."""
NEIGHBOUR_S = 2.0
STOPPED_S = 1.0
_HEAD = struct.Struct(">ii")


class SlowBroker(HoldingBroker):
    """A broker that can stop to read from a connection, after a request of the client `stops`.

    goes_on: set while it reads. sent: bytes of long responses that it has sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = threading.Event()
        self.sent = 0

    def stop(self, sock: socket.socket, header: object) -> None:
        """Answer, and read no more until `goes_on`."""
        sock.sendall(self.honest_frame(header))
        assert self.goes_on.wait(TIMEOUT_S)

    def send_long(self, sock: socket.socket, header: object) -> None:
        """Send a long response in pieces."""
        piece = bytes(range(256)) * 256
        sock.sendall(_HEAD.pack(4 + RESPONSE_BYTES, header.correlation_id))
        for _ in range(RESPONSE_BYTES // len(piece)):
            sock.sendall(piece)
            self.sent += len(piece)


@pytest.fixture
def broker() -> Iterator[SlowBroker]:
    """Return the server."""
    server = SlowBroker()
    yield server
    server.goes_on.set()
    server.close()


@pytest.fixture
def gateway(broker: SlowBroker, tmp_path) -> Iterator[GatewayProcess]:
    """Return a gateway before it."""
    quotas = tmp_path / "quotas.yaml"
    quotas.write_text("quotas: []\n")
    process = GatewayProcess(tmp_path, broker.address, ("--quotas", str(quotas))).start()
    yield process
    process.close()


def metadata(client_id: str) -> bytes:
    """Return a Metadata request with its length."""
    return encode_request(METADATA, 9, 1, client_id, plain_message(METADATA, 9))


def assert_others_are_served(gateway: GatewayProcess) -> None:
    """Check that a neighbour, on a connection of its own and on a new one, is answered soon."""
    with connected(gateway) as neighbour, Lateness() as lateness:
        begun_s = time.monotonic()
        for _ in range(20):
            neighbour.sendall(metadata("neighbour"))
            receive_frame(neighbour)
        assert lateness.elapsed_s(begun_s) < NEIGHBOUR_S


def test_a_broker_that_stops_reading_holds_back_its_client_alone(broker, gateway):
    """Large Produce requests wait in the client; all are answered in order, and charged once, when it goes on."""
    broker.lies["stops"] = broker.stop
    sent = []

    def send(client: socket.socket) -> None:
        for number in range(LARGE):
            client.sendall(produce(number, "large", LARGE_BYTES))
            sent.append(number)

    with connected(gateway) as client:
        client.sendall(metadata("stops"))
        receive_frame(client)
        before_mb = gateway.resident_mb()
        client.settimeout(TIMEOUT_S)
        sender = threading.Thread(target=send, args=(client,), daemon=True)
        sender.start()
        time.sleep(STOPPED_S)
        assert_others_are_served(gateway)
        assert len(sent) < LARGE // 2
        assert gateway.resident_mb() - before_mb < MOST_GROWTH_MB
        broker.goes_on.set()
        assert correlation_ids(client, LARGE) == list(range(LARGE))
        sender.join(TIMEOUT_S)
        assert sent == list(range(LARGE))
        assert gateway.resident_mb() - before_mb < MOST_GROWTH_MB
    assert gateway.stop() == 0
    assert "Traceback" not in gateway.log
    charged = [row[1] for row in requests_of(gateway.usage_dir, PRODUCE) if row[0] == "large"]
    assert charged == [len(produce(0, "large", LARGE_BYTES)) - 4] * LARGE


def test_a_client_that_leaves_a_broker_that_does_not_read_is_forgotten(broker, gateway):
    """Its request is half sent: nothing of it stays in memory, and the connection to the broker closes."""
    broker.lies["stops"] = broker.stop
    before = gateway.descriptors()
    client = connected(gateway)
    client.sendall(metadata("stops"))
    receive_frame(client)
    client.setblocking(False)
    client.send(produce(1, "leaves", LARGE_BYTES))
    time.sleep(STOPPED_S / 4)
    client.close()
    wait_until(lambda: gateway.descriptors() <= before)
    assert_others_are_served(gateway)
    assert "Traceback" not in gateway.log


def test_a_client_that_reads_slowly_holds_back_its_broker_alone(broker, gateway):
    """A long Fetch response waits in the broker; the client gets all of it, and it is charged once."""
    broker.lies["reads slowly"] = broker.send_long
    with connected(gateway) as client:
        before_mb = gateway.resident_mb()
        client.sendall(encode_request(FETCH, 11, 7, "reads slowly", plain_message(FETCH, 11)))
        time.sleep(STOPPED_S)
        assert_others_are_served(gateway)
        assert 0 < broker.sent < RESPONSE_BYTES // 2
        assert gateway.resident_mb() - before_mb < MOST_GROWTH_MB
        size, correlation_id = _HEAD.unpack(client.recv(_HEAD.size, socket.MSG_WAITALL))
        assert (size, correlation_id) == (4 + RESPONSE_BYTES, 7)
        left = RESPONSE_BYTES
        while left:
            data = client.recv(min(left, MB))
            assert data
            left -= len(data)
        assert_others_are_served(gateway)
        assert gateway.resident_mb() - before_mb < MOST_GROWTH_MB
    assert gateway.stop() == 0
    (charged,) = (row[2] for row in requests_of(gateway.usage_dir, FETCH) if row[0] == "reads slowly")
    assert charged == 4 + RESPONSE_BYTES


def test_a_broker_that_answers_late_delays_its_client_alone(broker, gateway):
    """Requests behind it wait in order; a client with another connection is served meanwhile."""
    broker.hold("late")
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, "late") for number in range(3)))
        time.sleep(STOPPED_S)
        assert_others_are_served(gateway)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(TIMEOUT_S)
        broker.release("late")
        assert correlation_ids(client, 3) == [0, 1, 2]
