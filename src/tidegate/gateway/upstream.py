"""The connection to a broker of the cluster that carries the requests of one client connection.

A channel has one request in flight, so that the connection to the broker has one, too: the next bytes that the broker
sends are its response. A short response is received as a whole. Of a long one the beginning is enough: the rest goes
from socket to socket through a pipe, without passing through this process (`ResponseRest`).

    deferred = upstream.forward(request, respond)   # `respond` makes the answer from the response

If the broker closes the connection, or breaks the protocol, the client's connection closes: that is what the client
would see of the broker itself.

Bounds: one request, which lies in the memory of its channel until it has left; of a response that has to be read as a
whole, `MAX_COLLECTED_BYTES`; of any other response `STREAMED_BYTES`, and what fits into a pipe.

By TLS a long response passes through this process, in parts of `ENCRYPTED_PART_BYTES`. Where the gateway logs in with
credentials of its own, it does so before the first request, and again before a request when the session is about to end
(`upstream_login`, KIP-368).
"""

import contextlib
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable, Generator
from typing import Protocol

from tidegate.gateway.upstream_login import USED_OF_SESSION, UpstreamLogin, UpstreamSecurity
from tidegate.scheduling import Scheduler, Timer
from tidegate.server.connection.channel import Channel
from tidegate.server.connection.poller import SocketPoller
from tidegate.server.connection.tls_session import TlsError
from tidegate.server.connection.tls_transport import TlsTransport
from tidegate.server.connection.transport import GONE_PROBES, SocketTransport
from tidegate.server.requests.handler import Answer, Charge, Deferred, Request, Wait, Work
from tidegate.wire import API_BY_KEY, ProtocolError, RequestHeader

__all__ = [
    "CONNECT_TIMEOUT_S",
    "ENCRYPTED_PART_BYTES",
    "MAX_COLLECTED_BYTES",
    "STREAMED_BYTES",
    "Respond",
    "Response",
    "ResponseRest",
    "SocketAddress",
    "Upstream",
    "UpstreamLink",
]

_log = logging.getLogger("tidegate.gateway")

STREAMED_BYTES = 64 * 1024
"""Responses up to this size, length prefix included, are received as a whole before they are forwarded."""
MAX_COLLECTED_BYTES = 64 << 20
"""Longest response that is read as a whole because something in it has to change."""
PIPE_BYTES = 1 << 20
"""Capacity of the pipe of a streamed response, where the system grants it."""
CONNECT_TIMEOUT_S = 10.0
"""Longest time to connect and log in. Follows: Kafka `socket.connection.setup.timeout.ms`."""
ENCRYPTED_PART_BYTES = 64 * 1024
"""Bytes of a long response over TLS that are decrypted at a time."""
_RENEWAL_MIN_S = (
    1.05  # a broker takes another login of a connection after one second at the earliest (KIP-368)
)
_RENEWAL_RETRY_S = 0.1
_SPLICE_NONBLOCK = 2  # SPLICE_F_NONBLOCK of Linux; `os` names it from Python 3.12 on
_LENGTH = struct.Struct(">i")
_PREFIX = struct.Struct(">ii")  # length, correlation id
_FIRST_BYTES = 32
"""Bytes of a long response that must have arrived before it is forwarded: those before its first array."""
_CLOSED = "the broker closed the connection"
_KIND_CHARS = 80  # by these, numbers aside, the lines about one broker are alike
_NO_DIGITS = str.maketrans("", "", "0123456789")
_F_SETPIPE_SZ = 1031  # Linux

SocketAddress = tuple[int, tuple[str, int] | tuple[str, int, int, int]]
"""Address family and address, as `socket.connect` takes them."""


class Response:
    """A response of the broker: `frame` from its length prefix on, of `size` bytes after the prefix.

    rest: what of it has not been received; None: `frame` is all of it.
    """

    __slots__ = ("frame", "rest", "size")

    def __init__(self, frame: bytearray, size: int, rest: "ResponseRest | None") -> None:
        self.frame = frame
        self.size = size
        self.rest = rest

    def discard(self) -> None:
        """Drop what has not been received."""
        if self.rest is not None:
            self.rest.release()


Respond = Callable[[RequestHeader, Response], Answer]
"""Makes the answer to a request from the broker's response. Raises `ProtocolError` where the response is wrong."""


class UpstreamLink(Protocol):
    """The broker that the connections of a node lead to. `address` is None while it is not known."""

    @property
    def name(self) -> str:
        """The broker, for messages."""

    @property
    def host(self) -> str:
        """The broker's host as the cluster names it, which its certificate has to have."""

    @property
    def address(self) -> SocketAddress | None:
        """The address to connect to, now."""

    def on_unreachable(self) -> None:
        """Note that no connection to the broker can be made now."""

    def on_lost(self) -> None:
        """Note that a connection to the broker has ended that was not meant to."""


class Upstream:
    """The connection of one channel to the broker. It connects when the first request comes."""

    __slots__ = (
        "_deferred",
        "_drained",
        "_header",
        "_is_streamed",
        "_link",
        "_login",
        "_loop",
        "_monotonic_ns",
        "_on_connected",
        "_pending",
        "_pipe",
        "_poller",
        "_respond",
        "_scratch",
        "_security",
        "_timer",
        "_transport",
        "_wait",
        "channel",
        "closed",
        "connected",
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
    ) -> None:
        self.channel = channel
        self._link = link
        self._security = security
        self._poller = poller
        self._loop = loop
        self._scratch = scratch  # shared by all connections of a node
        self._monotonic_ns = monotonic_ns
        self._transport: SocketTransport | TlsTransport | None = None
        self._deferred: Deferred | None = None  # of the request in flight
        self._header: RequestHeader | None = None
        self._respond: Respond | None = None
        self._is_streamed = False
        self._pending: bytearray | None = None  # the beginning of its response
        self._drained = 0  # bytes of an earlier response that are to be ignored
        self._wait: Wait | None = None  # until more of the request can be sent
        self._timer: Timer | None = (
            None  # until it has to be connected, then until the session is about to end
        )
        self._login: UpstreamLogin | None = None  # of the gateway's own, while it is under way
        self._pipe: tuple[int, int] | None = None
        self.connected = False
        self.closed = False
        self.login: object = None
        """The state of a login that passes through, for `tidegate.gateway.logins`."""
        self.withheld_session = 0
        """The id of a fetch session that the broker has created and the client was not told of; 0: there is none."""

    # --- requests ---------------------------------------------------------------------------------------------------

    def forward(
        self,
        request: Request,
        respond: Respond,
        *,
        frame: memoryview | None = None,
        is_streamed: bool = False,
    ) -> Deferred | Work:
        """Send a request; the deferred answer is what `respond` makes of the response.

        frame: what to send instead of the request's own frame. is_streamed: `respond` needs only the beginning.
        """
        deferred = Deferred()
        deferred.at_once = True
        self._deferred, self._header, self._respond = deferred, request.header, respond
        self._is_streamed = is_streamed
        if frame is None:
            frame = request.frame
            sent = self._send(frame, 0) if self.connected else self._connect()
            if sent == _LENGTH.size + len(frame):
                return deferred
            return self._send_in_parts(deferred, sent, request, None)
        sent = self._send(frame, 0) if self.connected else self._connect()
        return self._send_in_parts(deferred, sent, request, frame)

    def send_only(self, request: Request) -> Answer | Work:
        """Send a request that gets no response (Produce with acks=0); return its answer, which is none."""
        frame = request.frame
        sent = self._send(frame, 0) if self.connected else self._connect()
        if sent == _LENGTH.size + len(frame):
            return Answer(None, Charge.PRODUCE)
        return self._send_only_in_parts(sent, request)

    def _send_only_in_parts(self, sent: int, request: Request) -> Work:
        yield from self._send_rest(sent, request, None)
        return Answer(None, Charge.PRODUCE, close=self.closed)

    def _send_in_parts(
        self, deferred: Deferred, sent: int, request: Request, frame: memoryview | None
    ) -> Work:
        yield from self._send_rest(sent, request, frame)
        return deferred

    def _send_rest(
        self, sent: int, request: Request, frame: memoryview | None
    ) -> Generator[Wait | None, None, None]:
        """Send what is left of a request as the socket takes it. The frame of `request` may be another one by now."""
        data = request.frame if frame is None else frame
        end = _LENGTH.size + len(data)
        while not self.closed and sent < end:
            if self.connected:
                sent += self._send(data, sent)
            if sent < end and not self.closed:
                self._wait = Wait()
                if self.connected and self._transport is not None:
                    self._transport.start_writing(self._on_writable)
                yield self._wait

    def _send(self, frame: memoryview, sent: int) -> int:
        """Send some of a request, its length prefix first; return the number of bytes."""
        assert self._transport is not None
        try:
            if not sent:
                return self._transport.sendmsg((_LENGTH.pack(len(frame)), frame))
            if sent < _LENGTH.size:
                return self._transport.send(_LENGTH.pack(len(frame))[sent:])
            return self._transport.send(frame[sent - _LENGTH.size :])
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            self._lose(_reason(error))
            return 0

    def _resume(self) -> None:
        wait, self._wait = self._wait, None
        if wait is not None:
            wait.resume()

    def _on_writable(self) -> None:
        if self._transport is not None:
            self._transport.stop_writing()
        self._resume()

    # --- connecting -------------------------------------------------------------------------------------------------

    def _connect(self) -> int:
        """Begin to connect, or to log in again; nothing can be sent before that is over."""
        if self.closed or self._login is not None:
            return 0
        if self._transport is not None:
            if self._security.credentials is not None and self._timer is None:
                self._begin_login()
            return 0
        found = self._link.address
        if found is None:
            self._link.on_unreachable()
            self._lose("its address is not known")
            return 0
        family, address = found
        try:
            sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            self._transport = transport = SocketTransport(sock, self._poller)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A broker that is gone without a word is noticed, as Kafka's clients would notice it.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in GONE_PROBES:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            code = sock.connect_ex(address)
        except OSError as error:
            self._lose(_reason(error))
            return 0
        if code not in (0, errno.EINPROGRESS):
            self._lose(os.strerror(code))
            return 0
        transport.set_client(self.channel.connection)
        transport.start_writing(lambda: self._on_connect(sock))
        self._timer = self._loop.call_later(
            CONNECT_TIMEOUT_S, lambda: self._lose(f"not connected within {CONNECT_TIMEOUT_S:.0f} s")
        )
        return 0

    def _on_connect(self, sock: socket.socket) -> None:
        transport, security = self._transport, self._security
        assert transport is not None
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._link.on_unreachable()
            self._lose(os.strerror(code))
            return
        transport.stop_writing()
        if security.tls is None:
            transport.start_reading(self._on_readable)
            self.on_established(None)
            return
        self._transport = transport = TlsTransport(
            transport,
            security.tls,
            security.buffers,
            poller=self._poller,
            owner=self,
            server_name=self._link.host,
        )
        try:
            transport.begin()
        except OSError as error:
            self._lose(_reason(error))
            return
        transport.start_reading(self._on_readable)

    # --- connecting: a `HandshakeOwner`

    def on_established(self, certificate: bytes | None) -> None:
        """Log in, where the gateway does so itself; otherwise requests can be sent."""
        if self._security.credentials is None:
            self._on_ready()
        else:
            self._begin_login()

    def on_handshake_failed(self, reason: str) -> None:
        """Leave that to `_on_readable`, which closes the connection."""

    def _begin_login(self) -> None:
        """Begin a login of the gateway's own: the first one, or another one before the session ends."""
        credentials = self._security.credentials
        assert credentials is not None
        self._login = UpstreamLogin(credentials, send=self._send_login, on_end=self._on_logged_in)
        if self._timer is None:
            self._timer = self._loop.call_later(
                CONNECT_TIMEOUT_S, lambda: self._lose(f"no login within {CONNECT_TIMEOUT_S:.0f} s")
            )
        self._login.begin()

    def _send_login(self, frame: bytes) -> None:
        if self._transport is None:
            return
        try:
            sent = self._transport.send(frame)
        except OSError as error:
            self._lose(_reason(error))
            return
        if sent < len(frame):  # the socket is empty: it takes the few bytes of a login
            self._lose("it takes no bytes of a login")

    def _on_logged_in(self, failure: str, lifetime_ms: int) -> None:
        """End a login. failure: why it has failed; empty: it has not."""
        self._login = None
        if self.closed:
            return
        if failure:
            self._lose(failure)
            return
        self._on_ready()
        if lifetime_ms > 0:
            renewal_s = max(USED_OF_SESSION * lifetime_ms / 1000, _RENEWAL_MIN_S)
            self._timer = self._loop.call_later(renewal_s, self._end_session)

    def _on_ready(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.connected = True
        self._resume()

    def _end_session(self) -> None:
        """Mark the session as over: the next request begins with a login."""
        if self._wait is not None:  # a request is being sent
            self._timer = self._loop.call_later(_RENEWAL_RETRY_S, self._end_session)
        else:
            self._timer = None
            self.connected = False

    # --- responses --------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        """Receive once; when the response is there, complete the answer."""
        since_ns = self._monotonic_ns()
        transport = self._transport
        if transport is None:
            return
        try:
            count = transport.recv_into(self._scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(_reason(error))
            return
        if not count:
            self._lose(_CLOSED)
            return
        data: memoryview | bytearray = self._scratch[:count]
        if self._drained:
            ignored = min(self._drained, count)
            self._drained -= ignored
            data = data[ignored:]
            if not len(data):
                return
        if self._login is not None:
            self._login.receive(data)
            return
        deferred = self._deferred
        if deferred is None:
            self._lose("the broker sent bytes that no request asked for")
            return
        if self._pending is not None:
            self._pending += data
            data = self._pending
        self._take(data, deferred, since_ns)
        if self._deferred is deferred:
            deferred.charged_ns += self._monotonic_ns() - since_ns

    def _take(self, data: memoryview | bytearray, deferred: Deferred, since_ns: int) -> None:
        """Complete the answer if enough of the response has come; else keep what has come."""
        count = len(data)
        if count >= _PREFIX.size:
            header, respond = self._header, self._respond
            assert header is not None
            assert respond is not None
            size, correlation_id = _PREFIX.unpack_from(data)
            left = _LENGTH.size + size - count
            if size < _LENGTH.size or left < 0 or correlation_id != header.correlation_id:
                self._lose(f"the broker sent a response that does not fit its request (size {size})")
                return
            is_streamed = self._is_streamed and _LENGTH.size + size > STREAMED_BYTES
            if not left or (is_streamed and count >= _FIRST_BYTES):
                frame = data if isinstance(data, bytearray) else bytearray(data)
                self._pending = self._deferred = self._respond = None
                rest = None
                if left:
                    rest = ResponseRest(self, left)
                    self._pause()
                self._complete(deferred, respond, header, Response(frame, size, rest), since_ns)
                return
            if not is_streamed and size > MAX_COLLECTED_BYTES:
                self._lose(
                    f"the broker sent a response of {size} bytes, expected at most {MAX_COLLECTED_BYTES}"
                )
                return
        if self._pending is None:
            self._pending = bytearray(data)

    def _complete(
        self, deferred: Deferred, respond: Respond, header: RequestHeader, response: Response, since_ns: int
    ) -> None:
        try:
            answer = respond(header, response)
        except ProtocolError as error:
            response.discard()
            self._deferred = deferred  # it is in flight still, for `_lose`
            name = API_BY_KEY[header.api_key].name
            self._lose(f"its {name} response cannot be forwarded: {error}")
            return
        except Exception as error:
            response.discard()
            answer = Answer(None, close=True, error=error)
            self._close_socket()
        deferred.charged_ns += self._monotonic_ns() - since_ns
        deferred.complete(answer)

    def _pause(self) -> None:
        """Leave what comes in the kernel, for a `ResponseRest` to take."""
        assert self._transport is not None
        self._transport.pause_reading(_ignore)

    def _read_on(self) -> None:
        """Read responses again."""
        if self._transport is not None:
            self._transport.start_reading(self._on_readable)

    def finish_stream(self, *, unread: int, in_pipe: int) -> None:
        """End a streamed response; `unread` bytes of it have not been received, `in_pipe` not left the pipe."""
        self._drained = unread
        if in_pipe:
            self._close_pipe()
        self._read_on()

    def wait_for_bytes(self, call: Callable[[], None]) -> None:
        """Call `call` once when the broker has sent more, or has closed the connection."""

        def on_bytes() -> None:
            if self._transport is not None:
                self._pause()
            call()

        if self._transport is None:
            self._poller.call_in_turn(call, self.channel.connection.owner)
        else:
            self._transport.start_reading(on_bytes)

    @property
    def transport(self) -> SocketTransport | TlsTransport:
        """The socket, or TLS over it. Raises `ConnectionAbortedError` where it is closed."""
        if self._transport is None:
            raise ConnectionAbortedError("the connection to the broker is closed")
        return self._transport

    def receive_some(self, most: int) -> bytes:
        """Receive up to `most` bytes, b"" where the broker has ended. Raises `OSError`."""
        part = self._scratch[:most]
        return bytes(part[: self.transport.recv_into(part)])

    def pipe(self) -> tuple[int, int]:
        """Return the pipe for streamed responses: the descriptors of its reading and writing end."""
        if self._pipe is None:
            import fcntl

            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._pipe[1], _F_SETPIPE_SZ, PIPE_BYTES)
        return self._pipe

    # --- the end ----------------------------------------------------------------------------------------------------

    def _lose(self, reason: str) -> None:
        """Close both connections: the client sees what it would see of the broker."""
        if self.closed:
            return
        if self.connected:
            self._link.on_lost()
        connection = self.channel.connection
        # Between two requests a broker may close a connection, such as one that was idle for long. In a request it is
        # often the client's mistake.
        is_closed = reason == _CLOSED
        about = connection.client_host if is_closed else self._link.name
        _log.log(
            logging.INFO if is_closed and self._deferred is None else logging.WARNING,
            "closed connection %d from %s: broker %s: %s",
            connection.id,
            connection.client_host,
            self._link.name,
            reason,
            extra={"repeats": f"upstream {about} {reason.translate(_NO_DIGITS)[:_KIND_CHARS]}"},
        )
        deferred, header = self._deferred, self._header
        self._close_socket()
        if deferred is not None and header is not None:
            deferred.complete(Answer(None, _charge_of(header), close=True))
        else:
            self.channel.close()

    def close(self) -> None:
        """Close the connection: the client's has closed. Its request is charged: leaving evades no quota."""
        deferred, header = self._deferred, self._header
        self._close_socket()
        if deferred is not None and header is not None:
            deferred.complete(Answer(None, _charge_of(header), close=True))

    def _close_socket(self) -> None:
        self.closed, self.connected = True, False
        self._deferred = self._respond = self._pending = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._login = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
        self._close_pipe()
        self._resume()

    def _close_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe[0])
            os.close(pipe[1])


class ResponseRest:
    """The rest of a response that is forwarded while it comes. A part of an answer (`connection.sending`).

    size: the bytes that have not been sent yet.
    """

    __slots__ = ("_in_pipe", "_is_starved", "_peeked", "_unread", "_upstream", "size")

    def __init__(self, upstream: Upstream, size: int) -> None:
        self._upstream: Upstream | None = upstream
        self._unread = size  # in the socket, or still to come
        self._in_pipe = 0
        self._peeked = b""
        self._is_starved = False
        self.size = size

    def __len__(self) -> int:
        return self.size

    def send_to(self, fd: int) -> int:
        """Move some of it to the client's socket; return the number of bytes. See `connection.sending`."""
        upstream = self._upstream
        assert upstream is not None, "the response was released"
        if isinstance(upstream.transport, TlsTransport):
            return os.write(fd, self._peeked or self.read_some(ENCRYPTED_PART_BYTES))
        source = upstream.transport.fd
        out, into = upstream.pipe()
        if not self._in_pipe:
            try:
                count = os.splice(source, into, min(self._unread, PIPE_BYTES), flags=_SPLICE_NONBLOCK)
            except BlockingIOError:
                self._is_starved = True
                raise
            self._is_starved = False
            if not count:
                return 0
            self._unread -= count
            self._in_pipe = count
        sent = os.splice(out, fd, self._in_pipe, flags=_SPLICE_NONBLOCK)
        self._in_pipe -= sent
        return sent

    def read_some(self, count: int) -> bytes:
        """Return bytes from its beginning, which stay there; see `connection.sending`."""
        if not self._peeked:
            assert self._upstream is not None, "the response was released"
            try:
                self._peeked = self._upstream.receive_some(min(count, self._unread))
            except BlockingIOError:
                self._is_starved = True
                raise
            self._is_starved = False
            self._unread -= len(self._peeked)
        return self._peeked[:count]

    def rest(self, sent: int) -> "ResponseRest":
        """Return this part without its first `sent` bytes."""
        self.size -= sent
        self._peeked = self._peeked[sent:]
        return self

    def wait_for_more(self, call: Callable[[], None]) -> bool:
        """Return whether the broker has to send more first, and call `call` when it has."""
        if not self._is_starved:
            return False
        self._is_starved = False
        assert self._upstream is not None, "the response was released"
        self._upstream.wait_for_bytes(call)
        return True

    def release(self) -> None:
        """Note that it was sent, or that it will not be."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.finish_stream(unread=self._unread, in_pipe=self._in_pipe)


def _charge_of(header: RequestHeader) -> Charge:
    """Return the quotas of a request whose response is not known."""
    return Charge.PRODUCE if header.api_key == 0 else Charge.REQUEST


def _reason(error: OSError) -> str:
    if isinstance(error, TlsError):
        return f"TLS failed: {error.reason}"
    return error.strerror or str(error)


def _ignore() -> None:
    """Leave a break to the next read or write."""
