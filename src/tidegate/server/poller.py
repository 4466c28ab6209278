"""One epoll for all channels, itself watched by the event loop.

The loop is woken once for a batch of sockets instead of once for each: its own bookkeeping for every ready socket
(a handle, a context, a queue) costs more than a small request. Timers, signals and everything else stay with the loop.
Where there is no epoll, channels register with the loop itself.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Protocol

__all__ = ["EpollPoller", "LoopPoller", "Poller", "make_poller"]

BATCH = 64
"""Sockets served before timers and new connections get a turn; at most as many are answered together."""


class Poller(Protocol):
    """Calls back when a socket can be read or written."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` can be read."""

    def remove_reader(self, fd: int) -> object:
        """Stop that."""

    def add_writer(self, fd: int, callback: Callable[[], None]) -> object:
        """Call `callback` whenever `fd` can be written."""

    def remove_writer(self, fd: int) -> object:
        """Stop that."""

    def forget(self, fd: int) -> None:
        """Stop both: the socket is closed next."""

    def surround(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call `before` and `after` around the callbacks of sockets that are ready together, if it knows them."""

    def close(self) -> None:
        """Let go of everything."""


class EpollPoller:
    """A `Poller` over one epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._before: Callable[[], None] = _nothing
        self._after: Callable[[], None] = _nothing
        loop.add_reader(self._epoll.fileno(), self._serve_ready)

    def surround(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Call `before` and `after` around the callbacks of sockets that are ready together."""
        self._before, self._after = before, after

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be read."""
        self._update(fd, self._readers, callback)

    def remove_reader(self, fd: int) -> None:
        """Stop that."""
        self._update(fd, self._readers, None)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be written."""
        self._update(fd, self._writers, callback)

    def remove_writer(self, fd: int) -> None:
        """Stop that."""
        self._update(fd, self._writers, None)

    def forget(self, fd: int) -> None:
        """Stop both. The kernel takes a socket out by itself when it is closed."""
        self._readers.pop(fd, None)
        self._writers.pop(fd, None)

    def close(self) -> None:
        """Let go of the epoll."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _update(
        self, fd: int, callbacks: dict[int, Callable[[], None]], callback: Callable[[], None] | None
    ) -> None:
        """Set or remove one callback. A socket without any is taken out: a closed one would be reported for ever."""
        before = self._mask(fd)
        if callback is None:
            callbacks.pop(fd, None)
        else:
            callbacks[fd] = callback
        after = self._mask(fd)
        if not before and after:
            self._epoll.register(fd, after)
        elif before and not after:
            self._epoll.unregister(fd)
        elif before != after:
            self._epoll.modify(fd, after)

    def _mask(self, fd: int) -> int:
        return (select.EPOLLIN if fd in self._readers else 0) | (
            select.EPOLLOUT if fd in self._writers else 0
        )

    def _serve_ready(self) -> None:
        served = 0
        while served < BATCH and (ready := self._epoll.poll(0, BATCH - served)):
            served += len(ready)
            if len(ready) == 1:
                self._call_back(ready)
                continue
            self._before()
            try:
                self._call_back(ready)
            finally:
                self._after()

    def _call_back(self, ready: list[tuple[int, int]]) -> None:
        readers, writers = self._readers, self._writers
        for fd, events in ready:
            if events & select.EPOLLOUT and fd in writers:
                writers[fd]()
            if events != select.EPOLLOUT:
                callback = readers.get(fd) or writers.get(fd)
                if callback is not None:
                    callback()


class LoopPoller:
    """A `Poller` that is the event loop's own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.add_reader = loop.add_reader
        self.remove_reader = loop.remove_reader
        self.add_writer = loop.add_writer
        self.remove_writer = loop.remove_writer

    def forget(self, fd: int) -> None:
        """Stop both."""
        self.remove_reader(fd)
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
