"""Requests that were put off to the end of a turn (decision 0159): connections break, fill up, and log in again."""

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.gateway.connections_by_hand import BrokerByHand, Relayed, answer, receive_frame
from tests.server.connection.tls_client import client_context, server_context

from tidegate.api_keys import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidegate.client.settings import ClientSettings
from tidegate.gateway.turn_sends import MAX_TOGETHER
from tidegate.gateway.upstream import MAX_COPIED_BYTES
from tidegate.gateway.upstream_login import Credentials
from tidegate.server.requests.handler import Charge, Deferred
from tidegate.wire import decode_request_header, encode_response

SMALL_BUFFERS = (
    (socket.SOL_SOCKET, socket.SO_RCVBUF, 1),
    (socket.IPPROTO_TCP, socket.TCP_MAXSEG, 88),
)
"""Options with which the kernel takes some 15 KiB of requests that the broker does not read."""
RESET = struct.pack("ii", 1, 0)


@pytest.fixture
def new_broker() -> Iterator[Callable[..., BrokerByHand]]:
    """Return a function that makes a broker."""
    made: list[BrokerByHand] = []

    def make(*options: tuple[int, int, int]) -> BrokerByHand:
        made.append(BrokerByHand(options))
        return made[-1]

    yield make
    for broker in made:
        broker.close()


def test_client_that_leaves_in_the_turn_of_its_request_is_charged_and_delays_no_other(new_broker) -> None:
    """Its request is not sent, and its connection to the broker ends; the other requests of the turn leave."""
    broker = new_broker()
    node = broker.node()
    (leaving, left), (staying, sock) = broker.connected(node), broker.connected(node)
    _, unsent = leaving.put_off()
    request, _ = staying.put_off()
    assert leaving.upstream.close()
    given = unsent.answer()
    assert (given.response, given.close, given.charge) == (None, True, Charge.REQUEST)
    assert node.sends.finish()
    assert receive_frame(left) == b""
    assert receive_frame(sock) == request.frame


def test_an_internal_error_ends_one_connection_and_delays_no_other(new_broker, caplog) -> None:
    """The requests of the turn behind it leave; the error is logged once."""
    broker = new_broker()
    node = broker.node()
    (failing, left), (staying, sock) = broker.connected(node), broker.connected(node)
    failing.upstream._connection.transport.send = _fail
    (_, unsent), (request, _) = failing.put_off(), staying.put_off()
    assert node.sends.finish()
    given = unsent.answer()
    assert (given.response, given.close, given.charge) == (None, True, Charge.REQUEST)
    assert receive_frame(left) == b""
    assert receive_frame(sock) == request.frame
    (line,) = caplog.records
    assert "internal error while sending to broker" in line.message
    assert line.exc_info is not None


def _fail(_: bytes) -> int:
    raise LookupError


@pytest.mark.parametrize("is_reset", [True, False])
@pytest.mark.parametrize("is_noticed", [True, False])
def test_broker_that_leaves_before_the_send_ends_the_connection(new_broker, is_reset, is_noticed) -> None:
    """The client sees the end, whether the gateway learns of it by a receive before the send or by the send."""
    broker = new_broker()
    node = broker.node()
    relayed, sock = broker.connected(node)
    _, deferred = relayed.put_off()
    if is_reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    if is_noticed:
        node.poller.turn()
    node.sends.finish()
    node.turns_until(lambda: deferred.is_complete)
    assert deferred.answer().close
    assert relayed.upstream.closed
    assert node.link.lost == 1


def test_send_that_fails_ends_the_connection_behind_what_has_come(new_broker, monkeypatch) -> None:
    """An error that is none of the connection's: the response that has come is served, and nothing waits for ever."""
    broker = new_broker()
    node = broker.node()
    relayed, sock = broker.connected(node)
    _, deferred = relayed.put_off()
    transport = relayed.upstream._connection.transport

    def fail(_: object) -> int:
        raise OSError(errno.ENOBUFS, "no buffer space")

    monkeypatch.setattr(transport, "send", fail)
    answer(sock, struct.pack(">i", relayed.number))
    node.sends.finish()
    node.turns_until(lambda: deferred.is_complete)
    assert not deferred.answer().close
    node.turns_until(lambda: relayed.channel.closed)
    assert sock.recv(1) == b""


def test_each_of_seventeen_requests_of_a_turn_is_charged_for_its_own_send(new_broker) -> None:
    """The one that makes the others leave is not charged for them; the last one leaves at the end."""
    broker = new_broker()
    node = broker.node()
    ends = [broker.connected(node) for _ in range(MAX_TOGETHER + 1)]
    made = [relayed.put_off() for relayed, _ in ends]
    assert [receive_frame(sock) for _, sock in ends[:-1]] == [bytes(each.frame) for each, _ in made[:-1]]
    assert [deferred.charged_ns for _, deferred in made] == [1] * MAX_TOGETHER + [0]
    others_ns = [request.others_ns for request, _ in made]
    assert others_ns[MAX_TOGETHER - 1] > MAX_TOGETHER
    assert sum(others_ns) == others_ns[MAX_TOGETHER - 1]
    assert node.sends.finish()
    assert receive_frame(ends[-1][1]) == made[-1][0].frame
    assert made[-1][1].charged_ns == 1
    for (_, sock), (request, _) in zip(ends, made, strict=True):
        answer(sock, bytes(request.frame))
    node.turns_until(lambda: all(deferred.is_complete for _, deferred in made))


@pytest.mark.parametrize("client_leaves", [False, True])
def test_rest_of_a_request_leaves_when_the_broker_reads_on(new_broker, client_leaves) -> None:
    """The socket takes a part of the longest request that is copied; its client is charged for all sends."""
    broker = new_broker(*SMALL_BUFFERS)
    node = broker.node()
    relayed, sock = broker.connected(node)
    request, deferred = relayed.put_off(MAX_COPIED_BYTES)
    node.sends.finish()
    assert relayed.upstream.is_sending
    assert deferred.charged_ns == 1
    if client_leaves:
        assert relayed.upstream.close()
        with pytest.raises(AssertionError, match="no socket"):
            node.poller.turn(0.01)
        return
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(receive_frame(sock)))
    reading.start()
    node.turns_until(lambda: not relayed.upstream.is_sending)
    reading.join()
    assert found == [request.frame]
    assert deferred.charged_ns > 1
    node.poller.turn(0)  # nothing is left to be written, so that the socket is not looked at any more
    answer(sock, found[0])
    node.turns_until(lambda: deferred.is_complete)
    assert not deferred.answer().close


def test_request_waits_for_room_below_tls(new_broker) -> None:
    """Encrypted bytes leave first, and each byte leaves once, whichever call finds the room."""
    broker = new_broker(*SMALL_BUFFERS)
    node = broker.node(tls=client_context())
    relayed = Relayed(node)
    may_read = threading.Event()
    found: list[bytes] = []

    def serve() -> None:
        with server_context().wrap_socket(broker.accept(), server_side=True) as sock:
            for _ in range(4):
                data = b""
                while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                    may_read.wait()
                    data += sock.recv(4096)
                found.append(data[4:])
                may_read.clear()
                answer(sock, data[4:8])

    serving = threading.Thread(target=serve)
    serving.start()
    may_read.set()
    deferred = relayed.run(relayed.forward(relayed.request()))
    node.turns_until(lambda: deferred.is_complete)
    transport: Any = relayed.upstream._connection.transport
    let_it_take_few_bytes(transport._inner)
    for _ in range(3):
        request, deferred = relayed.put_off(MAX_COPIED_BYTES)
        node.sends.finish()
        assert relayed.upstream.is_sending
        may_read.set()
        node.turns_until(lambda deferred=deferred: deferred.is_complete)
        assert not deferred.answer().close
        assert found[-1] == request.frame
    serving.join()


class LoggedIn:
    """A connection of a gateway with logins of its own, whose sessions are used for 1.05 s, after its first request."""

    def __init__(self, broker: BrokerByHand) -> None:
        settings = ClientSettings(addresses=(), mechanism="PLAIN", user="gateway", password="secret")
        loop: Any = None
        self.node = broker.node(credentials=Credentials(settings, loop))
        self.relayed = Relayed(self.node)
        work = self.relayed.forward(self.relayed.request())
        next(work).then(lambda: None)
        self.sock = broker.accept()
        self.serve(3, lambda: self.relayed.run(work))
        self.transport: Any = self.relayed.upstream._connection.transport

    def serve(self, count: int, deferred_of: Callable[[], Any]) -> None:
        """Serve so many requests of logins and clients, of which the last one is answered by a deferred answer."""
        serving = threading.Thread(target=lambda: [serve_one(self.sock) for _ in range(count)])
        serving.start()
        deferred = deferred_of()
        self.node.turns_until(lambda: deferred.is_complete)
        serving.join()
        assert not deferred.answer().close

    def end_session(self) -> None:
        """Advance the clock beyond the use of the session."""
        self.node.loop.advance(1_100)

    def serve_after_login(self) -> None:
        """Forward a request that needs another login, and serve both."""
        self.serve(3, lambda: self.relayed.run(self.relayed.forward(self.relayed.request())))


@pytest.mark.parametrize(
    ("size", "has_begun"),
    [(MAX_COPIED_BYTES, True), (8 * MAX_COPIED_BYTES, True), (8 * MAX_COPIED_BYTES, False)],
)
def test_login_comes_between_two_requests(new_broker, size, has_begun) -> None:
    """A session that ends while a request is on its way lasts until it has left; the next one waits for a login.

    has_begun: the work of sending the rest, which other work may delay.
    """
    connection = LoggedIn(new_broker(*SMALL_BUFFERS))
    let_it_take_few_bytes(connection.transport)
    for _ in range(2):
        deferred = connection.relayed.forward(connection.relayed.request(size))
        connection.node.sends.finish()
        if not isinstance(deferred, Deferred) and has_begun:
            next(deferred)
        connection.end_session()
        assert connection.relayed.upstream.is_sending
        connection.serve(
            1,
            lambda work=deferred: work if isinstance(work, Deferred) else connection.relayed.run(work),
        )
        connection.serve_after_login()
    _, deferred = connection.relayed.put_off()
    connection.node.sends.finish()
    connection.serve(1, lambda: deferred)


def test_login_comes_after_a_request_without_a_response(new_broker) -> None:
    """As after any other request: such requests (acks=0) are sent as the socket takes them."""
    connection = LoggedIn(new_broker(*SMALL_BUFFERS))
    let_it_take_few_bytes(connection.transport)
    request = connection.relayed.request(8 * MAX_COPIED_BYTES)
    work = connection.relayed.upstream.send_only(request)
    connection.end_session()
    found: list[bytes] = []
    reading = threading.Thread(target=lambda: found.append(receive_frame(connection.sock)))
    reading.start()
    connection.relayed.run(work)
    reading.join()
    assert found == [request.frame]
    connection.serve_after_login()


def test_login_waits_for_room(new_broker) -> None:
    """A socket that is full of requests without responses takes the login later, and in parts."""
    connection = LoggedIn(new_broker())
    send, takes = connection.transport.send, [0, 3, 0, 5, 1_000, 0, 1]

    def few(data: bytes) -> int:
        count = takes.pop(0) if takes else len(data)
        if not count:
            raise BlockingIOError
        return send(data[:count])

    connection.transport.send = few
    connection.end_session()
    connection.serve_after_login()
    assert not takes


def test_login_waits_as_long_as_a_request(new_broker) -> None:
    """A broker that throttles the connection, or has much to read before, answers the login when it comes to it."""
    connection = LoggedIn(new_broker())
    connection.end_session()
    work = connection.relayed.forward(connection.relayed.request())
    next(work).then(lambda: None)
    connection.node.loop.advance(60_000)
    connection.serve(3, lambda: connection.relayed.run(work))


def test_broker_that_leaves_after_the_session_is_noticed(new_broker) -> None:
    """Its connections break while no request may be sent, which says the same of the broker."""
    connection = LoggedIn(new_broker())
    connection.end_session()
    connection.sock.close()
    connection.node.turns_until(lambda: connection.relayed.channel.closed)
    assert connection.node.link.lost == 1


def let_it_take_few_bytes(transport: Any) -> None:
    """Make the buffer of the gateway's end as small as the kernel allows."""
    with socket.socket(fileno=os.dup(transport.fd)) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)


def serve_one(sock: socket.socket) -> None:
    """Answer a request, or a step of a login whose session lasts for a second."""
    frame = receive_frame(sock)
    if len(frame) >= 8 and frame[:2] in (b"\0\x11", b"\0\x24"):
        header = decode_request_header(memoryview(frame))
        message = {
            SASL_HANDSHAKE: {"error_code": 0, "mechanisms": ["PLAIN"]},
            SASL_AUTHENTICATE: {
                "error_code": 0,
                "error_message": None,
                "auth_bytes": b"",
                "session_lifetime_ms": 1_000,
            },
        }[header.api_key]
        encoded = encode_response(header.api_key, header.api_version, header.correlation_id, message)
        sock.sendall(b"".join(encoded.buffers))
    else:
        answer(sock, frame)
