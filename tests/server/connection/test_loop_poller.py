"""The poller of systems without epoll: the event loop calls back for sockets, the poller runs turns."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from tidegate.server.connection import poller as module
from tidegate.server.connection.poller import LoopPoller, make_poller


class Recorded:
    """The `Turns` of a poller. waits: how many of them leave a channel waiting."""

    def __init__(self, waits: int = 0) -> None:
        self.at_ns = 0
        self.waits = waits
        self.calls: list[str] = []

    def begin_turn(self, since_ns: int) -> None:
        """Note the beginning."""
        self.calls.append("begin")

    def finish_turn(self, until_ns: int) -> bool:
        """Note the end."""
        self.calls.append("finish")
        self.waits -= 1
        return self.waits >= 0


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Return a loop."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return the two ends of a connection, which do not block."""
    own, other = socket.socketpair()
    with own, other:
        own.setblocking(False)
        yield own, other


def run_some(loop: asyncio.AbstractEventLoop, rounds: int = 5) -> None:
    """Run a few iterations of the loop: the callbacks of its ready sockets, and those that are due."""
    for _ in range(rounds):
        loop.run_until_complete(asyncio.sleep(0))


def test_it_is_made_where_there_is_no_epoll(loop, monkeypatch) -> None:
    """Such as on macOS."""
    monkeypatch.delattr(module.select, "epoll")
    assert type(make_poller(loop)) is LoopPoller


def test_wake_runs_one_turn_and_another_while_a_channel_waits(loop) -> None:
    """However often it is asked for before the turn."""
    poller, turns = LoopPoller(loop), Recorded(waits=2)
    poller.serve_in(turns)
    for _ in range(3):
        poller.wake()
    assert turns.calls == []
    run_some(loop)
    assert turns.calls == ["begin", "finish"] * 3
    poller.wake()
    run_some(loop)
    assert turns.calls == ["begin", "finish"] * 4


def test_calls_in_turn_come_once_between_its_beginning_and_its_end(loop) -> None:
    """The late ones behind the others, and none after `close`."""
    poller, turns = LoopPoller(loop), Recorded()
    poller.serve_in(turns)
    poller.call_late_in_turn(lambda: turns.calls.append("late"), "alice")
    poller.call_in_turn(lambda: turns.calls.append("call"), "bob")
    run_some(loop)
    assert turns.calls == ["begin", "call", "late", "finish"]
    poller.call_in_turn(lambda: turns.calls.append("call"), "bob")
    poller.close()
    run_some(loop)
    assert turns.calls == ["begin", "call", "late", "finish"]


def test_sockets_are_called_until_they_are_paused_or_forgotten(loop, ends) -> None:
    """Reading goes on where it was paused; a forgotten socket is not looked at."""
    poller, (own, other), calls = LoopPoller(loop), ends, []
    fd = own.fileno()
    poller.set_client(fd, None)
    poller.add_reader(fd, lambda: calls.append(own.recv(1)))
    other.sendall(b"ab")
    run_some(loop)
    assert calls == [b"a", b"b"]
    poller.pause_reader(fd, lambda: calls.append("broken"))
    poller.watch(fd, lambda: calls.append("early"), lambda is_broken: calls.append("gone"))
    other.sendall(b"c")
    run_some(loop)
    assert calls == [b"a", b"b"]
    poller.unwatch(fd)
    poller.add_reader(fd, lambda: calls.append(own.recv(1)))
    run_some(loop)
    assert calls.pop() == b"c"
    poller.add_writer(fd, lambda: calls.append("room"))
    run_some(loop, 1)
    assert "room" in calls
    poller.remove_writer(fd)
    calls.clear()
    poller.add_writer(fd, lambda: calls.append("room"))
    poller.forget(fd)
    other.sendall(b"d")
    run_some(loop)
    assert calls == []
