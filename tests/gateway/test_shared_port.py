"""One port for several brokers, in this process: the cost of many waiting connections, and which of them are closed."""

import asyncio
import gc
import resource
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator

import pytest
from tests.descriptors import limited_descriptors
from tests.gateway.named_brokers import PATTERN, hello_of, name_of
from tests.server.nodes import until

from tidegate.gateway.addresses import ServerNames
from tidegate.gateway.broker_part import BrokerPart
from tidegate.gateway.shared_port import SharedPort
from tidegate.server.authentication.logins import MAX_LOGIN_S
from tidegate.server.connection.poller import make_poller
from tidegate.server.connection.transport import Transport
from tidegate.server.listening.acceptor import MAX_WAITING
from tidegate.server.settings.config import ServerConfig

MANY = 900
MOST_HELD_MS = 4.0
"""Longest turn of the loop, in processor time: a slice of 0.3 ms, and 1 ms in which connections are accepted."""
CONFIG = ServerConfig.load({"listeners": "PLAINTEXT://127.0.0.1:0"})
HELLO = hello_of(ssl.create_default_context(), name_of(1))


class WatchedLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be advanced, and which notes its longest turn in processor time."""

    ahead_s = 0.0
    longest_ms = 0.0

    def time(self) -> float:
        """Return the time of the loop, in seconds."""
        return super().time() + self.ahead_s

    def _run_once(self) -> None:
        begun_ns = time.thread_time_ns()
        super()._run_once()  # type: ignore[misc]
        self.longest_ms = max(self.longest_ms, (time.thread_time_ns() - begun_ns) / 1e6)


class Clients:
    """Connections to a shared port, and what its part for broker 1 has accepted."""

    def __init__(self, loop: WatchedLoop) -> None:
        self.loop = loop
        self.accepted: list[Transport] = []
        self.sockets: list[socket.socket] = []
        self.port = SharedPort(CONFIG.listeners[0].address, ServerNames(PATTERN), CONFIG, loop=loop)
        self.part: BrokerPart = self.port.part(
            1, make_poller(loop), lambda transport, host: self.accepted.append(transport), lambda host: False
        )
        self.port.start()

    async def connect(self, count: int, sends: bytes = b"") -> None:
        """Connect clients, a few at a time: the queue of the kernel is bounded, and a turn of the loop is measured."""
        for number in range(count):
            self.sockets.append(socket.create_connection(("127.0.0.1", self.port.port)))
            self.sockets[-1].sendall(sends)
            if number % 4 == 0:
                await asyncio.sleep(0)

    def close(self) -> None:
        """Close everything."""
        self.part.close()
        self.port.close()
        for each in (*self.sockets, *self.accepted):
            each.close()


@pytest.fixture
def run() -> Iterator[Callable[[Callable[[Clients], Coroutine[None, None, None]]], None]]:
    """Return a function that runs a scenario with clients of a shared port."""
    _, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def run_scenario(scenario: Callable[[Clients], Coroutine[None, None, None]]) -> None:
        async def whole() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, WatchedLoop)
            clients = Clients(loop)
            try:
                await scenario(clients)
            finally:
                clients.close()

        with asyncio.Runner(loop_factory=WatchedLoop) as runner:
            runner.run(whole())

    gc.disable()  # a collection in this large process takes longer than what is measured
    yield run_scenario
    gc.enable()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def is_closed(sock: socket.socket) -> bool:
    """Return whether the other end has closed a connection."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:  # it had sent what was not read
        return True


@pytest.mark.alone
def test_late_connections_are_closed_in_slices(run, caplog):
    """None holds the loop for long, however many there are."""

    async def scenario(clients: Clients) -> None:
        await clients.connect(MANY)
        await until(lambda: len(clients.port._newcomers) == MANY)
        clients.loop.longest_ms = 0.0
        clients.loop.ahead_s = MAX_LOGIN_S + 1
        await until(lambda: not clients.port._newcomers)
        assert clients.loop.longest_ms < MOST_HELD_MS
        assert all(map(is_closed, clients.sockets))
        await clients.connect(1)
        await until(lambda: len(clients.port._newcomers) == 1)
        clients.loop.ahead_s += MAX_LOGIN_S + 1
        await until(lambda: not clients.port._newcomers)

    run(scenario)
    assert len(caplog.records) == MANY + 1


@pytest.mark.alone
def test_more_silent_connections_than_may_wait_do_not_hold_the_loop(run):
    """The oldest are closed, one for each that comes, and another client is served."""

    async def scenario(clients: Clients) -> None:
        clients.loop.longest_ms = 0.0
        await clients.connect(MAX_WAITING + 200)
        await until(lambda: is_closed(clients.sockets[199]))
        clients.part.start()
        await clients.connect(1, HELLO)
        await until(lambda: len(clients.accepted) == 1)
        assert clients.loop.longest_ms < MOST_HELD_MS
        assert not is_closed(clients.sockets[201])

    run(scenario)


@pytest.mark.alone
def test_connections_to_a_broker_that_becomes_unreachable_are_closed_in_slices(run):
    """Those that wait for its node; connections that come afterwards, when it can be reached again, are served."""

    async def scenario(clients: Clients) -> None:
        await clients.connect(MANY, HELLO)
        await until(lambda: len(clients.part) == MANY)
        clients.loop.longest_ms = 0.0
        clients.part.refuse()
        clients.part.stop_refusing()
        refused = list(clients.sockets)
        await clients.connect(1, HELLO)
        await until(lambda: is_closed(refused[-1]))  # the last one: to ask all takes part of the turns
        assert clients.loop.longest_ms < MOST_HELD_MS
        assert all(map(is_closed, refused))
        await until(lambda: len(clients.accepted) == 1)
        assert not is_closed(clients.sockets[-1])

    run(scenario)


def test_closing_the_port_closes_what_is_still_to_be_closed(run):
    """No connection outlives the port."""

    async def scenario(clients: Clients) -> None:
        await clients.connect(50, HELLO)
        await until(lambda: len(clients.part) == 50)
        clients.part.close()
        clients.port.close()
        assert all(map(is_closed, clients.sockets))

    run(scenario)


def test_connections_that_wait_make_room_where_no_descriptor_is_left(run, caplog):
    """The oldest of them, of the broker that has most; a newcomer is served, and none is refused."""

    async def scenario(clients: Clients) -> None:
        stopped = clients.port.part(2, make_poller(clients.loop), lambda *_: None, lambda host: False)
        second = hello_of(ssl.create_default_context(), name_of(2))
        await clients.connect(3, HELLO)
        await clients.connect(20, second)
        await until(lambda: (len(clients.part), len(stopped)) == (3, 20))
        clients.sockets.append(socket.create_connection(("127.0.0.1", clients.port.port)))
        # accepted only after this turn, when no descriptor is left for it
        with limited_descriptors() as descriptors:
            descriptors.limit(descriptors.lowest_free() + 1)
            clients.port.start()
            await until(lambda: len(clients.port._newcomers) == 1)
        assert (len(clients.part), len(stopped)) == (3, 19)
        assert is_closed(clients.sockets[3])
        assert not is_closed(clients.sockets[4])
        stopped.close()

    run(scenario)
    assert not caplog.records
