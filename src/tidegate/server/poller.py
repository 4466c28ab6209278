"""One epoll for all channels, itself watched by the event loop.

The loop is woken once for a batch of sockets instead of once for each: its own bookkeeping for every ready socket
(a handle, a context, a queue) costs more than a small request. Timers, signals and everything else stay with the loop.
Where there is no epoll, channels register with the loop itself.
"""

import asyncio
import select
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["EpollPoller", "LoopPoller", "Poller", "make_poller"]

BATCH = 64
"""Sockets served before timers and new connections get a turn; at most as many are answered together."""
TURN_NS = 8_000_000
"""After so long the rest of a batch waits until the loop's other work had its turn."""
_BROKEN = getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class Poller(Protocol):
    """Calls back when a socket can be read or written."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` can be read."""

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> object:
        """Stop that until `add_reader`; call `on_broken` if the connection breaks meanwhile, where that is told."""

    def add_writer(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` can be written."""

    def remove_writer(self, fd: int) -> object:
        """Stop that."""

    def forget(self, fd: int) -> None:
        """Stop everything: the socket is closed next."""

    def surround(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call `before` and `after` around the callbacks of sockets that are ready together, if it knows them."""

    def close(self) -> None:
        """Let go of everything."""


class EpollPoller:
    """A `Poller` over one epoll."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._loop = loop
        self._monotonic_ns = monotonic_ns
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._paused: dict[int, Callable[[], None]] = {}
        self._masks: dict[int, int] = {}
        self._left: list[tuple[int, int]] = []  # what was ready when the turn was over
        self._before: Callable[[], None] = _nothing
        self._after: Callable[[], None] = _nothing
        loop.add_reader(self._epoll.fileno(), self._serve_ready)

    def surround(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call `before` and `after` around the callbacks of sockets that are ready together."""
        self._before, self._after = before, after

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be read."""
        self._paused.pop(fd, None)
        self._readers[fd] = callback
        self._update(fd)

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Stop that until `add_reader`; call `on_broken` if the connection breaks meanwhile."""
        self._readers.pop(fd, None)
        self._paused[fd] = on_broken
        self._update(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be written."""
        self._writers[fd] = callback
        self._update(fd)

    def remove_writer(self, fd: int) -> None:
        """Stop that."""
        self._writers.pop(fd, None)
        self._update(fd)

    def forget(self, fd: int) -> None:
        """Stop everything. The kernel takes a socket out by itself when it is closed."""
        for callbacks in (self._readers, self._writers, self._paused):
            callbacks.pop(fd, None)
        self._masks.pop(fd, None)

    def close(self) -> None:
        """Let go of the epoll."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _update(self, fd: int) -> None:
        """Tell the kernel what to report of a socket; that it is broken is reported always."""
        mask = (select.EPOLLIN if fd in self._readers else 0) | (
            select.EPOLLOUT if fd in self._writers else 0
        )
        before = self._masks.get(fd)
        if before is None:
            self._epoll.register(fd, mask)
        elif before != mask:
            self._epoll.modify(fd, mask)
        self._masks[fd] = mask

    def _serve_ready(self) -> None:
        served = 0
        until_ns = self._monotonic_ns() + TURN_NS
        while served < BATCH and (ready := self._left or self._epoll.poll(0, BATCH - served)):
            self._left = []
            served += len(ready)
            if len(ready) == 1:
                over = self._call_back(ready, until_ns)
            else:
                self._before()
                try:
                    over = self._call_back(ready, until_ns)
                finally:
                    self._after()
            if over:
                return

    def _call_back(self, ready: list[tuple[int, int]], until_ns: int) -> bool:
        """Call back for each; return whether the turn is over. Who comes after that is the first in the next one."""
        readers, writers, monotonic_ns = self._readers, self._writers, self._monotonic_ns
        rest = iter(ready)
        for fd, events in rest:
            if events & select.EPOLLOUT and fd in writers:
                writers[fd]()
            if events != select.EPOLLOUT:
                callback = readers.get(fd) or writers.get(fd) or (events & _BROKEN and self._paused.get(fd))
                if callback:
                    callback()
            if monotonic_ns() >= until_ns:
                # A break is reported again: by then the number may be that of another socket.
                self._left = [(fd, events & ~_BROKEN) for fd, events in rest if events & ~_BROKEN]
                return True
        return False


class LoopPoller:
    """A `Poller` that is the event loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.add_reader = loop.add_reader
        self.add_writer = loop.add_writer
        self.remove_writer = loop.remove_writer
        self._remove_reader = loop.remove_reader

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Stop reading; what happens meanwhile is not told."""
        self._remove_reader(fd)

    def forget(self, fd: int) -> None:
        """Stop everything."""
        self._remove_reader(fd)
        self.remove_writer(fd)

    def surround(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Do nothing: the loop calls back for each socket by itself."""

    def close(self) -> None:
        """Do nothing."""


def _nothing() -> None:
    pass


def make_poller(loop: asyncio.AbstractEventLoop) -> Poller:
    """Return the fastest poller there is."""
    return EpollPoller(loop) if hasattr(select, "epoll") else LoopPoller(loop)
