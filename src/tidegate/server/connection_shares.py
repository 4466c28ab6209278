"""The connections of one node by principal: which one is closed so that another principal can connect.

A connection counts for its client's principal, and before it has logged in for the address (`tidegate.fair_share`).
While slots (`max.connections`) and descriptors last, nothing is closed. When they are used up, a client whose principal
has fewer connections than another gets in: of the principal that has most the least recently used connection is closed.

Kafka lets new clients wait for a slot, whatever principal has them all. `tidegate.kafka.exact` does the same.
"""

from itertools import islice
from operator import attrgetter

from tidegate.fair_share import ANONYMOUS, ReclaimableBound, owner_of
from tidegate.quota import ConnectionQuotas
from tidegate.server.connection.channel import Channel

__all__ = ["ConnectionShares"]

_LOOKED_AT = 100  # connections of the principal that has most, the oldest: 20 us
_NO_CAPACITY = 0  # how many there may be is up to the connection quotas, and to the system


class ConnectionShares:
    """Counts connections by principal: all that may be closed for others, and those of each listener."""

    def __init__(self, quotas: ConnectionQuotas) -> None:
        self._quotas = quotas
        self._all: ReclaimableBound[Channel] = ReclaimableBound(_NO_CAPACITY)
        self._by_listener: dict[str, ReclaimableBound[Channel]] = {}

    def count_connection(self, channel: Channel) -> None:
        """Count a connection."""
        connection = channel.connection
        of_listener = self._by_listener.get(connection.listener)
        if of_listener is None:
            of_listener = self._by_listener[connection.listener] = ReclaimableBound(_NO_CAPACITY)
        of_listener.add_entry(channel, connection.owner)
        if not self._quotas.is_protected(connection.listener):
            self._all.add_entry(channel, connection.owner)

    def remove(self, channel: Channel) -> None:
        """Remove a connection from the counts. Do nothing if it is not counted."""
        self._all.remove(channel)
        of_listener = self._by_listener.get(channel.connection.listener)
        if of_listener is not None:
            of_listener.remove(channel)

    def log_in(self, channel: Channel) -> None:
        """Count a connection for its principal after a login. Do nothing if it has closed."""
        if not channel.closed:
            self.remove(channel)
            self.count_connection(channel)

    def least_used(self, host: str, listener: str | None = None) -> Channel | None:
        """Return the connection to close so that a client at `host` can connect.

        listener: the one whose own maximum is reached, if that is the reason. Return None unless a principal has more
        connections than the client's principal would then have.
        """
        counted = self._all if listener is None else self._by_listener.get(listener, self._all)
        owner, largest = owner_of(ANONYMOUS, host), counted.largest()
        if largest is None or counted.used_by(largest) <= counted.used_by(owner) + 1:
            return None
        return min(islice(counted.entries_of(largest), _LOOKED_AT), key=attrgetter("last_active_ns"))
