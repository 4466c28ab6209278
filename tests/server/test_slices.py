"""Handlers that work in slices: the others are served in between, and the answer is charged for all of them."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.server.nodes import (
    METADATA,
    METADATA_VERSION,
    MemoryStore,
    RunningNode,
    metadata_handler,
    running_node,
    until,
)
from tests.server.test_half_close import reset

from tidegate.server.requests.handler import Answer, Deferred, Request, Wait, Work
from tidegate.server.requests.later_work import WORKS_AT_ONCE
from tidegate.server.requests.slices import SLICE_NS, OneAtATime, Slices
from tidegate.usage.readers import read_segment

pytestmark = pytest.mark.alone

LONG_S = 0.3
STEP_S = 0.001
LARGE = 20_000  # letters of a topic name: such a frame is not copied

NO_TOPICS = {
    "topics": [],
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


def spin(seconds: float) -> None:
    """Use the processor."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class LongMetadata:
    """Works for long where the client is called `long`; `shorter` does at the end."""

    def __init__(self) -> None:
        self.at_end: Callable[[Request], Answer | Deferred] = metadata_handler
        self.ended = 0

    def handle(self, request: Request) -> Answer | Work:
        """Answer at once, or after `LONG_S` of work."""
        return self.work(request) if request.header.client_id == "long" else metadata_handler(request)

    def work(self, request: Request) -> Work:
        """Work in steps; the request is read after all of them."""
        for _ in range(round(LONG_S / STEP_S)):
            spin(STEP_S)
            yield
        self.ended += 1
        return self.at_end(request)


def with_node(
    directory: Path, scenario: Callable[[RunningNode, LongMetadata], object], **settings: str
) -> LongMetadata:
    """Run a scenario against a node whose Metadata may work for long; return that handler."""
    long = LongMetadata()

    async def run() -> None:
        handlers = {METADATA: long.handle}
        async with running_node(directory, MemoryStore(), settings, handlers=handlers) as node:
            await scenario(node, long)

    asyncio.run(run())
    return long


def test_others_have_their_turn_between_slices(tmp_path):
    """While one request works for 300 ms, the loop turns once a slice of 2 ms, and others are answered."""

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        busy, other = await node.connect("long"), await node.connect("other")
        answer = asyncio.create_task(busy.ask(METADATA, METADATA_VERSION, NO_TOPICS))
        await asyncio.sleep(0.02)
        await other.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        assert not answer.done()
        turns = 0
        while not answer.done():
            turns += 1
            await asyncio.sleep(0)
        assert (await answer)["controller_id"] == 1
        assert turns > LONG_S * 1e9 / SLICE_NS / 3

    with_node(tmp_path, scenario)


@pytest.mark.parametrize("letters", [3, LARGE])
def test_its_frame_stays_as_it_was(tmp_path, letters):
    """What others send meanwhile does not write over a request that is read in a later slice."""

    def name_of_topic(request: Request) -> Answer:
        (topic,) = request.body()["topics"]
        assert topic["name"] == "t" * letters
        return metadata_handler(request)

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        long.at_end = name_of_topic
        busy, other = await node.connect("long"), await node.connect("other")
        answer = asyncio.create_task(busy.metadata("t" * letters))
        await asyncio.sleep(0.01)
        while not answer.done():
            await other.metadata("x" * (letters + 100))
        assert (await answer)["controller_id"] == 1

    with_node(tmp_path, scenario)


def test_all_slices_are_charged_once(tmp_path):
    """The record's handler time is that of all slices, in one row, and not more than what the client waited."""
    waited_s = 0.0

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        nonlocal waited_s
        busy = await node.connect("long")
        begun = time.monotonic()
        await busy.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        waited_s = time.monotonic() - begun

    with_node(tmp_path, scenario)
    (segment,) = (tmp_path / "spool").glob("*.closed")
    handled = [event["handler_ns"] for event in read_segment(segment) if event["kind"] == "request"]
    assert len(handled) == 1
    assert LONG_S * 1e9 <= handled[0] <= waited_s * 1e9


def test_time_of_another_thread_is_charged(tmp_path):
    """What a thread took for a request alone is its handler time; waiting itself costs nothing."""
    asked_ns, waited_s = 7_000_000_000, 0.2

    def handle(request: Request) -> Work:
        wait = Wait()
        wait.charged_ns = asked_ns
        asyncio.get_running_loop().call_later(waited_s, wait.resume)
        yield wait
        return metadata_handler(request)

    async def run() -> None:
        async with running_node(tmp_path, MemoryStore(), {}, handlers={METADATA: handle}) as node:
            await (await node.connect("waits")).ask(METADATA, METADATA_VERSION, NO_TOPICS)

    asyncio.run(run())
    (segment,) = (tmp_path / "spool").glob("*.closed")
    (handled,) = [event["handler_ns"] for event in read_segment(segment) if event["kind"] == "request"]
    assert asked_ns <= handled < asked_ns + waited_s * 1e9


def test_requests_behind_it_wait_their_turn(tmp_path):
    """Answers leave in the order of the requests of a connection."""

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        busy = await node.connect("long")
        for _ in range(3):
            busy.send(METADATA, METADATA_VERSION, NO_TOPICS)
        assert [(await busy.receive())[0] for _ in range(3)] == [0, 1, 2]

    assert with_node(tmp_path, scenario).ended == 3


def test_it_ends_and_is_charged_when_the_client_leaves(tmp_path):
    """Who sends something expensive and leaves has used it all the same."""

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        busy = await node.connect("long")
        busy.send(METADATA, METADATA_VERSION, NO_TOPICS)
        await asyncio.sleep(0.05)
        busy.writer.transport.abort()
        async with asyncio.timeout(10):
            while not long.ended:
                await asyncio.sleep(0.01)

    with_node(tmp_path, scenario)
    (segment,) = (tmp_path / "spool").glob("*.closed")
    (row,) = (event for event in read_segment(segment) if event["kind"] == "request")
    assert row["handler_ns"] >= LONG_S * 1e9


def test_it_may_wait_at_the_end(tmp_path):
    """Work in slices can end in an answer that comes later."""

    def later(request: Request) -> Deferred:
        deferred, answer = Deferred(), metadata_handler(request)
        asyncio.get_running_loop().call_later(0.05, deferred.complete, answer)
        return deferred

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        long.at_end = later
        busy = await node.connect("long")
        for _ in range(2):
            assert (await busy.ask(METADATA, METADATA_VERSION, NO_TOPICS))["controller_id"] == 1

    with_node(tmp_path, scenario)


def test_a_failure_in_a_later_slice_closes_only_its_connection(tmp_path, caplog):
    """Another client is served as before, and the log has the traceback."""

    def fail(request: Request) -> Answer:
        raise RuntimeError("as asked")

    async def scenario(node: RunningNode, long: LongMetadata) -> None:
        long.at_end = fail
        busy, other = await node.connect("long"), await node.connect("other")
        busy.send(METADATA, METADATA_VERSION, NO_TOPICS)
        assert await busy.closed()
        await other.ask(METADATA, METADATA_VERSION, NO_TOPICS)

    with_node(tmp_path, scenario)
    (record,) = (record for record in caplog.records if record.exc_info)
    assert "request with api key 3 failed" in record.message


def test_slices_take_turns():
    """Of several works each has a slice before any has another."""
    order: list[str] = []

    async def run() -> None:
        slices = Slices(asyncio.get_running_loop())

        def work(name: str, count: int) -> Callable[[], bool]:
            left = iter(range(count - 1, -1, -1))

            def run_slice() -> bool:
                order.append(name)
                return next(left) == 0

            return run_slice

        slices.schedule(work("a", 3))
        slices.schedule(work("b", 2))
        while len(slices):
            await asyncio.sleep(0)

    asyncio.run(run())
    assert "".join(order) == "ababa"


class Crowd:
    """Answers Metadata after work of 30 ms, in steps; knows how much is under way at once."""

    def __init__(self) -> None:
        self.begun = self.ended = self.most = self.steps = 0
        self.steps_before: list[int] = []  # of all, when each began
        self.lock = OneAtATime()

    def handle(self, request: Request) -> Answer | Work:
        """Answer at once unless the client is called `long` or `locked`, which works alone."""
        if request.header.client_id == "short":
            return metadata_handler(request)
        return self.locked(request) if request.header.client_id == "locked" else self.work(request)

    def work(self, request: Request) -> Work:
        """Work."""
        self.begun += 1
        self.steps_before.append(self.steps)
        self.most = max(self.most, self.begun - self.ended)
        for _ in range(300):
            until_s = time.thread_time() + STEP_S / 10
            while time.thread_time() < until_s:
                pass
            self.steps += 1
            yield
        self.ended += 1
        return metadata_handler(request)

    def locked(self, request: Request) -> Work:
        """Work while no other client that is called so does."""
        yield from self.lock.acquire()
        try:
            return (yield from self.work(request))
        finally:
            self.lock.release()


CROWDED = {"queued.max.request.bytes": "1000000", "socket.request.max.bytes": "1000000"}
"""With these, 4 ms of work in slices that is not done is as much as there is memory for."""


def run_crowd(directory: Path, scenario: Callable[[RunningNode, Crowd], object], **settings: str) -> Crowd:
    """Run a scenario against a node with a `Crowd`."""
    crowd = Crowd()

    async def run() -> None:
        handlers = {METADATA: crowd.handle}
        async with running_node(directory, MemoryStore(), settings, handlers=handlers) as node:
            await scenario(node, crowd)

    asyncio.run(run())
    return crowd


@pytest.mark.alone
def test_of_much_long_work_a_part_is_under_way(tmp_path):
    """What all have made so far lies in memory: where that is too much, some go on, and all are answered in the end."""

    async def scenario(node: RunningNode, crowd: Crowd) -> None:
        clients = [await node.connect("long") for _ in range(40)]
        short = await node.connect("short")
        answers = [asyncio.create_task(c.ask(METADATA, METADATA_VERSION, NO_TOPICS)) for c in clients]
        await until(lambda: crowd.begun > WORKS_AT_ONCE)
        begun_s = time.monotonic()
        await short.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        assert time.monotonic() - begun_s < 0.5
        assert not all(answer.done() for answer in answers)
        assert [answer["controller_id"] for answer in await asyncio.gather(*answers)] == [1] * 40

    assert run_crowd(tmp_path / "few", scenario, **CROWDED).most < 20
    assert run_crowd(tmp_path / "all", scenario).most > 20


@pytest.mark.parametrize("settings", [{}, CROWDED], ids=["room", "crowded"])
def test_long_work_of_one_principal_does_not_wait_for_that_of_another(tmp_path, settings):
    """With twenty clients of one at work, a client of another has every other slice, and is among those that go on."""

    async def scenario(node: RunningNode, crowd: Crowd) -> None:
        clients = [await node.connect("long") for _ in range(20)]
        other = await node.connect("long", source="127.0.0.2")
        answers = [asyncio.create_task(c.ask(METADATA, METADATA_VERSION, NO_TOPICS)) for c in clients]
        await until(lambda: crowd.begun > WORKS_AT_ONCE)
        ended = crowd.ended
        await other.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        assert crowd.ended - ended < 6
        await asyncio.gather(*answers)

    run_crowd(tmp_path, scenario, **settings)


def test_who_is_waited_for_goes_on(tmp_path):
    """Work that holds a lock may have been put back: those who wait for the lock keep nobody from going on."""

    async def scenario(node: RunningNode, crowd: Crowd) -> None:
        clients = [await node.connect("locked") for _ in range(20)]
        clients += [await node.connect("long") for _ in range(20)]
        asked = [c.ask(METADATA, METADATA_VERSION, NO_TOPICS) for c in clients]
        assert len(await asyncio.gather(*asked)) == 40

    assert run_crowd(tmp_path, scenario, **CROWDED).ended == 40


def test_what_has_not_begun_is_dropped_with_its_client(tmp_path):
    """A client that has left gets no work done that nobody has begun."""

    async def scenario(node: RunningNode, crowd: Crowd) -> None:
        staying = await node.connect("long")
        leaving = [await node.connect("long") for _ in range(60)]
        answer = asyncio.create_task(staying.ask(METADATA, METADATA_VERSION, NO_TOPICS))
        await until(lambda: crowd.begun > 0)
        for client in leaving:
            client.send(METADATA, METADATA_VERSION, NO_TOPICS)
        await until(lambda: crowd.begun > WORKS_AT_ONCE)
        for client in leaving:
            reset(client)
        await answer
        await until(lambda: not node.node._front._later._put_back and crowd.begun == crowd.ended)
        assert (await staying.ask(METADATA, METADATA_VERSION, NO_TOPICS))["controller_id"] == 1

    assert run_crowd(tmp_path, scenario, **CROWDED).begun < 40


def test_many_first_slices_at_once_are_short(tmp_path):
    """Of clients that ask for much in the same moment, only the first have a whole slice at once."""

    async def scenario(node: RunningNode, crowd: Crowd) -> None:
        clients = [await node.connect("long") for _ in range(100)]
        short = await node.connect("short")
        for client in clients:
            client.send(METADATA, METADATA_VERSION, NO_TOPICS)
        await short.ask(METADATA, METADATA_VERSION, NO_TOPICS)
        assert crowd.begun == 100
        assert 99 <= crowd.steps_before[-1] < 100 * 20 * 2 / 3, "20 steps are a slice: each had a whole one"

    run_crowd(tmp_path, scenario)
