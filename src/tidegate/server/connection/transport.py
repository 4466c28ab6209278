"""The transport of a connection's bytes: a channel knows its transport and no socket.

`SocketTransport` is a TCP socket. A transport that encrypts, or that a test holds in memory, keeps the same contract:

* No call blocks: `recv_into` and `send` raise `BlockingIOError` if nothing can be read or sent.
* `on_readable` is called while there is something to receive, in the socket or decrypted already in the transport
  itself, and until the last byte was received (`recv_into` returns 0).
* If a transport must write before it can read (a handshake), it writes by itself: it asks the poller for that, and
  calls `on_writable` only when the channel may send.
* `close` releases everything; nothing is called back after it.
"""

import contextlib
import fcntl
import socket
import struct
import termios
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.server.connection.sending import Sendable, drop_sent
from tidegate.server.connection.turns import Client, SocketPoller

__all__ = ["GONE_PROBES", "MAX_BURST_BYTES", "SocketTransport", "Transport"]

MAX_BURST_BYTES = 4 * 1024 * 1024  # one connection's share before the others get a turn
GONE_PROBES = [
    (getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""Socket options of the probes of a client that has sent its last byte and waits for an answer, with values."""
_IOV_MAX = 64


class Transport(Protocol):
    """The server's end of one connection. Every call but `close` raises `OSError` where the connection is broken."""

    @property
    def local_address(self) -> tuple[str, int]:
        """The host and port that the client connected to."""

    def recv_into(self, target: memoryview, /) -> int:
        """Receive once into `target`; return how many bytes, 0 after the client's last one."""

    def send(self, data: Any, /) -> int:
        """Send as much of `data`, bytes-like, as possible now; return how many bytes."""

    def send_some(self, out: deque[Sendable], /) -> bool:
        """Send as much from the left of `out` as possible now, up to one burst; return whether it is empty.

        Sent items are removed; a file slice that has left is released.
        """

    def set_client(self, client: Client) -> None:
        """Set the client of the connection, whose principal its turns count for."""

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` while there is something to receive."""

    def pause_reading(self, on_broken: Callable[[], None]) -> None:
        """Stop reading until `start_reading`. Call `on_broken`, once, if the transport learns that it is broken."""

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        """Call `on_writable` while something can be sent."""

    def stop_writing(self) -> None:
        """Stop that."""

    def watch(self, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Watch a connection that is not read: call `on_early` when bytes arrive, `on_gone` when the client closes.

        The argument of `on_gone` is whether the connection is broken. A transport that cannot watch calls neither.
        """

    def unwatch(self) -> None:
        """Stop that. Harmless where nothing is watched."""

    def unread_bytes(self) -> int:
        """Return how many bytes came that `recv_into` has not returned, the kernel's among them."""

    def ask_for_client(self) -> None:
        """Begin to probe whether the client still exists; if it does not, the connection breaks."""

    def end(self) -> None:
        """End the connection after the bytes that have arrived: receives return these, and then 0."""

    def close(self) -> None:
        """Close the connection at once, and make no more calls."""


class SocketTransport:
    """A `Transport` over a non-blocking TCP socket."""

    __slots__ = ("_poller", "_sock", "fd", "recv_into", "send", "sendmsg")

    def __init__(self, sock: socket.SocketType, poller: SocketPoller) -> None:
        self.fd = sock.fileno()
        self.recv_into = sock.recv_into
        self.send = sock.send
        self.sendmsg = sock.sendmsg
        self._sock = sock
        self._poller = poller

    @property
    def local_address(self) -> tuple[str, int]:
        """The host and port that the client connected to."""
        host, port = self._sock.getsockname()[:2]
        return host, port

    def send_some(self, out: deque[Sendable]) -> bool:
        """Write memory by `send` or `sendmsg`, files by `sendfile`, until the socket takes no more or all has left."""
        budget = MAX_BURST_BYTES
        try:
            while out:
                if budget <= 0:
                    return False
                first = out[0]
                if isinstance(first, (bytes, bytearray, memoryview)):
                    sent = self._send_memory(out)
                else:
                    sent = first.send_to(self.fd)
                    if not sent:
                        # A file was cut while in use (decision 0024): trying again would never send more.
                        raise ConnectionAbortedError("the source of an answer is shorter than announced")
                    drop_sent(out, sent)
                budget -= sent
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _send_memory(self, out: deque[Sendable]) -> int:
        if len(out) == 1:
            sent = self.send(out[0])
            if sent == len(out[0]):
                out.popleft()
            else:
                out[0] = memoryview(out[0])[sent:]
            return sent
        batch: list[Sendable] = []
        for item in out:
            if not isinstance(item, (bytes, bytearray, memoryview)) or len(batch) == _IOV_MAX:
                break
            batch.append(item)
        # The rest, often a slice of a file, follows at once: the kernel should not send a short packet before it.
        flags = socket.MSG_MORE if len(batch) < len(out) else 0
        sent = left = self.sendmsg(batch, (), flags)
        for item in batch:
            size = len(item)
            if left < size:
                out[0] = memoryview(item)[left:]
                break
            left -= size
            out.popleft()
        return sent

    def set_client(self, client: Client) -> None:
        """Set the client of the connection."""
        self._poller.set_client(self.fd, client)

    def start_reading(self, on_readable: Callable[[], None]) -> None:
        """Call `on_readable` while the socket can be read."""
        self._poller.add_reader(self.fd, on_readable)

    def pause_reading(self, on_broken: Callable[[], None]) -> None:
        """Leave what comes in the kernel."""
        self._poller.pause_reader(self.fd, on_broken)

    def start_writing(self, on_writable: Callable[[], None]) -> None:
        """Call `on_writable` while the socket can be written."""
        self._poller.add_writer(self.fd, on_writable)

    def stop_writing(self) -> None:
        """Stop that."""
        self._poller.remove_writer(self.fd)

    def watch(self, on_early: Callable[[], None], on_gone: Callable[[bool], None]) -> None:
        """Watch the socket without reading it."""
        self._poller.watch(self.fd, on_early, on_gone)

    def unwatch(self) -> None:
        """Stop that."""
        self._poller.unwatch(self.fd)

    def unread_bytes(self) -> int:
        """Return how many received bytes wait in the kernel."""
        count: int = struct.unpack("i", fcntl.ioctl(self.fd, termios.FIONREAD, b"\0\0\0\0"))[0]
        return count

    def ask_for_client(self) -> None:
        """Set the intervals of the kernel's keepalive probes (`GONE_PROBES`).

        The host of a client that has closed its socket acknowledges them for a minute, then answers that it is gone.
        """
        with contextlib.suppress(OSError):
            for option, value in GONE_PROBES:
                self._sock.setsockopt(socket.IPPROTO_TCP, option, value)

    def end(self) -> None:
        """End the connection behind what has come."""
        with contextlib.suppress(OSError):  # it has ended already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self._poller.forget(self.fd)
        self._sock.close()
