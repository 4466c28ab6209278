"""Connections of all processes of a gateway: of brokers, listeners and client addresses, in memory that they share.

`max.connections` and `max.connections.per.ip` are limits over all processes. Each process counts its own connections in
its own table, and adds the counts of the other tables when it admits a connection. Each count of a broker has a name;
the table contains a digest of the name.

A table has `PLACES` places. The digest of a name selects the first of `PROBES` consecutive places that the name may
have. A place is free if its count is 0, except those of brokers and listeners, which are never free again. If no place
is free for a name, its process assumes that each other process has the same count. So the limit is divided between the
processes, like a cluster-wide quota without reports.
"""

import logging
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
_KEPT = 1 << 63
"""Added to the connections in a place that is never free."""

_log = logging.getLogger("tidegate.gateway")


class ConnectionCounts:
    """The tables of all processes. Made before the processes are forked; a process changes only its own."""

    def __init__(self, processes: int, *, places: int = PLACES) -> None:
        self.processes, self._places = processes, places
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        self._memory = mmap.mmap(-1, processes * places * _PLACE.size, flags)

    def clear(self, process: int) -> None:
        """Forget the connections of a process that has ended."""
        begin = self._at(process, 0)
        self._memory[begin : begin + self._places * _PLACE.size] = bytes(self._places * _PLACE.size)

    def count_of_others(self, process: int, key: int) -> int:
        """Return the connections of a name in the processes other than this one."""
        return sum(self._count(each, key) for each in range(1, self.processes + 1) if each != process)

    def set(self, process: int, key: int, connections: int, *, keeps_place: bool = False) -> bool:
        """Set the connections of a name in this process. Return whether there is a place for it.

        keeps_place: the place is never free again.
        """
        free, kept = None, _KEPT if keeps_place else 0
        for place in self._probed(key):
            found, count = _PLACE.unpack_from(self._memory, self._at(process, place))
            if found == key:
                free, kept = place, kept | count & _KEPT
                break
            if free is None and count == 0:
                free = place
            if found == 0:
                break
        if free is not None:
            _PLACE.pack_into(self._memory, self._at(process, free), key, kept | connections)
        return free is not None

    def _count(self, process: int, key: int) -> int:
        for place in self._probed(key):
            found, count = _PLACE.unpack_from(self._memory, self._at(process, place))
            if found == key:
                return int(count & ~_KEPT)
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
        self._unplaced: dict[str, int] = {}  # connections of names that have no place

    def count(self, name: str) -> int:
        """Return the connections of a name in other processes, assumed for a name without a place."""
        assumed = self._unplaced.get(name, 0) * (self._counts.processes - 1)
        return max(assumed, self._counts.count_of_others(self._process, self._key(name)))

    def set_own(self, name: str, connections: int, *, keeps_place: bool = False) -> None:
        """Publish the connections of a name in this process. keeps_place: keep the place while the count is 0."""
        if self._counts.set(self._process, self._key(name), connections, keeps_place=keeps_place):
            self._unplaced.pop(name, None)
        elif connections:
            self._unplaced[name] = connections
            _log.warning(
                "connections of %s are counted in this process alone, with its part of their limit: the table of "
                "connection counts is full; hint: use more --processes, or several gateways, each with its own "
                "--brokers",
                name,
                extra={"repeats": "connection counts"},
            )
        else:
            self._unplaced.pop(name, None)

    def rate(self, name: str, **settings: Any) -> SampledRate:
        """Return a rate that all processes record."""
        return self._rates.rate(self._broker_id, self._now_ms, name, **settings)

    def _key(self, name: str) -> int:
        digest = blake2b(f"{self._broker_id} {name}".encode(), digest_size=_KEY_BYTES).digest()
        return int.from_bytes(digest, "big") or 1
