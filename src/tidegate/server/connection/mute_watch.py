"""Detect, without reading, that the client of a muted connection has left or sends before its throttle ends.

The event loop watches a second epoll, which is edge-triggered. So ten thousand idle muted connections cost nothing, a
close is detected at once (KIP-219 requires a bounded time), and the first early bytes show whether the client obeys
throttle times.
"""

import asyncio
import select
from collections.abc import Callable

__all__ = ["MuteWatch"]

_BATCH = 16
"""Most sockets at a time. To charge a client that left for the requests it sent can take 0.3 ms (`gateway.ahead`)."""


class MuteWatch:
    """Watches sockets that are not read.

    on_early: called when bytes of the client arrive during the throttle; once per throttle.
    on_gone: called when the client has closed its end, with whether the connection is broken. It checks itself whether
        unread bytes wait.

    Neither may raise: the events of other sockets, which are reported only once, would be lost.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watched: dict[int, tuple[Callable[[], None], Callable[[bool], None]]] = {}
        self._epoll = select.epoll()
        loop.add_reader(self._epoll.fileno(), self._on_events)

    def watch(self, fd: int, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Watch a socket that is left unread."""
        self._watched[fd] = on_early, on_gone
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, fd: int) -> None:
        """Stop watching, before the socket is read again or closed. Harmless where it is not watched."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching and close the epoll."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _on_events(self) -> None:
        for fd, events in self._epoll.poll(0, _BATCH):
            watched = self._watched.get(fd)
            if watched is None:
                continue
            on_early, on_gone = watched
            if events & select.EPOLLIN and not events & select.EPOLLRDHUP:
                on_early()
            elif events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                on_gone(bool(events & (select.EPOLLHUP | select.EPOLLERR)))
