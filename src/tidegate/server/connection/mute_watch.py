"""Notice, without reading, what happens on muted sockets: the client has gone, or came back too early.

A second epoll, edge-triggered, is itself watched by the event loop: ten thousand idle muted connections cost
nothing, a closure is noticed at once (KIP-219 asks for bounded time) and the first early bytes show how obedient
the client is.
"""

import asyncio
import select
from collections.abc import Callable

__all__ = ["MuteWatch"]

_BATCH = 16
"""Most sockets at a time. To charge a client that has left for what it had sent can take 0.3 ms (`gateway.ahead`)."""


class MuteWatch:
    """Watches sockets that are not read.

    on_early: the client's next bytes arrived while it should hold back (called once per throttle).
    on_gone: the client closed its end, and whether the connection is broken; whether bytes wait unread is the callee's
        to find out.

    Neither may raise: what is reported once must not be lost to the others.
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
