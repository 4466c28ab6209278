"""A client that has sent its last byte and still reads: it gets what it asked for, then the channel closes."""

import asyncio
import os
import socket
import struct
import time

import pytest
from tests.server.conftest import Pair, frame
from tests.server.nodes import CLIENT, NodeClient, RunningNode, spool_events, until

from tidegate.quota import QuotaType
from tidegate.server.connection import transport
from tidegate.server.requests.handler import Answer, Charge, Deferred, Request
from tidegate.wire import Encoded

AT_ONCE_S = 2.0  # what is noticed at once is noticed in ms; what is not waits for a poll of 20 s or more
LARGE_BYTES = 10_800_000


def last_byte(client: NodeClient) -> None:
    """Shut down the client's writing side."""
    client.writer.write_eof()


def reset(client: NodeClient) -> None:
    """Break the connection (RST)."""
    sock = client.writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.writer.transport.abort()


def test_a_large_answer_arrives_whole(with_node) -> None:
    """All of an answer leaves that is far larger than the socket's buffer, then the connection ends."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_fetch(max_bytes=LARGE_BYTES)
        last_byte(client)
        await asyncio.sleep(0.2)
        _, body, size = await client.receive()
        assert size > LARGE_BYTES
        assert len(body["responses"][0]["partitions"][0]["records"]) == LARGE_BYTES
        assert await client.closed()
        await until(lambda: not node.node._front.channels)

    with_node(scenario)


def test_requests_behind_a_long_poll_are_served(with_node) -> None:
    """Of pipelined requests all are answered, in their order, though each waits for the one before."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        for _ in range(5):
            client.send_fetch(max_bytes=100, max_wait_ms=30)
            client.send_produce(padding=10)
        last_byte(client)
        assert [(await client.receive())[0] for _ in range(10)] == list(range(10))
        assert await client.closed()

    with_node(scenario)


def test_requests_without_answers_are_served(with_node) -> None:
    """A client that sends records without wanting to know and goes leaves them all."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_fetch(max_bytes=100, max_wait_ms=50)
        for _ in range(5):
            client.send_produce(padding=10, acks=0)
        last_byte(client)
        await client.receive()
        assert await client.closed()
        rows = [event for event in spool_events(node) if event["kind"] == "request" and event["api_key"] == 0]
        assert len(rows) == 5

    with_node(scenario)


def test_requests_that_are_answered_together(with_node) -> None:
    """Clients whose requests are ready together with their ends are answered, and their channels close."""

    async def scenario(node: RunningNode) -> None:
        clients = [await node.connect() for _ in range(8)]
        await until(lambda: len(node.node._front.channels) == len(clients))
        for client in clients:
            client.send_fetch(max_bytes=10)
            client.send_fetch(max_bytes=10)
            last_byte(client)
        for client in clients:
            assert [(await client.receive())[0] for _ in range(2)] == [0, 1]
            assert await client.closed()
        await until(lambda: not node.node._front.channels)

    with_node(scenario)


@pytest.mark.alone
def test_a_throttled_answer_arrives_and_what_was_sent_is_served_after_the_throttle(with_node) -> None:
    """The throttle of a client that sends no more is as long as any; its last request is served after it."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.alter(CLIENT, "producer_byte_rate", 1000.0)
        client.send_produce(padding=10_300)
        client.send_produce(padding=10)
        last_byte(client)
        begun = time.monotonic()
        throttle_ms = (await client.receive())[1]["throttle_time_ms"]
        assert throttle_ms > 300
        await client.receive()
        assert time.monotonic() - begun >= throttle_ms / 1000 - 0.005
        assert await client.closed()

    with_node(scenario)


def test_a_large_answer_of_a_muted_client_arrives_whole(with_pair) -> None:
    """A muted client that sends no more reads on: its answer is not cut off."""

    async def scenario(pair: Pair) -> None:
        large = bytes(4 << 20)
        pair.owner.answer = lambda channel, data: (
            channel.send([large]),
            pair.muting.start(channel, 30_000, QuotaType.FETCH),
        )
        await pair.send(frame(b"one"))
        await pair.settle()
        pair.client.shutdown(socket.SHUT_WR)
        await pair.settle()
        assert not pair.channel.closed
        assert await pair.receive(len(large)) == large

    with_pair(scenario)


@pytest.mark.parametrize("whole", [True, False])
def test_half_a_request_ends_the_connection(with_pair, whole: bool) -> None:
    """What can never become a whole request keeps nothing open, whether or not one was served before."""

    async def scenario(pair: Pair) -> None:
        await pair.send((frame(b"one") if whole else b"") + frame(b"two")[:5])
        pair.client.shutdown(socket.SHUT_WR)
        await pair.settle()
        assert pair.channel.closed
        assert pair.owner.frames == ([b"one"] if whole else [])

    with_pair(scenario)


@pytest.mark.alone
def test_a_broken_connection_is_noticed_during_a_long_poll(with_node) -> None:
    """A client that resets its connection is gone at once, whether or not it had sent its last byte before."""

    async def scenario(node: RunningNode) -> None:
        for ends in (False, True):
            client = await node.connect()
            client.send_fetch(max_bytes=10, max_wait_ms=20_000)
            if ends:
                last_byte(client)
            await asyncio.sleep(0.1)
            assert len(node.node._front.channels) == 1
            begun = time.monotonic()
            reset(client)
            await until(lambda: not node.node._front.channels)
            assert time.monotonic() - begun < AT_ONCE_S

    with_node(scenario)


def test_a_client_that_has_ended_and_never_reads_is_closed(with_node, caplog) -> None:
    """Who sends no more and takes no byte of its answer is closed by the same bound as others."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.writer.transport.pause_reading()
        client.send_fetch(max_bytes=30_000_000)
        last_byte(client)
        await asyncio.sleep(0.2)
        (channel,) = node.node._front.channels
        assert channel.sending
        channel.last_active_ns -= 61_000_000_000
        node.node.closing.stalled()
        assert channel.closed

    with_node(scenario)
    assert len(caplog.records) == 1


def test_a_request_that_is_under_way_is_charged_when_its_client_has_left(with_node) -> None:
    """A connection that breaks before what it asked for is on the disk is charged and recorded all the same."""
    commits: list[tuple[Deferred, Answer]] = []

    def commit(request: Request) -> Deferred:
        deferred = Deferred()
        answer = request.answer({"responses": [], "throttle_time_ms": 0}, Charge.PRODUCE)
        commits.append((deferred, answer))
        return deferred

    async def scenario(node: RunningNode) -> None:
        node.node.handlers[0] = commit
        client = await node.connect()
        await client.alter(CLIENT, "producer_byte_rate", 1000.0)
        size = client.send_produce(padding=30_000, acks=-1)
        await until(lambda: bool(commits))
        reset(client)
        await until(lambda: not node.node._front.channels)
        commits[0][0].complete(commits[0][1])

        def rows() -> list[dict[str, object]]:
            return [e for e in spool_events(node) if e["kind"] == "request" and e["api_key"] == 0]

        await until(lambda: bool(rows()))
        (row,) = rows()
        assert row["produce_bytes"] == size
        assert row["produce_throttle_ms"] > 10_000
        assert node.node.managers.produce.peek("ANONYMOUS", "c1", node.node.clock.now_ms()) > 1000

    with_node(scenario)


def test_a_long_poll_that_is_given_up_charges_nothing(with_node) -> None:
    """A fetch that was not answered gave its client nothing."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_fetch(max_bytes=10, max_wait_ms=200)
        await asyncio.sleep(0.05)
        reset(client)
        await asyncio.sleep(0.3)
        rows = [event for event in spool_events(node) if event["kind"] == "request"]
        assert [row["api_key"] for row in rows] == []

    with_node(scenario)


def test_a_client_that_has_closed_during_a_long_poll_is_noticed(with_node, monkeypatch) -> None:
    """Its last byte is no different from that of one that still reads; its host tells before the poll is over."""
    monkeypatch.setattr(transport, "GONE_PROBES", [(option, 1) for option, _ in transport.GONE_PROBES])

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 3)  # its host forgets after so many seconds
        client.send_fetch(max_bytes=100, max_wait_ms=60_000)
        await asyncio.sleep(0.1)
        client.writer.close()
        await asyncio.sleep(0.1)
        assert len(node.node._front.channels) == 1
        await until(lambda: not node.node._front.channels)

    with_node(scenario)


def test_a_client_that_waits_for_the_answer_to_its_last_request_is_not_taken_for_gone(
    with_node, monkeypatch
) -> None:
    """However often it is asked meanwhile."""
    monkeypatch.setattr(transport, "GONE_PROBES", [(option, 1) for option, _ in transport.GONE_PROBES])

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.send_fetch(max_bytes=100, max_wait_ms=4000)
        last_byte(client)
        await client.receive()
        assert await client.closed()

    with_node(scenario)


def test_answers_that_left_in_part_arrive_whole(with_pair) -> None:
    """What was put off, and did not fit into the socket when it left, follows, whether or not the client has ended."""
    answers = [os.urandom(30_000) for _ in range(2)]

    async def scenario(pair: Pair) -> None:
        pair.channel.transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for answer in answers:
            assert pair.channel.put_off(Encoded([bytearray(answer)], len(answer), len(answer), -1))
        pair.channel.flush()
        assert pair.channel.sending, "the test needs a socket that does not take all"
        pair.client.shutdown(socket.SHUT_WR)
        assert await pair.receive(60_000) == b"".join(answers)
        await pair.settle()
        assert pair.channel.closed

    with_pair(scenario)


@pytest.mark.parametrize("frame", ["00000003aabbcc", "0000000a0063000000000001ffff"])
def test_answers_before_a_bad_request_arrive_whole(with_node, frame: str) -> None:
    """Who reads late what it asked for before it broke the protocol gets all of it, then the end."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.metadata()
        (channel,) = node.node._front.channels
        channel.transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(3):
            client.send_fetch(max_bytes=20_000)
        client.send_fetch(max_bytes=LARGE_BYTES)
        client.writer.write(bytes.fromhex(frame))
        await asyncio.sleep(0.3)
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert [(await client.receive())[2] > size for size in (20_000, 20_000, 20_000, LARGE_BYTES)] == [
            True
        ] * 4
        assert await client.closed()

    with_node(scenario)
