"""Requests that wait: what happens when many of them are woken together, and to those whose clients have left."""

import asyncio
import os
import time

import pytest
from tests.server.nodes import FETCH, PRODUCE, NodeClient, RunningNode, fetch_body, spool_events, until
from tests.server.test_half_close import reset

from tidegate.server.requests.handler import Answer, Charge, Deferred, FetchAnswer, Request

WAITING = 500
LONGEST_HOLD_S = 0.02


class Waits:
    """A handler that lets every request wait until `wake`."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Request, Deferred]] = []
        self.made = 0

    def handle(self, request: Request) -> Deferred:
        """Let a fetch wait."""
        deferred = Deferred()
        self.waiting.append((request, deferred))
        deferred.on_cancel = lambda: None
        return deferred

    def wake(self) -> None:
        """Answer all; each answer takes 100 us to make."""
        for request, deferred in self.waiting:
            deferred.complete_by(lambda request=request: self.answer(request))

    def answer(self, request: Request) -> Answer:
        """Make one answer."""
        self.made += 1
        until_ns = time.thread_time_ns() + 100_000
        while time.thread_time_ns() < until_ns:
            pass
        return FetchAnswer(request.encode(fetch_body(None)), lambda: request.encode(fetch_body(None)))


async def waiting_clients(node: RunningNode, waits: Waits) -> list[NodeClient]:
    """Return clients whose fetches wait."""
    node.node.handlers[FETCH] = waits.handle
    clients = [await node.connect() for _ in range(WAITING)]
    for client in clients:
        client.send_fetch(max_bytes=1, max_wait_ms=1)
    await until(lambda: len(waits.waiting) == WAITING)
    return clients


@pytest.mark.alone
def test_many_that_are_woken_together_do_not_hold_the_loop(with_node) -> None:
    """The answers of 500 waiting requests are made and sent in slices, all of them."""

    async def scenario(node: RunningNode) -> None:
        waits = Waits()
        clients = await waiting_clients(node, waits)
        for client in clients:
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        waits.wake()
        longest_s, begun = 0.0, time.thread_time()
        while waits.made < WAITING:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest_s, begun = max(longest_s, now - begun), now
        for client in clients:
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for client in clients:
            await client.receive()
        assert longest_s < LONGEST_HOLD_S

    with_node(scenario)


def test_who_has_left_before_its_turn_is_not_answered_nor_charged(with_node) -> None:
    """A long poll that is over, and whose client is gone before its answer is made, reads nothing for nobody."""

    async def scenario(node: RunningNode) -> None:
        waits = Waits()
        clients = await waiting_clients(node, waits)
        waits.wake()
        for channel in list(node.node._front.channels)[10:]:
            channel.close()
        await until(lambda: waits.made == 10)
        await asyncio.sleep(0.05)
        assert waits.made == 10
        assert len([event for event in spool_events(node) if event["kind"] == "request"]) == 10
        assert len(clients) == WAITING

    with_node(scenario)


def test_large_requests_share_the_memory_of_the_node(with_node) -> None:
    """20 clients that send a megabyte each at once are served one after the other where there is room for two."""

    def handle(request: Request) -> Answer:
        return request.answer({"responses": [], "throttle_time_ms": 0}, Charge.PRODUCE)

    async def scenario(node: RunningNode) -> None:
        node.node.handlers[PRODUCE] = handle
        clients = [await node.connect() for _ in range(20)]
        frame = bytes.fromhex("0000 0009 00000000 0002 6331 00".replace(" ", "")) + os.urandom(1_000_000)
        for client in clients:
            client._sent.append((PRODUCE, 9))
            client.writer.write(len(frame).to_bytes(4, "big") + frame[:-1])
        await until(lambda: len(node.node._memory._owners) == len(clients) - 2)
        assert node.node._memory.granted_bytes == 2 * len(frame)
        for client in clients:
            client.writer.write(frame[-1:])
        await asyncio.gather(*(client.receive() for client in clients))
        assert (node.node._memory.granted_bytes, len(node.node._memory._owners)) == (0, 0)

    with_node(scenario, queued_max_request_bytes="2100000", socket_request_max_bytes="2100000")


def test_clients_that_leave_give_their_memory_back(with_node) -> None:
    """Half a request is gone with its connection; who waited for its memory is served."""

    async def scenario(node: RunningNode) -> None:
        holder, other = await node.connect(), await node.connect()
        holder.writer.write((2_000_000).to_bytes(4, "big") + bytes(100_000))
        await until(lambda: node.node._memory.granted_bytes == 2_000_000)
        other.writer.write((1_500_000).to_bytes(4, "big") + bytes(1_500_000))
        await until(lambda: len(node.node._memory._owners) == 1)
        for channel in node.node._front.channels:
            channel.last_active_ns -= 0 if channel.collected_bytes else 10**15
        node.node.closing.idle()
        assert len(node.node._front.channels) == 2, "who is not read is not idle"
        reset(holder)
        await until(lambda: len(node.node._memory._owners) == 0)
        assert await other.closed(), "its zeros are no request"
        assert node.node._memory.granted_bytes == 0

    with_node(scenario, queued_max_request_bytes="2100000", socket_request_max_bytes="2100000")


def test_half_a_request_does_not_keep_whole_ones_out(with_node, caplog) -> None:
    """A client that holds the node's memory and sends nothing more is closed, with one line, and others are served."""

    async def scenario(node: RunningNode) -> None:
        holder, other = await node.connect(), await node.connect()
        holder.writer.write((2_000_000).to_bytes(4, "big") + bytes(100_000))
        await until(lambda: node.node._memory.granted_bytes == 2_000_000)
        node.node.closing.slow()
        other.writer.write((1_500_000).to_bytes(4, "big") + bytes(1_500_000))
        await until(lambda: len(node.node._memory._owners) == 1)
        (channel,) = node.node._memory._granted
        assert not channel.closed
        size, since_ns = node.node._memory._granted[channel]
        node.node._memory._granted[channel] = size, since_ns - 30_000_000_000
        node.node.closing.slow()
        assert channel.closed
        await until(lambda: len(node.node._memory._owners) == 0)
        assert await other.closed()

    with_node(scenario, queued_max_request_bytes="2100000", socket_request_max_bytes="2100000")
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert lines[0] == (
        "request arrived too slowly while other clients waited for memory; see queued.max.request.bytes"
    )
