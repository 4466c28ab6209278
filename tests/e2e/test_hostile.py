"""Hostile bytes cost their sender the connection and the broker one line of its log."""

import contextlib
import select
import socket
import struct
import time

import pytest
from tests.e2e.lateness import Lateness
from tests.e2e.plain_client import PlainClient, produce_request

HOSTILE = {
    "a negative length": struct.pack(">i", -5),
    "a length of nothing": struct.pack(">i", 0),
    "a length past any bound": struct.pack(">i", 2**31 - 1) + bytes(100),
    "half a header": struct.pack(">i", 3) + b"\x00\x00\x00",
    "an api that does not exist": struct.pack(">ihhih", 10, 9999, 0, 1, -1),
    "a version that does not exist": struct.pack(">ihhih", 10, 3, 999, 1, -1),
    "a body that ends early": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 1000),
    "a client id longer than the frame": struct.pack(">ihhih", 10, 3, 1, 1, 30_000),
    "plain HTTP": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
    "a TLS hello": bytes.fromhex("16030100c8010000c40303") + bytes(194),
}


def send_and_wait_close(port, data, address="127.0.0.1"):
    """Send `data` from an address and return what came back before the broker closed the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0)) as client:
        client.sendall(data)
        received = b""
        try:
            while part := client.recv(65_536):
                received += part
        except ConnectionResetError:
            pass
        return received


def lines_of(broker):
    """Return the lines of the log without the summaries of repeated lines, which come a minute later."""
    return [line for line in broker.log.splitlines() if "similar lines in the last" not in line]


@pytest.mark.parametrize("what", HOSTILE)
def test_a_bad_frame_closes_only_its_connection(broker, create_topic, unique, what):
    """The sender is cut off without an answer; a neighbour goes on; the log has one line more.

    Each has an address of its own: of one address lines that are alike are counted.
    """
    data, address = HOSTILE[what], f"127.0.1.{1 + list(HOSTILE).index(what)}"
    topic = create_topic(broker, unique)
    with PlainClient(broker.port, unique) as neighbour:
        neighbour.send_produce(topic, value_bytes=10)
        neighbour.receive_produce()
        before = len(lines_of(broker))
        assert send_and_wait_close(broker.port, data, address) == b""
        neighbour.send_produce(topic, value_bytes=10)
        neighbour.receive_produce()
    assert len(lines_of(broker)) == before + 1, broker.log
    assert "Traceback" not in broker.log


def test_bad_frames_of_one_address_are_counted(broker):
    """Three hundred bad frames of one client, each different, are one line of the log; another client has its own."""
    before = len(lines_of(broker))
    for number in range(300):
        send_and_wait_close(broker.port, struct.pack(">i", 2**31 - 1 - number), "127.0.2.1")
    send_and_wait_close(broker.port, HOSTILE["a TLS hello"], "127.0.2.1")
    send_and_wait_close(broker.port, struct.pack(">i", 2**31 - 1), "127.0.2.2")
    lines = lines_of(broker)[before:]
    assert len(lines) == 3, lines
    assert "looks like a TLS handshake" in lines[1]


def test_many_half_open_frames_do_not_stop_the_others(broker, create_topic, unique):
    """Two hundred connections that promise a large frame and send a byte of it cost the others nothing."""
    topic = create_topic(broker, unique)
    slow = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(200)]
    try:
        for client in slow:
            client.sendall(struct.pack(">ib", 100_000_000, 0))
        with Lateness() as lateness:
            started = time.monotonic()
            with PlainClient(broker.port, unique) as client:
                client.send_produce(topic, value_bytes=10)
                client.receive_produce()
            assert lateness.elapsed_s(started) < 2
    finally:
        for client in slow:
            client.close()


def test_a_client_that_leaves_while_muted_is_noticed(broker, create_topic, unique):
    """A throttled connection that its client closed does not stay open until the throttle is over."""
    topic = create_topic(broker, unique)
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": unique}, {"producer_byte_rate": 100.0})
    with PlainClient(broker.port, unique) as client:
        client.send_produce(topic, value_bytes=20_000)
        assert client.receive_produce().throttle_time_ms > 100_000
        local_port = client.socket.getsockname()[1]
        assert _has_connection(broker, local_port)
    deadline = time.monotonic() + 5
    while _has_connection(broker, local_port):
        assert time.monotonic() < deadline, "the broker still holds the connection"
        time.sleep(0.05)


def test_clients_that_keep_sending_while_muted_cost_no_memory(new_broker, create_topic, unique):
    """What twenty of them send stays in the buffers of their sockets, all of it; then they cannot send any more."""
    broker = new_broker(socket_receive_buffer_bytes="65536")
    topic = create_topic(broker, unique)
    with PlainClient(broker.port, "admin") as admin:
        admin.alter_quotas({"client-id": unique}, {"producer_byte_rate": 100.0})
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(PlainClient(broker.port, unique))
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            client.send_produce(topic, value_bytes=20_000)
            assert client.receive_produce().throttle_time_ms > 100_000
            sent = _send_until_full(client.socket, _frame(topic, unique))
            assert 65_536 < sent < 1 << 20
            deadline = time.monotonic() + 5  # some go from one buffer to the other while their table is read
            while (held := _in_buffers(broker, client.socket.getsockname()[1])) != sent:
                assert time.monotonic() < deadline, f"{held} bytes of {sent} are in buffers"


def _frame(topic, client_id):
    request = produce_request(topic, bytes(1000))
    request.with_header(1, client_id)
    return bytes(request.encode(header=True, framed=True))


def _send_until_full(sock, data):
    """Send a repeated frame until the socket has taken nothing for a while; return how many bytes it took."""
    sock.setblocking(False)
    taken = 0
    while select.select([], [sock], [], 0.1)[1]:
        taken += sock.send(data[taken % len(data) :])
    return taken


def _in_buffers(broker, client_port):
    """Return how many bytes of a client are in the kernel's buffers: not sent yet, or not read by the broker."""
    ours, theirs = f"0100007F:{broker.port:04X}", f"0100007F:{client_port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        queues = {(words[1], words[2]): words[4].split(":") for words in map(str.split, table)}
    return int(queues[theirs, ours][0], 16) + int(queues[ours, theirs][1], 16)


def _has_connection(broker, client_port):
    """Return whether the broker's end of a connection is still open, by the kernel's table."""
    ours = f"0100007F:{broker.port:04X} 0100007F:{client_port:04X}"
    with open("/proc/net/tcp", encoding="ascii") as table:
        return any(f" {ours} " in line for line in table)
