"""One client connection: bytes in, frames out; answers in, bytes out; deaf while its client is throttled.

A channel has at most one request in flight, as in Kafka: the next frame is looked at only after the previous
answer has left *and* its throttle is over. Those are the two bits of `held`; both clear is NOT_MUTED of B§6.6 (a test
walks them through `tidegate.quota.ChannelMute`, which has the table).
The socket stays in the poller all the time, except while throttled, while too much waits unread,
or when its output is full.

Bounds: `PENDING_BYTES` plus one receive of bytes that came early, one request of `socket.request.max.bytes`, and one
answer on the way out.
"""

import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidegate.server.buffers import FrameBuffers
from tidegate.server.handler import Connection, Deferred
from tidegate.server.poller import Poller
from tidegate.server.sending import Sendable, discard, send_some

__all__ = ["ANSWER_DUE", "PENDING_BYTES", "THROTTLED", "Channel", "ChannelOwner"]

PENDING_BYTES = 64 * 1024  # early bytes kept before the socket is left alone
ANSWER_DUE = 1  # a request was taken and its answer has not left completely
THROTTLED = 2  # muted until its throttle ends (KIP-219)
_NO_BYTES = memoryview(b"")
_read_length = struct.Struct(">i").unpack_from


class ChannelOwner(Protocol):
    """What a channel tells the front."""

    def on_frame(self, channel: "Channel", frame: memoryview, started_ns: int, more: bool) -> None:
        """Serve one request: the bytes after the length prefix, valid during this call unless `keep_frame` is called.

        `more`: bytes after it wait, to be served as soon as its answer has left.
        """

    def on_bad_frame(self, channel: "Channel", reason: str) -> None:
        """Learn that the client broke the protocol; the channel closes next."""

    def on_answer_left(self, channel: "Channel") -> None:
        """Learn that an answer that could not leave at once has left now."""

    def on_closed(self, channel: "Channel") -> None:
        """Forget the channel."""


class Channel:
    """The server's end of one connection. Everything runs on the event loop."""

    __slots__ = (
        "_buffers",
        "_filled",
        "_frame",
        "_frame_bytes",
        "_frame_kept",
        "_max_frame_bytes",
        "_monotonic_ns",
        "_out",
        "_owner",
        "_pending",
        "_poller",
        "_reading",
        "_since_ns",
        "_sock",
        "_view",
        "_writing",
        "cache",
        "closed",
        "connection",
        "deferred",
        "early_ms",
        "fd",
        "held",
        "last_active_ns",
        "late",
        "network_ns",
        "throttle_ends_ns",
    )

    def __init__(
        self,
        sock: socket.SocketType,
        connection: Connection,
        *,
        owner: ChannelOwner,
        poller: Poller,
        buffers: FrameBuffers,
        monotonic_ns: Callable[[], int],
        max_frame_bytes: int,
    ) -> None:
        self.connection = connection
        self.fd = sock.fileno()
        self.held = 0
        self.closed = False
        self.deferred: Deferred | None = None
        self.early_ms: int | None = None
        self.network_ns = 0  # spent receiving and sending since it was last charged
        self.throttle_ends_ns = 0
        self.last_active_ns = monotonic_ns()
        self.cache: Any = None  # the owner's: names of this connection in the usage record
        self.late: Any = None  # the owner's: what to charge when a late answer has left
        self._sock = sock
        self._owner = owner
        self._poller = poller
        self._buffers = buffers
        self._monotonic_ns = monotonic_ns
        self._max_frame_bytes = max_frame_bytes
        self._pending = bytearray()  # bytes not looked at: they came early, or are fewer than a length prefix
        self._frame: bytearray | None = None  # a frame of known length that is still coming in
        self._frame_bytes = 0
        self._frame_kept = False  # the owner goes on using the frame that it was given
        self._view = _NO_BYTES
        self._filled = 0
        self._since_ns = 0
        self._out: deque[Sendable] = deque()
        self._writing = False
        self._reading = True
        poller.add_reader(self.fd, self._on_readable)

    # --- bytes in -------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        self.last_active_ns = self._since_ns = self._monotonic_ns()
        target = self._buffers.scratch if self._frame is None else self._view[self._filled :]
        try:
            count = self._sock.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            count = 0
        if not count:
            self.close()
            return
        if self._frame is not None:
            self._filled += count
            self._take_filled()
        elif self._pending:
            self._pending += target[:count]
            self._consume_pending()
        else:
            self._consume(target[:count])

    def _consume(self, data: memoryview) -> None:
        """Serve the whole frames in `data` while nothing is held; keep the rest."""
        at, end = 0, len(data)
        while not self.held and end - at >= 4:
            (size,) = _read_length(data, at)
            if not 0 <= size <= self._max_frame_bytes:
                self._refuse(size)
                return
            at += 4
            frame_end = at + size
            if end < frame_end:
                self._begin_frame(data[at:], size)
                return
            self.held = ANSWER_DUE
            now_ns = self._monotonic_ns()
            self.network_ns += now_ns - self._since_ns
            self._owner.on_frame(self, data[at:frame_end], now_ns, frame_end < end)
            self._since_ns = self._monotonic_ns()  # what the owner did is not the network's time
            at = frame_end
            if self.closed:
                return
        if at < end:
            self._pending += data[at:]
            if self.held and len(self._pending) >= PENDING_BYTES:
                self._stop_reading()
            self.network_ns += self._monotonic_ns() - self._since_ns

    def _consume_pending(self) -> None:
        if self.held:
            if len(self._pending) >= PENDING_BYTES:
                self._stop_reading()
            return
        early, self._pending = self._pending, bytearray()
        self._consume(memoryview(early))

    def _refuse(self, size: int) -> None:
        self._owner.on_bad_frame(self, f"frame length is {size}, expected 0 to {self._max_frame_bytes} bytes")
        self.close()

    def _begin_frame(self, data: memoryview, size: int) -> None:
        self._frame = self._buffers.take(size)
        self._frame_bytes = size
        self._filled = len(data)
        self._view = memoryview(self._frame)[:size]
        self._view[: len(data)] = data
        self.network_ns += self._monotonic_ns() - self._since_ns

    def _take_filled(self) -> None:
        """Serve the collected frame if it is whole, or make room for more of it."""
        assert self._frame is not None
        if self._filled == self._frame_bytes:
            frame, view = self._frame, self._view
            self._frame, self._view = None, _NO_BYTES
            self.held = ANSWER_DUE
            now_ns = self._monotonic_ns()
            self.network_ns += now_ns - self._since_ns
            self._frame_kept = False
            self._owner.on_frame(self, view, now_ns, False)
            if not self._frame_kept:
                self._buffers.give_back(frame)
            return
        if self._filled == len(self._frame):
            self._frame = self._buffers.grown(self._frame, self._frame_bytes)
            self._view = memoryview(self._frame)
        self.network_ns += self._monotonic_ns() - self._since_ns

    def keep_frame(self) -> None:
        """Leave the frame that `on_frame` is being given to the owner: its memory is not used again."""
        self._frame_kept = True
        self._buffers.renew_scratch()

    # --- bytes out ------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Sendable]) -> bool:
        """Send one answer. True: it has left; False: the rest follows, and `on_answer_left` tells when it has."""
        if self.closed:
            discard(buffers)
            return True
        started_ns = self._monotonic_ns()
        sent = 0
        try:
            if len(buffers) == 1:
                sent = self._sock.send(buffers[0])
                done = sent == len(buffers[0])
            else:
                self._out.extend(buffers)
                done = send_some(self._sock, self._out)
        except (BlockingIOError, InterruptedError):
            done = False
        except OSError:
            self.close()
            return True
        if not done:
            if len(buffers) == 1:
                self._out.append(memoryview(buffers[0])[sent:])
            self._writing = True
            self._poller.add_writer(self.fd, self._on_writable)
        self.network_ns += self._monotonic_ns() - started_ns
        return done

    def _on_writable(self) -> None:
        started_ns = self._monotonic_ns()
        self.last_active_ns = started_ns
        try:
            done = send_some(self._sock, self._out)
        except OSError:
            self.close()
            return
        self.network_ns += self._monotonic_ns() - started_ns
        if done:
            self._writing = False
            self._poller.remove_writer(self.fd)
            self._owner.on_answer_left(self)
            self.release_hold(ANSWER_DUE)

    # --- muting ---------------------------------------------------------------------------------------------------

    def mute(self, ends_ns: int) -> None:
        """Stop listening until `unmute`. Follows: THROTTLE_STARTED of B§6.6."""
        self.held |= THROTTLED
        self.throttle_ends_ns = ends_ns
        self._stop_reading()

    def unmute(self) -> None:
        """End the throttle. Follows: THROTTLE_ENDED of B§6.6."""
        if not self.closed:
            self.release_hold(THROTTLED)

    def release_hold(self, bit: int) -> None:
        """Clear one reason for not listening; with none left, serve what waits and listen again."""
        self.held &= ~bit
        if self.held or self.closed:
            return
        if self._pending:
            self._since_ns = self._monotonic_ns()
            self._consume_pending()
        if not self.closed and not self.held & THROTTLED and len(self._pending) < PENDING_BYTES:
            self._start_reading()

    @property
    def sending(self) -> bool:
        """Whether part of an answer waits for the client to read."""
        return self._writing

    def unread_bytes(self) -> int:
        """Return how many bytes were received and not looked at (those in the kernel's buffer aside)."""
        return len(self._pending)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._poller.remove_reader(self.fd)

    def _start_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._poller.add_reader(self.fd, self._on_readable)

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the socket at once and let go of everything. Harmless when closed already."""
        if self.closed:
            return
        self.closed = True
        self._poller.forget(self.fd)
        discard(self._out)
        self._out.clear()
        self._owner.on_closed(self)
        if self.deferred is not None:
            self.deferred.cancel()
            self.deferred = None
        self._sock.close()
