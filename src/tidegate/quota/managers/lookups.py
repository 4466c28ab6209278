"""What a quota manager remembers of the clients it has looked up: their sensors, and the most they may use.

Looking a client up costs some ten times a decision. What is remembered is bounded in bytes, and forgotten as a whole:
when it is full, when a quota changed, and when sensors are gone.

>>> lookups: Lookups[str] = Lookups()
>>> lookups.remember("alice", "c1", "a sensor")
>>> lookups.sensors["alice"]["c1"], lookups.version
('a sensor', 0)
>>> lookups.forget()
>>> lookups.sensors, lookups.version
({}, 1)
"""

from typing import Generic, TypeVar

from tidegate.quota.measure.sensors import text_bytes

__all__ = ["MAX_CACHED_BYTES", "MAX_CACHED_NAME", "Lookups"]

MAX_CACHED_BYTES = 16 << 20
"""Most bytes of remembered lookups, `CACHED_BYTES` and the names each: some 60,000; past it all are looked up anew."""
MAX_CACHED_NAME = 256
"""Clients with a longer user or client id are looked up each time."""
CACHED_BYTES = 200  # places in two tables, and the tuple or table that they lead to

S = TypeVar("S")


class Lookups(Generic[S]):
    """Sensors (S) and largest values by client.

    sensors: by user, then client id. max_values: by (user, client id). Both are read in place, by every decision, and
    stay the same tables. version: grows whenever what was looked up before may be wrong.
    """

    __slots__ = ("_bytes", "max_values", "sensors", "version")

    def __init__(self) -> None:
        self.sensors: dict[str, dict[str, S]] = {}
        self.max_values: dict[tuple[str, str], float] = {}
        self.version = 0
        self._bytes = 0

    def remember(self, user: str, client_id: str, sensor: S) -> None:
        """Keep the sensor of a client, if its names are not too long."""
        if self._may_remember(user, client_id):
            self.sensors.setdefault(user, {})[client_id] = sensor

    def remember_max_value(self, user: str, client_id: str, value: float) -> None:
        """Keep the largest value of a client, likewise."""
        if self._may_remember(user, client_id):
            self.max_values[user, client_id] = value

    def forget(self) -> None:
        """Forget all."""
        self.sensors.clear()
        self.max_values.clear()
        self._bytes = 0
        self.version += 1

    def _may_remember(self, user: str, client_id: str) -> bool:
        """Count the bytes of one more lookup; return False where its names are too long to be kept."""
        if len(user) > MAX_CACHED_NAME or len(client_id) > MAX_CACHED_NAME:
            return False
        if self._bytes >= MAX_CACHED_BYTES:
            self.forget()
        self._bytes += CACHED_BYTES + text_bytes(user) + text_bytes(client_id)
        return True
