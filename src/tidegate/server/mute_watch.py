"""Notice, without reading, what happens on muted sockets: the client has gone, or came back too early.

A second epoll, edge-triggered, is itself watched by the event loop: ten thousand idle muted connections cost
nothing, a closure is noticed at once (KIP-219 asks for bounded time) and the first early bytes tell how obedient
the client is. Where there is no epoll, closure is noticed when the throttle ends.
"""

import asyncio
import logging
import select
from collections.abc import Callable

from tidegate.server.channel import Channel

__all__ = ["MuteWatch"]

_log = logging.getLogger("tidegate.server")

_BATCH = 256


class MuteWatch:
    """Watches the muted channels of one node.

    on_early: the client's next bytes arrived while it should hold back (called once per throttle).
    on_gone: the client closed its end; whether bytes wait unread is the callee's to find out.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        on_early: Callable[[Channel], None],
        on_gone: Callable[[Channel, bool], None],
    ) -> None:
        self._loop = loop
        self._on_early = on_early
        self._on_gone = on_gone
        self._channels: dict[int, Channel] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._on_events)

    def add(self, channel: Channel) -> None:
        """Watch a channel that was just muted."""
        if self._epoll is not None:
            self._channels[channel.fd] = channel
            self._epoll.register(channel.fd, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)

    def remove(self, channel: Channel) -> None:
        """Stop watching, before its socket is read again or closed."""
        if self._epoll is not None and self._channels.pop(channel.fd, None) is not None:
            self._epoll.unregister(channel.fd)

    def close(self) -> None:
        """Let go of the epoll."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _on_events(self) -> None:
        assert self._epoll is not None
        for fd, events in self._epoll.poll(0, _BATCH):
            channel = self._channels.get(fd)
            if channel is None:
                continue
            try:
                if events & select.EPOLLIN and not events & select.EPOLLRDHUP:
                    self._on_early(channel)
                elif events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
                    self._on_gone(channel, bool(events & (select.EPOLLHUP | select.EPOLLERR)))
            except Exception:  # what is told once must not be lost to the others
                _log.exception("connection %d cannot be watched while muted; closing", channel.connection.id)
                channel.close()
