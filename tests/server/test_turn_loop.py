"""The event loop that waits in a poller: it misses nothing of its own while sockets are served."""

import asyncio
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from tidegate.server.connection.poller import EpollPoller
from tidegate.server.connection.turn_loop import TurnLoop

WITHIN_S = 10.0


@contextmanager
def busy_socket(poller: EpollPoller) -> Iterator[list[int]]:
    """Register a socket that is ready at all times; yield how often it was served, in a list of one number."""
    served = [0]
    server, client = socket.socketpair()

    def serve() -> None:
        server.recv(1)
        served[0] += 1
        client.send(b"x")

    poller.add_reader(server.fileno(), serve)
    client.send(b"x")
    try:
        yield served
    finally:
        poller.forget(server.fileno())
        server.close()
        client.close()


def _read_one(reader: int, readable: asyncio.Event) -> None:
    os.read(reader, 1)
    readable.set()


@pytest.fixture
def with_poller() -> Callable[[Callable[[EpollPoller], Awaitable[None]]], None]:
    """Return a function that runs a coroutine with a poller on a loop that waits in it."""

    def run(scenario: Callable[[EpollPoller], Awaitable[None]]) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, TurnLoop)
            poller = EpollPoller(loop)
            assert loop.waiter is poller
            try:
                await asyncio.wait_for(scenario(poller), WITHIN_S)
            finally:
                poller.close()
            assert loop.waiter is None
            await asyncio.sleep(0.001)  # the loop waits by itself

        asyncio.run(main())

    return run


def test_timers_callbacks_and_descriptors_have_their_turn_beside_a_busy_socket(with_poller) -> None:
    """Sockets that are ready without a pause hold up nothing else of the loop."""

    async def scenario(poller: EpollPoller) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = os.pipe()
        readable, called = asyncio.Event(), asyncio.Event()
        loop.add_reader(reader, _read_one, reader, readable)
        with busy_socket(poller) as served:
            for _ in range(3):
                before = served[0]
                await asyncio.sleep(0.01)  # a timer
                assert served[0] > before
                os.write(writer, b"x")  # another descriptor
                await readable.wait()
                readable.clear()
                threading.Thread(target=loop.call_soon_threadsafe, args=(called.set,)).start()
                await called.wait()
                called.clear()
        loop.remove_reader(reader)
        os.close(reader)
        os.close(writer)

    with_poller(scenario)


def test_an_idle_loop_wakes_for_each_of_them(with_poller) -> None:
    """No socket is ready: the poller waits, and returns at once."""

    async def scenario(poller: EpollPoller) -> None:
        loop = asyncio.get_running_loop()
        reader, writer = os.pipe()
        for _ in range(3):
            readable = asyncio.Event()
            loop.add_reader(reader, _read_one, reader, readable)
            threading.Timer(0.01, os.write, (writer, b"x")).start()
            await readable.wait()
            await asyncio.to_thread(lambda: None)
            begun = loop.time()
            await asyncio.sleep(0.01)
            assert loop.time() - begun >= 0.009
        loop.remove_reader(reader)
        os.close(reader)
        os.close(writer)

    with_poller(scenario)


def test_a_callback_that_a_turn_schedules_runs_next(with_poller) -> None:
    """The loop does not wait for another socket before it runs what the callback of one has scheduled."""

    async def scenario(poller: EpollPoller) -> None:
        loop = asyncio.get_running_loop()
        server, client = socket.socketpair()
        soon, later = asyncio.Event(), asyncio.Event()

        def read() -> None:
            server.recv(1)
            loop.call_soon(soon.set)
            loop.call_later(0.001, later.set)

        poller.add_reader(server.fileno(), read)
        client.send(b"x")
        await soon.wait()
        await later.wait()
        poller.forget(server.fileno())
        server.close()
        client.close()

    with_poller(scenario)


def test_an_error_in_a_turn_is_reported_and_the_loop_goes_on(with_poller) -> None:
    """As asyncio does with an error in a callback."""

    async def scenario(poller: EpollPoller) -> None:
        loop = asyncio.get_running_loop()
        reported: list[str] = []
        loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))
        server, client = socket.socketpair()
        calls: list[bytes] = []

        def read() -> None:
            calls.append(server.recv(1))
            if len(calls) == 1:
                raise RuntimeError("as asked")

        poller.add_reader(server.fileno(), read)
        client.send(b"a")
        await asyncio.sleep(0.01)
        client.send(b"b")
        await asyncio.sleep(0.01)
        assert (reported, calls) == (["RuntimeError('as asked')"], [b"a", b"b"])
        poller.forget(server.fileno())
        server.close()
        client.close()

    with_poller(scenario)


def test_a_second_poller_is_served_beside_the_first(with_poller) -> None:
    """Nodes in one process share a loop, which waits in the poller of the first."""

    async def scenario(poller: EpollPoller) -> None:
        second = EpollPoller(asyncio.get_running_loop())
        with busy_socket(poller) as one, busy_socket(second) as two:
            await asyncio.sleep(0.02)
            before = one[0], two[0]
            await asyncio.sleep(0.02)
            assert one[0] > before[0]
            assert two[0] > before[1]
        second.close()

    with_poller(scenario)
