"""The lookups that a quota manager remembers: the sensors of clients, and the most that each client may use.

Looking up a client costs about ten times as much as a decision. Remembered lookups are bounded in bytes. All of them
are forgotten at once: when they take too many bytes, when a quota changed, and when sensors are gone.

With thousands of clients, reading memory dominates the cost of a decision. A client id mostly comes with one user:
`nearest` finds its sensor by the client id alone, which saves a table and its key, and the sensor names the user. Other
users of the same client id are found in `sensors`.
"""

from typing import Generic

from tidegate.quota.measure.sensor_table import S, text_bytes

__all__ = ["MAX_CACHED_BYTES", "MAX_CACHED_NAME", "Lookups"]

MAX_CACHED_BYTES = 16 << 20
"""Most bytes of remembered lookups, `CACHED_BYTES` and the names each: some 40,000; past it all are looked up anew."""
MAX_CACHED_NAME = 256
"""Clients with a longer user or client id are looked up each time."""
CACHED_BYTES = 300  # places in three tables, and the tuple or table that they lead to


class Lookups(Generic[S]):
    """Sensors (S) and largest values by client.

    sensors: by user, then client id. nearest: by client id, for the user that is the sensor's `found_for`.
    max_values: by (user, client id). All are read in place, by every decision, and stay the same tables.
    """

    __slots__ = ("_bytes", "max_values", "nearest", "sensors")

    def __init__(self) -> None:
        self.nearest: dict[str, S] = {}
        self.sensors: dict[str, dict[str, S]] = {}
        self.max_values: dict[tuple[str, str], float] = {}
        self._bytes = 0

    def remember(self, user: str, client_id: str, sensor: S) -> None:
        """Keep the sensor of a client, if its names are not too long."""
        if self._may_remember(user, client_id):
            self.sensors.setdefault(user, {})[client_id] = sensor
            if sensor.found_for is None:
                sensor.found_for = user
            if sensor.found_for == user:  # or others share it
                self.nearest.setdefault(client_id, sensor)

    def remember_max_value(self, user: str, client_id: str, value: float) -> None:
        """Keep the largest value of a client, likewise."""
        if self._may_remember(user, client_id):
            self.max_values[user, client_id] = value

    def forget(self) -> None:
        """Forget all."""
        self.nearest.clear()
        self.sensors.clear()
        self.max_values.clear()
        self._bytes = 0

    def _may_remember(self, user: str, client_id: str) -> bool:
        """Count the bytes of one more lookup; return False where its names are too long to be kept."""
        if len(user) > MAX_CACHED_NAME or len(client_id) > MAX_CACHED_NAME:
            return False
        if self._bytes >= MAX_CACHED_BYTES:
            self.forget()
        self._bytes += CACHED_BYTES + text_bytes(user) + text_bytes(client_id)
        return True
