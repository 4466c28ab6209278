"""Lookups of host names without holding the event loop: threads ask the resolver, and requests wait for a while.

The resolver has only long timeouts: if a name server does not answer, one name takes 10 seconds and more. So a few
threads do nothing else, and a request waits for a name at most `LOOK_UP_S`; then the name counts as unknown. The newest
request is served first, because earlier ones may have timed out.
"""

import contextlib
import logging
import queue
import socket
import threading
from collections.abc import Callable, Collection, Generator
from pathlib import Path

from tidegate.quota.admin.ip_names import IpLiteral, ip_literal, may_be_host_name
from tidegate.scheduling import Scheduler
from tidegate.server.requests.handler import Wait

__all__ = ["LOOK_UP_S", "MAX_LOOKUPS", "HostNames", "addresses_of_literal", "resolve", "warn_of_unknown"]

_log = logging.getLogger("tidegate.server")

LOOK_UP_S = 10.0
"""Longest wait of a request for the names in it; Kafka's admin client waits 30 s for its answer."""
MAX_LOOKUPS = 10_000
"""Names that wait for a thread; as many as one request may set quotas of. Past it a name counts as unknown."""
_THREADS = 4
_AT_A_TIME = 100  # literals read between two yields
_LOCAL_ADDRESSES = Path("/proc/net/if_inet6")

Addresses = tuple[str, ...]


def resolve(name: str) -> Addresses:
    """Return the addresses of a host; none where it is unknown. This may take long."""
    try:
        infos = socket.getaddrinfo(name.encode(), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(sorted({str(info[4][0]).partition("%")[0] for info in infos}))


class _Lookup:
    """Names that are looked up together. Its methods are called on the event loop."""

    def __init__(self, names: Collection[str], on_found: Callable[[str, Addresses], None]) -> None:
        self.over = False
        self.wait = Wait()
        self._missing = set(names)
        self._on_found = on_found

    def found(self, name: str, addresses: Addresses) -> None:
        """Pass the addresses of a name to `on_found`, unless the lookup is over."""
        if not self.over:
            self._missing.discard(name)
            self._on_found(name, addresses)
            if not self._missing:
                self.resume()

    def resume(self) -> None:
        """Stop waiting for names."""
        self.over = True
        self.wait.resume()


class HostNames:
    """The lookups of one process. `resolve` is called on other threads; it has no address for an unknown name."""

    def __init__(self, loop: Scheduler, resolve: Callable[[str], Addresses] = resolve) -> None:
        self._loop = loop
        self._resolve = resolve
        self._threads: list[threading.Thread] = []
        self._names: queue.LifoQueue[tuple[str, _Lookup] | None] = queue.LifoQueue()

    def look_up(self, names: Collection[str]) -> Generator[Wait | None, None, dict[str, Addresses]]:
        """Return the addresses of each of `names`, after `LOOK_UP_S` at the latest; none for an unknown name."""
        found: dict[str, Addresses] = {}
        hosts = []
        for number, name in enumerate(names):
            found[name] = addresses_of_literal(name)
            if not found[name] and may_be_host_name(name):
                hosts.append(name)
            if number % _AT_A_TIME == 0:
                yield None
        if hosts:
            lookup = self._begin(hosts, found.__setitem__)
            timer = self._loop.call_later(LOOK_UP_S, lookup.resume)
            yield lookup.wait
            timer.cancel()
        return found

    def look_up_later(self, names: Collection[str], on_found: Callable[[str, Addresses], None]) -> None:
        """Call `on_found` for each of `names` when its lookup ends, however long that takes. No name is an address."""
        if names:
            self._begin(names, on_found)

    def close(self) -> None:
        """Answer no more requests; each thread ends after its current lookup."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._names.get_nowait()
        for _ in self._threads:
            self._names.put(None)

    def _begin(self, hosts: Collection[str], on_found: Callable[[str, Addresses], None]) -> _Lookup:
        lookup = _Lookup(hosts, on_found)
        while len(self._threads) < min(_THREADS, len(hosts)):
            thread = threading.Thread(target=self._serve, name="tidegate-host-names", daemon=True)
            self._threads.append(thread)
            thread.start()
        refused = 0
        for host in hosts:
            if self._names.qsize() < MAX_LOOKUPS:
                self._names.put((host, lookup))
            else:
                refused += 1
                self._loop.call_soon(lookup.found, host, ())
        if refused:
            _log.warning("skipped the lookup of %d host names: the queue of %d is full", refused, MAX_LOOKUPS)
        return lookup

    def _serve(self) -> None:
        """Look up one name after the other. Runs on a thread of its own."""
        while (asked := self._names.get()) is not None:
            name, lookup = asked
            if not lookup.over:
                addresses = self._resolve(name)
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(lookup.found, name, addresses)


def addresses_of_literal(name: str) -> Addresses:
    """Return the address that `name` is written as, or none."""
    literal = ip_literal(name)
    return () if literal is None or not _is_here(literal) else (literal.address,)


def warn_of_unknown(host: str, addresses: Addresses) -> None:
    """Log a host without an address."""
    if not addresses:
        _log.warning("cannot resolve host %r; its connection limit has no effect", host)


def _is_here(literal: IpLiteral) -> bool:
    """Return whether the interface in an address, if any, has such addresses. Follows: Java `Inet6Address`."""
    if literal.interface is None:
        return True
    is_link_local = literal.address.startswith("fe80:")
    with contextlib.suppress(OSError):
        for line in _LOCAL_ADDRESSES.read_text().splitlines():
            address, *_, interface = line.split()
            if interface == literal.interface and (not is_link_local or address.startswith("fe80")):
                return True
    return False
