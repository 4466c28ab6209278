"""Answers that clients do not read: they have a bound together, and who does not read is closed, not who does."""

import asyncio

from tests.server.nodes import METADATA, METADATA_VERSION, NodeClient, RunningNode, metadata_handler, until

from tidegate.server.connection.answer_memory import AnswerMemory
from tidegate.server.requests.handler import Answer, Request
from tidegate.wire import Encoded

LARGE = 5_000_000  # more than sockets take that nobody reads
NO_TOPICS = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def memory_of(most_bytes: int, closed: list[str]) -> AnswerMemory:
    """Return a memory that notes who was closed, at once."""

    def later(run):
        while not run():
            pass

    return AnswerMemory(most_bytes, later=later, on_excess=closed.append)


def test_who_took_nothing_for_the_longest_is_closed() -> None:
    """As many as it takes, and what they held is let go of."""
    closed: list[str] = []
    memory = memory_of(1000, closed)
    for holder in ("a", "b", "c"):
        memory.hold(holder, 300, "User:a")
    memory.record_progress("a")
    memory.hold("d", 500, "User:a")
    assert closed == ["b", "c"]
    assert memory._held.used == 800
    memory.release("a")
    memory.release("a")
    assert memory._held.used == 500


def test_the_principal_that_holds_most_loses_a_connection() -> None:
    """One that holds little keeps its answers, however long ago its client has read."""
    closed: list[str] = []
    memory = memory_of(1000, closed)
    memory.hold("victim", 100, "User:victim")
    for number in range(5):
        memory.hold(f"a{number}", 300, "User:a")
    assert closed == ["a0", "a1"]
    memory.hold("b0", 200, "User:b")
    assert closed == ["a0", "a1", "a2"]


def test_one_always_fits() -> None:
    """An answer larger than the bound is sent, if no other waits; without a bound any number is."""
    closed: list[str] = []
    memory_of(1000, closed).hold("a", 5000, "User:a")
    unbound = memory_of(-1, closed)
    for holder in ("a", "b"):
        unbound.hold(holder, 10**12, "User:a")
    assert closed == []


def test_a_holder_is_counted_once() -> None:
    """More of an answer takes the place of what was counted."""
    memory = memory_of(1000, [])
    memory.hold("a", 300, "User:a")
    memory.hold("a", 200, "User:a")
    assert memory._held.used == 200


def large_answer(request: Request) -> Answer:
    """Answer Metadata with `LARGE` bytes more than there are."""
    if request.header.client_id == "small":
        return metadata_handler(request)
    encoded = metadata_handler(request).response
    assert isinstance(encoded, Encoded)
    buffers = [*encoded.buffers, bytes(LARGE)]
    buffers[0][:4] = (encoded.size + LARGE).to_bytes(4, "big")
    return Answer(Encoded(buffers, encoded.size + LARGE, encoded.body_size + LARGE, encoded.throttle_at))


def test_clients_that_do_not_read_have_a_bound_together(with_node, caplog) -> None:
    """Of 30 that ask and do not read, as many stay as there is memory for; who reads gets its answer whole."""

    async def ask_and_read(client: NodeClient) -> int:
        client.send(METADATA, METADATA_VERSION, NO_TOPICS)
        size = int.from_bytes(await client.reader.readexactly(4), "big")
        return len(await client.reader.readexactly(size))

    async def scenario(node: RunningNode) -> None:
        node.node.handlers[METADATA] = large_answer
        unread = [await node.connect() for _ in range(30)]
        for client in unread:
            client.writer.transport.pause_reading()
            client.send(METADATA, METADATA_VERSION, NO_TOPICS)
        memory = node.node._answers
        await until(lambda: len(node.node._front.channels) < 30)
        assert await ask_and_read(await node.connect("reads")) > LARGE
        await (await node.connect("small")).ask(METADATA, METADATA_VERSION, NO_TOPICS)
        await until(lambda: memory._held.used <= 20_000_000)
        assert 2 <= len(memory._held) <= 4
        for client in unread:
            client.writer.transport.abort()
        await until(lambda: memory._held.used == 0)
        await asyncio.sleep(0)

    with_node(scenario, queued_max_request_bytes="20000000", socket_request_max_bytes="20000000")
    lines = [record.getMessage().partition(": ")[2] for record in caplog.records]
    assert "response not read while other clients waited for memory; see queued.max.request.bytes" in lines
