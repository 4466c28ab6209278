"""A listener: accepts connections as fast as they come, or as slowly as connection quotas require (KIP-612, B§6.9)."""

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tidegate.errors import ConfigError
from tidegate.quota.connections.limits import host_address
from tidegate.server.listening.accept_queues import ONE_PROCESS, Spread, bind_queues, listen_on
from tidegate.server.listening.listener_config import ListenerAddress, host_and_port
from tidegate.server.settings.config import ServerConfig

__all__ = ["RESERVED_DESCRIPTORS", "SocketListener", "bindable"]

_log = logging.getLogger("tidegate.server")

RESERVED_DESCRIPTORS = 256
"""Descriptors that are reserved for logs and the usage record; a quarter of the limit, if that is small."""
_ACCEPT_BATCH = 64  # connections of a queue that are accepted before others get a turn,
_ACCEPT_S = 0.001  # and for how long: one with TLS takes 0.1 ms
_OUT_OF_FILES_WAIT_S = 1.0
_SPARE_HELPS = (errno.EMFILE, errno.ENFILE)
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class SocketListener:
    """A listener at one address. `on_accept(sock, host)` gets each new connection, as a non-blocking socket.

    If all descriptors for connections are used, `make_room(host)` may close another connection; otherwise the new one
    is closed. If no descriptor is left at all, a spare one is closed first, to accept the connection.

    The kernel queues new connections by their clients' addresses (`tidegate.server.listening.accept_queues`). Options
    are set once, on the listening sockets: the connections that they accept begin with the same.
    """

    def __init__(
        self,
        address: ListenerAddress,
        config: ServerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        on_accept: Callable[[socket.SocketType, str], None],
        make_room: Callable[[str], bool] = lambda host: False,
        spread: Spread = ONE_PROCESS,
    ) -> None:
        self.name = address.name
        self._make_room = make_room
        self._loop = loop
        self._on_accept = on_accept
        sock = _bind(address, joins=spread.joins)
        self._kind = int(sock.family), int(sock.type), sock.proto
        self.port: int = sock.getsockname()[1]
        self._queues = bind_queues(sock)
        for queue in self._queues:
            _set_options(queue, config)
        self._backlog: int = config["socket.listen.backlog.size"]
        self._processes = spread.processes
        listen_on(self._queues, self._backlog, processes=self._processes)
        self._accepting = self._refusing = False
        self._most_fd = _most_fd()
        self._spare: int | None = None
        self.refused = 0  # connections, for want of descriptors

    def start(self) -> None:
        """Begin to accept. Ignored while connections are refused."""
        if self._refusing:
            return
        self._most_fd = _most_fd()  # storage may have raised the limit
        self._keep_spare()
        if not self._accepting and self._queues:
            self._accepting = True
            for queue in self._queues:
                # What `accept` calls; the rest of it, wrapping the new socket, costs more than the call.
                self._loop.add_reader(queue.fileno(), self._accept_some, queue._accept)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Stop accepting and close the sockets."""
        self.stop()
        for queue in self._queues:
            queue.close()
        self._queues.clear()
        self._give_up_spare()

    def stop(self) -> None:
        """Accept no connection until `start`; the kernel keeps clients waiting."""
        if self._accepting:
            self._accepting = False
            for queue in self._queues:
                self._loop.remove_reader(queue.fileno())

    def refuse(self) -> None:
        """Refuse connections until `stop_refusing`; the port stays this listener's.

        Queued connections are reset. On systems that cannot do that, clients are kept waiting.
        """
        self.stop()
        if sys.platform == "linux":
            self._refusing = True
            for queue in self._queues:
                with contextlib.suppress(OSError):
                    queue.shutdown(socket.SHUT_RDWR)

    def stop_refusing(self) -> None:
        """Accept connections again."""
        if self._refusing:
            self._refusing = False
            listen_on(self._queues, self._backlog, processes=self._processes)
        self.start()

    def _accept_some(self, accept: Callable[[], tuple[int, Any]]) -> None:
        until_s = self._loop.time() + _ACCEPT_S
        self._keep_spare()
        for _ in range(_ACCEPT_BATCH):
            try:
                fd, peer = accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    return
                if error.errno not in _SPARE_HELPS or not self._give_up_spare():
                    self._pause(error)
                    return
                continue  # with the descriptor that was given up
            sock = socket.SocketType(*self._kind, fd)
            host = self._host(peer)
            # A new descriptor has the lowest free number, which is thus about the number in use.
            if (self._spare is None or fd >= self._most_fd) and not self._make_room(host):
                self._refuse(sock)
            else:
                self._serve(sock, host)
            if self._spare is None:
                self._keep_spare()
            if not self._accepting or self._loop.time() >= until_s:
                return

    def _serve(self, sock: socket.SocketType, host: str) -> None:
        try:
            sock.setblocking(False)
            self._on_accept(sock, host)
        except Exception:
            _log.exception(
                "closed a new connection (listener %s): internal error", self.name, extra={"repeats": "serve"}
            )
            sock.close()

    def _pause(self, error: OSError) -> None:
        """Accept no connections for a second, because the system has no resources for one."""
        _log.error(
            "cannot accept connections (listener %s): %s; next try in 1 s",
            self.name,
            error.strerror,
            extra={"repeats": "accept"},
        )
        self.stop()
        self._loop.call_later(_OUT_OF_FILES_WAIT_S, self.start)

    def _keep_spare(self) -> None:
        """Open the spare descriptor, if it is not open and one is left."""
        if self._spare is None and self._queues:
            with contextlib.suppress(OSError):
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _give_up_spare(self) -> bool:
        """Close the spare descriptor; return whether there was one."""
        spare, self._spare = self._spare, None
        if spare is None:
            return False
        os.close(spare)
        return True

    def _host(self, peer: tuple[Any, ...]) -> str:
        """Return a client's address as Java writes it: an IPv4 address is never written as IPv6."""
        host: str = peer[0]
        return host if self._kind[0] == socket.AF_INET else host_address(host)

    def _refuse(self, sock: socket.SocketType) -> None:
        """Close a connection at once, because the remaining descriptors are reserved for logs and the usage record."""
        self.refused += 1
        sock.close()
        _log.error(
            "rejected connections (listener %s): %d file descriptors in use, %d reserved for logs and the usage "
            "record, %d connections rejected so far; hint: raise the limit (ulimit -n) or set max.connections",
            self.name,
            self._most_fd,
            _reserved(),
            self.refused,
            extra={"repeats": "descriptors"},
        )


def _reserved() -> int:
    return min(RESERVED_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)


def _most_fd() -> int:
    """Return the descriptor from which on connections are refused."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit - _reserved()


def _set_options(sock: socket.socket, config: ServerConfig) -> None:
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, option in (
        ("socket.send.buffer.bytes", socket.SO_SNDBUF),
        ("socket.receive.buffer.bytes", socket.SO_RCVBUF),
    ):
        if config[name] >= 0:
            sock.setsockopt(socket.SOL_SOCKET, option, config[name])


def _bind(address: ListenerAddress, *, joins: bool) -> socket.socket:
    """Return a socket at an address; without a host, at all IPv4 and IPv6 addresses of this machine, as in Java.

    joins: other processes of the same user may have bound the address for their queues.
    """
    try:
        if not address.host and socket.has_dualstack_ipv6():
            return _bound(socket.AF_INET6, ("::", address.port), joins=joins)
        infos = socket.getaddrinfo(
            address.host or None, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return _bound(*bindable(infos), joins=joins)
    except UnicodeError as error:  # Python's error for an invalid name such as `a..b`
        raise _cannot_listen(address, "invalid host name") from error
    except OSError as error:
        hint = "another program uses the port; choose another port with --port"
        in_use = error.errno == errno.EADDRINUSE
        raise _cannot_listen(address, error.strerror, hint if in_use else None) from error


def bindable(infos: Sequence[tuple[Any, ...]]) -> tuple[int, tuple[Any, ...]]:
    """Return the family and address to bind from the results of `getaddrinfo`: IPv4 if there is one, as in Java.

    A name such as localhost often has addresses of both families, and clients that use 127.0.0.1 must find it.
    """
    family, _, _, _, where = min(infos, key=lambda info: info[0] != socket.AF_INET)
    return family, where


def _bound(family: int, where: tuple[Any, ...], *, joins: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if joins:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6 and where[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    return sock


def _cannot_listen(address: ListenerAddress, reason: str | None, hint: str | None = None) -> ConfigError:
    where = host_and_port(address.host or "*", address.port)
    return ConfigError(f"cannot listen on {where}: {reason}", hint=hint)
