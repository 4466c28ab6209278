"""Produce requests that a client sends together reach the broker together; each is decided in its turn all the same."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.lateness import Lateness
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
from tests.gateway.raw_client import RawClient, produced
from tests.waiting import wait_until
from tests.wire.odd_messages import plain_message

from tidegate.api_keys import LIST_OFFSETS, METADATA, PRODUCE
from tidegate.gateway.ahead import MAX_AHEAD_REQUESTS
from tidegate.wire import encode_request

TIMEOUT_S = 20.0
RATE = 4_000
LIMITED = ("muted", "throttled", "stays", "leaves", "broken")
SOON_S = 0.3
"""A request that is sent to the broker only when another one is answered has not come after so long."""


@pytest.fixture(scope="module")
def broker() -> Iterator[HoldingBroker]:
    """Return the server."""
    server = HoldingBroker()
    yield server
    server.close()


@pytest.fixture(scope="module")
def gateway(broker: HoldingBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Return a gateway before it, with a quota for some client ids."""
    process = started(tmp_path_factory.mktemp("ahead"), broker, LIMITED, RATE)
    yield process
    process.close()


def test_requests_that_come_together_are_sent_together(broker, gateway):
    """The broker has all before it answers the first; the client gets the responses in order."""
    broker.hold("together")
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, "together") for number in range(8)))
        wait_until(lambda: ids_of(broker, "together") == list(range(8)))
        broker.release("together")
        assert correlation_ids(client, 8) == list(range(8))


def test_what_waits_for_the_end_of_a_mute_is_sent_then(broker, gateway):
    """Other requests, which the client has sent behind the throttled one, and one that comes when the mute is over."""
    name = "muted"
    with connected(gateway) as client:
        behind = [encode_request(METADATA, 9, number, name, plain_message(METADATA, 9)) for number in (1, 2)]
        begun_s = time.monotonic()
        client.sendall(b"".join((produce(0, name, 44_000), *behind)))
        throttled_s = throttle_ms(receive_frame(client)) / 1000
        assert throttled_s
        assert ids_of(broker, name) == [0]
        assert correlation_ids(client, 2) == [1, 2]
        assert time.monotonic() - begun_s > 0.9 * throttled_s
        client.sendall(produce(3, name, 100))
        assert correlation_ids(client, 1) == [3]
    assert ids_of(broker, name) == [0, 1, 2, 3]


def test_others_follow_when_one_is_answered(broker, gateway):
    """Requests that come later are sent when the next one is served, before the earlier ones are answered."""
    received = []
    broker.lies["follow"] = lambda sock, header: received.append((sock, header))
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, "follow") for number in range(3)))
        wait_until(lambda: len(received) == 3)
        client.sendall(b"".join(produce(number, "follow") for number in range(3, 6)))
        time.sleep(SOON_S)
        assert len(received) == 3
        sock, header = received[0]
        sock.sendall(broker.honest_frame(header))
        wait_until(lambda: len(received) == 6)
        for sock, header in received[1:]:
            sock.sendall(broker.honest_frame(header))
        assert correlation_ids(client, 6) == list(range(6))


def test_so_many_are_sent_at_most(broker, gateway):
    """The requests behind the last one that is sent ahead come when the first ones are answered."""
    broker.hold("many")
    count = 3 * MAX_AHEAD_REQUESTS
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, "many") for number in range(count)))
        wait_until(lambda: len(ids_of(broker, "many")) == MAX_AHEAD_REQUESTS + 1)
        time.sleep(SOON_S)
        assert len(ids_of(broker, "many")) == MAX_AHEAD_REQUESTS + 1
        broker.release("many")
        assert correlation_ids(client, count) == list(range(count))


OTHERS = {
    "another API": encode_request(LIST_OFFSETS, 4, 1, "other", plain_message(LIST_OFFSETS, 4)),
    "another client id": produce(1, "othe2"),
    "another version": encode_request(PRODUCE, 8, 1, "other", produced("topic", 100)),
    "other acks": produce(1, "other", acks=-1),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_requests_wait_for_the_response(broker, gateway, other):
    """A request that is not like the one before it is sent when that one is answered."""
    broker.hold("other")
    broker.seen.pop("othe2", None)
    with connected(gateway) as client:
        client.sendall(produce(0, "other") + OTHERS[other] + produce(2, "other"))
        wait_until(lambda: ids_of(broker, "other") == [0])
        time.sleep(SOON_S)
        assert ids_of(broker, "other") == [0]
        assert ids_of(broker, "othe2") == []
        broker.release("other")
        assert correlation_ids(client, 3) == [0, 1, 2]


def test_throttled_clients_wait_for_responses_that_have_come(broker, gateway):
    """The second answer leaves when the throttle of the first is over, with a throttle time of its own."""
    with connected(gateway) as client, Lateness() as lateness:
        sent_s = time.monotonic()
        client.sendall(b"".join(produce(number, "throttled", 7_000) for number in range(9)))
        throttles = []
        answered_s = []
        for _ in range(9):
            throttles.append(throttle_ms(receive_frame(client)))
            answered_s.append(time.monotonic())
            assert 1000 * (answered_s[-1] - sent_s) >= sum(throttles[:-1]) - 5
            if len(throttles) > 1 and throttles[-2]:
                waited_ms = 1000 * (answered_s[-1] - answered_s[-2])
                assert waited_ms <= throttles[-2] + 500 + lateness.ms_since(answered_s[-2])
            if throttles[-1]:  # they come long before the throttle is over
                wait_until(lambda: ids_of(broker, "throttled") == list(range(9)), throttles[-1] / 2000)
            if sum(map(bool, throttles)) == 2:
                break
    assert sum(map(bool, throttles)) == 2, throttles


def test_clients_that_leave_are_charged_for_what_was_sent(broker, gateway):
    """A client that resets its connection behind eight requests is throttled as one that has waited for its answers."""
    found = {}
    for name in ("stays", "leaves"):
        broker.hold(name)
        with connected(gateway) as client:
            client.sendall(b"".join(produce(number, name, 4_700) for number in range(8)))
            wait_until(lambda name=name: len(ids_of(broker, name)) == 8)
            if name == "leaves":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                broker.release(name)
                for _ in range(8):
                    receive_frame(client)
        if name == "leaves":
            broker.release(name)
        with connected(gateway) as client:
            client.sendall(produce(0, name, 7_000))
            found[name] = throttle_ms(receive_frame(client))
    assert found["stays"] > 0
    assert found["leaves"] == pytest.approx(found["stays"], abs=400), found


def test_a_broker_that_closes_between_responses_closes_the_client(broker, gateway):
    """Responses that have come leave, and then the connection ends; a neighbour is served."""
    received = []

    def tell(sock, header):
        received.append(header)
        if len(received) == 4:
            sock.sendall(broker.honest_frame(received[0]) + broker.honest_frame(received[1]))
            sock.shutdown(socket.SHUT_RDWR)

    broker.lies["closes"] = tell
    with connected(gateway) as client, RawClient(gateway.port, "neighbour") as neighbour:
        client.sendall(b"".join(produce(number, "closes") for number in range(4)))
        answers = b""
        while part := client.recv(65_536):
            answers += part
        whole = broker.honest_frame(received[0]) + broker.honest_frame(received[1])
        assert answers == whole
        assert neighbour.ask(METADATA, 9, plain_message(METADATA, 9))["brokers"]


@pytest.mark.parametrize(
    "early",
    [b"\0\0\0\x08\0\0\0\x63\0\0\0\0", b"\xff\xff\xff\xff\0\0\0\0", bytes(4), b"\x7f\xff\xff\xff" + bytes(10)],
)
def test_early_bytes_that_fit_no_request_end_one_connection(broker, gateway, early):
    """A wrong response to a request that was sent ahead costs its client the connection, in one line."""
    received = []

    def tell(sock, header):
        received.append(header)
        if len(received) == 2:
            sock.sendall(broker.honest_frame(received[0]) + early)
            sock.shutdown(socket.SHUT_WR)

    broker.lies["garbage"] = tell
    with connected(gateway) as client, RawClient(gateway.port, "neighbour") as neighbour:
        client.sendall(b"".join(produce(number, "garbage") for number in range(2)))
        assert correlation_ids(client, 1) == [0]
        assert client.recv(65_536) == b""
        assert neighbour.ask(METADATA, 9, plain_message(METADATA, 9))["brokers"]
    assert "Traceback" not in gateway.log


def test_many_early_bytes_take_no_memory(broker, gateway):
    """A broker that floods a throttled client's connection is not read."""
    received, is_left_unread = [], threading.Event()

    def tell(sock, header):
        received.append(header)
        if len(received) == 4:
            for each in received[:3]:
                sock.sendall(broker.honest_frame(each))
            sock.settimeout(0.5)
            try:
                while True:
                    sock.sendall(bytes(1 << 20))
            except TimeoutError:
                is_left_unread.set()
                sock.close()

    broker.lies["broken"] = tell
    before_mb = gateway.resident_mb()
    with connected(gateway) as client:
        client.sendall(b"".join(produce(number, "broken", 16_000) for number in range(4)))
        assert [throttle_ms(receive_frame(client)) > 0 for _ in range(3)] == [False, False, True]
        assert is_left_unread.wait(TIMEOUT_S)
        assert gateway.resident_mb() - before_mb < 4
    assert "Traceback" not in gateway.log


def test_a_slow_broker_answers_many_clients_in_order(gateway, broker):
    """Each of 20 clients gets its 30 responses in order, though each takes the broker a while."""
    names = [f"late-{number}" for number in range(20)]
    for name in names:
        broker.lies[name] = lambda sock, header: (time.sleep(0.05), sock.sendall(broker.honest_frame(header)))
    clients = [connected(gateway) for _ in names]
    for client, name in zip(clients, names, strict=True):
        client.sendall(b"".join(produce(number, name, 1_900) for number in range(30)))
    for client in clients:
        assert correlation_ids(client, 30) == list(range(30))
        client.close()
    assert Path(gateway.directory / "gateway.log").read_text(encoding="utf-8").count("Traceback") == 0


def test_a_gateway_stops_while_requests_are_ahead(broker, tmp_path):
    """The end is a clean one."""
    own = started(tmp_path, broker, LIMITED, RATE)
    try:
        broker.hold("stopped")
        with connected(own) as client:
            client.sendall(b"".join(produce(number, "stopped") for number in range(8)))
            wait_until(lambda: len(ids_of(broker, "stopped")) == 8)
            assert own.stop() == 0
        assert "Traceback" not in own.log
    finally:
        own.close()
