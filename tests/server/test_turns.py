"""Requests that are ready together: all are handled before any is answered, and done together what can be."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.server.nodes import (
    CLIENT,
    METADATA,
    METADATA_VERSION,
    MemoryStore,
    NodeClient,
    RunningNode,
    metadata_handler,
    running_node,
    until,
)

from tidegate.server.connection import channel as channel_module
from tidegate.server.connection import poller as poller_module
from tidegate.server.connection.transport import SocketTransport
from tidegate.server.connection.turns import BATCH
from tidegate.server.requests import front as front_module
from tidegate.server.requests.handler import Answer, Request, Work
from tidegate.server.requests.slices import SLICE_NS
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
        self.fails = False
        self.notes: list[str] = []

    def finish(self) -> bool:
        """Note the end."""
        self.notes.append("end")
        return not self.fails

    def handle(self, request: Request) -> Answer:
        """Answer Metadata; note whose it is and whether its answer is put off."""
        self.notes.append(request.header.client_id + (" later" if request.turn is self else " at once"))
        return self.answer(request)

    def handle_in_slices(self, request: Request) -> Work:
        """Work on for several slices, and answer."""
        for _ in range(3):
            self.notes.append(request.header.client_id + (" later" if request.turn is self else " at once"))
            time.sleep(SLICE_NS / 1e9)
            yield
        return metadata_handler(request)

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
            answer.if_turn_fails = lambda: request.answer({**other, "cluster_authorized_operations": -1})
        elif request.header.client_id == "b":
            answer.if_turn_fails = lambda: None
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


def test_work_in_slices_puts_nothing_off(tmp_path) -> None:
    """It may go on after its turn, so it has none: not in its first slice either."""

    async def main() -> None:
        turn = NotedTurn()
        handlers = {METADATA: turn.handle_in_slices}
        async with running_node(tmp_path, MemoryStore(), {}, turn, handlers) as node:
            all_in_one_turn(node)
            clients = [await node.connect(name) for name in "ac"]
            await all_accepted(node)
            for client in clients:
                ask(client)
            assert [await cluster_of(client) for client in clients] == [None, None]
            assert [note for note in turn.notes if note != "end"].count("a at once") == 3
            assert not [note for note in turn.notes if note.endswith("later")]

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


def test_who_has_sent_more_has_a_request_served_a_turn(with_turn) -> None:
    """Of requests behind one another on a connection one is in each turn, with one of everybody else."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        one, other = await node.connect("a"), await node.connect("b")
        await all_accepted(node)
        for _ in range(3):
            ask(one)
        for _ in range(2):
            ask(other)
        correlation_ids = [(await one.receive())[0] for _ in range(3)]
        assert [(await other.receive())[0] for _ in range(2)] == [0, 1]
        assert correlation_ids == [0, 1, 2]
        turns = " ".join(turn.notes).split("end")
        assert sum("a later" in each for each in turns) == 3
        assert (
            max(each.count("a later") for each in turns) == max(each.count("b later") for each in turns) == 1
        )

    with_turn(scenario)


def test_who_waits_is_not_kept_waiting_by_ready_sockets(with_turn, monkeypatch) -> None:
    """Where those take all the time of each turn, those who have waited are served all the same, several a turn."""
    monkeypatch.setattr(front_module, "WAITING_NS", 10**9)

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        front = node.node._front
        assert front is not None
        end = front.finish_turn
        front.finish_turn = lambda until_ns: end(0)  # type: ignore[method-assign]
        clients = [await node.connect("c") for _ in range(20)]
        await all_accepted(node)
        for client in clients:
            for _ in range(2):
                ask(client)
        for client in clients:
            assert [(await client.receive())[0] for _ in range(2)] == [0, 1]
        turns = [each.count("c later") for each in " ".join(turn.notes).split("end")]
        assert max(turns[1:]) > 2

    with_turn(scenario)


def test_many_that_wait_leave_another_principal_its_turn(with_turn, monkeypatch) -> None:
    """A request of another principal moves to the front of those that a turn had no time for."""
    monkeypatch.setattr(front_module, "WAITING_NS", 0)
    monkeypatch.setattr(front_module, "BATCH", 4)
    monkeypatch.setattr(poller_module, "SCAN_EVERY_NS", 0)

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        front = node.node._front
        assert front is not None
        end = front.finish_turn
        monkeypatch.setattr(
            front, "finish_turn", lambda until_ns: end(0)
        )  # no time is left for those that wait
        many, other = [await node.connect("a") for _ in range(20)], await node.connect("b")
        await all_accepted(node)
        list(front.channels)[-1].connection.set_user("other")
        for client in (*many, other):
            for _ in range(2):
                ask(client)
        for client in (*many, other):
            assert [(await client.receive())[0] for _ in range(2)] == [0, 1]
        second = [note for note in turn.notes if note != "end"][21:]
        assert "b later" in second[:10], second

    with_turn(scenario)


def test_answers_of_one_connection_leave_together(with_turn, monkeypatch) -> None:
    """Where the next request is there already its answer is waited for: fewer calls, the same bytes in order."""
    sent: list[int] = []
    send_some = SocketTransport.send_some
    monkeypatch.setattr(channel_module, "PUT_OFF_NS", 10**10)
    monkeypatch.setattr(
        SocketTransport, "send_some", lambda self, out: (sent.append(len(out)), send_some(self, out))[1]
    )

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        client = await node.connect("a")
        await all_accepted(node)
        (channel,) = node.node._front.channels  # type: ignore[union-attr]
        for _ in range(5):
            ask(client)
        assert [(await client.receive())[0] for _ in range(5)] == [0, 1, 2, 3, 4]
        assert sent == [5]
        assert channel.put_off_bytes == 0

    with_turn(scenario)


@pytest.mark.parametrize("failing", ["the rows", "the counts"])
def test_an_error_at_the_end_of_a_turn_ends_the_turn(with_node, caplog, monkeypatch, failing: str) -> None:
    """Who had a part in it is closed, waits for no answer, and the next turn is as every other."""

    async def scenario(node: RunningNode) -> None:
        clients = [await node.connect() for _ in range(2)]
        await all_accepted(node)
        front = node.node._front
        holder, name = (node.recorder, "commit") if failing == "the rows" else (front, "_count")

        def fail(*_: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("as asked")

        monkeypatch.setattr(holder, name, fail)
        ask(clients[0])
        assert await clients[0].closed()
        assert not front._in_turn
        await clients[1].metadata()
        assert len(front.channels) == 1

    with_node(scenario)
    (line,) = [record.getMessage() for record in caplog.records if record.exc_info]
    assert line.endswith("from 127.0.0.1 (listener PLAINTEXT): response with api key 3 failed")


def test_a_turn_that_an_error_escapes_from_is_over(with_node) -> None:
    """What comes after it is not kept for an end that never comes."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        await client.metadata()
        front = node.node._front
        end_turn = front._end_turn

        def fail(handled: object) -> None:
            front._end_turn = end_turn
            raise RuntimeError("as asked")

        front._end_turn = fail
        front.begin_turn(0)
        with pytest.raises(RuntimeError, match="as asked"):
            front.finish_turn(0)
        assert not front._in_turn
        await client.metadata()

    with_node(scenario)


def test_a_request_behind_one_of_an_unknown_version_is_served(with_node) -> None:
    """ApiVersions in a version that is not known is answered in a turn as every other request, and what follows too."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        client.writer.write(bytes.fromhex("0000000d00120063000000090002633100"))
        ask(client)
        client.writer.write_eof()
        unsupported = await asyncio.wait_for(client.reader.readexactly(20), 5)
        assert unsupported.hex() == "0000001000000009002300000001001200000004"
        assert (await client.receive())[0] == 0
        assert await client.closed()

    with_node(scenario)


@pytest.mark.parametrize(
    "last", ["a long poll", "no answer", "a bad frame", "its last byte", "a throttled one"]
)
def test_answers_that_wait_leave_whatever_follows(with_node, last: str) -> None:
    """What was put off for the next answer leaves when there is none for now."""

    async def scenario(node: RunningNode) -> None:
        client = await node.connect()
        if last == "a throttled one":
            await client.alter(CLIENT, "producer_byte_rate", 1000.0)
        for _ in range(3):
            client.send_fetch(max_bytes=10)
        if last == "a long poll":
            client.send_fetch(max_bytes=10, max_wait_ms=60_000)
        elif last == "no answer":
            client.send_produce(padding=10, acks=0)
        elif last == "a throttled one":
            client.send_produce(padding=30_000, acks=0)
            client.send_fetch(max_bytes=10)
        elif last == "a bad frame":
            client.writer.write(bytes.fromhex("00000003aabbcc"))
        else:
            client.writer.write_eof()
        answers = [await asyncio.wait_for(client.receive(), 5) for _ in range(3)]
        assert [answer[0] - answers[0][0] for answer in answers] == [0, 1, 2]

    with_node(scenario)


@pytest.mark.alone
def test_beside_many_requests_of_one_others_wait_for_one(tmp_path: Path) -> None:
    """A client with 12,000 requests under way keeps another waiting for a turn, not for its requests."""
    served: list[str] = []

    def handle(request: Request) -> Answer:
        served.append(request.header.client_id)
        until_ns = time.monotonic_ns() + 100_000
        while time.monotonic_ns() < until_ns:
            pass
        return metadata_handler(request)

    async def main() -> None:
        async with running_node(tmp_path, MemoryStore(), {}, None, {METADATA: handle}) as node:
            many, other = await node.connect("many"), await node.connect("other")
            for _ in range(12_000):
                ask(many)

            async def take() -> None:
                for _ in range(12_000):
                    await many.receive()

            taking = asyncio.create_task(take())
            before_it = []
            for _ in range(20):
                asked_at = len(served)
                ask(other)
                await other.receive()
                before_it.append(served.index("other", asked_at) - asked_at)
            assert not taking.done(), "too few to be compared with"
            assert max(before_it) <= 2
            await taking

    asyncio.run(main())


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


@pytest.mark.alone
def test_time_of_the_turn_is_charged_to_those_who_have_a_part_in_it(with_turn) -> None:
    """Its time is handler time, in proportion to the bytes of the requests; who has no part in it pays nothing."""

    async def scenario(node: RunningNode, turn: NotedTurn) -> None:
        clients = [await node.connect(name) for name in "abc"]
        await all_accepted(node)
        end, took_ms = turn.finish, []

        def slow_end() -> bool:
            begun = time.monotonic()
            time.sleep(0.1)
            try:
                return end()
            finally:
                took_ms.append((time.monotonic() - begun) * 1000)

        turn.finish = slow_end  # type: ignore[method-assign]
        for client in clients:
            ask(client)
        for client in clients:
            await client.receive()
        node.recorder.close()
        rows = [event for path in node.spool.glob("*.closed") for event in read_segment(path)]
        handler_ms = {row["client_id"]: row["handler_ns"] / 1e6 for row in rows if row["kind"] == "request"}
        assert handler_ms["a"] == pytest.approx(sum(took_ms) / 2, abs=20)
        assert handler_ms["b"] == pytest.approx(sum(took_ms) / 2, abs=20)
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
        end = turn.finish

        def close_one() -> bool:
            gone.close()
            return end()

        turn.finish = close_one  # type: ignore[method-assign]
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
