"""Connections of all processes of a gateway: of brokers, listeners and client addresses, in memory that they share.

`max.connections` and `max.connections.per.ip` are limits over all processes. Each process keeps the counts of its own
connections in a table of its own, and adds those of the other tables when it admits a connection. What is counted for a
broker has a name, of which the table has a digest.

A table has `PLACES` places, and a name one of the `PROBES` places from that of its digest on. A place whose count is 0
is free. Without a free one, the connections of an address do not count in other processes.
"""

import mmap
import struct
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

from tidegate.gateway.shared_states import SharedRates
from tidegate.quota.measure.rate import SampledRate

__all__ = ["PLACES", "PROBES", "ConnectionCounts", "SharedConnections"]

PLACES = 1 << 15
PROBES = 32
_PLACE = struct.Struct("=QQ")  # digest, connections
_KEY_BYTES = 8


class ConnectionCounts:
    """The tables of all processes. Made before the processes are forked; a process changes only its own."""

    def __init__(self, processes: int, *, places: int = PLACES) -> None:
        self._processes, self._places = processes, places
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, processes * places * _PLACE.size, flags)

    def clear(self, process: int) -> None:
        """Forget the connections of a process that has ended."""
        begin = self._at(process, 0)
        self._memory[begin : begin + self._places * _PLACE.size] = bytes(self._places * _PLACE.size)

    def count_of_others(self, process: int, key: int) -> int:
        """Return the connections of a name in the processes other than this one."""
        return sum(self._count(each, key) for each in range(1, self._processes + 1) if each != process)

    def set(self, process: int, key: int, connections: int) -> None:
        """Set the connections of a name in this process."""
        free = None
        for place in self._probed(key):
            found, count = _PLACE.unpack_from(self._memory, self._at(process, place))
            if found == key:
                free = place
                break
            if free is None and count == 0:
                free = place
            if found == 0:
                break
        if free is not None:
            _PLACE.pack_into(self._memory, self._at(process, free), key, connections)

    def _count(self, process: int, key: int) -> int:
        for place in self._probed(key):
            found, count = _PLACE.unpack_from(self._memory, self._at(process, place))
            if found == key:
                return int(count)
            if found == 0:
                break
        return 0

    def _probed(self, key: int) -> range:
        first = key % (self._places - PROBES)
        return range(first, first + PROBES)

    def _at(self, process: int, place: int) -> int:
        return ((process - 1) * self._places + place) * _PLACE.size


class SharedConnections:
    """The connections of one broker's clients in all processes: `OtherProcesses` of its quotas."""

    def __init__(
        self,
        counts: ConnectionCounts,
        rates: SharedRates,
        *,
        process: int,
        broker_id: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._counts, self._rates = counts, rates
        self._process, self._broker_id = process, broker_id
        self._now_ms = now_ms

    def count(self, name: str) -> int:
        """Return the connections of a name in other processes."""
        return self._counts.count_of_others(self._process, self._key(name))

    def set_own(self, name: str, connections: int) -> None:
        """Publish the connections of a name in this process."""
        self._counts.set(self._process, self._key(name), connections)

    def rate(self, name: str, **settings: Any) -> SampledRate:
        """Return a rate that all processes record."""
        return self._rates.rate(self._broker_id, self._now_ms, name, **settings)

    def _key(self, name: str) -> int:
        digest = blake2b(f"{self._broker_id} {name}".encode(), digest_size=_KEY_BYTES).digest()
        return int.from_bytes(digest, "big") or 1
