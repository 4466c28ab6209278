"""Connections that end while Produce requests are ahead: nothing that was stored stays unanswered or uncharged."""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.e2e.plain_client import receive_frame
from tests.gateway.gateway_process import GatewayProcess
from tests.gateway.holding_broker import (
    HoldingBroker,
    connected,
    correlation_ids,
    ids_of,
    produce,
    started,
    throttle_ms,
)
from tests.waiting import wait_until

from tidegate.gateway.turn_sends import MAX_TOGETHER

RATE = 4_000
LIMITED = ("closes-throttled", "resets-throttled", "half-throttled")
SMALL_BUFFERS = (
    (socket.SOL_SOCKET, socket.SO_RCVBUF, 1),
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88),
)
"""Options with which the kernel takes some 15 KiB of requests that the broker does not read."""
RESET = struct.pack("ii", 1, 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[HoldingBroker]:
    """Return the server."""
    server = HoldingBroker()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(broker: HoldingBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway before it, with a quota for some client ids."""
    process = started(tmp_path_factory.mktemp("ends"), broker, LIMITED, RATE)
    yield process
    assert "Traceback" not in process.log
    process.close()


@pytest.mark.parametrize("end", ["closes", "resets"])
@pytest.mark.parametrize("size", [100, 7_000])
def test_responses_that_have_come_leave_before_the_end(broker, gateway, end, size):
    """A broker that answers all and is gone: its client gets every response, a throttled one when it is due."""
    name, received = end if size == 100 else f"{end}-throttled", []

    def tell(sock, header):
        received.append(header)
        if len(received) == 9:
            if end == "resets":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            sock.sendall(b"".join(map(broker.honest_frame, received)))
            sock.close()

    broker.lies[name] = tell
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, name, size) for number in range(9)))
        throttles = []
        for number in range(9):
            frame = receive_frame(client)
            assert int.from_bytes(frame[:4], "big") == number
            throttles.append(throttle_ms(frame))
        assert client.recv(1) == b""
    assert any(throttles) is (size == 7_000), throttles


@pytest.mark.parametrize(("name", "count", "size"), [("half", 100, 100), ("half-throttled", 8, 7_000)])
def test_clients_that_send_no_more_get_all_answers(broker, gateway, name, count, size):
    """A client shuts its sending side down behind its requests, and reads."""
    broker.hold(name)
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, name, size) for number in range(count)))
        client.shutdown(socket.SHUT_WR)
        wait_until(lambda: ids_of(broker, name))
        time.sleep(0.1)
        broker.release(name)
        assert correlation_ids(client, count) == list(range(count))
        assert client.recv(1) == b""
    assert ids_of(broker, name) == list(range(count))


def test_requests_that_the_socket_does_not_take_follow(tmp_path):
    """A broker that reads late gets each of them once, whole, and so does one that answers before it has read them."""
    broker = HoldingBroker(SMALL_BUFFERS)
    process = started(tmp_path, broker, LIMITED, RATE)
    try:
        broker.lies["late"] = lambda sock, header: (
            time.sleep(0.3 if header.correlation_id % 16 == 0 else 0),
            sock.sendall(broker.honest_frame(header)),
        )
        with connected(process) as client:
            client.sendall(b"".join(produce(number, "late", 1_900) for number in range(64)))
            assert correlation_ids(client, 64) == list(range(64))
        assert ids_of(broker, "late") == list(range(64))

        def answer_all_at_once(sock, header):
            if not header.correlation_id:
                for number in range(33):
                    sock.sendall(broker.honest_frame(replace(header, correlation_id=number)))
                time.sleep(0.5)

        broker.lies["early"] = answer_all_at_once
        with connected(process) as client:
            requests = [produce(number, "early", 1_900) for number in range(33)]
            client.sendall(b"".join((*requests, produce(33, "early", acks=0))))
            assert correlation_ids(client, 33) == list(range(33))
            client.settimeout(1.5)
            with contextlib.suppress(TimeoutError, ConnectionResetError):
                assert client.recv(1) == b""
        found = ids_of(broker, "early")
        assert found == list(range(len(found)))
        assert "Traceback" not in process.log
    finally:
        process.close()
        broker.close()


def test_requests_of_clients_that_leave_right_behind_them_reach_the_broker(broker, gateway):
    """More clients than leave together, at once: each sends a request, and closes without waiting for the response."""
    names = [f"leaves-{number}" for number in range(2 * MAX_TOGETHER)]
    clients = [connected(gateway) for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.sendall(produce(1, name))
        client.close()
    wait_until(lambda: all(ids_of(broker, name) == [1] for name in names), told=lambda: gateway.log)
