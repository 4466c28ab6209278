"""Requests that are ready together: all are handled before any is answered, and done together what can be."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.server.nodes import (
    METADATA,
    METADATA_VERSION,
    MemoryStore,
    NodeClient,
    RunningNode,
    metadata_handler,
    running_node,
    until,
)

from tidegate.server.handler import Answer, Request, Work
from tidegate.server.poller import BATCH
from tidegate.server.slices import SLICE_NS
from tidegate.usage.readers import read_segment

NO_TOPICS = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


class NotedTurn:
    """Notes what happens around it, and fails when told to."""

    def __init__(self) -> None:
        self.putting_off = False
        self.fails = False
        self.notes: list[str] = []

    def end(self) -> bool:
        """Note the end."""
        self.notes.append("end")
        return not self.fails

    def handle(self, request: Request) -> Answer:
        """Answer Metadata; note whose it is and whether its answer is put off."""
        self.notes.append(request.header.client_id + (" later" if self.putting_off else " at once"))
        return self.answer(request)

    def handle_in_slices(self, request: Request) -> Work:
        """Put something off to the end of the turn, work on for several slices, and answer."""
        self.notes.append(request.header.client_id + (" later" if self.putting_off else " at once"))
        for _ in range(3):
            time.sleep(SLICE_NS / 1e9)
            yield
        self.notes.append(request.header.client_id + (" later" if self.putting_off else " at once"))
        return self.answer(request)

    @staticmethod
    def answer(request: Request) -> Answer:
        """Return the answer, with another where the turn fails."""
        answer = metadata_handler(request)
        if request.header.client_id == "a":
            other = {
                "throttle_time_ms": 0,
                "brokers": [],
                "cluster_id": "instead",
                "controller_id": 1,
                "topics": [],
            }
            answer.instead = lambda: request.answer({**other, "cluster_authorized_operations": -1})
        elif request.header.client_id == "b":
            answer.instead = lambda: None
        return answer


@pytest.fixture
def with_turn(tmp_path: Path) -> Callable[[Callable[[RunningNode, NotedTurn], Awaitable[None]]], None]:
    """Return a function that runs a coroutine function with a node and its turn."""

    def run(scenario: Callable[[RunningNode, NotedTurn], Awaitable[None]]) -> None:
        async def main() -> None:
            turn = NotedTurn()
            async with running_node(tmp_path, MemoryStore(), {}, turn, {METADATA: turn.handle}) as node:
                all_in_one_turn(node)
                await asyncio.wait_for(scenario(node, turn), 30)

        asyncio.run(main())

    return run


@pytest.mark.parametrize("fails", [False, True])
def test_work_in_slices_that_began_in_a_turn(tmp_path, fails) -> None:
    """What its first slice put off is done at the turn's end; where that fails it is answered otherwise, later."""

    async def main() -> None:
        turn = NotedTurn()
        turn.fails = fails
        handlers = {METADATA: turn.handle_in_slices}
        async with running_node(tmp_path, MemoryStore(), {}, turn, handlers) as node:
            all_in_one_turn(node)
            clients = [await node.connect(name) for name in "ac"]
            await all_accepted(node)
            for client in clients:
                ask(client)
            assert [await cluster_of(client) for client in clients] == ["instead" if fails else None, None]
            assert turn.notes[:3] == ["a later", "c later", "end"]
            assert sorted(turn.notes[3:]) == ["a at once", "c at once"]

    asyncio.run(main())


def all_in_one_turn(node: RunningNode) -> None:
    """Let no turn be over early, however busy the machine is."""
    node.node._poller._monotonic_ns = lambda: 0


async def all_accepted(node: RunningNode) -> None:
    """Wait until the node has accepted every connection: what they send then is there together."""
    front = node.node._front
    assert front is not None
    await until(lambda: len(front.channels) == len(node.clients))


def ask(client: NodeClient) -> None:
    """Send a Metadata request."""
    client.send(METADATA, METADATA_VERSION, NO_TOPICS)


async def cluster_of(client: NodeClient) -> str | None:
    """Return the cluster id of the next answer."""
    found: str | None = (await client.receive())[1]["cluster_id"]
    return found


def test_all_are_handled_before_any_is_answered(with_turn) -> None:
    """Three clients whose requests are there together are answered after the turn's end, each its own."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        clients = [await node.connect(name) for name in "abc"]
        await all_accepted(node)
        for _ in range(2):
            turn.notes.clear()
            for client in clients:
                ask(client)
            assert [await cluster_of(client) for client in clients] == [None] * 3
            assert turn.notes == ["a later", "b later", "c later", "end"]

    with_turn(scenario)


def test_one_alone_is_answered_at_once(with_turn) -> None:
    """Nobody waits for a turn that has no second request in it."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        client = await node.connect("a")
        ask(client)
        assert await cluster_of(client) is None
        assert turn.notes == ["a at once"]

    with_turn(scenario)


def test_who_has_sent_more_is_answered_at_once(with_turn) -> None:
    """Requests behind one another on a connection are served in one go; only the last may be put off."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        one, other = await node.connect("a"), await node.connect("b")
        await all_accepted(node)
        ask(other)
        for _ in range(3):
            ask(one)
        correlation_ids = [(await one.receive())[0] for _ in range(3)]
        await other.receive()
        assert correlation_ids == [0, 1, 2]
        assert sorted(turn.notes[:4]) == ["a at once", "a at once", "a later", "b later"]
        assert turn.notes[4:] == ["end"]

    with_turn(scenario)


def test_what_failed_is_answered_otherwise(with_turn) -> None:
    """Where the turn fails each answer is asked for another; who has none, or needs none, sends its own."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        turn.fails = True
        clients = [await node.connect(name) for name in "abc"]
        await all_accepted(node)
        for client in clients:
            ask(client)
        assert [await cluster_of(client) for client in clients] == ["instead", None, None]

    with_turn(scenario)


def test_time_of_the_turn_is_charged_to_those_who_have_a_part_in_it(with_turn) -> None:
    """Its time is handler time, in proportion to the bytes of the requests; who has no part in it pays nothing."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        clients = [await node.connect(name) for name in "abc"]
        await all_accepted(node)
        end = turn.end

        def slow_end() -> bool:
            time.sleep(0.1)
            return end()

        turn.end = slow_end  # type: ignore[method-assign]
        for client in clients:
            ask(client)
        for client in clients:
            await client.receive()
        node.usage.close()
        rows = [event for path in node.spool.glob("*.closed") for event in read_segment(path)]
        handler_ms = {row["client_id"]: row["handler_ns"] / 1e6 for row in rows if row["kind"] == "request"}
        assert handler_ms["a"] == pytest.approx(50, abs=20)
        assert handler_ms["b"] == pytest.approx(50, abs=20)
        assert handler_ms["c"] < 20

    with_turn(scenario)


def test_a_client_that_goes_before_its_answer_harms_nobody(with_turn) -> None:
    """The answers of the others of its turn leave."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        clients = [await node.connect(name) for name in "abc"]
        await all_accepted(node)
        front = node.node._front
        assert front is not None
        gone = min(front.channels, key=lambda channel: channel.connection.id)
        end = turn.end

        def close_one() -> bool:
            gone.close()
            return end()

        turn.end = close_one  # type: ignore[method-assign]
        for client in clients:
            ask(client)
        assert await clients[0].closed()
        assert [await cluster_of(client) for client in clients[1:]] == [None, None]

    with_turn(scenario)


def test_more_than_a_batch_of_them(with_turn) -> None:
    """However many are ready, no turn has more than a batch, and all are answered."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        clients = [await node.connect(f"client-{number}") for number in range(BATCH + 20)]
        await all_accepted(node)
        for client in clients:
            ask(client)
        for client in clients:
            await client.receive()
        ends = [at for at, note in enumerate(turn.notes) if note == "end"]
        assert ends[0] <= BATCH
        assert len(turn.notes) - len(ends) == len(clients)

    with_turn(scenario)
