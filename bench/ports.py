"""Ports for the servers of benchmarks and tests, which run at the same time."""

import fcntl
import os
import socket
import tempfile
from functools import cache
from itertools import takewhile
from pathlib import Path
from secrets import randbelow

from tidegate.gateway.processes import METRICS_STEP

__all__ = ["free_port"]

_FIRST_PORT, _PORTS = 20_000, 12_000
_MOST_RESERVED = 2_000
_TRIES = 100_000
_reserved: dict[int, None] = {}
"""The ports that this process has reserved, the oldest first."""


def free_port(following: int = 0, *, processes: int = 1) -> int:
    """Return a port on which no server listens, and which no other test or benchmark of this user gets.

    The system takes the ports of clients from 32768 on, so it takes none of these. Other calls, also in other
    processes, return other ports: a port is reserved until this process ends or has reserved 2,000 more. Raises
    `RuntimeError` if there is none.
    following: the number of ports behind it that are free, too, as for the brokers of a gateway.
    processes: of a gateway. Each serves its metrics a thousand ports behind the process before; these are free, too.
    """
    for _ in range(_TRIES):
        first = _FIRST_PORT + randbelow(_PORTS - following - (processes - 1) * METRICS_STEP)
        wanted = [
            first + process * METRICS_STEP + number
            for process in range(processes)
            for number in range(following + 1)
        ]
        reserved = list(takewhile(_reserve, wanted))
        if reserved == wanted:
            return first
        for port in reserved:
            _release(port)
    raise RuntimeError(f"no port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free")


def _reserve(port: int) -> bool:
    """Reserve a port. Return False if another call has reserved it, or a server listens on it."""
    if port in _reserved:
        return False
    try:
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    _reserved[port] = None
    if len(_reserved) > _MOST_RESERVED:
        _release(next(iter(_reserved)))
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            _release(port)
            return False
    return True


def _release(port: int) -> None:
    """End the reservation of a port."""
    del _reserved[port]
    fcntl.lockf(_lock_file(), fcntl.LOCK_UN, 1, port)


@cache
def _lock_file() -> int:
    """Return the descriptor of a file whose byte n is locked by the process that has reserved port n."""
    path = Path(tempfile.gettempdir()) / f"tidegate-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
