"""One client connection: bytes in, frames out; answers in, bytes out; deaf while its client is throttled.

A channel has at most one request in flight, as in Kafka: the next frame is looked at only after the previous
answer has left *and* its throttle is over. Those are the two bits of `held`; both clear is NOT_MUTED of B§6.6 (a test
walks them through `tidegate.quota.ChannelMute`, which has the table).
The socket is read all the time, except while throttled, while too much waits unread, while the node has no memory
for its request, and after the client's last byte. A client that has sent its last byte (and may still read) is served
what it sent, and gets its answers, before the channel closes.

Bounds: `PENDING_BYTES` plus one receive of bytes that came early, one request of `socket.request.max.bytes` out of the
node's `RequestMemory`, one answer on the way out, and `SERVE_NS` of requests behind one another in a turn of the loop.
"""

import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.server.buffers import FrameBuffer, FrameBuffers
from tidegate.server.handler import Connection, Deferred
from tidegate.server.poller import Poller
from tidegate.server.request_memory import RequestMemory
from tidegate.server.sending import Sendable, discard, send_some
from tidegate.wire import RequestHeader

__all__ = [
    "ANSWER_DUE",
    "COLLECTED_BYTES",
    "GONE_PROBES",
    "PENDING_BYTES",
    "SERVE_NS",
    "THROTTLED",
    "Channel",
    "ChannelOwner",
]

PENDING_BYTES = 64 * 1024  # early bytes kept before the socket is left alone
COLLECTED_BYTES = 16 * 1024  # so much of a frame has come when it gets a buffer of its own
ANSWER_DUE = 1  # a request was taken and its answer has not left completely
THROTTLED = 2  # muted until its throttle ends (KIP-219)
SERVE_NS = 2_000_000  # after so long the next request waits until the others had their turn
GONE_PROBES = [
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""How a client that has sent its last byte and waits for an answer is asked whether it is still there, in seconds."""
_LENGTH_BYTES = 4
_NO_BYTES = memoryview(b"")
_HTTP_METHODS = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"CONN", b"OPTI", b"TRAC", b"PATC", b"PRI ")
_read_length = struct.Struct(">i").unpack_from


class ChannelOwner(Protocol):
    """What a channel tells the front."""

    def on_frame(self, channel: "Channel", frame: memoryview, started_ns: int, more: bool) -> None:
        """Serve one request: the bytes after the length prefix, valid during this call unless `keep_frame` is called.

        `more`: bytes after it wait, to be served as soon as its answer has left.
        """

    def on_bad_frame(self, channel: "Channel", reason: str) -> None:
        """Learn that the client broke the protocol; the channel closes next."""

    def on_unserved(self, channel: "Channel") -> None:
        """Learn that requests wait that the others' turn has put off: call `serve_waiting` in a later turn."""

    def on_failed(self, channel: "Channel", error: Exception) -> None:
        """Learn of an error of ours; the channel closes next."""

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
        "_memory",
        "_monotonic_ns",
        "_needed",
        "_out",
        "_owner",
        "_poller",
        "_reading",
        "_since_ns",
        "_sock",
        "_unserved",
        "_view",
        "_wants_memory",
        "_writing",
        "answered",
        "answered_exempt",
        "closed",
        "connection",
        "deferred",
        "early_ms",
        "ended",
        "fd",
        "held",
        "last_active_ns",
        "network_ns",
        "pending",
        "sent_ns",
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
        memory: RequestMemory,
        monotonic_ns: Callable[[], int],
        max_frame_bytes: int,
    ) -> None:
        self.connection = connection
        self.fd = sock.fileno()
        self.held = 0
        self.closed = False
        self.ended = False  # the client's last byte was received
        self.deferred: Deferred | None = None
        self.early_ms: int | None = None
        self.network_ns = 0  # spent receiving since it was last charged
        self.sent_ns = 0  # spent sending since it was last charged
        self.answered: RequestHeader | None = None  # the request whose answer that was
        self.answered_exempt = False
        self.throttle_ends_ns = 0
        self.last_active_ns = monotonic_ns()
        self.pending = bytearray()  # bytes not looked at: they came early, or are the beginning of a frame
        self._sock = sock
        self._owner = owner
        self._poller = poller
        self._buffers = buffers
        self._memory = memory
        self._monotonic_ns = monotonic_ns
        self._max_frame_bytes = max_frame_bytes
        self._needed = 0  # bytes that `pending` must have before it is looked at again
        self._unserved = False  # whole frames wait in `pending` for the others' turn
        self._wants_memory = False
        self._frame: FrameBuffer | None = None  # a frame of known length that is still coming in
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
        """Receive once, and serve what is whole."""
        self.last_active_ns = self._since_ns = self._monotonic_ns()
        if self._frame is not None:
            target = self._view[self._filled :]
        elif self.held:
            target = self._buffers.scratch[: max(PENDING_BYTES - len(self.pending), 1)]
        else:
            target = self._buffers.scratch
        try:
            count = self._sock.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        try:
            if not count:
                self._on_last_byte()
            elif self._frame is not None:
                self._filled += count
                self._take_filled()
            elif self.pending:
                self.pending += target[:count]
                self._consume_pending()
            else:
                self._consume(target[:count])
        except Exception as error:
            self._owner.on_failed(self, error)
            self.close()

    def _on_last_byte(self) -> None:
        """Close when nothing is under way; otherwise when all that came whole is answered, or the client is gone.

        A client that has closed its socket looks like one that still reads. So it is asked now and then, by the
        kernel: its host answers for a minute that all is well, and then that it knows of no such connection.
        """
        self.ended = True
        if self.held:
            self._stop_reading()
            with contextlib.suppress(OSError):
                for option, value in GONE_PROBES:
                    self._sock.setsockopt(socket.IPPROTO_TCP, option, value)
        else:
            self.close()

    def _consume(self, data: memoryview) -> None:
        """Serve the whole frames in `data` while nothing is held; keep the rest."""
        at, end = 0, len(data)
        until_ns = self._since_ns + SERVE_NS
        while not self.held and end - at >= _LENGTH_BYTES:
            (size,) = _read_length(data, at)
            if not 0 <= size <= self._max_frame_bytes:
                self._refuse(size)
                return
            frame_at = at + _LENGTH_BYTES
            frame_end = frame_at + size
            if end < frame_end:
                if end - at >= COLLECTED_BYTES:
                    self._begin_frame(data[at:], size)
                    return
                self._needed = min(frame_end - at, COLLECTED_BYTES)
                break
            if self._since_ns >= until_ns:
                self._put_off()
                break
            self.held = ANSWER_DUE
            now_ns = self._monotonic_ns()
            self.network_ns += now_ns - self._since_ns
            self._owner.on_frame(self, data[frame_at:frame_end], now_ns, frame_end < end)
            self._since_ns = self._monotonic_ns()  # what the owner did is not the network's time
            at = frame_end
            if self.closed:
                return
        if at < end:
            self.pending += data[at:]
            if self.held and len(self.pending) >= PENDING_BYTES:
                self._stop_reading()
            self.network_ns += self._monotonic_ns() - self._since_ns

    def _consume_pending(self) -> None:
        if self.held or self._unserved:
            if len(self.pending) >= PENDING_BYTES:
                self._stop_reading()
        elif len(self.pending) >= self._needed:
            self._needed = 0
            early, self.pending = self.pending, bytearray()
            self._consume(memoryview(early))
        else:
            self.network_ns += self._monotonic_ns() - self._since_ns

    def _put_off(self) -> None:
        """Let the others have their turn before the next request of this client."""
        self._unserved = True
        self._stop_reading()
        self._owner.on_unserved(self)

    def serve_waiting(self) -> None:
        """Go on with requests that were put off."""
        self._unserved = False
        self.listen()

    def _refuse(self, size: int) -> None:
        expected = f"frame length is {size}, expected 0 to {self._max_frame_bytes} bytes"
        self._owner.on_bad_frame(self, expected + _other_protocol(size))
        self.close()

    # --- frames with memory of their own --------------------------------------------------------------------------

    def _begin_frame(self, data: memoryview, size: int) -> None:
        """Collect a frame, of which `data` is the beginning, its length included, when there is memory for it."""
        if self._memory.ask(self, size):
            self._collect(data[_LENGTH_BYTES:], size)
            self.network_ns += self._monotonic_ns() - self._since_ns
        else:
            self._wants_memory = True
            self.pending += data
            self._stop_reading()

    def on_grant(self) -> None:
        """Collect the frame that has waited for memory."""
        self._wants_memory = False
        early, self.pending = self.pending, bytearray()
        (size,) = _read_length(early)
        self.last_active_ns = self._monotonic_ns()
        self._collect(memoryview(early)[_LENGTH_BYTES:], size)
        if not self.closed:
            self._start_reading()

    @property
    def wants_memory(self) -> bool:
        """Whether the client is not read because the node has no memory for its request."""
        return self._wants_memory

    @property
    def collected_bytes(self) -> int:
        """How much has come of the frame that has memory of its own; all of it once it is served."""
        return self._filled if self._frame is not None else self._frame_bytes

    def _collect(self, data: memoryview, size: int) -> None:
        try:
            self._frame = self._buffers.take(size)
        except OSError as error:
            self._owner.on_bad_frame(self, f"no memory for its request of {size} bytes: {error.strerror}")
            self.close()
            return
        self._frame_bytes = size
        self._filled = len(data)
        self._view = memoryview(self._frame)[:size]
        self._view[: len(data)] = data

    def _take_filled(self) -> None:
        """Serve the collected frame if it is whole."""
        if self._filled < self._frame_bytes:
            self.network_ns += self._monotonic_ns() - self._since_ns
            return
        frame, view = self._frame, self._view
        assert frame is not None
        self._frame, self._view = None, _NO_BYTES
        self.held = ANSWER_DUE
        now_ns = self._monotonic_ns()
        self.network_ns += now_ns - self._since_ns
        self._owner.on_frame(self, view, now_ns, False)
        if not self._frame_kept:
            self._buffers.give_back(frame)
            self._memory.give_back(self)

    def keep_frame(self) -> None:
        """Leave the frame that `on_frame` is being given to the owner, until `release_frame`."""
        self._frame_kept = True
        self._buffers.renew_scratch()

    def release_frame(self) -> None:
        """Count the memory of a kept frame as free: nobody uses it any more."""
        self._frame_kept = False
        self._memory.give_back(self)

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
        self.sent_ns += self._monotonic_ns() - started_ns
        return done

    def _on_writable(self) -> None:
        started_ns = self._monotonic_ns()
        self.last_active_ns = started_ns
        try:
            done = send_some(self._sock, self._out)
        except OSError:
            self.close()
            return
        self.sent_ns += self._monotonic_ns() - started_ns
        if not done:
            return
        self._writing = False
        self._poller.remove_writer(self.fd)
        try:
            self._owner.on_answer_left(self)
            self.release_hold(ANSWER_DUE)
        except Exception as error:
            self._owner.on_failed(self, error)
            self.close()

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
        """Clear one reason for not listening."""
        self.held &= ~bit
        self.listen()

    def listen(self) -> None:
        """Serve what waits and listen again, or close; nothing while there is a reason for not listening."""
        if self.held or self.closed:
            return
        if self.pending and not self._wants_memory:
            self._since_ns = self._monotonic_ns()
            self._needed = 0
            self._consume_pending()
        if self.closed or self._unserved or self._wants_memory:
            return
        if not self.ended:
            if not self.held & THROTTLED and len(self.pending) < PENDING_BYTES:
                self._start_reading()
        elif not self.held:
            self.close()

    @property
    def sending(self) -> bool:
        """Whether part of an answer waits for the client to read."""
        return self._writing

    def unread_bytes(self) -> int:
        """Return how many bytes were received and not looked at (those in the kernel's buffer aside)."""
        return len(self.pending)

    def _stop_reading(self) -> None:
        """Leave what comes in the kernel; a connection that breaks is closed all the same."""
        if self._reading:
            self._reading = False
            self._poller.pause_reader(self.fd, self.close)

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
        self._frame, self._view, self.pending = None, _NO_BYTES, bytearray()
        if not self._frame_kept:
            self._memory.give_back(self)
        try:
            self._owner.on_closed(self)
            if self.deferred is not None:
                self.deferred.cancel()
                self.deferred = None
        finally:
            self._sock.close()


def _other_protocol(size: int) -> str:
    """Return what the first four bytes of a connection tell, where they are no length but another protocol's."""
    first = size.to_bytes(_LENGTH_BYTES, "big", signed=True)
    if first[:2] == b"\x16\x03":
        return (
            ": this looks like a TLS handshake, and this listener is plain; "
            "hint: the client uses security.protocol=SSL, set it to PLAINTEXT"
        )
    if first in _HTTP_METHODS:
        return ": this looks like an HTTP request; hint: Kafka clients and tools connect here, not browsers or probes"
    return ""
