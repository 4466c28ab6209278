"""A response of a broker, received as a whole or forwarded while it comes.

A short response is received completely. Only the first part of a long response is received: the rest goes from socket
to socket through a pipe, without being copied into this process (`ResponseRest`). With TLS, it is copied into this
process, in parts of `ENCRYPTED_PART_BYTES`.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable

from tidegate.gateway.upstream_connection import UpstreamConnection
from tidegate.server.connection.tls_transport import TlsTransport
from tidegate.server.connection.transport import SocketTransport

__all__ = ["ENCRYPTED_PART_BYTES", "LongResponses", "Response", "ResponseRest"]

PIPE_BYTES = 1 << 20
"""Capacity of the pipe of a streamed response, where the system grants it."""
ENCRYPTED_PART_BYTES = 64 * 1024
"""Bytes of a long response over TLS that are decrypted at a time."""
_SPLICE_NONBLOCK = 2  # SPLICE_F_NONBLOCK of Linux; `os` names it from Python 3.12 on
_F_SETPIPE_SZ = 1031  # Linux


class LongResponses:
    """The long responses of one connection, one at a time.

    scratch: memory to receive into, used only during a call. drained: bytes of a dropped response, to be ignored when
    they arrive.
    """

    __slots__ = ("_connection", "_pipe", "_scratch", "drained")

    def __init__(self, connection: UpstreamConnection, scratch: memoryview) -> None:
        self._connection = connection
        self._scratch = scratch
        self._pipe: tuple[int, int] | None = None
        self.drained = 0

    def begin(self, size: int) -> "ResponseRest":
        """Return the rest of a response, whose `size` bytes stay in the kernel until they are sent."""
        self._connection.pause()
        return ResponseRest(self, size)

    @property
    def transport(self) -> SocketTransport | TlsTransport:
        """The socket, or TLS over it. Raises `ConnectionAbortedError` where it is closed."""
        if self._connection.transport is None:
            raise ConnectionAbortedError("the connection to the broker is closed")
        return self._connection.transport

    def pipe(self) -> tuple[int, int]:
        """Return the descriptors of the reading and the writing end of a pipe, which is opened at first use."""
        if self._pipe is None:
            self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            with contextlib.suppress(OSError):
                fcntl.fcntl(self._pipe[1], _F_SETPIPE_SZ, PIPE_BYTES)
        return self._pipe

    def receive_some(self, most: int) -> bytes:
        """Receive up to `most` bytes, b"" where the broker has ended. Raises `OSError`."""
        part = self._scratch[:most]
        return bytes(part[: self.transport.recv_into(part)])

    def wait_for_bytes(self, call: Callable[[], None]) -> None:
        """Call `call` once when the broker has sent more, or has closed the connection."""
        self._connection.wait_for_bytes(call)

    def end(self, *, unread: int, in_pipe: int) -> None:
        """End a response. unread: its bytes that were not received. in_pipe: its bytes that are still in the pipe."""
        self.drained = unread
        if in_pipe:
            self.close()
        self._connection.read()

    def close(self) -> None:
        """Close the pipe."""
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            os.close(pipe[0])
            os.close(pipe[1])


class Response:
    """A response of the broker: `frame` from its length prefix on, of `size` bytes after the prefix.

    rest: the part that has not been received; None: `frame` is all of it.
    """

    __slots__ = ("frame", "rest", "size")

    def __init__(self, frame: bytearray, size: int, rest: "ResponseRest | None") -> None:
        self.frame = frame
        self.size = size
        self.rest = rest

    def discard(self) -> None:
        """Drop the part that has not been received."""
        if self.rest is not None:
            self.rest.release()


class ResponseRest:
    """The rest of a response that is forwarded while it comes. A part of an answer (`connection.sending`).

    size: the bytes that have not been sent yet.
    """

    __slots__ = ("_in_pipe", "_is_starved", "_peeked", "_responses", "_unread", "size")

    def __init__(self, responses: LongResponses, size: int) -> None:
        self._responses: LongResponses | None = responses
        self._unread = size  # in the socket, or still to come
        self._in_pipe = 0
        self._peeked = b""
        self._is_starved = False
        self.size = size

    def __len__(self) -> int:
        return self.size

    def send_to(self, fd: int) -> int:
        """Move some of it to the client's socket; return the number of bytes. See `connection.sending`."""
        responses = self._responses
        assert responses is not None, "the response was released"
        transport = responses.transport
        if isinstance(transport, TlsTransport):
            return os.write(fd, self._peeked or self.read_some(ENCRYPTED_PART_BYTES))
        out, into = responses.pipe()
        if not self._in_pipe:
            try:
                count = os.splice(transport.fd, into, min(self._unread, PIPE_BYTES), flags=_SPLICE_NONBLOCK)
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
            assert self._responses is not None, "the response was released"
            try:
                self._peeked = self._responses.receive_some(min(count, self._unread))
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
        assert self._responses is not None, "the response was released"
        self._responses.wait_for_bytes(call)
        return True

    def release(self) -> None:
        """End the response, which was sent or will not be sent."""
        responses, self._responses = self._responses, None
        if responses is not None:
            responses.end(unread=self._unread, in_pipe=self._in_pipe)
