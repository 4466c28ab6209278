"""One epoll for all channels, itself watched by the event loop.

The loop wakes once for a batch of sockets, not once for each: its own bookkeeping for every ready socket (a handle, a
context, a queue) costs more than a small request. The loop keeps timers, signals and everything else. On systems
without epoll, channels register with the loop itself.

When more sockets are ready than one turn serves, the poller scans all of them from time to time and serves some of
each principal first: a thousand ready connections of one tenant do not delay those of another (decision 0114).
"""

import asyncio
import random
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from tidegate.fair_share import first_in_rounds
from tidegate.server.connection.calls_in_turn import CallsInTurn
from tidegate.server.connection.mute_watch import MuteWatch
from tidegate.server.connection.turn_loop import TurnLoop
from tidegate.server.connection.turns import BATCH, SERVE_NS, Client, NoTurns, SocketPoller, Turns

__all__ = ["EpollPoller", "LoopPoller", "ScanSchedule", "make_poller"]

SCAN_EVERY_NS = 10_000_000
"""Least time between two scans of all sockets that are ready, or of all requests that wait, in ns."""
SCANNED_MOST = 4096
"""Most sockets or requests of one scan, so that a scan takes a few milliseconds at most (decision 0114)."""
SCAN_SHARE = 25
"""Least time between two scans, as a multiple of the duration of the last one."""
_ONCE = getattr(select, "EPOLLIN", 0) | getattr(select, "EPOLLONESHOT", 0)
"""Events that epoll reports once: turns continue, and the loop looks at its descriptor after them."""
_BROKEN = getattr(select, "EPOLLHUP", 0) | getattr(select, "EPOLLERR", 0)


class ScanSchedule:
    """Schedule of the scans that find connections of other principals: rare enough to cost little.

    next_ns: when the next scan may begin. ended_ns: when the last one ended. Its time is charged to no client.
    """

    __slots__ = ("ended_ns", "next_ns")

    def __init__(self) -> None:
        self.ended_ns = self.next_ns = 0

    def record(self, begun_ns: int, ended_ns: int) -> None:
        """Schedule the next scan by how long one took."""
        self.ended_ns = ended_ns
        self.next_ns = ended_ns + max(SCAN_EVERY_NS, SCAN_SHARE * (ended_ns - begun_ns))


class _TurnsOnLoop(ABC):
    """The common part of both pollers: requested turns, and calls in turns."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._loop = loop
        self._monotonic_ns = monotonic_ns
        self._turns: Turns = NoTurns()
        self._woken = False
        self._calls = CallsInTurn(self, loop, monotonic_ns)
        self.call_in_turn, self.call_late_in_turn = self._calls.schedule, self._calls.add_late

    def serve_in(self, turns: Turns) -> None:
        """Call `turns` for each turn."""
        self._turns = self._calls.turns = turns

    def wake(self) -> None:
        """Schedule a turn soon."""
        if not self._woken:
            self._woken = True
            self._loop.call_soon(self._serve_ready)

    def close(self) -> None:
        """Make no more calls."""
        self._calls.close()

    @abstractmethod
    def _serve_ready(self) -> None:
        """Run turns until no connection waits, or the time is over."""


class EpollPoller(_TurnsOnLoop):
    """A `SocketPoller` over one epoll, and a second one for sockets that are not read."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__(loop, monotonic_ns)
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        self._writers: dict[int, Callable[[], None]] = {}
        self._paused: dict[int, Callable[[], None]] = {}
        self._masks: dict[int, int] = {}
        self._clients: dict[int, Client] = {}
        self._scans = ScanSchedule()
        self._left: list[tuple[int, int]] = []  # ready sockets that were not served before the time was over
        self._mute_watch = MuteWatch(loop)
        self.watch, self.unwatch = self._mute_watch.watch, self._mute_watch.remove
        self._loop_was_ready = False
        self._loop_fd = -1  # of a loop that waits here
        self._turn_loop = loop if isinstance(loop, TurnLoop) and loop.waiter is None else None
        if self._turn_loop is None:
            loop.add_reader(self._epoll.fileno(), self._serve_ready)
        else:
            # The loop waits in `wait`, and its other descriptors are one more socket here.
            self._turn_loop.waiter = self
            self._loop_fd = self._turn_loop.fileno()
            self._readers[self._loop_fd] = self._want_loop
            self._epoll.register(self._loop_fd, _ONCE)

    def set_client(self, fd: int, client: Client) -> None:
        """Set the client of a connection."""
        self._clients[fd] = client

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be read."""
        self._paused.pop(fd, None)
        self._readers[fd] = callback
        self._update(fd)

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Stop reading `fd` until `add_reader`; call `on_broken` if the connection breaks before."""
        self._readers.pop(fd, None)
        self._paused[fd] = on_broken
        self._update(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call `callback` whenever `fd` can be written."""
        self._writers[fd] = callback
        self._update(fd)

    def remove_writer(self, fd: int) -> None:
        """Stop the calls of `add_writer`."""
        self._writers.pop(fd, None)
        self._update(fd)

    def forget(self, fd: int) -> None:
        """Remove all callbacks. The kernel removes the socket from the epoll when it is closed."""
        for callbacks in (self._readers, self._writers, self._paused):
            callbacks.pop(fd, None)
        self._masks.pop(fd, None)
        self._clients.pop(fd, None)

    def close(self) -> None:
        """Close both epolls, and stop the calls in turns."""
        super().close()
        self._mute_watch.close()
        if self._turn_loop is None:
            self._loop.remove_reader(self._epoll.fileno())
        else:
            self._turn_loop.waiter = None
        self._epoll.close()

    def wait(self, timeout_s: float | None) -> None:
        """Serve sockets until the loop has something to do, at most for `timeout_s`, or a turn longer. See `Waiter`."""
        loop = self._turn_loop
        assert loop is not None
        loop.is_wanted = False
        if self._loop_was_ready:
            self._loop_was_ready = False
            self._epoll.modify(self._loop_fd, _ONCE)
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            # Sockets that the last turns have left come first: a poll now would report them after others.
            ready = [] if self._left else self._ready_sockets(timeout_s)
            if not (ready or self._left):
                return
            try:
                self._serve_ready(ready)
            except Exception as error:
                loop.call_exception_handler({"message": "error in a turn", "exception": error})
            if loop.is_wanted or self._epoll.closed:
                return
            if until_s is not None:
                timeout_s = until_s - time.monotonic()
                if timeout_s <= 0:
                    return

    def _ready_sockets(self, timeout_s: float | None) -> list[tuple[int, int]]:
        """Return at most `BATCH` sockets that are ready, after `timeout_s` at the latest; the loop needs no turn."""
        ready: list[tuple[int, int]] = self._epoll.poll(timeout_s, BATCH)
        if len(ready) == 1 and ready[0][0] == self._loop_fd:
            self._want_loop()
            return []
        return ready

    def _want_loop(self) -> None:
        """Return from `wait`: another descriptor of the loop is ready."""
        assert self._turn_loop is not None
        self._turn_loop.is_wanted = self._loop_was_ready = True

    def _take_broken(self, fd: int) -> Callable[[], None] | None:
        """Return the callback for a broken socket that is not read, and stop epoll from reporting it again."""
        callback = self._paused.pop(fd, None)
        if callback is not None:
            # A break cannot be masked: while the socket is registered, each poll would report it again.
            self._epoll.unregister(fd)
            del self._masks[fd]
        return callback

    def _update(self, fd: int) -> None:
        """Set which events the kernel reports for a socket; it always reports a break."""
        mask = (select.EPOLLIN if fd in self._readers else 0) | (
            select.EPOLLOUT if fd in self._writers else 0
        )
        before = self._masks.get(fd)
        if before is None:
            self._epoll.register(fd, mask)
        elif before != mask:
            self._epoll.modify(fd, mask)
        self._masks[fd] = mask

    def _serve_ready(self, ready: list[tuple[int, int]] | None = None) -> None:
        """Run turns until no connection waits, or the time is over. ready: the sockets of the first turn, if known."""
        if self._epoll.closed:
            return
        turns, self._woken = self._turns, False
        # At least one turn, also without a ready socket: `wake` may have asked for it.
        more = True
        now_ns = self._monotonic_ns()
        until_ns = now_ns + SERVE_NS
        ready = self._choose(ready, now_ns) if ready else self._take_left() or self._poll(now_ns)
        while ready or more:
            if self._scans.ended_ns > now_ns:
                # A scan is charged to no client, and does not shorten the time of the turns (decision 0114).
                until_ns += self._scans.ended_ns - now_ns
                now_ns = self._scans.ended_ns
            turns.begin_turn(now_ns)
            try:
                is_over = self._call_back(ready, until_ns)
            finally:
                more = turns.finish_turn(until_ns)
            now_ns = self._monotonic_ns()
            if is_over or now_ns >= until_ns:
                # Sockets in `_left` need no wake: the epoll reports them again as long as they are ready.
                if more:
                    self.wake()
                if self._turn_loop is not None:
                    self._turn_loop.is_wanted = True
                return
            ready = self._take_left() or self._poll(now_ns)

    def _take_left(self) -> list[tuple[int, int]]:
        left, self._left = self._left, []
        return left

    def _leave(self, rest: Iterable[tuple[int, int]]) -> None:
        """Serve these sockets first in the next turn. Drop breaks, which epoll reports again.

        By the next turn the number of a broken socket may belong to another socket.
        """
        self._left[:0] = [(fd, events & ~_BROKEN) for fd, events in rest if events & ~_BROKEN]

    def _poll(self, now_ns: int) -> list[tuple[int, int]]:
        """Return the sockets of the next turn."""
        return self._choose(self._ready_sockets(0), now_ns)

    def _choose(self, ready: list[tuple[int, int]], now_ns: int) -> list[tuple[int, int]]:
        """Return the sockets of a turn: those that became ready first; after a scan, some of each principal."""
        if len(ready) < BATCH or now_ns < self._scans.next_ns:
            return ready
        clients = self._clients
        # The kernel continues behind the sockets that it has just reported, and reports those last. If all scans saw
        # the same number of sockets, they could return the same ones each time, and the others would starve.
        count = len(self._masks)
        if count > SCANNED_MOST:
            count = random.randrange(SCANNED_MOST // 2, SCANNED_MOST)
        all_ready = self._epoll.poll(0, count)
        owners = [clients[fd].owner if fd in clients else "" for fd, _ in all_ready]
        first = first_in_rounds(all_ready, owners, BATCH)
        self._scans.record(now_ns, self._monotonic_ns())
        if first:
            ready = list(dict(first + ready).items())
            self._leave(ready[BATCH:])
        return ready[:BATCH]

    def _call_back(self, ready: list[tuple[int, int]], until_ns: int) -> bool:
        """Call back for each socket; return whether the time is over. The rest is served first in the next turn."""
        readers, writers, monotonic_ns, turns = self._readers, self._writers, self._monotonic_ns, self._turns
        rest = iter(ready)
        for fd, events in rest:
            since_ns = turns.at_ns
            # Callbacks are looked up one by one: an earlier one of this turn may have closed this connection.
            if events & select.EPOLLOUT and fd in writers:
                writers[fd]()
            if events != select.EPOLLOUT:
                # Also for a broken socket: the callback's own receive or send then fails, and the channel closes.
                callback = readers.get(fd) or writers.get(fd) or (events & _BROKEN and self._take_broken(fd))
                if callback:
                    callback()
            now_ns = monotonic_ns()
            if turns.at_ns == since_ns:
                turns.at_ns = now_ns
            if now_ns >= until_ns:
                self._leave(rest)
                return True
        return False


class LoopPoller(_TurnsOnLoop):
    """A `SocketPoller` that is the event loop's own."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        super().__init__(loop, monotonic_ns)
        self.add_reader = loop.add_reader
        self.add_writer = loop.add_writer
        self.remove_writer = loop.remove_writer
        self._remove_reader = loop.remove_reader

    def set_client(self, fd: int, client: Client) -> None:
        """Ignore the client. The event loop orders its sockets itself, whatever their principal."""

    def pause_reader(self, fd: int, on_broken: Callable[[], None]) -> None:
        """Stop reading; a break is not reported."""
        self._remove_reader(fd)

    def watch(self, fd: int, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Ignore the call: nothing is reported until the socket is read again."""

    def unwatch(self, fd: int) -> None:
        """Ignore the call: `watch` watches nothing."""

    def forget(self, fd: int) -> None:
        """Stop everything."""
        self._remove_reader(fd)
        self.remove_writer(fd)

    def _serve_ready(self) -> None:
        """Run one turn: the loop calls back for each socket by itself."""
        self._woken = False
        now_ns = self._monotonic_ns()
        self._turns.begin_turn(now_ns)
        if self._turns.finish_turn(now_ns + SERVE_NS):
            self.wake()


def make_poller(
    loop: asyncio.AbstractEventLoop, monotonic_ns: Callable[[], int] = time.monotonic_ns
) -> SocketPoller:
    """Return the fastest poller of this system."""
    return EpollPoller(loop, monotonic_ns) if hasattr(select, "epoll") else LoopPoller(loop, monotonic_ns)
