"""Connections by client address in all processes of a gateway, in memory that they share.

`max.connections.per.ip` is a limit over all processes. Each process keeps the counts of its own connections in a table
of its own, and adds those of the other tables when it admits a connection. An address of a broker is named by a digest.

A table has `PLACES` places, and an address one of the `PROBES` places from that of its digest on. A place whose count
is 0 is free. Without a free one, the connections of the address do not count in other processes.
"""

import mmap
import struct
from hashlib import blake2b

__all__ = ["PLACES", "PROBES", "AddressCounts", "BrokerAddresses"]

PLACES = 1 << 15
PROBES = 32
_PLACE = struct.Struct("=QQ")  # digest, connections
_KEY_BYTES = 8


class AddressCounts:
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
        """Return the connections of an address in the processes other than this one."""
        return sum(self._count(each, key) for each in range(1, self._processes + 1) if each != process)

    def set(self, process: int, key: int, connections: int) -> None:
        """Set the connections of an address in this process."""
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


class BrokerAddresses:
    """The connections of one broker's clients in other processes: `OtherConnections` of its quotas."""

    def __init__(self, counts: AddressCounts, process: int, broker_id: int) -> None:
        self._counts, self._process, self._broker_id = counts, process, broker_id

    def count(self, ip: str) -> int:
        """Return the connections of an address in other processes."""
        return self._counts.count_of_others(self._process, self._key(ip))

    def set_own(self, ip: str, connections: int) -> None:
        """Publish the connections of an address in this process."""
        self._counts.set(self._process, self._key(ip), connections)

    def _key(self, ip: str) -> int:
        digest = blake2b(f"{self._broker_id} {ip}".encode(), digest_size=_KEY_BYTES).digest()
        return int.from_bytes(digest, "big") or 1
