"""One client connection: it cuts received bytes into frames, sends answers, and is not read during a throttle.

A channel has at most one request in flight, as in Kafka. It serves the next frame only after the previous answer has
left *and* its throttle is over. These are the two bits of `held`; if both are clear, the state is NOT_MUTED of B§6.6
(`tests/server/test_mute_states.py` compares them with Kafka's table).
If a client sends several requests together, each turn serves one (`tidegate.server.connection.turns`), and their
answers leave together.
The socket is read, except during a throttle, while too many received bytes wait, while the node has no memory for the
request, and after the client's last byte. A client may send its last byte and still read: the channel serves all that
it sent, and sends the answers, before it closes.

Bounds: `PENDING_BYTES` plus one receive of early bytes, one request of `socket.request.max.bytes` out of the node's
`RequestMemory`, and one unsent answer, plus `PUT_OFF_BYTES` of queued answers before it. `AnswerMemory` bounds the
unread answers of all channels.
"""

import contextlib
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate.fair_share import address_owner
from tidegate.server.connection.answer_memory import AnswerMemory
from tidegate.server.connection.buffers import FrameBuffer, FrameBuffers
from tidegate.server.connection.other_protocols import not_a_length
from tidegate.server.connection.request_memory import RequestMemory
from tidegate.server.connection.sending import Sendable, discard, memory_bytes
from tidegate.server.connection.transport import Transport
from tidegate.server.requests.handler import Connection, Deferred, HandlerTable
from tidegate.wire import Encoded, RequestHeader
from tidegate.wire.encoded import LENGTH_BYTES

__all__ = [
    "ANSWER_DUE",
    "COLLECTED_BYTES",
    "PENDING_BYTES",
    "PUT_OFF_ANSWERS",
    "PUT_OFF_BYTES",
    "PUT_OFF_NS",
    "THROTTLED",
    "Channel",
    "ChannelOwner",
]

PENDING_BYTES = 64 * 1024  # early bytes above which the socket is not read
COLLECTED_BYTES = 16 * 1024  # bytes of a frame after which it gets a buffer of its own
ANSWER_DUE = 1  # a request was taken and its answer has not left completely
THROTTLED = 2  # muted until its throttle ends (KIP-219)
PUT_OFF_BYTES = 64 * 1024  # most bytes of queued answers, which wait for the connection's next answer,
PUT_OFF_ANSWERS = 64  # most answers,
PUT_OFF_NS = 1_000_000  # and longest wait
_NO_BYTES = memoryview(b"")
CallLate = Callable[[Callable[[], None], str], None]
_read_length = struct.Struct(">i").unpack_from


class ChannelOwner(Protocol):
    """The callbacks of a channel. The front implements them, and the authenticator that precedes it."""

    @property
    def at_ns(self) -> int:
        """The start of this channel's time in a turn, in ns: the end of the previous channel's. 0: not known."""

    def on_frame(self, channel: "Channel", frame: memoryview, started_ns: int) -> None:
        """Serve one request. frame: without length prefix; valid only in this call, unless it calls `keep_frame`."""

    def on_bad_frame(self, channel: "Channel", reason: str) -> None:
        """Log that the client broke the protocol; the channel closes next."""

    def on_waiting(self, channel: "Channel") -> None:
        """Call `serve_next`, once, in the next turn: a complete request waits."""

    def on_failed(self, channel: "Channel", error: Exception) -> None:
        """Log an internal error; the channel closes next."""

    def on_answer_left(self, channel: "Channel") -> None:
        """Record that an answer that could not be sent at once has now been sent."""

    def on_closed(self, channel: "Channel") -> None:
        """Forget the channel."""


class Channel:
    """The server's end of one connection. Everything runs on the event loop."""

    __slots__ = (
        "_answers",
        "_buffers",
        "_call_late",
        "_filled",
        "_frame",
        "_frame_bytes",
        "_frame_kept",
        "_is_late",
        "_kept_frame",
        "_memory",
        "_monotonic_ns",
        "_out",
        "_put_off_ns",
        "_since_ns",
        "_view",
        "_waiting",
        "answered",
        "answered_exempt",
        "broken",
        "closed",
        "connection",
        "deferred",
        "early_ms",
        "ended",
        "handlers",
        "held",
        "last_active_ns",
        "max_frame_bytes",
        "network_ns",
        "owner",
        "pending",
        "pending_at",
        "put_off_bytes",
        "reading",
        "sending",
        "sent_ns",
        "throttle_ends_ns",
        "transport",
        "wants_memory",
    )

    def __init__(
        self,
        transport: Transport,
        connection: Connection,
        *,
        handlers: HandlerTable,
        owner: ChannelOwner,
        buffers: FrameBuffers,
        memory: RequestMemory,
        answers: AnswerMemory,
        monotonic_ns: Callable[[], int],
        max_frame_bytes: int,
    ) -> None:
        self.connection = connection
        self.handlers = handlers  # for the next request; may be replaced at any time
        self.owner = owner  # gets the next frame: first the authenticator, after the login the front
        self.max_frame_bytes = max_frame_bytes
        self.transport = transport
        self.held = 0
        self.closed = False
        self.broken = (
            False  # the client has reset the connection: requests may still be served, answers are not sent
        )
        self.ended = False  # the client's last byte was received
        self.deferred: Deferred | None = None
        self.early_ms: int | None = None
        self.network_ns = 0  # spent receiving since it was last charged
        self.put_off_bytes = 0  # size of queued answers, which wait for the next one
        self.sent_ns = 0  # spent sending since it was last charged
        self.answered: RequestHeader | None = None  # the request whose answer `sent_ns` belongs to
        self.answered_exempt = False
        self.throttle_ends_ns = 0
        self.last_active_ns = monotonic_ns()
        self.pending = bytearray()  # bytes to be served: they came early, or are the beginning of a frame
        self.pending_at = 0  # where they begin in there
        self._call_late: CallLate | None = None
        self._answers = answers
        self._buffers = buffers
        self._memory = memory
        self._monotonic_ns = monotonic_ns
        self._waiting = False  # a complete frame in `pending` waits for the next turn
        self.wants_memory = False
        self._frame: FrameBuffer | None = None  # a frame of known length that is still coming in
        self._frame_bytes = 0
        self._frame_kept = False  # the owner still uses the frame of the current request
        self._kept_frame: FrameBuffer | None = None  # the buffer of that frame, if it has one of its own
        self._view = _NO_BYTES
        self._filled = 0
        self._since_ns = 0
        self._out: deque[Sendable] = deque()
        self._put_off_ns = 0  # since when
        self.sending = False
        self._is_late = False  # the answer that is due is in `_out`
        self.reading = True
        transport.set_client(connection)
        transport.start_reading(self._on_readable)

    # --- bytes in -------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Receive once, and serve the request if it is complete."""
        self.last_active_ns = self._since_ns = self.owner.at_ns or self._monotonic_ns()
        if self._frame is not None:
            target = self._view[self._filled :]
        elif self.held or self.pending:
            # At least one byte: a receive of 0 bytes returns 0, which would mean that the client has ended.
            target = self._buffers.scratch[: max(PENDING_BYTES - self.unread_bytes(), 1)]
        else:
            target = self._buffers.scratch
        try:
            count = self.transport.recv_into(target)
        except (BlockingIOError, InterruptedError):  # a part of a handshake, or of an encrypted record
            self.network_ns += self._monotonic_ns() - self._since_ns
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
            elif self.pending or self.held:
                self._keep(target[:count])
                self._look()
            else:
                self._consume(target[:count])
        except Exception as error:
            self.owner.on_failed(self, error)
            self.close()

    def _on_last_byte(self) -> None:
        """Close now if no request or answer is pending; otherwise after the last answer, or when the client is gone.

        A client that has closed its socket looks like one that still reads, so keepalive probes find out.
        """
        self.ended = True
        if self.held or self._waiting or self.sending:
            self._stop_reading()
            self.transport.ask_for_client()
        else:
            self.close()

    def _consume(self, data: memoryview) -> None:
        """Serve the request at the beginning of `data` if it is complete, and keep the rest."""
        end = len(data)
        size = _read_length(data)[0] if end >= LENGTH_BYTES else -1
        frame_end = LENGTH_BYTES + size
        if 0 <= size <= self.max_frame_bytes:
            if end >= frame_end:
                if end > frame_end:
                    self._keep(data[frame_end:])
                self._serve(data[LENGTH_BYTES:frame_end])
                return
            if end >= COLLECTED_BYTES:
                self._begin_frame(data, size)
                return
        self._keep(data)
        self._look()

    def _keep(self, data: memoryview) -> None:
        """Append bytes to `pending`. Do not change memory that a frame in use may lie in."""
        if self.pending_at:
            # A copy, and no `del`: a bytearray cannot shrink while a handler holds a view of the served frame.
            self.pending = self.pending[self.pending_at :]
            self.pending_at = 0
        self.pending += data
        if (self.held or self._waiting) and len(self.pending) >= PENDING_BYTES:
            self._stop_reading()
        now_ns = self._monotonic_ns()
        self.network_ns += now_ns - self._since_ns
        self._since_ns = now_ns

    def _look(self) -> None:
        """Ask for a turn if `pending` begins with a complete request and no answer or throttle holds the channel."""
        if self.held or self._waiting or self.wants_memory:
            return
        count = len(self.pending) - self.pending_at
        if count < LENGTH_BYTES:
            return
        (size,) = _read_length(self.pending, self.pending_at)
        if not 0 <= size <= self.max_frame_bytes:
            self._refuse(size)
        elif count >= LENGTH_BYTES + size:
            self._waiting = True
            if count >= PENDING_BYTES:
                self._stop_reading()
            self.owner.on_waiting(self)
        elif count >= COLLECTED_BYTES:
            data = memoryview(self.pending)[self.pending_at :]
            self.pending, self.pending_at = bytearray(), 0
            self._begin_frame(data, size)

    def serve_next(self) -> None:
        """Serve the waiting request, in its turn. Do nothing if the channel has closed in the meantime."""
        self._waiting = False
        if self.closed or self.held:
            return
        self.last_active_ns = self._since_ns = self.owner.at_ns or self._monotonic_ns()
        pending, at = self.pending, self.pending_at + LENGTH_BYTES
        frame_end = at + _read_length(pending, self.pending_at)[0]
        if frame_end == len(pending):
            self.pending = bytearray()
            self.pending_at = 0
        else:
            self.pending_at = frame_end
        self._serve(memoryview(pending)[at:frame_end])

    def _serve(self, frame: memoryview) -> None:
        self.held = ANSWER_DUE
        now_ns = self._monotonic_ns()
        self.network_ns += now_ns - self._since_ns
        self.owner.on_frame(self, frame, now_ns)

    @property
    def has_more(self) -> bool:
        """Return whether another complete request is buffered behind the current one."""
        count = len(self.pending) - self.pending_at
        if count < LENGTH_BYTES:
            return False
        (size,) = _read_length(self.pending, self.pending_at)
        return bool(0 <= size <= count - LENGTH_BYTES and size <= self.max_frame_bytes)

    def _refuse(self, size: int) -> None:
        expected = f"frame length is {size}, expected 0 to {self.max_frame_bytes} bytes"
        self.owner.on_bad_frame(self, expected + not_a_length(size))
        self.close()

    # --- frames with memory of their own --------------------------------------------------------------------------

    def _begin_frame(self, data: memoryview, size: int) -> None:
        """Collect a frame in a buffer of its own, once there is memory. data: its beginning, with the length prefix."""
        if self._memory.ask(self, size, self.connection.owner):
            self._collect(data[LENGTH_BYTES:], size)
            self.network_ns += self._monotonic_ns() - self._since_ns
        else:
            self.wants_memory = True
            self.pending += data
            self._stop_reading()

    def on_grant(self) -> None:
        """Collect the frame that waited for memory."""
        self.wants_memory = False
        early, self.pending = self.pending, bytearray()
        (size,) = _read_length(early)
        self.last_active_ns = self._monotonic_ns()
        self._collect(memoryview(early)[LENGTH_BYTES:], size)
        if not self.closed:
            self._start_reading()

    @property
    def collected_bytes(self) -> int:
        """Return how many bytes were received of a frame with memory of its own; its full size once it is served."""
        return self._filled if self._frame is not None else self._frame_bytes

    def _collect(self, data: memoryview, size: int) -> None:
        try:
            self._frame = self._buffers.acquire(size)
        except OSError as error:
            self.owner.on_bad_frame(self, f"no memory for a request of {size} bytes: {error.strerror}")
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
        # Before `_serve`: if that closes the channel, `close` must not free the buffer that the handler reads.
        self._frame, self._view = None, _NO_BYTES
        self._serve(view)
        if self._frame_kept:
            self._kept_frame = frame
        else:
            self._buffers.recycle(frame)
            self._memory.release(self)

    def keep_frame(self) -> None:
        """Keep the current frame for the owner until `release_frame`. Call it in `on_frame`."""
        self._frame_kept = True
        # The frame may lie in the receive buffer that all channels share.
        self._buffers.renew_scratch()

    def release_frame(self) -> None:
        """Count the memory of a kept frame as free: the owner no longer uses it."""
        self._frame_kept = False
        frame, self._kept_frame = self._kept_frame, None
        if frame is not None:
            self._buffers.free(frame, self._frame_bytes)
        self._memory.release(self)

    # --- bytes out ------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Sendable]) -> bool:
        """Send the answer to the current request, after any queued answers; the owner measures how long that takes.

        Return True if all of it was sent. False: the rest is sent later, then `on_answer_left` is called.
        """
        if self.closed:
            discard(buffers)
            return True
        sent = 0
        try:
            if len(buffers) == 1 and not self._out:
                sent = self.transport.send(buffers[0])
                done = sent == len(buffers[0])
            else:
                self._out.extend(buffers)
                done = self.transport.send_some(self._out)
        except (BlockingIOError, InterruptedError):
            done = False
        except OSError:
            self.close()
            return True
        self.put_off_bytes = 0
        if not done:
            if not self._out:
                self._out.append(memoryview(buffers[0])[sent:])
            self._is_late = True
            self._write_later()
        return done

    def put_off(self, answer: Encoded) -> bool:
        """Queue an answer, to be sent with the answer to the next request. Return False if it must be sent now."""
        now_ns = self._monotonic_ns()
        if not self.put_off_bytes:
            self._put_off_ns = now_ns
        size = self.put_off_bytes + answer.size
        if (
            size > PUT_OFF_BYTES
            or len(self._out) >= PUT_OFF_ANSWERS
            or now_ns - self._put_off_ns > PUT_OFF_NS
            or len(answer.buffers) > 1
            or self.sending
            or self.broken
        ):
            return False
        self.put_off_bytes = size
        self._out.extend(answer.buffers)
        return True

    def flush(self) -> None:
        """Send the queued answers now: no other answer follows soon."""
        if not self.put_off_bytes:
            return
        self.put_off_bytes = 0
        started_ns = self._monotonic_ns()
        try:
            done = self.transport.send_some(self._out)
        except OSError:
            self.close()
            return
        if not done:
            self._write_later()
        self.sent_ns += self._monotonic_ns() - started_ns

    def _write_later(self) -> None:
        self.sending = True
        self._answers.hold(self, memory_bytes(self._out), self.connection.owner)
        if not self._waits_for_source():
            self.transport.start_writing(self._on_writable)

    def _waits_for_source(self) -> bool:
        """Return True if the next part of the answer is not there yet; `_on_writable` is called when it is."""
        wait_for_more = getattr(self._out[0], "wait_for_more", None)
        return wait_for_more is not None and wait_for_more(self._on_writable)

    def _on_writable(self) -> None:
        started_ns = self._monotonic_ns()
        self.last_active_ns = started_ns
        try:
            done = self.transport.send_some(self._out)
        except OSError:
            self.close()
            return
        self.sent_ns += self._monotonic_ns() - started_ns
        if not done:
            self._answers.record_progress(self)
            if self._waits_for_source():
                self.transport.stop_writing()
            else:
                self.transport.start_writing(self._on_writable)
            return
        self.sending = False
        self._answers.release(self)
        self.transport.stop_writing()
        try:
            if self._is_late:
                self._is_late = False
                self.held &= ~ANSWER_DUE
                self.owner.on_answer_left(self)
            self.listen()
        except Exception as error:
            self.owner.on_failed(self, error)
            self.close()

    # --- muting ---------------------------------------------------------------------------------------------------

    def mute(self, ends_ns: int) -> None:
        """Stop listening until `unmute`. Follows: THROTTLE_STARTED of B§6.6."""
        self.held |= THROTTLED
        self.throttle_ends_ns = ends_ns
        # B§6.6: bytes that the client sends during the throttle stay in TCP buffers, which slows the client down.
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
        """Serve the buffered requests, then read again, or close if `ended`.

        Nothing happens while there is a reason for not listening (`held`).
        """
        if self.held or self.closed:
            return
        if self.pending:
            self._since_ns = self._monotonic_ns()
            self._look()
        if self.closed or self._waiting or self.wants_memory:
            return
        # No complete request follows for now, so answers that wait for the next one must leave (decision 0041).
        self.flush()
        if self.closed:
            return
        if not self.ended:
            self._start_reading()
        elif not self.sending:
            self.close()

    def unread_bytes(self) -> int:
        """Return how many received bytes have not been served, without those in the transport."""
        return len(self.pending) - self.pending_at

    def _stop_reading(self) -> None:
        """Stop reading; a connection that breaks is still closed."""
        if self.reading:
            self.reading = False
            self.transport.pause_reading(self._on_broken)

    def _on_broken(self) -> None:
        """Close, unless requests of the client wait for the end of a throttle: they are served then, as in Kafka."""
        self.broken = True
        if not self.waits_for_throttle():
            self.close()

    def waits_for_throttle(self) -> bool:
        """Return whether a client that has left has requests or answers pending until its throttle ends."""
        if not self.held & THROTTLED or (self.broken and self.sending):
            return False
        return bool(self.sending or self.unread_bytes() or self.transport.unread_bytes())

    def _start_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self.transport.start_reading(self._on_readable if self._call_late is None else self._on_ready)

    def be_patient(self, call_late: CallLate | None) -> None:
        """Schedule this channel's turns behind those of others, by `call_late` (`Poller.call_late_in_turn`).

        None restores the usual order.
        """
        self._call_late = call_late
        if self.reading and not self.closed:
            self.reading = False
            self._start_reading()

    def _on_ready(self) -> None:
        """Ask for a late turn in which to read."""
        if self._call_late is None:
            self._on_readable()
            return
        # `reading` stays true: the channel still wants to read, only its turn comes later.
        self.transport.pause_reading(self._go_on)
        self._call_late(self._go_on, address_owner(self.connection.client_host))

    def _go_on(self) -> None:
        """Read, because the turn has come or the connection is broken."""
        if self.reading and not self.closed:
            self.reading = False
            self._start_reading()
            self._on_readable()

    # --- the end --------------------------------------------------------------------------------------------------

    def close_when_sent(self) -> None:
        """Serve no more requests, and close when all earlier answers are sent."""
        self.flush()
        if not self.sending:
            self.close()
        if self.closed:
            return
        self.held &= ~ANSWER_DUE
        self.serve_no_more()

    def serve_no_more(self) -> None:
        """Stop reading, and drop received bytes: the channel sends at most one more answer, then closes."""
        self.ended = True
        self.pending, self.pending_at = bytearray(), 0
        self._stop_reading()

    def close(self) -> None:
        """Close the connection at once and release its memory. Do nothing if it is closed already."""
        if self.closed:
            return
        if self.put_off_bytes:
            with contextlib.suppress(OSError):  # try to send the queued answers
                self.transport.send_some(self._out)
        self.closed = True
        discard(self._out)
        self._out.clear()
        self._answers.release(self)
        if self._frame is not None:
            self._buffers.free(self._frame, self._filled)
        self._frame, self._view, self.pending = None, _NO_BYTES, bytearray()
        if not self._frame_kept:
            # Work in slices still reads a kept frame: `release_frame` gives its memory back.
            self._memory.release(self)
        try:
            self.owner.on_closed(self)
            if self.deferred is not None:
                self.deferred.cancel()
                self.deferred = None
        finally:
            self.transport.close()
