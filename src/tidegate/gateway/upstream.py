"""The requests of one client connection, sent to the broker, and their responses.

A channel serves one request at a time, so the next bytes from the broker are its response. Similar requests may have
been sent after a Produce (`ahead`): their responses wait here until the channel serves them.

    deferred = upstream.forward(request, respond)   # `respond` makes the answer from the response

If the broker closes the connection, or breaks the protocol, the client's connection closes, as if the client were
connected to the broker. Responses that have arrived before are served first.

A request of up to `MAX_COPIED_BYTES` is copied, and leaves at the end of the turn together with those of other clients
(`turn_sends`). A longer one leaves at once.

Bounds: one request, which stays in the memory of its channel until it is copied or sent, and `ahead.MAX_AHEAD_BYTES` of
requests after it; twice `STREAMED_BYTES` of early responses; `MAX_COLLECTED_BYTES` of a response that has to be read
completely; `STREAMED_BYTES` of any other response, and the capacity of a pipe (`upstream_response`).
"""

import logging
import struct
from collections import deque
from collections.abc import Callable, Generator, Set

from tidegate.api_keys import PRODUCE
from tidegate.gateway.ahead import alike_behind
from tidegate.gateway.turn_sends import TurnSends
from tidegate.gateway.upstream_connection import SocketAddress, UpstreamConnection, UpstreamLink, reason_of
from tidegate.gateway.upstream_login import UpstreamSecurity
from tidegate.gateway.upstream_response import LongResponses, Response
from tidegate.scheduling import Scheduler
from tidegate.server.connection.channel import Channel
from tidegate.server.connection.turns import SocketPoller
from tidegate.server.repeated_lines import kind_of, repeats
from tidegate.server.requests.handler import Answer, Charge, Deferred, Request, Wait, Work
from tidegate.wire import API_BY_KEY, ProtocolError, RequestHeader

__all__ = ["MAX_COLLECTED_BYTES", "STREAMED_BYTES", "Respond", "Upstream"]

_log = logging.getLogger("tidegate.gateway")

STREAMED_BYTES = 64 * 1024
"""Longest response, length prefix included, that is received completely before it is forwarded."""
MAX_COLLECTED_BYTES = 64 << 20
"""Longest response that is received completely because something in it has to change."""
MAX_COPIED_BYTES = 32 * 1024
"""Longest request that is copied, and so can wait for the end of a turn."""
_LENGTH = struct.Struct(">i")
_PREFIX = struct.Struct(">ii")  # length, correlation id
_FIRST_BYTES = 32
"""Bytes of a long response that must have arrived before it is forwarded: those before its first array."""
_CLOSED = "the broker closed the connection"
_NOT_RECEIVED = "the broker sent a response to a request that it has not received"

Respond = Callable[[RequestHeader, Response], Answer]
"""Makes the answer to a request from the broker's response. Raises `ProtocolError` where the response is wrong."""


class Upstream:
    """The requests of one channel. It connects to the broker when the first one comes."""

    __slots__ = (
        "_ahead",
        "_connection",
        "_deferred",
        "_header",
        "_is_paused",
        "_is_sending_rest",
        "_is_streamed",
        "_link",
        "_long",
        "_monotonic_ns",
        "_pending",
        "_respond",
        "_scratch",
        "_sent",
        "_turn_sends",
        "_unsent",
        "_wait",
        "channel",
        "closed",
        "login",
        "withheld_session",
    )

    def __init__(
        self,
        channel: Channel,
        link: UpstreamLink,
        *,
        security: UpstreamSecurity,
        poller: SocketPoller,
        loop: Scheduler,
        scratch: memoryview,
        monotonic_ns: Callable[[], int],
        turn_sends: TurnSends,
    ) -> None:
        self.channel = channel
        self._link = link
        self._connection = UpstreamConnection(
            self, link, channel.connection, security=security, poller=poller, loop=loop
        )
        self._scratch = scratch  # shared by all connections of a node
        self._monotonic_ns = monotonic_ns
        self._turn_sends = turn_sends
        self._deferred: Deferred | None = None  # of the request in flight
        self._header: RequestHeader | None = None
        self._respond: Respond | None = None
        self._is_streamed = False
        self._sent = 0  # bytes of the request, its length prefix included
        self._is_sending_rest = False  # part of a request, which is sent as the socket takes it
        self._wait: Wait | None = None  # until more of the request can be sent
        self._pending: bytearray | None = None  # the beginning of its response, or early ones
        self._ahead: deque[int] = deque()  # sizes of later requests that were sent with it
        self._unsent = b""  # copied bytes of requests that the socket has not accepted yet
        self._is_paused = False  # many early responses wait, or the broker closed after some
        self._long: LongResponses | None = None  # once there was one
        self.closed = False
        self.login: object = None
        """The state of a login that passes through, for `tidegate.gateway.logins`."""
        self.withheld_session = 0
        """The id of a fetch session of the broker that the client does not know; 0: none."""

    # --- requests ---------------------------------------------------------------------------------------------------

    def forward(
        self, request: Request, respond: Respond, *, is_streamed: bool = False, alike_until: int = 0
    ) -> Answer | Deferred | Work:
        """Send a request. `respond` makes its answer from the broker's response.

        is_streamed: `respond` needs only the first part of the response. alike_until: also send later requests whose
        first `alike_until` bytes are the same (`ahead`); 0: none.
        """
        if self._ahead:
            return self._serve_ahead(request, respond, alike_until)
        deferred = self.start(request, respond, is_streamed=is_streamed, alike_until=alike_until)
        if self._sent == _LENGTH.size + len(request.frame):
            return deferred
        self._is_sending_rest = True
        return self._forward_rest(deferred, request)

    def start(
        self, request: Request, respond: Respond, *, is_streamed: bool = False, alike_until: int = 0
    ) -> Deferred:
        """Begin to send a request; return its deferred answer. After this call, run `send_rest(request)`."""
        deferred = Deferred()
        deferred.at_once = True
        self._deferred, self._header, self._respond = deferred, request.header, respond
        self._is_streamed = is_streamed
        if self._unsent:
            self.on_broken(_NOT_RECEIVED)
        elif not self._connection.is_ready:
            self._sent = self._open()
        elif len(request.frame) > MAX_COPIED_BYTES:
            self._sent = self._send(request.frame, 0)
        else:
            self._send_copy(request, alike_until)
        return deferred

    def send_only(self, request: Request) -> Answer | Work:
        """Send a request that gets no response (Produce with acks=0); return its answer, which is none."""
        if self._unsent:
            self.on_broken(_NOT_RECEIVED)
        self._sent = self._send(request.frame, 0) if self._connection.is_ready else self._open()
        if self._sent == _LENGTH.size + len(request.frame):
            return Answer(None, Charge.PRODUCE, other_topics=-1)
        self._is_sending_rest = True
        return self._send_only_rest(request)

    def _send_only_rest(self, request: Request) -> Work:
        yield from self.send_rest(request)
        return Answer(None, Charge.PRODUCE, close=self.closed, other_topics=-1)

    def _forward_rest(self, deferred: Deferred, request: Request) -> Work:
        yield from self.send_rest(request)
        return deferred

    def send_rest(self, request: Request) -> Generator[Wait | None, None, None]:
        """Send the rest of a request as the socket accepts it. The frame may have moved in memory since the start."""
        frame, connection = request.frame, self._connection
        end = _LENGTH.size + len(frame)
        self._is_sending_rest = True
        while not self.closed and self._sent < end:
            if connection.is_ready:
                self._sent += self._send(frame, self._sent)
            if self._sent < end and not self.closed:
                self._wait = Wait()
                if connection.is_ready and connection.transport is not None:
                    connection.transport.start_writing(self._on_writable)
                yield self._wait
        self._is_sending_rest = False
        connection.on_sent()

    def _send_copy(self, request: Request, alike_until: int) -> None:
        """Copy a request, and similar ones that follow it, and send them."""
        frame = request.frame
        data = _LENGTH.pack(len(frame)) + frame
        self._sent = len(data)
        if alike_until and self.channel.pending:
            ahead, sizes = alike_behind(self.channel, frame, alike_until)
            data += ahead
            self._ahead.extend(sizes)
        self._unsent = data
        self._send_in_turn(request)

    def _send_in_turn(self, request: Request) -> None:
        """Send the copied bytes at the end of the turn, or now outside of a turn."""
        if request.turn is None:
            self._send_unsent()
        else:
            request.others_ns += self._turn_sends.add(self)

    def send_put_off(self, since_ns: int) -> int:
        """Send the queued requests, charge their client for the time since `since_ns`, and return the time."""
        self._send_unsent()
        now_ns = self._monotonic_ns()
        if self._deferred is not None:
            self._deferred.charged_ns += now_ns - since_ns
        else:
            self.channel.network_ns += now_ns - since_ns
        return now_ns

    def _send_unsent(self) -> None:
        """Send as many copied bytes as the socket accepts, and the rest when it accepts more."""
        transport = self._connection.transport
        if transport is None or not self._unsent:
            return
        try:
            self._unsent = self._unsent[transport.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self._unsent = b""
            transport.end()  # after the responses that have arrived
        if self._unsent:
            transport.start_writing(self._send_more)
        else:
            self._connection.on_sent()

    def _send_more(self) -> None:
        """Continue to send: the socket accepts more."""
        self.send_put_off(self._monotonic_ns())
        transport = self._connection.transport
        if transport is not None and not self._unsent:
            transport.stop_writing()

    def _serve_ahead(self, request: Request, respond: Respond, alike_until: int) -> Answer | Deferred:
        """Serve a request that was sent ahead of its turn; return its answer if the response has arrived.

        Send similar requests that have arrived since, too. Raises what `respond` raises, except `ProtocolError`.
        """
        deferred, answer = Deferred(), None
        deferred.at_once = True
        self._deferred, self._header, self._respond = deferred, request.header, respond
        self._is_streamed = False
        self._sent = _LENGTH.size + self._ahead.popleft()
        sizes: list[int] = []
        if self._connection.is_ready and not (self._unsent or self._is_paused):
            data, sizes = alike_behind(self.channel, request.frame, alike_until, self._ahead)
            self._ahead.extend(sizes)
            self._unsent = data
        if self._pending:
            answer = self._receive(self._pending)
        if sizes:
            self._send_in_turn(request)
        is_short = self._deferred is not None or len(self._pending or b"") < STREAMED_BYTES
        if self._is_paused and is_short and not self.closed:
            self._is_paused = False
            self._connection.read()
        if answer is None:
            return deferred
        if answer.error is not None:
            raise answer.error
        return answer

    @property
    def has_response(self) -> bool:
        """Return whether the response to the client's next request has come already."""
        pending = self._pending
        if not (self._ahead and pending and len(pending) >= _PREFIX.size):
            return False
        return len(pending) >= _LENGTH.size + int(_LENGTH.unpack_from(pending)[0])

    def unserved(self) -> list[tuple[RequestHeader, int]]:
        """Return the requests that were sent but not served, and forget them."""
        header, ahead = self._header, list(self._ahead)
        self._ahead.clear()
        return [] if header is None else [(header, size) for size in ahead]

    def _open(self) -> int:
        """Begin to connect, or to log in again. Return 0, the number of bytes sent of the request."""
        self._connection.open()
        return 0

    def _send(self, frame: memoryview, sent: int) -> int:
        """Send some of a request, its length prefix first; return the number of bytes."""
        transport = self._connection.transport
        assert transport is not None
        try:
            if not sent:
                return transport.sendmsg((_LENGTH.pack(len(frame)), frame))
            if sent < _LENGTH.size:
                return transport.send(_LENGTH.pack(len(frame))[sent:])
            return transport.send(frame[sent - _LENGTH.size :])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self.on_broken(reason_of(error))
            return 0

    def _on_writable(self) -> None:
        if self._connection.transport is not None:
            self._connection.transport.stop_writing()
        self.on_ready()

    # --- a `ConnectionOwner` ----------------------------------------------------------------------------------------

    @property
    def is_sending(self) -> bool:
        """True while a request is sent in part."""
        return self._is_sending_rest or bool(self._unsent)

    def on_ready(self) -> None:
        """Continue to send the request that waits, if any."""
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.resume()

    def on_readable(self) -> None:
        """Receive once, and complete the answer if the response has arrived."""
        since_ns = self._monotonic_ns()
        connection = self._connection
        if connection.transport is None:
            return
        # Received bytes of a streamed response are copied, so receive few; the rest stays in the kernel.
        is_bounded = self._is_streamed or self._ahead
        target = self._scratch[:STREAMED_BYTES] if is_bounded else self._scratch
        try:
            count = connection.transport.recv_into(target)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_end(reason_of(error))
            return
        if not count:
            self._on_end(_CLOSED)
            return
        data: memoryview | bytearray = self._scratch[:count]
        long = self._long
        if long is not None and long.drained:
            ignored = min(long.drained, count)
            long.drained -= ignored
            data = data[ignored:]
            if not len(data):
                return
        if connection.login is not None:
            connection.login.receive(data)
            return
        deferred = self._deferred
        if deferred is None and self._ahead:
            self._keep_early(data, since_ns)
            return
        if deferred is None:
            self.on_broken("the broker sent bytes that no request asked for")
            return
        if self._pending is not None:
            self._pending += data
            data = self._pending
        answer = self._receive(data)
        deferred.charged_ns += self._monotonic_ns() - since_ns
        if answer is not None:
            deferred.complete(answer)

    def _keep_early(self, data: memoryview | bytearray, since_ns: int) -> None:
        """Keep responses to requests that the channel has not served yet."""
        if self._pending is None:
            self._pending = bytearray()
        self._pending += data
        if len(self._pending) >= STREAMED_BYTES:
            self._is_paused = True
            self._connection.pause()
        self.channel.network_ns += self._monotonic_ns() - since_ns

    def _on_end(self, reason: str) -> None:
        """Close both connections, because the broker sends no more; but first serve responses that have arrived."""
        if self._deferred is None and self.has_response:
            self._is_paused = True
            self._connection.pause()
        else:
            self.on_broken(reason)

    def leave(self, addresses: Set[SocketAddress]) -> None:
        """Close both connections if the broker's address is one of `addresses`, which belong to other brokers now."""
        if self._connection.address in addresses:
            self.on_broken("another broker has its address now")

    def on_broken(self, reason: str) -> None:
        """Close both connections, as the broker would close the client's."""
        if self.closed:
            return
        if self._connection.was_ready:
            self._link.on_lost()
        connection = self.channel.connection
        # Between requests, a broker may close a connection that was idle for long. During a request, the reason is
        # often a mistake of the client.
        is_closed = reason == _CLOSED
        about = connection.client_host if is_closed else self._link.name
        _log.log(
            logging.INFO if is_closed and self._deferred is None else logging.WARNING,
            "closed connection %d from %s: broker %s: %s",
            connection.id,
            connection.client_host,
            self._link.name,
            reason,
            extra={"repeats": f"upstream {about} {kind_of(reason)}"},
        )
        if not self.close():
            self.channel.close()

    def on_failed(self, error: Exception) -> None:
        """Log an internal error, and close both connections."""
        connection = self.channel.connection
        _log.error(
            "closed connection %d from %s: internal error while sending to broker %s",
            connection.id,
            connection.client_host,
            self._link.name,
            exc_info=error,
            extra=repeats("upstream failed", connection.client_host),
        )
        if not self.close():
            self.channel.close()

    # --- responses --------------------------------------------------------------------------------------------------

    def _receive(self, data: memoryview | bytearray) -> Answer | None:
        """Return the answer if enough of the response has arrived; otherwise keep the data.

        An invalid response closes the connection, and completes the deferred answer.
        """
        count = len(data)
        if count >= _PREFIX.size:
            header, respond = self._header, self._respond
            assert header is not None
            assert respond is not None
            size, correlation_id = _PREFIX.unpack_from(data)
            left = _LENGTH.size + size - count
            too_long = left < 0 and not self._ahead
            if size < _LENGTH.size or too_long or correlation_id != header.correlation_id:
                self.on_broken(f"the broker sent a response that does not fit its request (size {size})")
                return None
            is_streamed = self._is_streamed and _LENGTH.size + size > STREAMED_BYTES
            if left <= 0 or (is_streamed and count >= _FIRST_BYTES):
                early = None
                if left < 0:
                    data, early = data[:left], bytearray(data[left:])
                frame = data if isinstance(data, bytearray) else bytearray(data)
                self._pending = early
                rest = self._long_responses().begin(left) if left > 0 else None
                return self._answer(respond, header, Response(frame, size, rest))
            if not is_streamed and size > MAX_COLLECTED_BYTES:
                self.on_broken(
                    f"the broker sent a response of {size} bytes, expected at most {MAX_COLLECTED_BYTES}"
                )
                return None
        if self._pending is None:
            self._pending = bytearray(data)
        return None

    def _answer(self, respond: Respond, header: RequestHeader, response: Response) -> Answer | None:
        """Return the answer to the request in flight, and end that request. None: the connection was closed."""
        try:
            answer = respond(header, response)
        except ProtocolError as error:
            response.discard()
            name = API_BY_KEY[header.api_key].name
            self.on_broken(f"its {name} response cannot be forwarded: {error}")
            return None
        except Exception as error:
            response.discard()
            answer = Answer(None, close=True, error=error)
            self._close_connection()
        self._deferred = self._respond = None
        return answer

    def _long_responses(self) -> LongResponses:
        if self._long is None:
            self._long = LongResponses(self._connection, self._scratch)
        return self._long

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Close the connection, and end the request in flight without an answer; return whether there was one.

        Its client is charged, even if it has left.
        """
        deferred, header = self._deferred, self._header
        self._close_connection()
        if deferred is None or header is None:
            return False
        charge = Charge.PRODUCE if header.api_key == PRODUCE else Charge.REQUEST
        deferred.complete(Answer(None, charge, close=True))
        return True

    def _close_connection(self) -> None:
        self.closed = True
        self._deferred = self._respond = self._pending = None
        self._unsent = b""
        self._connection.close()
        if self._long is not None:
            self._long.close()
        self.on_ready()
