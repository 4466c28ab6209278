"""One client connection: bytes in, frames out; answers in, bytes out; not read while its client is throttled.

A channel has at most one request in flight, as in Kafka: the next frame is looked at only after the previous
answer has left *and* its throttle is over. Those are the two bits of `held`; both clear is NOT_MUTED of B§6.6
(`tests/server/test_mute_states.py` compares them with Kafka's table).
Of requests that were sent together one is served a turn (`tidegate.server.connection.turns`); their answers leave
together.
The socket is read all the time, except while throttled, while too much waits unread, while the node has no memory
for its request, and after the client's last byte. A client that has sent its last byte (and may still read) is served
what it sent, and gets its answers, before the channel closes.

Bounds: `PENDING_BYTES` plus one receive of bytes that came early, one request of `socket.request.max.bytes` out of the
node's `RequestMemory`, and one answer on the way out, with `PUT_OFF_BYTES` of those before it; those of all channels
that wait to be read have the bound of `AnswerMemory`.
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

PENDING_BYTES = 64 * 1024  # early bytes kept before the socket is left alone
COLLECTED_BYTES = 16 * 1024  # bytes of a frame after which it gets a buffer of its own
ANSWER_DUE = 1  # a request was taken and its answer has not left completely
THROTTLED = 2  # muted until its throttle ends (KIP-219)
PUT_OFF_BYTES = 64 * 1024  # most bytes of answers that wait for the connection's next one,
PUT_OFF_ANSWERS = 64  # most answers,
PUT_OFF_NS = 1_000_000  # and longest wait
_NO_BYTES = memoryview(b"")
CallLate = Callable[[Callable[[], None], str], None]
_read_length = struct.Struct(">i").unpack_from


class ChannelOwner(Protocol):
    """The callbacks of a channel. The front implements them, and the authenticator that precedes it."""

    @property
    def at_ns(self) -> int:
        """In a turn, the end of the previous channel's time, where this channel's begins; 0: not known."""

    def on_frame(self, channel: "Channel", frame: memoryview, started_ns: int) -> None:
        """Serve one request: the bytes after the length prefix, valid in this call unless `keep_frame` is called."""

    def on_bad_frame(self, channel: "Channel", reason: str) -> None:
        """Note that the client broke the protocol; the channel closes next."""

    def on_waiting(self, channel: "Channel") -> None:
        """Note that a whole request waits: call `serve_next`, once, in the next turn."""

    def on_failed(self, channel: "Channel", error: Exception) -> None:
        """Note an error of ours; the channel closes next."""

    def on_answer_left(self, channel: "Channel") -> None:
        """Note that an answer that could not leave at once has left now."""

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
        self.handlers = handlers  # of its next request; another table may take its place at any time
        self.owner = owner  # of its next frame, likewise: after the login it is the front
        self.max_frame_bytes = max_frame_bytes
        self.transport = transport
        self.held = 0
        self.closed = False
        self.broken = (
            False  # the client has reset it: what it sent before may be served, answers do not leave
        )
        self.ended = False  # the client's last byte was received
        self.deferred: Deferred | None = None
        self.early_ms: int | None = None
        self.network_ns = 0  # spent receiving since it was last charged
        self.put_off_bytes = 0  # of answers that wait for the next one
        self.sent_ns = 0  # spent sending since it was last charged
        self.answered: RequestHeader | None = None  # the request whose answer that was
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
        self._waiting = False  # for its turn, with a whole frame in `pending`
        self.wants_memory = False
        self._frame: FrameBuffer | None = None  # a frame of known length that is still coming in
        self._frame_bytes = 0
        self._frame_kept = False  # the owner goes on using the frame that it was given
        self._kept_frame: FrameBuffer | None = None  # its buffer, where it has one of its own
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
        """Receive once, and serve a request that is whole."""
        self.last_active_ns = self._since_ns = self.owner.at_ns or self._monotonic_ns()
        if self._frame is not None:
            target = self._view[self._filled :]
        elif self.held or self.pending:
            # At least one byte: a receive into nothing returns 0, which means that the client has ended.
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
        """Close when nothing is under way; otherwise when all that came whole is answered, or the client is gone.

        A client that has closed its socket looks like one that still reads. So it is asked now and then.
        """
        self.ended = True
        if self.held or self._waiting or self.sending:
            self._stop_reading()
            self.transport.ask_for_client()
        else:
            self.close()

    def _consume(self, data: memoryview) -> None:
        """Serve the request at the beginning of `data` if it is whole, and keep the rest."""
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
        """Keep bytes behind those that are kept. A frame that was served lies in memory that is left as it is."""
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
        """Look at the kept bytes, where nothing is held: ask for a turn when a whole request is there."""
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
        """Serve the request that waits: it is this one's turn. Nothing where the channel has closed meanwhile."""
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
        """Return whether another whole request is buffered behind the current one."""
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
        """Collect a frame, of which `data` is the beginning, its length included, when there is memory for it."""
        if self._memory.ask(self, size, self.connection.owner):
            self._collect(data[LENGTH_BYTES:], size)
            self.network_ns += self._monotonic_ns() - self._since_ns
        else:
            self.wants_memory = True
            self.pending += data
            self._stop_reading()

    def on_grant(self) -> None:
        """Collect the frame that has waited for memory."""
        self.wants_memory = False
        early, self.pending = self.pending, bytearray()
        (size,) = _read_length(early)
        self.last_active_ns = self._monotonic_ns()
        self._collect(memoryview(early)[LENGTH_BYTES:], size)
        if not self.closed:
            self._start_reading()

    @property
    def collected_bytes(self) -> int:
        """Return the bytes received of the frame that has memory of its own: its full size once it is served."""
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
            self._buffers.give_back(frame)
            self._memory.give_back(self)

    def keep_frame(self) -> None:
        """Leave the frame that `on_frame` is being given to the owner, until `release_frame`."""
        self._frame_kept = True
        # The frame may lie in the receive buffer of all channels.
        self._buffers.renew_scratch()

    def release_frame(self) -> None:
        """Count the memory of a kept frame as free: the owner no longer uses it."""
        self._frame_kept = False
        frame, self._kept_frame = self._kept_frame, None
        if frame is not None:
            self._buffers.let_go(frame, self._frame_bytes)
        self._memory.give_back(self)

    # --- bytes out ------------------------------------------------------------------------------------------------

    def send(self, buffers: Sequence[Sendable]) -> bool:
        """Send the answer that is due, and what was put off before it; the owner measures how long that takes.

        True: it has left; False: the rest follows, and `on_answer_left` is called when it has.
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
        """Send what was put off: nothing follows for now."""
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
        """Return whether the next part of the answer has not come yet; then `_on_writable` is called when it has."""
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
            self._answers.took_some(self)
            if self._waits_for_source():
                self.transport.stop_writing()
            else:
                self.transport.start_writing(self._on_writable)
            return
        self.sending = False
        self._answers.let_go(self)
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
        # B§6.6: what the client sends meanwhile waits in TCP, so that its sender is slowed down.
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
        # No whole request follows for now: answers that were put off for the next one must leave (decision 0041).
        self.flush()
        if self.closed:
            return
        if not self.ended:
            self._start_reading()
        elif not self.sending:
            self.close()

    def unread_bytes(self) -> int:
        """Return how many bytes were received and not looked at (those in the transport aside)."""
        return len(self.pending) - self.pending_at

    def _stop_reading(self) -> None:
        """Leave what comes unread; a connection that breaks is closed all the same."""
        if self.reading:
            self.reading = False
            self.transport.pause_reading(self._on_broken)

    def _on_broken(self) -> None:
        """Close, unless the client had sent something before: that is served when the throttle ends, as in Kafka."""
        self.broken = True
        if not self.waits_for_throttle():
            self.close()

    def waits_for_throttle(self) -> bool:
        """Return whether a client that is gone has something to be served when its throttle ends."""
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
        """Wait for its turn."""
        if self._call_late is None:
            self._on_readable()
            return
        # `reading` stays true: the channel still wants to read, only its turn comes later.
        self.transport.pause_reading(self._go_on)
        self._call_late(self._go_on, address_owner(self.connection.client_host))

    def _go_on(self) -> None:
        """Read: it is its turn, or the connection is broken."""
        if self.reading and not self.closed:
            self.reading = False
            self._start_reading()
            self._on_readable()

    # --- the end --------------------------------------------------------------------------------------------------

    def close_when_sent(self) -> None:
        """Serve nothing more, and close when the answers that were given before have left."""
        self.flush()
        if not self.sending:
            self.close()
        if self.closed:
            return
        self.held &= ~ANSWER_DUE
        self.serve_no_more()

    def serve_no_more(self) -> None:
        """Read nothing more and forget what was read: at most an answer follows, and the end."""
        self.ended = True
        self.pending, self.pending_at = bytearray(), 0
        self._stop_reading()

    def close(self) -> None:
        """Close the connection at once and let go of everything. Harmless when closed already."""
        if self.closed:
            return
        if self.put_off_bytes:
            with contextlib.suppress(OSError):  # what was answered before the end
                self.transport.send_some(self._out)
        self.closed = True
        discard(self._out)
        self._out.clear()
        self._answers.let_go(self)
        if self._frame is not None:
            self._buffers.let_go(self._frame, self._filled)
        self._frame, self._view, self.pending = None, _NO_BYTES, bytearray()
        if not self._frame_kept:
            # Work in slices still reads a kept frame: `release_frame` gives its memory back.
            self._memory.give_back(self)
        try:
            self.owner.on_closed(self)
            if self.deferred is not None:
                self.deferred.cancel()
                self.deferred = None
        finally:
            self.transport.close()
